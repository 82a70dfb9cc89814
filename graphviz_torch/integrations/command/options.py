"""Options that a function has, as options of a command: named and described once, in the function.

A keyword of type `bool`, `int`, `float`, `str` or a `Literal` becomes an option; others do not.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def add_options(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Add an option for each keyword of `function`: `color_by` is "--color-by".

    Args:
        parser: gets the options.
        function: whose keywords.
    """
    hints = get_type_hints(function)
    says = _described(function)
    for name, keyword in inspect.signature(function).parameters.items():
        if keyword.kind is not keyword.KEYWORD_ONLY:
            continue
        how = _how(name, hints[name])
        if how is not None:
            flag = "--" + name.replace("_", "-")
            text = first_clauses(in_shell(says.get(name, ""), flag)).replace("%", "%%")
            parser.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=text, **how)


def given(parsed: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """The keywords of `function` that the user gave."""
    keywords = inspect.signature(function).parameters.values()
    names = [keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY]
    return {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}


def in_shell(says: str, flag: str) -> str:
    """What a docstring says of a keyword, for those who type a flag: a shell has no None.

    >>> in_shell("draw it as one; None does so where there are many; False never.", "--fold")
    'draw it as one; left out, it does so where there are many; --no-fold never.'
    >>> in_shell('colour by "device". In Python also by a function, or None.', "--color-by")
    'colour by "device".'
    """
    says = says.partition(" In Python ")[0].replace("`math.inf`", "inf")
    says = re.sub(r"\. None: ", "; left out, ", says)
    says = re.sub(r"; None ", "; left out, it ", says)
    return re.sub(r"\bFalse\b", flag.replace("--", "--no-", 1), says)


def first_clauses(text: str, most: int = 110) -> str:
    """Return the clauses at the start of a description that fit two lines of a terminal.

    >>> first_clauses("fold what repeats; left out, it does so above 40 nodes. More text.", 40)
    'fold what repeats'
    """
    ends = [found.start() for found in re.finditer(r"[;.](?= |$)", text)]
    fitting = [end for end in ends if end <= most]
    return text[: max(fitting, default=min(ends, default=len(text)))]


def _how(name: str, hint: Any) -> dict[str, Any] | None:
    if get_origin(hint) in (Union, types.UnionType):
        # What cannot be written on a command line, as a function, is left to Python.
        others = (type(None), Callable)
        hints = [e for e in get_args(hint) if e not in others and get_origin(e) not in others]
        if len(hints) != 1:
            return None
        hint = hints[0]
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if name.endswith("_tolerance"):
        return {"type": _tolerance, "metavar": "RATIO"}
    words = {int: "N", float: "NUMBER", str: "TEXT"}
    return {"type": hint, "metavar": words[hint]} if hint in words else None


def _tolerance(text: str) -> float:
    number = float(text)
    if math.isnan(number) or number < 0:
        raise argparse.ArgumentTypeError(
            f"{text} is not a relative difference: pass 0 or more, or inf."
        )
    return number


def _described(function: Callable[..., Any]) -> dict[str, str]:
    """What the "Args" of a docstring say of each name."""
    text = inspect.getdoc(function) or ""
    _, _, rest = text.partition("Args:\n")
    found: dict[str, str] = {}
    for names, says in re.findall(r"^    ([a-z_, ]+): (.*(?:\n     +.*)*)", rest, re.M):
        for name in names.split(", "):
            found[name] = " ".join(says.split())
    return found
