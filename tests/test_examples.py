"""The README's Python and every example run as they stand, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs_and_what_it_claims_holds(path: Path, tmp_path: Path) -> None:
    done = run([str(path)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_asserts_what_it_claims(path: Path) -> None:
    assert "assert " in path.read_text()


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_readmes_python_runs_as_pasted(number: int, tmp_path: Path) -> None:
    # Blocks build on those before them, as a reader who pastes them in order sees it.
    done = run(["-c", "\n".join(BLOCKS[: number + 1])], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
