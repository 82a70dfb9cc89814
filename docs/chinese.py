"""Copy programs and reports of the English pages into the Chinese ones: `python -m docs.chinese`.

The prose of `docs/zh/` is translated by hand. Each page there has the outline of the English page
at the same path: `tests/docs/test_chinese.py` compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "zh"
CONTENTS = {FOLDER / "index.md", FOLDER / "findings" / "index.md"}  # list what is translated
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_CELL = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]+)[^)]*\)")
_PICTURE = re.compile(r"!\[.*?\]\((.*?)\)", re.S)


def english(page: Path) -> Path:
    """Return the English page of a Chinese one."""
    place = page.relative_to(FOLDER)
    return ROOT / place if place.name == "README.md" else ROOT / "docs" / place


def translations() -> list[Path]:
    """Return the Chinese pages that follow an English page part by part."""
    return sorted({*FOLDER.rglob("*.md")} - CONTENTS)


def with_programs_of(text: str, original: str) -> str:
    """Return a page with the fenced blocks of another one in place of its own.

    Raises:
        ValueError: if the pages differ in their number of blocks.
    """
    blocks = _FENCED.findall(original)
    if len(_FENCED.findall(text)) != len(blocks):
        raise ValueError(f"not {len(blocks)} fenced blocks")
    rest = iter(blocks)
    return _FENCED.sub(lambda _: next(rest), text)


def outline(page: Path) -> list[str]:
    """Return the parts of a page in order, without their words.

    A part is a fenced block with its text, a heading with its level, the cells of a row, an item
    of a list, a picture with its file, or a paragraph.
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
    """Return the addresses and files that a page links, sorted."""
    return sorted(map(str, _resolved(_LINK.findall(_FENCED.sub("", page.read_text())), page)))


def _resolved(targets: list[str], page: Path) -> list[Path | str]:
    return [
        target if "://" in target else (page.parent / target).resolve().relative_to(ROOT)
        for target in targets
    ]


if __name__ == "__main__":
    for page in translations():
        page.write_text(with_programs_of(page.read_text(), english(page).read_text()))
