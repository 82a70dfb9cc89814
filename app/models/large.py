"""Large: 12 blocks with 6.4 billion parameters, on the number of ranks in the form."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8192)
        self.up, self.act, self.down = nn.Linear(8192, 32768), nn.GELU(), nn.Linear(32768, 8192)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


def train(tp):
    dist.init_process_group("nccl")
    shape = dist.get_world_size() // tp, tp
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = nn.Sequential(*[Block() for _ in range(12)])
    for block in model:
        if tp > 1:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    while True:
        loss = model(torch.ones(4096, 8192, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# mypy: ignore-errors
