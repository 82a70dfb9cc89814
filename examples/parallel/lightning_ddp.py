"""Lightning's Trainer.

torchrun --nproc-per-node=4 --no-python graphviz-torch run lightning_ddp.py
"""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 16), torch.randn(64, 16)), batch_size=8)
trainer = Trainer(
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), loader)
