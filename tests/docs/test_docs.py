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
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}
    - {*(ROOT / "docs" / "findings").glob("*.md")},  # each program there runs alone
    key=lambda page: page.relative_to(ROOT),
)


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python of a page: the number of its line and its text, block after block."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    return [(text[: match.start()].count("\n") + 2, match[1]) for match in found]


def run(program: str, folder: Path) -> None:
    """Run a program in a folder; it must end well."""
    file = folder / "train.py"
    file.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs_after_those_above_it(page: Path, tmp_path: Path) -> None:
    if not blocks(page):
        pytest.skip("the page has no Python")
    # Each line where it stands on the page, so that an error names the line to mend.
    lines = page.read_text().splitlines()
    kept = [""] * len(lines)
    for start, text in blocks(page):
        block = text.splitlines()
        kept[start - 1 : start - 1 + len(block)] = block
    run("\n".join(kept) + "\n", tmp_path)


def test_the_readme_is_short_and_opens_with_the_picture_that_its_first_lines_draw(
    tmp_path: Path,
) -> None:
    """Draw the picture anew with `python docs/images.py` where this fails for a change of looks."""
    readme = ROOT / "README.md"
    assert len(readme.read_text().split()) <= 900
    run(blocks(readme)[0][1], tmp_path)
    shown = re.findall(r"!\[.*?\]\((.*?)\)", readme.read_text())
    assert (tmp_path / "first_graph.svg").read_text() == (ROOT / shown[0]).read_text()
    assert all((ROOT / picture).exists() for picture in shown)


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


def test_the_chinese_readme_has_the_code_of_the_english_one() -> None:
    chinese = ROOT / "docs" / "README.zh-CN.md"
    fence = re.compile(r"^```\w+\n.*?^```", re.M | re.S)
    assert fence.findall(chinese.read_text()) == fence.findall((ROOT / "README.md").read_text())
