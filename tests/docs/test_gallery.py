"""Test that the gallery shows each well-known model in a picture that fits a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.sixteen import SMALLEST, size_and_text
from tests.support.zoo import ZOO

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(
    r"\]\((gallery/[^)]+)\)<br>\*\*(.+?)\*\*: ([\d,]+) nodes, ([\d,]+) by ([\d,]+) points",
    (DOCS / "gallery.md").read_text(),
)
OTHERS = re.findall(r"\]\((architectures/[^)]+)\)<br>", (DOCS / "architectures.md").read_text())


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_model_has_a_picture() -> None:
    assert [title for _, title, *_ in ROWS] == ["The worked example", *ZOO]


@pytest.mark.parametrize(("file", "title", "nodes", "width", "height"), ROWS)
def test_a_picture_has_the_size_that_the_page_tells(
    file: str, title: str, nodes: str, width: str, height: str
) -> None:
    drawn = (DOCS / file).read_text()
    sizes = number(width), number(height)
    assert f'<svg width="{sizes[0]}pt" height="{sizes[1]}pt"' in drawn
    # Small print of 9.5 points is at least 9 pixels high on a page of 830 by 1,500 pixels.
    assert sizes[0] <= 830 * 9.5 / 9, title
    assert sizes[1] <= 1500 * 9.5 / 9, title


def test_the_page_of_other_projects_has_forty_different_pictures() -> None:
    assert len({*OTHERS}) == 40
    assert {path.name for path in (DOCS / "architectures").iterdir()} == {
        file.rpartition("/")[2] for file in OTHERS
    }


@pytest.mark.parametrize("file", OTHERS)
def test_a_picture_of_another_project_fits_a_page(file: str) -> None:
    assert size_and_text((DOCS / file).read_text())[2] >= SMALLEST
