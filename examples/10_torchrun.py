"""Train with DDP on four ranks, one of which skips a layer: a finding names the missing gradients.

    torchrun --nproc-per-node=4 10_torchrun.py

The command `python 10_torchrun.py` starts torchrun itself. The step is recorded under `no_sync()`,
in which DDP sends nothing. Otherwise it would wait forever for the missing gradients.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn

from graphviz_torch import diff, find, record
from graphviz_torch.distributed import gather_graphs

RANKS = 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.extra, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x, short=False):
        x = self.trunk(x)
        return self.head(x if short else self.extra(x)).sum()


def step(rank):
    model = nn.parallel.DistributedDataParallel(Model())
    with record(model) as recording, model.no_sync():
        model(torch.randn(8, 4), short=rank == 2).backward()
    graphs = gather_graphs(recording.graph, timeout=120)
    if graphs is None:  # every rank but the first
        return
    for rank, graph in enumerate(graphs):
        print(f"rank {rank}: {len(graph.nodes)} nodes, {len(diff(graphs[0], graph).removed)} fewer")
    findings = find(graphs)
    for finding in findings:
        print(finding.message, finding.advice, sep="\n")
    assert len(findings) == 1
    assert "Rank 2 has no gradient for extra.weight and extra.bias" in findings[0].message


if "RANK" in os.environ:
    dist.init_process_group("gloo")
    step(dist.get_rank())
    dist.destroy_process_group()
else:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*command, f"--nproc-per-node={RANKS}", __file__], check=True)
