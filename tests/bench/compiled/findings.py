"""Compare the findings of `find` for programs with and without a compiled model.

    python -m tests.bench.compiled.findings            programs with a mistake, and healthy ones
    python -m tests.bench.compiled.findings NAME ...   these programs
    python -m tests.bench.compiled.findings --compiled eager

A program is a row of tests/findings: it makes a model and passes it to `record`. It runs twice; in
the second run, that model is compiled in place just before (aot_eager; for one of PyTorch's
containers, each of its modules is compiled). For each program, the script prints findings of the
compiled run alone ("+"), and warnings and errors of the other run alone ("-"). Findings about graph
breaks, recompilations and compiled regions are expected in the compiled run only. The last line has
the number of programs whose mistake is found without compilation and that compiled a model, and the
number of these with at least the same findings in the compiled run.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from graphviz_torch.graph import Finding
from tests.findings.corpus import cases, tables
from tests.findings.mistakes.rows import MISTAKES, SILENT

assert tables  # importing the package fills the tables
for file in sorted((Path(cases.__file__).parents[1] / "mistakes").glob("*.py")):
    import_module(f"tests.findings.mistakes.{file.stem}")

Row = tuple[cases.Program, str | None]
OF_COMPILED = ("compile-graph-break", "compile-recompile", "compile-skipped")


def programs() -> dict[str, Row]:
    rows: dict[str, Row] = {name: (row.program, row.raises) for name, row in MISTAKES.items()}
    rows |= {name: (program, None) for name, (program, _) in SILENT.items()}
    rows |= {name: (row.program, row.raises) for name, row in cases.REPORTED.items()}
    return rows | {name: (program, None) for name, program in cases.HEALTHY.items()}


class Compiling(cases.Recorder):
    """A recorder that first compiles the model that it gets."""

    compiled = False

    def __call__(self, *args: Any, **options: Any) -> Any:
        model = args[0] if args else None
        if isinstance(model, nn.Module):
            own = type(model).__module__.startswith("torch.")
            for module in model.children() if own and len([*model.children()]) else (model,):
                if isinstance(module, nn.Module) and not isinstance(module, nn.ModuleList):
                    module.compile(backend="aot_eager")
                    self.compiled = True
        return super().__call__(*args, **options)


def told(findings: list[Finding]) -> dict[tuple[str, ...], Finding]:
    """Return the findings by rule, line and parameters; node numbers and norms are not compared."""
    found = {}
    for one in findings:
        if one.severity != "info" and one.rule not in OF_COMPILED:
            names = sorted(set(re.findall(r"[\w.]+\.(?:weight|bias)", one.message)))
            found[(one.rule, one.where, one.cause, *names)] = one
    return found


class Compared(NamedTuple):
    """The comparison of a program's two runs."""

    text: str = ""  # lines to print; "" if the findings are equal or nothing was compiled
    named: bool = False  # a model was compiled, and the uncompiled run has findings
    same: bool = False  # and the compiled run has all of these findings


def compare(name: str, row: Row, how: str) -> Compared:
    """Run a program uncompiled and compiled, and compare the findings."""
    program, raises = row
    try:
        eager = told(cases.play(program, raises))
    except Exception as error:
        return Compared(f"{name}: uncompiled, it ended otherwise: {str(error)[:100]}")
    torch._dynamo.reset()
    recorder, play = Compiling(compiled=how), cases.Recorder
    cases.Recorder = lambda **_: recorder  # type: ignore[assignment, misc]
    try:
        compiled = told(cases.play(program, raises))
    except Exception as error:
        text = f"{name}: compiled, it ended otherwise: {str(error)[:100]}"
        return Compared(text, recorder.compiled and bool(eager))
    finally:
        cases.Recorder = play  # type: ignore[misc]
    lines = [
        f"  + {compiled[k].rule} [{k[1]}] {compiled[k].message}" for k in compiled.keys() - eager
    ]
    lines += [f"  - {eager[k].rule} [{k[1]}] {eager[k].message}" for k in eager.keys() - compiled]
    text = "\n".join([name, *sorted(lines)]) if lines and recorder.compiled else ""
    named = recorder.compiled and bool(eager)
    return Compared(text, named, named and eager.keys() <= compiled.keys())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compiled", default="open", choices=("open", "eager"))
    parsed = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    rows, found = programs(), list[Compared]()
    for name in parsed.names or rows:
        found.append(compare(name, rows[name], parsed.compiled))
        if found[-1].text:
            print(found[-1].text, flush=True)
    named, same = sum(one.named for one in found), sum(one.same for one in found)
    print(
        f"{len(found)} programs; {named} compiled ones with a mistake, {same} named as uncompiled"
    )


if __name__ == "__main__":
    sys.exit(main())
