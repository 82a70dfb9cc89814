"""Run the Python of a page, block after block, and return what each block printed and drew.

The blocks of a page are one program, `train.py`, in an empty folder: those below know the names of
those above, and the lines count on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tests.support.processes.forks import forked

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


class Output(NamedTuple):
    """The first line of a block in its program, and what the block printed and drew."""

    line: int
    printed: str
    drawn: list[str]  # SVG


def blocks(text: str) -> list[str]:
    """The blocks of Python on a page."""
    return BLOCK.findall(text)


def outputs(text: str, *, package: Path | None = None) -> list[Output]:
    """What each block of a page did, in a process of its own.

    Args:
        text: of the page.
        package: the folder that has the package, where it is not this one.

    Raises:
        RuntimeError: with the traceback, where a block raised.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        (Path(folder) / "train.py").write_text("\n".join(blocks(text)))
        program = Path(beside, "blocks.json")
        program.write_text(json.dumps(blocks(text)))
        words = ("-m", "docs.programs", str(program))
        if package is None:
            run = forked(*words, folder=Path(folder))
        else:
            run = subprocess.run(
                [sys.executable, *words],
                cwd=folder,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join([str(package), str(ROOT)])}
                | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
    if run.returncode:
        raise RuntimeError(run.stderr[-3000:])
    return [Output(*row) for row in json.loads(run.stdout)]


def _run(program: list[str]) -> list[Output]:
    """Run the blocks as `train.py` of this folder, with random numbers from seed 0."""
    import torch

    torch.manual_seed(0)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = "train.py"
    line, done, before = 1, [], {*Path().glob("**/*.svg")}
    for text in program:
        code = compile("\n" * (line - 1) + text, str(Path("train.py").resolve()), "exec")
        with redirect_stdout(StringIO()) as printed:
            exec(code, module.__dict__)
        drawn = [file for file in sorted(Path().glob("**/*.svg")) if file not in before]
        before.update(drawn)
        done.append(Output(line, printed.getvalue(), [file.read_text() for file in drawn]))
        line += text.count("\n") + 1
    return done


if __name__ == "__main__":
    stdout = sys.stdout
    sys.path.insert(0, os.getcwd())
    json.dump(_run(json.loads(Path(sys.argv[1]).read_text())), stdout)
