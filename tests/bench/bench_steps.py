"""Measure the parts of a run in which every step of a tiny model is recorded.

Run `python -m tests.bench.bench_steps`. A network with three layers trains for `--steps` (1000)
steps without a recording, and then in `run --steps 0 -o FILE`. The script prints milliseconds of
processor time for each step: of the bare step, of the recorded step, and of the measured parts of
the recorded step; the rest belongs to the recorder. Then it measures loading the file and one step.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from graphviz_torch import Graph, load
from graphviz_torch.graph import training_file
from graphviz_torch.graph.files import columns
from graphviz_torch.integrations import steps
from graphviz_torch.integrations.command.main import main as command

_SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(16, 4), torch.randn(16, 1)
for _ in range({count}):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# For the file: the owner of a function, the function's name, and a description.
_PARTS: list[tuple[Any, str, str]] = [
    (Graph, "check", "checking"),
    (columns.Record, "encode", "encoding"),
    (training_file, "change", "comparing"),
    (training_file, "changed", "comparing"),
    (gzip, "compress", "compressing"),
    (training_file.TrainingFile, "_write", "writing"),
    (steps, "find", "finding"),
]


@contextlib.contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add to `spent` the seconds of the outermost call of each part."""
    running: set[str] = set()
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _PARTS]

    def around(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if part in running:
                return function(*args, **kwargs)
            running.add(part)
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] = spent.get(part, 0.0) + time.process_time() - began
                running.discard(part)

        return call

    try:
        for (owner, name, function), (_, _, part) in zip(before, _PARTS, strict=True):
            setattr(owner, name, around(function, part))
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds."""
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1000)
    count = parser.parse_args().steps
    torch.set_num_threads(1)
    source, spent = _SCRIPT.format(count=count), dict[str, float]()
    exec(_SCRIPT.format(count=50), {})
    bare = seconds(lambda: exec(source, {}))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("train.py").write_text(source)
        Path("short.py").write_text(_SCRIPT.format(count=50))
        with contextlib.redirect_stderr(io.StringIO()):
            command(["run", "--steps", "0", "-o", "short.json.gz", "short.py"])
            with timed(spent):
                recorded = seconds(
                    lambda: command(["run", "--steps", "0", "-o", "run.json.gz", "train.py"])
                )
        spent["recording"] = recorded - sum(spent.values())
        parts = ", ".join(f"{part} {1000 * s / count:.2f}" for part, s in spent.items())
        print(f"a step: plain {1000 * bare / count:.2f} ms, recorded {1000 * recorded / count:.2f}")
        print(
            f"of it: {parts}; the file has {Path('run.json.gz').stat().st_size / count:.0f} bytes"
        )
        print(f"{count} steps are loaded in {seconds(lambda: load('run.json.gz')):.2f} s", end="")
        with contextlib.suppress(TypeError):  # an older version lacks the argument
            print(f", one in {seconds(lambda: load('run.json.gz', step=count - 1)):.2f} s", end="")
        print()


if __name__ == "__main__":
    main()
