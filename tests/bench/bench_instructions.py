"""What recording costs in instructions, which are the same on a busy machine and on a quiet one.

    python -m tests.bench.bench_instructions               each recorded step beside the bare one
    python -m tests.bench.bench_instructions --blocks 20

A step is `zero_grad`, forward and backward of blocks of LayerNorm, Linear, tanh and add. A recorded
step is the whole `with` block with `recording.graph` ready. valgrind's callgrind counts; it has to
be installed, on x86-64. The process asks valgrind to begin and to end as valgrind.h does it: by
rotations of a register that change nothing, which valgrind recognizes. It takes minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import mmap
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from graphviz_torch import record

SETTINGS: dict[str, bool | str | None] = {
    "bare": None,
    "everything": True,
    "finite": "finite",
    "no gradients": False,
}
WARM = 3  # steps before the counted one: caches are filled


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Valgrind:
    """Requests to the valgrind that runs this process; without one they do nothing."""

    DUMP, START, STOP = 0x43540000, 0x43540004, 0x43540005  # of callgrind.h
    CODE = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=7)  # readable, writable and executable
        self._page.write(self.CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._request = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address)

    def __call__(self, request: int) -> None:
        self._request(ctypes.byref((ctypes.c_long * 6)(request)))

    def count(self, run: Callable[[], object]) -> None:
        """Write the number of instructions of a call to the next file."""
        self(self.START)
        run()
        self(self.STOP)
        self(self.DUMP)


def child(blocks: int) -> None:
    """Run each setting's step, and count the last one."""
    valgrind = Valgrind()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(Block(32) for _ in range(blocks)))
    batch = torch.randn(8, 32)

    def step() -> None:
        model.zero_grad()
        model(batch).square().mean().backward()

    for setting in SETTINGS.values():

        def run(gradients: bool | str | None = setting) -> None:
            if gradients is None:
                step()
                return
            with record(model, gradients=gradients) as recording:  # type: ignore[arg-type]
                step()
            assert recording.graph.nodes

        for _ in range(WARM):
            run()
        gc.collect()
        valgrind.count(run)


def count(blocks: int) -> list[int]:
    """Return the instructions of one step in each setting."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        command += ["--instr-atstart=no"]
        command += [sys.executable, "-m", __spec__.name, "--child", "--blocks", str(blocks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        parts = sorted(Path(folder).glob("out.*"), key=lambda part: int(part.suffix[1:]))
        totals = [re.search(r"^totals: (\d+)", part.read_text(), re.MULTILINE) for part in parts]
        return [int(total[1]) for total in totals if total is not None][: len(SETTINGS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.blocks)
        return
    counted = count(options.blocks)
    print(
        f"A step of {options.blocks} blocks, in millions of instructions, and beside the bare step"
    )
    for name, instructions in zip(SETTINGS, counted, strict=True):
        print(f"  {name:<14} {instructions / 1e6:8.1f} {instructions / counted[0]:6.2f}")


if __name__ == "__main__":
    main()
