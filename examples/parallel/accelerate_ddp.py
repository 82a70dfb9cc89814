"""Hugging Face Accelerate.

torchrun --nproc-per-node=4 --no-python graphviz-torch run accelerate_ddp.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 16), torch.randn(64, 16)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch, target in loader:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.mse_loss(model(batch), target))
    optimizer.step()
accelerator.end_training()
