"""Text for terminals: line width, and tables that keep their most informative columns."""

from __future__ import annotations

import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from .immutable import NamedTuple
from .text import printable

_SHELL: ContextVar[bool] = ContextVar("_SHELL", default=False)
PIPED_WIDTH = 80  # width of a line if the output is not a terminal
_GAP = 2  # characters between columns


class TableColumn(NamedTuple):
    """A column of a table.

    Cells may be shortened to `least` characters. If `least` is 0, they are never shortened.
    """

    title: str
    cells: Sequence[str]
    least: int = 0
    right: bool = False
    tail: bool = False  # True to keep the end of a shortened cell, as for a path


def line_width(wide: bool = False) -> int | None:
    """Return the line width of the terminal; 80 if there is none; None (unlimited) if `wide`."""
    if wide:
        return None
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if is_terminal() else PIPED_WIDTH


def is_terminal() -> bool:
    """Return True if the output goes to a terminal, which wraps long lines."""
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # sys.stdout is None (no console), or closed
        return False


@contextmanager
def in_shell() -> Iterator[None]:
    """Make `option` return command-line flags inside the block, instead of Python keywords.

    >>> with in_shell():
    ...     option("wide"), option("compiled", "eager")
    ('--wide', '--compiled eager')
    """
    token = _SHELL.set(True)
    try:
        yield
    finally:
        _SHELL.reset(token)


def is_shell() -> bool:
    """Return True inside a block of `in_shell`, where text is for the command line."""
    return _SHELL.get()


def option(name: str, value: object = True) -> str:
    """Return the name of an option: a keyword in Python, a flag in a shell.

    >>> option("wide"), option("compiled", "eager")
    ('wide=True', "compiled='eager'")
    >>> with in_shell():
    ...     option("fold", False), option("color_by", "dtype")
    ('--no-fold', '--color-by dtype')
    """
    if not _SHELL.get():
        return f"{name}={value!r}"
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {shlex.quote(str(value))}"


def hidden_columns_text(titles: Sequence[str], width: int | None) -> str:
    """Return a sentence that names the columns that did not fit, and the option that shows them.

    >>> hidden_columns_text(["saved", "time"], 80)
    'Hidden at 80 columns: saved, time; wide=True shows all.'
    """
    return f"Hidden at {width} columns: {', '.join(titles)}; {option('wide')} shows all."


def width_of(text: str) -> int:
    """Return the number of terminal cells that a text takes.

    >>> width_of("loss"), width_of("损失")
    (4, 4)
    """
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def cut(text: str, width: int, *, tail: bool = False) -> str:
    """Shorten a text to `width` cells: drop its end, or its start if `tail`.

    >>> cut("transformer.h.0.attn", 9), cut("transformer.h.0.attn", 9, tail=True)
    ('transfor…', '…h.0.attn')
    """
    if width_of(text) <= width:
        return text
    count = cells = 0
    for letter in reversed(text) if tail else text:
        cells += width_of(letter)
        if cells >= width:
            break
        count += 1
    return f"…{text[len(text) - count :]}" if tail else f"{text[:count]}…"


def table(
    columns: Sequence[TableColumn], width: int | None, order: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the lines of a table, titles first, and the titles of the columns that did not fit.

    Columns whose cells are all empty are left out and do not count as hidden.

    Args:
        columns: the columns, from left to right.
        width: characters of a line; None if unlimited.
        order: titles of columns, the most informative first. Columns that are not named are the
            first to be hidden.
    """
    used = [
        column._replace(title=printable(column.title), cells=list(map(printable, column.cells)))
        for column in columns
        if any(column.cells)
    ]
    rank = {title: i for i, title in enumerate(order)}
    telling = sorted(used, key=lambda column: rank.get(column.title, len(rank)))
    natural = {c.title: max(map(width_of, (c.title, *c.cells))) for c in used}
    least = {c.title: min(natural[c.title], c.least or natural[c.title]) for c in used}
    if width is None:
        sizes = natural
    else:
        while telling and sum(least[c.title] + _GAP for c in telling) - _GAP > width:
            telling.pop()
        sizes = {c.title: least[c.title] for c in telling or used[:1]}
        spare = width - sum(sizes.values()) - _GAP * (len(sizes) - 1)
        for title in sizes:  # the most informative column gets spare width first
            more = max(0, min(spare, natural[title] - sizes[title]))
            sizes[title] += more
            spare -= more
    shown = [column for column in used if column.title in sizes]
    rows = zip(*((c.title, *c.cells) for c in shown), strict=True)
    lines = [
        (" " * _GAP)
        .join(_cell(text, sizes[c.title], c) for text, c in zip(row, shown, strict=True))
        .rstrip()
        for row in rows
    ]
    return lines, [column.title for column in used if column.title not in sizes]


def _cell(text: str, size: int, column: TableColumn) -> str:
    text = cut(text, size, tail=column.tail)
    space = " " * (size - width_of(text))
    return space + text if column.right else text + space
