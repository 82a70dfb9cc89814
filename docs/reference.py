"""Writes the tables of the reference: `python -m docs.reference`, in a checkout.

Which names stand on which page is written there by hand; a name that is on none is added to that
of its room. What a name does is the first sentence of its docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import graphviz_torch

FOLDER = Path(__file__).parent / "reference"
ROW = re.compile(r"^\| `(\w+)` \|.*$", re.M)


def row(name: str) -> str:
    """A name and what it does."""
    first = (inspect.getdoc(getattr(graphviz_torch, name)) or "").split("\n\n")[0]
    return f"| `{name}` | {' '.join(first.split())} |"


def page(before: str) -> str:
    """A page of the reference, with the names of the one before."""
    return ROW.sub(lambda match: row(match[1]), before)


def missing(pages: Iterable[str]) -> dict[str, list[str]]:
    """The public names that no page has, by their room."""
    named = {name for text in pages for name in ROW.findall(text)}
    found: dict[str, list[str]] = {}
    for name in sorted(set(graphviz_torch.__all__) - named):
        home = getattr(getattr(graphviz_torch, name), "__module__", graphviz_torch.__name__)
        found.setdefault(f"{home}..".split(".")[1] or "core", []).append(name)
    return found


if __name__ == "__main__":
    files = {file: file.read_text() for file in FOLDER.glob("*.md")}
    for room, names in missing(files.values()).items():
        file = FOLDER / f"{room}.md"
        file = file if file in files else FOLDER / "core.md"
        files[file] = files[file].rstrip() + "".join(f"\n| `{name}` |  |" for name in names) + "\n"
    for file, text in files.items():
        file.write_text(page(text))
