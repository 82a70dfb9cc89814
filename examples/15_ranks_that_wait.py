"""Two ranks wait for each other: print the line of each, and the call that one made more often.

    torchrun --nproc-per-node=2 --no-python graphviz-torch run 15_ranks_that_wait.py

The command `python 15_ranks_that_wait.py` starts torchrun itself. Rank 1 gathers one time more than
rank 0, which waits in the next line. Here PyTorch raises an error after eight seconds. By default
it waits for minutes, and the message is printed after ten seconds.
"""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

if "RANK" in os.environ:
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    x = torch.ones(3)
    for _ in range(3 + dist.get_rank()):
        dist.all_gather([torch.empty(3), torch.empty(3)], x)
    dist.all_reduce(x)
else:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command = [sys.executable, "-m", *torchrun, sys.executable, "-m", "graphviz_torch", "run"]
    done = subprocess.run([*command, __file__], stderr=subprocess.PIPE, text=True)
    [said] = [line for line in done.stderr.splitlines() if "all_reduce at" in line and ";" in line]
    print(said)
    assert said == (
        "graphviz-torch: rank 0 waits in all_reduce at 15_ranks_that_wait.py:23; "
        "rank 1 is in all_gather at 15_ranks_that_wait.py:22, called 1 time more"
    )
