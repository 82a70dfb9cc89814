"""Measure how many small mistakes the tests catch: `python -m tests.bench.mutations`.

The script draws mutations from folders of the package ("rooms"). Each is a mistake that a person
could make: an inverted comparison, a missing statement, two swapped names. Each mutation is applied
to a copy of the tree, and the tests that run the mutated line are run, most specific first; if no
such test is known, the tests of the room are run. The script prints a line for each mutation, with
the test that failed, and the number of mutations that were caught.

`--count` mutations (60) are drawn with `--seed` (0) from `--rooms` (recording findings render).
`--keep FILE` stores them as text, or uses the mutations in FILE if the file exists, also in a tree
whose lines have moved. `--map FILE` stores which test runs which line (this needs pytest-cov and
one run of all tests); without it, the tests of the room are used. Lines are identified by their
text; for a test that no longer exists, its file is run. `--jobs` mutations run at the same time (as
many as there are processors). `--tree` names another checkout.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOMS = ("recording", "findings", "render")
_OPPOSITE = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_DROPPED = (ast.AugAssign, ast.Continue, ast.Break)
_MOST_TESTS = 120  # largest number of tests that are run for a mutation
_SECONDS = 900  # seconds for the tests of a mutation; one that hangs counts as caught


@dataclass(frozen=True)
class Mutation:
    """A mistake: in `file`, the nth occurrence of `right` is replaced by `wrong`."""

    file: str  # path relative to the tree's root
    line: int
    right: str
    nth: int
    wrong: str
    kind: str

    def apply(self, root: Path) -> None:
        """Apply the mistake to the tree at `root`; raise ValueError if `right` is not there."""
        path = root / self.file
        source = path.read_text() if path.exists() else ""
        start = -1
        for _ in range(self.nth + 1):
            start = source.find(self.right, start + 1)
            if start < 0:
                raise ValueError(f"{self.file} does not say {self.right!r} {self.nth + 1} times")
        path.write_text(source[:start] + self.wrong + source[start + len(self.right) :])


def mutations(path: Path, root: Path) -> Iterator[Mutation]:
    """Yield all mutations of one file."""
    source = path.read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def mutation(node: ast.expr | ast.stmt, text: str, kind: str) -> Mutation:
        assert node.end_lineno
        assert node.end_col_offset
        first, last = offsets[node.lineno - 1], offsets[node.end_lineno]
        start = first + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        right = source[first:last].decode()
        wrong = source[first:start].decode() + text + source[end:last].decode()
        nth = source[:first].decode().count(right)
        return Mutation(str(path.relative_to(root)), node.lineno, right, nth, wrong, kind)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            opposite = _OPPOSITE[type(node.ops[0])]
            flipped = ast.Compare(node.left, [opposite()], node.comparators)
            yield mutation(node, f"({ast.unparse(flipped)})", "comparison turned round")
        elif isinstance(node, ast.stmt) and (isinstance(node, _DROPPED) or _is_call(node)):
            yield mutation(node, "pass", f"left out: {ast.unparse(node)[:50]}")
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            first, second = node.args[:2]
            names = isinstance(first, ast.Name) and isinstance(second, ast.Name)
            if names and ast.unparse(first) != ast.unparse(second):
                swapped = ast.Call(node.func, [second, first, *node.args[2:]], node.keywords)
                yield mutation(node, ast.unparse(swapped), "two names swapped")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            swapped_sides = ast.BinOp(node.right, node.op, node.left)
            yield mutation(node, f"({ast.unparse(swapped_sides)})", "two sides swapped")


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def drawn(root: Path, rooms: list[str], count: int, seed: int) -> list[Mutation]:
    """Draw mutations, the same number from each package, and at most one from each line."""
    dice = random.Random(seed)
    found: list[Mutation] = []
    for k, room in enumerate(rooms):
        files = sorted((root / "graphviz_torch" / room).rglob("*.py"))
        files = [file for file in files if "node_modules" not in file.parts]
        by_line = {(m.file, m.line): m for file in files for m in mutations(file, root)}
        share = count // len(rooms) + (k < count % len(rooms))
        found += dice.sample(list(by_line.values()), min(share, len(by_line)))
    return found


def covering_tests(root: Path, file: Path, tests: list[str]) -> dict[str, dict[str, list[str]]]:
    """Return the tests that run each line, by file and text of the line; read or measure them."""
    if not file.exists():
        file.write_text(json.dumps(_measured(root, tests)))
    return dict(json.loads(file.read_text()))


def _measured(root: Path, tests: list[str]) -> dict[str, dict[str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "coverage"
        environment = os.environ | {"COVERAGE_FILE": str(data), "PYTHONPATH": str(root)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        command.append("--ignore-glob=*test_interrupts.py")  # it replaces coverage's tracer
        command += ["-n", "auto", "--cov=graphviz_torch", "--cov-context=test", "--cov-report="]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"the tests did not run:\n{done.stdout[-2000:]}")
        broken = set(re.findall(r"^(?:FAILED|ERROR) ([^\s[]+)", done.stdout, re.M))
        print(f"left out, for they fail without a mistake: {sorted(broken)}")
        import coverage  # installed with pytest-cov; not a dependency of the tests

        measured = coverage.CoverageData(str(data))
        measured.read()
        found: dict[str, dict[str, list[str]]] = {}
        for name in measured.measured_files():
            texts = Path(name).read_text().splitlines()
            file = found.setdefault(os.path.relpath(name, root), {})
            for line, contexts in measured.contexts_by_lineno(name).items():
                if not 0 < line <= len(texts):  # in an empty file, or in code that dynamo generated
                    continue
                tests_of = {_function(c) for c in contexts if c} - broken
                text = texts[line - 1].strip()
                file[text] = sorted(tests_of.union(file.get(text, [])))
    return found


def _function(context: str) -> str:
    """Return the test function of a coverage context; all its parameters are run."""
    return context.partition("|")[0].partition("[")[0]


def _there(root: Path, tests: list[str]) -> list[str]:
    """Return the tests that exist in the tree; a missing test is replaced by its file."""

    def found(test: str) -> str:
        file, _, name = test.partition("::")
        if not (root / file).exists():
            return ""
        return test if f"def {name}(" in (root / file).read_text() else file

    return list(filter(None, dict.fromkeys(map(found, tests))))


def caught_by(mutation: Mutation, root: Path, tests: list[str]) -> str:
    """Return the first test that fails with the mistake; "" if none does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        left_out = shutil.ignore_patterns("node_modules", ".git", "__pycache__", ".venv")
        shutil.copytree(root, copy, ignore=left_out)
        try:
            mutation.apply(copy)
        except ValueError:
            return "(no longer there)"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no"]
        command += ["-p", "no:cacheprovider", "-W", "ignore", *tests]
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return "a test that hangs"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" ", 1)[1] if failed else f"exit status {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS))
    parser.add_argument("--map", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2])
    options = parser.parse_args()
    root = options.tree.resolve()
    everything = [f"tests/{room}" for room in options.rooms if (root / "tests" / room).exists()]
    everything = everything or ["tests"]
    known = {} if options.map is None else covering_tests(root, options.map, everything)
    if options.keep and options.keep.exists():
        chosen = [Mutation(**kept) for kept in json.loads(options.keep.read_text())]
    else:
        chosen = drawn(root, options.rooms, options.count, options.seed)
    if options.keep:
        options.keep.write_text(json.dumps([asdict(m) for m in chosen], indent=1))
    lines_of = Counter(test for of in known.values() for tests in of.values() for test in tests)

    def tried(mutation: Mutation) -> bool:
        text = mutation.right.strip().partition("\n")[0]
        tests = known.get(mutation.file, {}).get(text, [])
        tests = sorted(tests, key=lambda test: (lines_of[test], test))[:_MOST_TESTS]
        tests = _there(root, tests) or [f"tests/{mutation.file.split('/')[1]}"]
        test = caught_by(mutation, root, tests)
        what = f"{mutation.file}:{mutation.line}  {mutation.kind}"
        print(f"{what}  {test or 'NOT CAUGHT'}", flush=True)
        return bool(test)

    with ThreadPoolExecutor(options.jobs) as pool:
        caught = sum(pool.map(tried, chosen))
    print(f"{caught} of {len(chosen)} caught")


if __name__ == "__main__":
    main()
