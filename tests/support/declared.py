"""Copy the package, and add to the copy the fields that CONTRIBUTING declares as examples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A file whose name goes on after ".pyc" is being written by another worker.
IGNORED = shutil.ignore_patterns("node_modules", "*.ts", "*.js", "*.map", "*.pyc.*")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def declarations() -> dict[str, list[str]]:
    """Return name of a class -> lines of CONTRIBUTING that declare fields of this class."""
    found: dict[str, list[str]] = {}
    for lines in re.findall(r"^    # in (\w+)\n((?:    \w+: Annotated.*\n)+)", CONTRIBUTING, re.M):
        found[lines[0]] = lines[1].splitlines()
    return found


def declare(folder: Path) -> Path:
    """Copy the package into a folder, and add the declared fields to the classes of the copy."""
    package = folder / "graphviz_torch"
    shutil.copytree(ROOT / "graphviz_torch", package, ignore=IGNORED)
    values = package / "graph" / "nodes.py"
    text = values.read_text()
    for name, lines in declarations().items():
        start = text.index(f"class {name}(")
        end = text.index("\n\n    def ", start)
        text = text[:end] + "\n" + "\n".join(lines) + text[end:]
    values.write_text(text)
    return folder
