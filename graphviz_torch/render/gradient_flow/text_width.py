"""Measure the width of text with the letter widths of DejaVu Sans, the widest common font.

Pictures without a layout engine need these widths, so that texts do not overlap. Helvetica, Arial
and Liberation Sans are narrower.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Width, in hundredths of the font size -> letters of this width.
_PLAIN: Final = {
    27: "'",
    28: "ijl",
    29: "IJ",
    32: " ,.",
    34: "/:;\\|",
    35: "f",
    36: "-",
    39: "()[]t",
    40: "!",
    41: "r",
    46: '"',
    50: "*_`",
    52: "sz",
    53: "?",
    55: "c",
    56: "L",
    58: "Fk",
    59: "vxy",
    60: "P",
    61: "TYao",
    62: "e",
    63: "ESbdghnpqu",
    64: "$0123456789{}",
    66: "K",
    68: "AV",
    69: "BRXZ",
    70: "C",
    73: "U",
    75: "HN",
    77: "DG",
    78: "&",
    79: "OQ",
    82: "w",
    84: "#+<=>^~",
    86: "M",
    95: "%",
    97: "m",
    99: "W",
    100: "@",
}
_BOLD: Final = {
    31: "'",
    34: "ijl",
    35: " ",
    37: "/IJ\\|",
    38: ",.",
    40: ":;",
    42: "-",
    44: "f",
    46: "!()[]",
    48: "t",
    49: "r",
    50: "_`",
    52: '"*',
    58: "?z",
    59: "c",
    60: "s",
    64: "L",
    65: "vxy",
    67: "ak",
    68: "EFTe",
    69: "o",
    70: "$0123456789",
    71: "hnu{}",
    72: "SYbdgpq",
    73: "CPZ",
    76: "B",
    77: "AKRVX",
    81: "U",
    82: "G",
    83: "D",
    84: "#+<=>HN^~",
    85: "OQ",
    87: "&",
    92: "w",
    100: "%@M",
    104: "m",
    110: "W",
}
_OTHER: Final = 100  # width of letters that are not ASCII


@lru_cache(maxsize=2)
def _widths(bold: bool) -> dict[str, int]:
    rows = _BOLD if bold else _PLAIN
    return {letter: width for width, letters in rows.items() for letter in letters}


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in pixels.

    >>> text_width("wte", 12), text_width("wte", 12, bold=True)
    (21.96, 24.96)
    """
    known = _widths(bold)
    return round(sum(known.get(letter, _OTHER) for letter in text) * size / 100, 2)


def fit_text(
    text: str, max_width: float, size: float, *, bold: bool = False, end: bool = False
) -> str:
    """Return the text, shortened with "…" if it is wider than `max_width` pixels.

    Args:
        text: the text.
        max_width: maximum width in pixels.
        size: font size in pixels.
        bold: True if the text is drawn in bold.
        end: True to keep the end of the text, in which the paths of modules differ most.

    >>> fit_text("transformer", 50, 12), fit_text("transformer", 50, 12, end=True)
    ('transf…', '…ormer')
    """
    if text_width(text, size, bold=bold) <= max_width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        cut = f"…{text[-kept:]}" if end else f"{text[:kept]}…"
        if text_width(cut, size, bold=bold) <= max_width:
            return cut
    return "…"
