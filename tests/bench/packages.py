"""Print the packages in graphviz_torch with their numbers of files and lines, and their imports.

Run `python -m tests.bench.packages`. With the name of a file, such as `packages.svg`, the imports
between packages are drawn as a graph. With `--hops`, the script prints the number of files that run
in a recorded step of three layers, the number of calls between different files (direct or through
torch), and the files that call each other in both directions.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from graphviz_torch import Graph, draw_graph, record
from graphviz_torch.graph import Edge, Node

PACKAGE = Path(__file__).parents[2] / "graphviz_torch"


def package_of(parts: tuple[str, ...]) -> str:
    """Return the package of a module, from the parts of its path below the package."""
    return parts[0] if len(parts) > 1 else "(root)"


def imports(file: Path) -> set[str]:
    """Return the packages that a file imports from, except its own."""
    inside = file.relative_to(PACKAGE).parts
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = inside[: len(inside) - node.level]
            below = (node.module or "").split(".") if node.module else []
            target = (*above, *below)
            found.add(target[0] if target and (PACKAGE / target[0]).is_dir() else "(root)")
    return found - {package_of(inside)}


class Package(NamedTuple):
    """The number of files and lines of a package, and the packages that it imports from."""

    files: int
    lines: int
    imports: set[str]


@cache
def packages() -> dict[str, Package]:
    """Return the packages by name, each after those that it imports from.

    Raises:
        graphlib.CycleError: if packages import each other in a cycle.
    """
    files: dict[str, list[Path]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if "node_modules" not in file.parts:
            files.setdefault(package_of(file.relative_to(PACKAGE).parts), []).append(file)
    known = {
        name: Package(
            len(inside),
            sum(len(file.read_text().splitlines()) for file in inside),
            set().union(*map(imports, inside)) - {"(root)"},  # files with the public names
        )
        for name, inside in files.items()
    }
    order = TopologicalSorter(
        {name: package.imports for name, package in known.items()}
    ).static_order()
    return {name: known[name] for name in order}


def drawn(sizes: dict[str, Package]) -> Graph:
    """Return a graph of the packages, with an edge from each imported package to its importer."""
    ids = {name: i for i, name in enumerate(sizes)}
    nodes = tuple(
        Node(i, name, (), note=f"{sizes[name].files} files, {sizes[name].lines} lines")
        for name, i in ids.items()
    )
    edges = tuple(
        Edge(ids[source], ids[name], 0, nr)
        for name, package in sizes.items()
        for nr, source in enumerate(sorted(package.imports))
    )
    return Graph(nodes, edges)


def recorded_step() -> None:
    """Record the forward and backward of three layers."""
    layers = (torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model, inputs = torch.nn.Sequential(*layers), torch.ones(3, 4)
    with record(model) as recording:
        model(inputs).square().mean().backward()
    _ = recording.graph


def hops() -> tuple[set[str], set[tuple[str, str]]]:
    """Return the package's files that run in a recorded step, and pairs of caller and callee."""
    files: set[str] = set()
    calls: set[tuple[str, str]] = set()

    def own(frame: FrameType) -> str:
        file = Path(frame.f_code.co_filename)
        return str(file.relative_to(PACKAGE)) if PACKAGE in file.parents else ""

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not (file := own(frame)):
            return
        files.add(file)
        caller = frame.f_back
        while caller is not None and not own(caller):
            caller = caller.f_back
        if caller is not None and own(caller) != file:
            calls.add((own(caller), file))

    recorded_step()  # work that is done once in a process
    sys.setprofile(note)
    try:
        recorded_step()
    finally:
        sys.setprofile(None)
    return files, calls


def print_hops() -> None:
    files, calls = hops()
    packages()  # raises if imports form a cycle
    print("no package imports one that imports it")
    pairs = sorted((a, b) for a, b in calls if a < b and (b, a) in calls)
    print(f"{len(files)} files, {len(calls)} calls, {len(pairs)} pairs that call each other:")
    for pair in pairs:
        print("   ", *pair)


def main() -> None:
    if sys.argv[1:] == ["--hops"]:
        print_hops()
        return
    sizes = packages()
    for name, package in sizes.items():
        imported = " ".join(sorted(package.imports))
        print(
            f"{name:14}{package.files:4} files {package.lines:6} lines   imports {imported or '-'}"
        )
    for path in sys.argv[1:]:
        print(draw_graph(drawn(sizes)).render(outfile=path))


if __name__ == "__main__":
    main()
