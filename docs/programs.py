"""Run the Python of a page, block after block, and return what each block printed and drew.

All blocks of a page are one program, `train.py`, which runs in an empty folder. A block can use the
names of earlier blocks, and line numbers continue from block to block.
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
    """The number of a block's first line in the program, and the text and pictures it produced."""

    line: int
    printed: str
    drawn: list[str]  # pictures as SVG


def blocks(text: str) -> list[str]:
    """Return the blocks of Python on a page."""
    return BLOCK.findall(text)


def outputs(text: str, *, package: Path | None = None) -> list[Output]:
    """Run the blocks of a page in a new process, and return the output of each block.

    Args:
        text: text of the page.
        package: folder with the package to use; None uses this checkout.

    Raises:
        RuntimeError: if a block raised, with the traceback.
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
    """Run the blocks as `train.py` in the current folder, with random seed 0."""
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
