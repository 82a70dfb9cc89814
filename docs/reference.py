"""Writes the tables of the reference: `python -m docs.reference`, in a checkout.

Which names stand on which page is written there by hand. What a name does is the first sentence of
its docstring.
"""

from __future__ import annotations

import inspect
import re
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


if __name__ == "__main__":
    for file in FOLDER.glob("*.md"):
        file.write_text(page(file.read_text()))
