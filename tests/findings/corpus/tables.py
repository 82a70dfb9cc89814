"""The complete tables of `cases`: each file of rows adds its own."""

from __future__ import annotations

from importlib import import_module
from inspect import getmembers, isfunction, signature
from pathlib import Path

from tests.findings.corpus.cases import HEALTHY

for folder in ("reported", "healthy"):
    for file in sorted((Path(__file__).parent / folder).glob("*.py")):
        module = import_module(f"tests.findings.corpus.{folder}.{file.stem}")
        if folder == "healthy":
            for name, program in getmembers(module, isfunction):
                if "record" in signature(program).parameters:
                    assert name not in HEALTHY, name
                    HEALTHY[name] = program
