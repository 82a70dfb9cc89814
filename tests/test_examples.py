"""Every example runs as it stands, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs_and_what_it_claims_holds(path: Path, tmp_path: Path) -> None:
    done = run([str(path)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if path.name == "16_who_has_what.py":
        page = ROOT / "docs" / "evening" / "6-many-devices.md"
        assert f"```text\n{done.stdout}```" in page.read_text("utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_asserts_what_it_claims(path: Path) -> None:
    assert "assert " in path.read_text()
