"""The documentation builds without a warning, and every block of Python in it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphviz_torch

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda page: page.relative_to(ROOT)
)


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python of a page: the number of its line and its text, block after block."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    return [(text[: match.start()].count("\n") + 2, match[1]) for match in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs_after_those_above_it(page: Path, tmp_path: Path) -> None:
    if not blocks(page):
        pytest.skip("the page has no Python")
    # Lines as on the page, so that an error names the line to mend.
    lines = page.read_text().splitlines()
    kept = [""] * len(lines)
    for start, text in blocks(page):
        block = text.splitlines()
        kept[start - 1 : start - 1 + len(block)] = block
    program = tmp_path / f"{page.stem}.py"
    program.write_text("\n".join(kept) + "\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "searchindex.js").exists()  # the search needs no server


def test_the_reference_names_every_public_name() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = set(
        re.findall(r"auto\w+:: graphviz_torch\.(\w+)", "".join(p.read_text() for p in pages))
    )
    assert set(graphviz_torch.__all__) - named == set()
