"""Test that a deep traced graph is freed without overflowing the stack.

Each case runs in a child process. With an 8 MB stack, a plain walk from Python overflows the stack
of a graph of 40,625 nodes. The first test shows this, so that the other tests prove something.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.support.processes.forks import forked

CHAIN = """
import sys, threading
import torch
from graphviz_torch import trace
from graphviz_torch.tracing import iter_grad_fns
from tests.support.models import chain

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def custom(length):
    x = y = torch.ones((), requires_grad=True)
    for _ in range(length):
        y = Double.apply(y)
    return y

def residual(length):
    x = y = torch.ones((), requires_grad=True)
    for _ in range(length):
        y = y + y * 0.5
    return y

def stacked(length):
    # The output is joined to every step, the first step first.
    y = torch.ones((), requires_grad=True)
    steps = []
    for _ in range(length):
        y = y * 1.0
        steps.append(y)
    return torch.stack(steps)

def in_place(length):
    y = torch.ones(2, requires_grad=True).clone()
    for _ in range(length):
        y[0] *= 1.0
    return y

def bare(y):
    fns = [y.grad_fn]
    for fn in fns:
        fns.extend(source for source, _ in fn.next_functions if source is not None)
"""


def run(code: str, folder: Path, crashes: bool = False) -> str:
    (folder / "program.py").write_text(CHAIN + code)
    done = forked("program.py", folder=folder)
    if crashes:
        assert done.returncode < 0, done.stderr
    else:
        assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


@pytest.mark.skipif(
    torch.__version__ < TorchVersion("2.13"),
    reason="older PyTorch lets go of the Python objects of nodes, and does not crash",
)
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 does not crash there")
def test_a_plain_walk_from_python_does_kill_the_process(tmp_path: Path) -> None:
    run("y = chain(60_000); bare(y); del y", tmp_path, crashes=True)


def test_deep_outputs_that_were_traced_are_dropped_in_the_ordinary_way(tmp_path: Path) -> None:
    makes = [
        *("custom(60_000)", "residual(40_000)", "stacked(60_000)", "in_place(20_000)"),
        "chain(400_000)",
    ]
    code = "".join(f"y = {make}; assert len(trace(y).nodes) > 50_000; del y\n" for make in makes)
    run(code, tmp_path)


def test_it_is_safe_however_it_goes_on(tmp_path: Path) -> None:
    ways = [
        "iter_grad_fns(y); del y",
        "trace(y); trace(y); bare(y); del y",
        "trace(y * 2); del y",
        "trace(y); z = y\nfor _ in range(30_000):\n    z = z * 1.0\ndel y, z",
        "trace(y); y.backward(); del y",
        "trace(y); y = None",
        "y = chain(100_000); trace(y); middle = y.grad_fn\n"
        "for _ in range(50_000):\n    middle = middle.next_functions[0][0]\ndel y; del middle",
        "trace(y); print('the interpreter frees the last one at its end')",
    ]
    out = run("".join(f"y = chain(60_000); {way}\n" for way in ways), tmp_path)
    assert out == "the interpreter frees the last one at its end\n"


def test_a_deep_graph_goes_at_once_in_a_small_stack_too_and_a_shallow_one_gets_nothing(
    tmp_path: Path,
) -> None:
    out = run(
        "import gc, resource, weakref; from tests.support.models import dense_block\n"
        "for y in (chain(1500), dense_block(700)):\n"
        "    print('shallow', sum(len(fn.metadata) for fn in iter_grad_fns(y)))\n"
        "before = resource.getrlimit(resource.RLIMIT_STACK)\n"
        "y = chain(100_000); trace(y)\n"
        "print('same limits', resource.getrlimit(resource.RLIMIT_STACK) == before); del y\n"
        "threading.stack_size(512 * 1024)\n"
        "def work():\n    y = chain(100_000); trace(y); del y; print('thread', 'alive')\n"
        "t = threading.Thread(target=work); t.start(); t.join()\n"
        "gc.disable()\n"
        "x = torch.ones((), requires_grad=True); y = x\n"
        "saved = torch.ones(()); seen = weakref.ref(saved)\n"
        "for _ in range(20_000):\n    y = y * saved\n"
        "del saved; trace(y); assert seen() is not None; del y; print('kept', seen())",
        tmp_path,
    )
    expected = ["shallow 0", "shallow 0", "same limits True", "thread alive", "kept None"]
    assert out.splitlines() == expected
