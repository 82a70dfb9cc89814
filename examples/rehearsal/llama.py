"""Train a model with Llama 3 70B's shapes: fully_shard, or also tensor parallelism (--tp).

graphviz-torch rehearse --ranks 1024 --device-memory 80GiB llama.py
graphviz-torch rehearse --ranks 128 --device-memory 80GiB llama.py --tp 8

Each block is checkpointed. Parameters and AdamW's state are float32; blocks compute in bfloat16.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=80)
parser.add_argument("--tokens", type=int, default=8192)
parser.add_argument("--tp", type=int, default=1, help="ranks that share one batch")
parser.add_argument("--steps", type=int, default=10)
args = parser.parse_args()

WIDTH, HIDDEN, VOCABULARY = 8192, 28672, 128256
HEAD, HEADS, KEY_HEADS = 128, 64, 8  # the width of a head; how many of queries, and of keys


def linear(inner, outer):
    return nn.Linear(inner, outer, bias=False)


def rotated(x, turns):
    """Queries or keys, turned by their places."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.o = linear(WIDTH, HEADS * HEAD), linear(HEADS * HEAD, WIDTH)
        self.k, self.v = linear(WIDTH, KEY_HEADS * HEAD), linear(WIDTH, KEY_HEADS * HEAD)

    def forward(self, x, turns):
        q, k, v = (each(x).unflatten(-1, (-1, HEAD)) for each in (self.q, self.k, self.v))
        q, k = rotated(q, turns), rotated(k, turns)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN)
        self.down = linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2, self.feed_forward = nn.RMSNorm(WIDTH), FeedForward()

    def forward(self, x, turns):
        x = x + self.attention(self.norm1(x), turns)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        speeds = 500_000.0 ** -(torch.arange(0, HEAD, 2, device=tokens.device) / HEAD)
        angles = torch.outer(places, speeds)[:, None]
        turns = torch.polar(torch.ones_like(angles), angles)
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False)
        return self.head(self.norm(x))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(
    "cuda", (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp")
)
with torch.device("meta"):
    model = Llama()
if args.tp > 1:
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")}
    plan |= {"attention.o": RowwiseParallel(), "feed_forward.down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device="cuda")
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.ones_(parameter)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(args.steps):
    tokens = torch.randint(VOCABULARY, (1, args.tokens + 1), device="cuda")
    scores = model(tokens[:, :-1])
    loss = F.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
