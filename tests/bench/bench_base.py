"""Compare the speed of the working tree with that of a commit.

    python -m tests.bench.bench_base 242afe1 --rounds 30 --rows find diff
    python -m tests.bench.bench_base 242afe1 --models small --calls
    python -m tests.bench.bench_base 242afe1 --models large --rounds 3

Each of the two versions runs in a process of its own, with the same models. They take turns row by
row, so that other processes slow down both alike. The script prints the median over the rounds of
the working tree's time divided by the commit's time, and the quartiles. Times are CPU times of the
thread. With `--calls`, calls are counted instead of time, those of Python functions and of C
functions, by `sys.setprofile`; the counts are the same in every run. A row is "not there" if the
commit has no function for it.

    bare            the model's forward and backward, not recorded
    record          the same step in `with record(model)`, with the graph ready
    trace, names    tracing a new forward's graph, without names and with the names of variables
    find ... html   functions of the recorded graph, which has no cached results
    diff            comparing the recorded graph with that of a model with one more block
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUNDLE = "graphviz_torch/render/view/dist"  # not in Git: the commit uses the working tree's copy

MODELS = {"small": 30, "transformer": 24, "blocks": 1000, "large": 14_500}  # blocks of each
ROWS = ["bare", "record", "trace", "names", "find", "dot", "save", "load", "diff", "html"]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="commit to compare with the working tree")
    parser.add_argument("--models", nargs="+", default=list(MODELS)[:3], choices=MODELS)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--calls", action="store_true", help="count calls, in a single round")
    return parser


# The following code runs in the process of a version. It imports only the package of that version.


class Side:
    """One of the two versions: it has a model, a step and a recorded graph, and runs rows."""

    def __init__(self, model: str, folder: Path) -> None:
        import torch

        import graphviz_torch

        torch.set_num_threads(1)
        self.package: Any = graphviz_torch
        self.model, self.inputs = self._made(model, MODELS[model])
        self.step()
        self._graph = pickle.dumps(self.recorded())
        other, inputs = self._made(model, MODELS[model] + 1)
        self._other = pickle.dumps(self.recorded(other, inputs))
        self.file = folder / "step.json"
        self.folder = folder
        self.graph.save(self.file)

    @staticmethod
    def _made(model: str, blocks: int) -> tuple[Any, Any]:
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + torch.tanh(self.linear(self.norm(x)))

        torch.manual_seed(0)
        made: Callable[[], nn.Module] = Block
        if model == "transformer":

            def made() -> nn.Module:
                return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

        width = 16 if model == "transformer" else 8
        return nn.Sequential(*(made() for _ in range(blocks))), torch.randn(4, 6, width)

    @property
    def graph(self) -> Any:
        """Return the recorded graph for one row, without cached results."""
        return pickle.loads(self._graph)

    def step(self, model: Any = None, inputs: Any = None) -> None:
        model = model or self.model
        model(self.inputs if inputs is None else inputs).square().mean().backward()
        model.zero_grad()

    def recorded(self, model: Any = None, inputs: Any = None) -> Any:
        model = model or self.model
        with self.package.record(model) as recording:
            self.step(model, inputs)
        return recording.graph

    def work(self, row: str) -> Callable[[], object]:
        """Return a function that does the work of a row; all preparations are done."""
        package = self.package
        if row == "bare":
            return self.step
        if row == "record":
            return self.recorded
        if row in ("trace", "names"):
            model, inputs = self.model, self.inputs
            loss = model(inputs).square().mean()

            def named() -> object:
                variables = (model, inputs, loss)  # `trace` reads the variables of this frame
                return package.trace(variables[-1])

            return named if row == "names" else lambda: package.trace(loss, names={})
        graph = self.graph
        if row == "find":
            return lambda: package.find(graph)
        if row == "dot":
            home = getattr(package, "export", package)  # the root in older commits
            return lambda: home.to_dot(graph)
        if row == "save":
            return lambda: graph.save(self.folder / "again.json")
        if row == "load":
            return lambda: package.load(self.file)
        if row == "html":
            return lambda: package.to_html(graph)
        if row == "diff":
            other = pickle.loads(self._other)
            return lambda: package.diff(graph, other)
        raise ValueError(f"{row} is not one of {ROWS}.")

    def seconds(self, row: str) -> float:
        work = self.work(row)
        gc.collect()
        start = time.thread_time()
        work()
        return time.thread_time() - start

    def calls(self, row: str) -> float:
        """Return the number of calls to Python and C functions in a row, after a warm-up."""
        self.work(row)()
        work = self.work(row)
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        return count

    def serve(self) -> None:
        """Answer input lines, such as "seconds find", with a number or the reason for none."""
        print(json.dumps(len(self.graph.nodes)), flush=True)
        gc.collect()
        gc.freeze()  # ignores existing objects, so that a collection is quick
        for line in sys.stdin:
            question, row = line.split()
            try:
                answer: object = getattr(self, question)(row)
            except (AttributeError, TypeError, ValueError) as error:
                answer = f"{type(error).__name__}: {error}"
            print(json.dumps(answer), flush=True)


# The following code runs in the parent process.


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Context manager that checks out a commit in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        if (ROOT / BUNDLE).exists() and not (tree / BUNDLE).exists():
            shutil.copytree(ROOT / BUNDLE, tree / BUNDLE)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


class Child:
    """The process of one version."""

    def __init__(self, tree: Path, model: str, folder: Path) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--side", model, str(folder)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.nodes: int = self._read()

    def ask(self, question: str, row: str) -> Any:
        assert self._process.stdin is not None
        print(question, row, file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"A side ended with {self._process.wait()}.")
        return json.loads(line)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(sides: list[Child], rows: list[str], rounds: int) -> None:
    """Measure the versions in turns, and print the ratio of each row: first to second."""
    answers: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for number in range(rounds + 1):  # the first round is a warm-up
        for row in list(rows):
            order = sides if number % 2 else sides[::-1]
            pair = [side.ask("seconds", row) for side in order]
            new, old = pair if number % 2 else pair[::-1]
            if isinstance(new, str) or isinstance(old, str):
                print(f"  {row:10} {'not there' if isinstance(old, str) else new}")
                rows = [other for other in rows if other != row]
            elif number:
                answers[row].append((new, old))
    for row in rows:
        low, middle, high = statistics.quantiles([new / old for new, old in answers[row]], n=4)
        ours, theirs = (statistics.median(pair[i] for pair in answers[row]) * 1e3 for i in (0, 1))
        spread = f"({low:.2f} to {high:.2f})"
        print(f"  {row:10} {middle:5.2f}   {spread:16} {ours:9.2f} ms {theirs:9.2f} ms", flush=True)


def compare_calls(sides: list[Child], rows: list[str]) -> None:
    """Print the calls for each node in each row, and the ratio."""
    for row in rows:
        new, old = (side.ask("calls", row) for side in sides)
        if isinstance(new, str) or isinstance(old, str):
            print(f"  {row:10} {'not there' if isinstance(old, str) else new}")
        else:
            ours, theirs = new / sides[0].nodes, old / sides[1].nodes
            print(f"  {row:10} {new / old:5.2f}   {ours:9.2f} a node {theirs:9.2f}", flush=True)


def main() -> None:
    options = parser().parse_args()
    with checkout(options.commit) as tree, tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            base = Path(folder) / model
            sides = [
                Child(ROOT, model, Path(f"{base}_new")),
                Child(tree, model, Path(f"{base}_old")),
            ]
            print(f"{model}: {sides[0].nodes} nodes, the commit {sides[1].nodes}", flush=True)
            if options.calls:
                compare_calls(sides, options.rows)
            else:
                compare(sides, options.rows, options.rounds)
            for side in sides:
                side.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        Side(sys.argv[2], Path(sys.argv[3])).serve()
    else:
        main()
