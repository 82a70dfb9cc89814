"""Copy programs and reports from the English into the Chinese pages: `python -m docs.chinese`.

The prose in `docs/zh/` is translated by hand. A page there has the same outline as the English page
at the same path; `tests/docs/test_chinese.py` compares them.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "zh"
# Pages that list only translated pages.
CONTENTS = {FOLDER / "index.md", FOLDER / "findings" / "index.md"}
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_CELL = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]+)[^)]*\)")
_PICTURE = re.compile(r"!\[.*?\]\((.*?)\)", re.S)


def english(page: Path) -> Path:
    """Return the English page from which a Chinese page is translated."""
    place = page.relative_to(FOLDER)
    return ROOT / place if place.name == "README.md" else ROOT / "docs" / place


def translations() -> list[Path]:
    """Return the Chinese pages that have the same outline as their English page."""
    return sorted({*FOLDER.rglob("*.md")} - CONTENTS)


def with_programs_of(text: str, original: str) -> str:
    """Return a page with its fenced blocks replaced by those of another page.

    Raises:
        ValueError: if the pages have different numbers of blocks.
    """
    blocks = _FENCED.findall(original)
    if len(_FENCED.findall(text)) != len(blocks):
        raise ValueError(f"not {len(blocks)} fenced blocks")
    rest = iter(blocks)
    return _FENCED.sub(lambda _: next(rest), text)


def outline(page: Path) -> list[str]:
    """Return the outline of a page: a list of its parts, without their words.

    Parts are fenced blocks with their text, headings with their level, rows of tables with the
    number of their cells, items of lists, pictures with their file, and paragraphs.
    """
    parts, at, text = [], 0, page.read_text()
    for fenced in _FENCED.finditer(text):
        parts += [*_prose(text[at : fenced.start()], page), fenced[0]]
        at = fenced.end()
    return parts + _prose(text[at:], page)


def _prose(text: str, page: Path) -> list[str]:
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if heading := re.match(r"#+ ", block):
            parts.append(heading[0])
        elif block.startswith("|"):
            parts += [f"{len(_CELL.findall(row)) - 1} cells" for row in block.split("\n")]
        elif items := re.findall(r"^(?:[-*]|\d+\.) ", block, re.M):
            parts += ["item"] * len(items)
        elif block and not block.startswith("!["):
            parts.append("paragraph")
        parts += [str(file) for file in _resolved(_PICTURE.findall(block), page)]
    return parts


def links(page: Path) -> list[str]:
    """Return the addresses and files to which a page links, sorted."""
    return sorted(map(str, _resolved(_LINK.findall(_FENCED.sub("", page.read_text())), page)))


def _resolved(targets: list[str], page: Path) -> list[Path | str]:
    return [
        target if "://" in target else (page.parent / target).resolve().relative_to(ROOT)
        for target in targets
    ]


if __name__ == "__main__":
    for page in translations():
        page.write_text(with_programs_of(page.read_text(), english(page).read_text()))
