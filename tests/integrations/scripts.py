"""A training script, and functions that run scripts with and without `graphviz-torch run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

TRAINING = """\
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.b(self.a(x).detach())

def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(5):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
    print(__name__, __file__, sys.argv, sys.path[0], __spec__ and __spec__.name, loss.item())

if __name__ == "__main__":
    main()
    print("on stderr", file=sys.stderr)
"""
NODES = 9  # of a step: weight, bias, t and addmm of each layer, and sum
ARGUMENTS = ["--lr", "3", "--", "-o", "x"]
# What is said when the last of three steps has ended.
SAID_EARLY = re.compile(
    r"graphviz-torch: found so far, while the script continues\n(.*\n)*?1 warning\nRead more: .*\n"
)


def python(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the result of Python with these arguments."""
    command = [sys.executable, *arguments]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env=buffered,
        preexec_fn=_listen,
    )


def _listen() -> None:
    """Obey SIGHUP, which whoever started the tests with nohup has switched off."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def recorded(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the result of the command with these arguments."""
    return python("-m", "graphviz_torch", "run", *arguments, folder=folder)
