"""Write the outputs of programs into the pages of the documentation: `python -m docs.page_outputs`.

All blocks of a page are one program. Below each block, the page shows the text that the block
printed and the pictures that it drew; the pictures are files in docs/drawn/. Text that a library
prints by itself is left out. A Chinese page has the program and the outputs of the English page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from docs.programs import Output, blocks, outputs

FOLDER = Path(__file__).parent
DRAWN = FOLDER / "drawn"
# On these pages, each block is a program, and `docs.finding_pages` writes its report.
APART = ("findings/", "symptoms", "zh/findings/", "zh/symptoms")
SHOWN = re.compile(  # a block, the text that it printed, and the pictures that it drew
    r"^(?P<block>```python\n(?P<program>.*?)^```\n)"
    r"(?:\n```text\n(?P<printed>.*?)^```\n)?"
    r"(?P<drawn>(?:\n!\[[^]]*\]\([\w./-]*drawn/[\w.-]+\)\n)*)",
    re.M | re.S,
)
# A duration, a ratio of durations, or the number of rules, which grows with each new rule.
_VARYING = re.compile(r" *([\d.,]+ (?:ns|µs|ms|s)\b|[\d.]+x|\b\d+ (?=rules, ))")


def pages() -> list[Path]:
    """Return the English pages with programs."""
    found = (page for page in sorted(FOLDER.rglob("*.md")) if blocks(page.read_text()))
    places = {page: page.relative_to(FOLDER).as_posix() for page in found}
    return [page for page, place in places.items() if not place.startswith((*APART, "zh/"))]


def with_outputs(page: Path, done: list[Output], pictures: dict[Path, str]) -> str:
    """Return the text of a page with the output of each block below the block.

    Args:
        page: an English or a Chinese page.
        done: the outputs of the page's blocks.
        pictures: the pictures are added to this dict, by their file.
    """
    place = page.relative_to(FOLDER).with_suffix("").as_posix()
    chinese = place.startswith("zh/")
    name = place.removeprefix("zh/").replace("/", "-")
    rest = iter(enumerate(done, 1))

    def shown(block: re.Match[str]) -> str:
        number, output = next(rest)
        text = block["block"]
        if output.printed.strip() and "print(" in block["program"]:
            text += f"\n```text\n{output.printed.rstrip()}\n```\n"
        for letter, svg in zip("abcdefgh", output.drawn, strict=False):
            file = DRAWN / f"{name}-{number}{letter}.svg"
            pictures[file] = svg
            alt = "上面的程序画出的图" if chinese else "The picture that this program draws"
            text += f"\n![{alt}]({os.path.relpath(file, page.parent)})\n"
        return text

    return SHOWN.sub(shown, page.read_text())


def written(page: Path) -> dict[Path, str]:
    """Run a page, and return the current texts of the page, its translation and its pictures."""
    done, pictures = outputs(page.read_text()), dict[Path, str]()
    translation = FOLDER / "zh" / page.relative_to(FOLDER)
    both = [each for each in (page, translation) if each.exists() and blocks(each.read_text())]
    return {each: with_outputs(each, done, pictures) for each in both} | pictures


def without_varying(text: str) -> str:
    """Return a text with "#" instead of each duration, ratio of durations, and number of rules."""
    return _VARYING.sub(" #", text)


def main() -> None:
    """Write all pages and pictures, and delete pictures that no page uses."""
    files: dict[Path, str] = {}
    for page in pages():
        files |= written(page)
    DRAWN.mkdir(exist_ok=True)
    for file in {*DRAWN.glob("*.svg")} - {*files}:
        file.unlink()
    for file, text in files.items():
        if not file.exists() or without_varying(file.read_text()) != without_varying(text):
            file.write_text(text)


if __name__ == "__main__":
    main()
