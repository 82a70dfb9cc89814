"""The house in one table: rooms, files, lines, who imports whom. `python -m tests.bench.house`"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "graphviz_torch"


def room(parts: tuple[str, ...]) -> str:
    """The room of a module, given as the parts of its path below the package."""
    return parts[0] if len(parts) > 1 else "(root)"


def imports(file: Path) -> set[str]:
    """The rooms that a file imports from, its own left out."""
    inside = file.relative_to(PACKAGE).parts
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = inside[: len(inside) - node.level]
            below = (node.module or "").split(".") if node.module else []
            target = (*above, *below)
            found.add(target[0] if target else "(root)")
    return found - {room(inside)}


def main() -> None:
    files = [f for f in sorted(PACKAGE.rglob("*.py")) if "node_modules" not in f.parts]
    count: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    arrows: dict[str, set[str]] = {}
    for file in files:
        name = room(file.relative_to(PACKAGE).parts)
        count[name] += 1
        lines[name] += len(file.read_text().splitlines())
        arrows.setdefault(name, set()).update(imports(file))
    print(f"{'room':14}{'files':>6}{'lines':>7}  imports")
    for name in sorted(count):
        print(f"{name:14}{count[name]:6}{lines[name]:7}  {' '.join(sorted(arrows[name]))}")


if __name__ == "__main__":
    main()
