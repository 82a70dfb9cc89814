"""The tables of `cases`, full: each file of rows enters its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

for folder in ("reported", "healthy"):
    for file in sorted((Path(__file__).parent / folder).glob("*.py")):
        import_module(f"tests.findings.corpus.{folder}.{file.stem}")
