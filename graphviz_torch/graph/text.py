"""Short texts: shortened names, lists of names, and values as one line of Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

_MAX_ITEMS, _MAX_WIDTH = 3, 100  # maximum items of a tuple, and characters of a field, in a repr
_REQUIRED = object()
# First letters of abbreviations that take the article "an".
_VOWEL_LETTERS = tuple("AEFHILMNORSX")
_CALLED = ", called at "
_LINE = r"(?:(?<![\w./-])[\w./-]+\.py|In\[\d+\]):\d+"
_BOTH_LINES = rf"({_LINE}){_CALLED}({_LINE})"
_MAX_NAME, _MAX_PART = 40, 14  # maximum characters of a name, and of each part of a shortened name
_LONG_NAME = rf"(?<![\w./])(?!torch\.)\w[\w.]{{{_MAX_NAME - 1},}}\w(?![\w/(]|\.\w)"
# Control characters become visible symbols. Characters that XML forbids, or that change the text
# direction, become the replacement character.
_PICTURES = {
    **{i: chr(0x2400 + i) for i in range(32) if i != ord("\n")},
    0x7F: "\u2421",
    **dict.fromkeys(
        [
            *range(0x80, 0xA0),
            *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x2070)),
            *(0xFEFF, *range(0xFFF9, 0xFFFC), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)),
        ],
        "\ufffd",
    ),
}
# Beginnings of words that take "an" ("an int"), and exceptions that take "a" ("a unit").
_VOWELS, _CONSONANTS = tuple("aeiou"), ("uni", "use", "one")


def shorten(text: str, most: int, end: str = "…") -> str:
    """Return a text of at most `most` characters, cut at its end.

    >>> shorten("transformer", 6), shorten("transformer", 11)
    ('trans…', 'transformer')
    """
    return text if len(text) <= most else text[: most - len(end)] + end


def shorten_middle(name: str, most: int = 40) -> str:
    """Return a name of at most `most` characters; the middle of a longer name is cut out.

    >>> shorten_middle("encoder.layers.10.attention.weight", 24)
    'encoder.l…tention.weight'
    """
    if len(name) <= most:
        return name
    begin = (
        (most - 1) * 2 // 5
    )  # keep more of the end than of the beginning: paths differ at the end
    return f"{name[:begin]}…{name[begin + 1 - most :]}"


def printable(text: str, lines: bool = False) -> str:
    r"""Return a text in which control characters and invisible characters are Python escapes.

    File names, exception messages and values of the user pass through this function on their way to
    a terminal, SARIF, and TensorBoard's texts.

    Args:
        text: the text.
        lines: True to keep line breaks.

    >>> printable("fc1"), printable("a\nb\x1b[2J"), printable("a\nb", lines=True)
    ('fc1', 'a\\nb\\x1b[2J', 'a\nb')
    """
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


def drawable(text: str) -> str:
    r"""Return a text in which every character can be drawn, and none changes the text direction.

    A control character becomes its visible symbol; other such characters become the replacement
    character. Line breaks stay.

    >>> drawable("a\x1b[2J\u202eb")
    'a␛[2J�b'
    """
    return text if text.isprintable() else text.translate(_PICTURES)


def listing(names: Iterable[str], most: int = 3, last: str = " and ") -> str:
    """Return the first `most` names as text, with the number of the omitted names.

    If no name is omitted, `last` joins the last two.

    >>> listing("abcd"), listing("abc"), listing("ab", last=", ")
    ('a, b, c and 1 more', 'a, b and c', 'a, b')
    """
    names = list(names)
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return last.join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def first_items(lines: Sequence[str], most: int, more: str = "and {:,} more") -> list[str]:
    """Return the first `most` lines; if there are more, append a line with their number.

    >>> first_items(["a", "b", "c"], 3), first_items(["a", "b", "c"], 1)
    (['a', 'b', 'c'], ['a', 'and 2 more'])
    """
    over = len(lines) - most
    return [*lines[:most], more.format(over)] if over > 0 else [*lines]


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as text; three or more consecutive ranks become a range.

    >>> ranks_text([3]), ranks_text([0, 1, 2, 5]), ranks_text([0, 3])
    ('rank 3', 'ranks 0 to 2 and 5', 'ranks 0 and 3')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    texts = [text for part in parts for text in part]
    listed = listing(texts, len(texts))
    return f"ranks {listed}" if sum(map(len, runs)) > 1 else f"rank {listed}"


def short_repr(value: Any) -> str:
    """Return a short `repr` of a named tuple or dataclass, however large the value is.

    >>> from graphviz_torch.graph import Edge, Node, TensorMeta
    >>> Edge(0, 2, input_nr=1)
    Edge(source=0, target=2, input_nr=1)
    >>> Node(0, "UnbindBackward0", (TensorMeta((8,), "float32", "cpu"),) * 500, operation="unbind")
    Node(id=0, name='UnbindBackward0', outputs=(f32[8] cpu, f32[8] cpu, f32[8] cpu, … 497 more), \
operation='unbind')
    """
    read = ((name, getattr(value, name), default) for name, default in _defaults(type(value)))
    parts = [f"{name}={_text(one)}" for name, one, default in read if one != default]
    return f"{type(value).__name__}({', '.join(parts)})"


def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """Return the (field, default) pairs of a named tuple or dataclass."""
    if issubclass(kind, tuple):
        return [(name, kind._field_defaults.get(name, _REQUIRED)) for name in kind._fields]
    return [(field.name, field.default) for field in fields(kind)]


def _text(value: Any) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        items = [_text(item) for item in value[: _MAX_ITEMS + 1]]
        # Items that are not shown are only counted, so that placeholders suffice.
        items += [""] * (len(value) - len(items))
        shown = ", ".join(first_items(items, _MAX_ITEMS, "… {:,} more"))
        text = f"({shown}{',' * (len(items) == 1)})"
    elif hasattr(value, "_fields") and "__str__" in vars(type(value)):  # "f32[8, 128] cpu"
        text = printable(str(value))
    else:
        text = repr(value)
    return shorten(text, _MAX_WIDTH)


def called_at(library: str, user: str) -> str:
    """Return a library's line together with the user's line that called it.

    >>> called_at("modeling_gpt2.py:312", "train.py:41")
    'modeling_gpt2.py:312, called at train.py:41'
    """
    return f"{library}{_CALLED}{user}"


def users_line(source: str) -> str:
    """Return the user's line from a value of `Node.where`, which may begin with a library's line.

    >>> users_line("modeling_gpt2.py:312, called at train.py:41"), users_line("train.py:41")
    ('train.py:41', 'train.py:41')
    """
    return source.rpartition(_CALLED)[2]


def users_line_first(text: str) -> str:
    """Return a sentence with the user's line moved before the library's line.

    >>> users_line_first("sqrt at modeling_gpt2.py:312, called at train.py:41 made NaN.")
    'sqrt at train.py:41 (in modeling_gpt2.py:312) made NaN.'
    """
    return re.sub(_BOTH_LINES, r"\2 (in \1)", text)


def with_short_names(text: str) -> str:
    """Return a sentence with the names of parameters and modules shortened to about 40 characters.

    The numbers in a name, its first two parts and its last part are kept.

    >>> with_short_names("backbone.encoder.layers.11.attention.output.dense.weight is frozen.")
    'backbone.encoder.….11.….dense.weight is frozen.'
    """
    return re.sub(_LONG_NAME, lambda match: _short_name(match[0]), text)


def _short_name(name: str) -> str:
    parts = [p if len(p) <= _MAX_PART else f"{p[:8]}…{p[-5:]}" for p in name.split(".")]
    if parts[-1] == "py":
        return name
    middle = [i for i, part in enumerate(parts[2:-1], 2) if not part.isdecimal()]
    width = len(".".join(parts))
    for i in sorted(middle, key=lambda i: abs(i - len(parts) / 2)):
        if width <= _MAX_NAME:
            break
        neighbors = (parts[i - 1], parts[i + 1])
        width -= len(parts[i]) - 1 + 2 * neighbors.count("…")  # "….…" becomes "…"
        parts[i] = "…"
    return re.sub(r"…(?:\.…)+", "…", ".".join(parts))


def type_text(value: object) -> str:
    """Return the name of a value's type with its article.

    >>> type_text(3), type_text("y"), type_text(None)
    ('an int', 'a str', 'a NoneType')
    """
    name = type(value).__name__
    if name.isupper():
        return f"{'an' if name.startswith(_VOWEL_LETTERS) else 'a'} {name}"
    low = name.lower()
    return f"{'an' if low.startswith(_VOWELS) and not low.startswith(_CONSONANTS) else 'a'} {name}"


def print_text(value: object, printer: Any, cycle: bool) -> None:
    """Print `str(value)` in IPython: assign this function to `_repr_pretty_` in a class."""
    printer.text(str(value))


class Text(str):
    r"""A `str` that a notebook prints line by line.

    >>> text = Text("a\nb")
    >>> text == "a\nb", text.splitlines()
    (True, ['a', 'b'])
    """

    __slots__ = ()
    _repr_pretty_ = print_text
