"""Graphs made by hand for each rule: one that triggers the rule, and similar ones that do not.

Each file of this folder has a table `CASES`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.findings.by_hand.graphs import Case

CASES: dict[str, Case] = {}
FOLDER = Path(__file__).parent
for file in sorted(FOLDER.rglob("*.py")):
    if file.stem not in ("cases", "graphs"):
        inside = ".".join(file.relative_to(FOLDER).with_suffix("").parts)
        CASES |= import_module(f"tests.findings.by_hand.{inside}").CASES
