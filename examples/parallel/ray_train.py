"""Ray Train's TorchTrainer: each worker records itself.

python ray_train.py
"""

import ray
import ray.train.torch
import torch
from torch import nn

from graphviz_torch import find, record
from graphviz_torch.distributed import collectives


def train(config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + ray.train.get_context().get_world_rank())
    with record(model) as recording:
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    kinds = [each.kind for each in collectives(recording) if each.phase == "backward"]
    assert set(kinds) == {"all_reduce"}
    assert not [each for each in find(recording) if each.severity != "info"]


ray.init(num_cpus=3, include_dashboard=False)
workers = ray.train.ScalingConfig(num_workers=2, use_gpu=False)
ray.train.torch.TorchTrainer(train, scaling_config=workers).fit()
