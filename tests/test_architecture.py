"""Who imports whom: downwards only, read from the source with `ast`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "graphviz_torch"
STANDARD = sys.stdlib_module_names
# Recorders stand side by side; record.py alone knows them all.
RECORDERS = {"modules", "gradients.recorder", "memory", "transfers", "cuts", "failures.operands"}


def imports(path: Path, *, inside_functions: bool = True) -> set[str]:
    """Absolute names of what a file imports: "torch.nn", "graphviz_torch.graph"."""
    tree = ast.parse(path.read_text())
    parts = path.relative_to(ROOT).with_suffix("").parts
    nodes = ast.walk(tree) if inside_functions else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level]
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.update([module] if node.module else [f"{module}.{a.name}" for a in node.names])
    return found


def files(*patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in sorted(PACKAGE.glob(pattern))]
    return [path for path in found if "node_modules" not in path.parts]


def test_the_graph_stands_on_the_standard_library_alone() -> None:
    used = {
        name.split(".")[0]
        for name in imports(PACKAGE / "graph" / "values.py", inside_functions=False)
    } - {""}
    assert used <= STANDARD


@pytest.mark.parametrize(
    "path",
    files("render/**/*.py", "findings/*.py", "comparison/*.py", "graph/*.py"),
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_what_reads_a_graph_never_imports_torch(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize("name", sorted(RECORDERS))
def test_a_recorder_does_not_know_the_other_recorders(name: str) -> None:
    others = {f"graphviz_torch.recording.{other}" for other in RECORDERS - {name}}
    others |= {"graphviz_torch.recording.recording", "graphviz_torch.findings"}
    assert not imports(PACKAGE / "recording" / f"{name.replace('.', '/')}.py") & others


def test_the_app_uses_public_names_only() -> None:
    for path in sorted((ROOT / "app").rglob("*.py")):
        ours = {name for name in imports(path) if name.split(".")[0] == "graphviz_torch"}
        assert ours <= {"graphviz_torch"}, path
