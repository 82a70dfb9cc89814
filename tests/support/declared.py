"""Copy the package, and declare the fields there that CONTRIBUTING gives as examples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns("node_modules", "__pycache__", "*.ts", "*.js", "*.map")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def declarations() -> dict[str, list[str]]:
    """Return the lines with fields on the page, by the class that the page names above them."""
    found: dict[str, list[str]] = {}
    for lines in re.findall(r"^    # in (\w+)\n((?:    \w+: Annotated.*\n)+)", CONTRIBUTING, re.M):
        found[lines[0]] = lines[1].splitlines()
    return found


def declare(folder: Path) -> Path:
    """Copy the package into a folder, and add each line after the last field of its class."""
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
