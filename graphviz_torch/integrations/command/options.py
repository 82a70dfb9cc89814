"""Derive command-line options from a function's keyword arguments and its docstring.

A keyword of type `bool`, `int`, `float`, `str` or `Literal` becomes an option, and its description
in the docstring becomes the help text.
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
    """Add an option for each keyword of `function`: `color_by` becomes "--color-by".

    Args:
        parser: the parser of a command.
        function: the function that the command calls.
    """
    hints = get_type_hints(function)
    descriptions = _keyword_descriptions(function)
    for name, keyword in inspect.signature(function).parameters.items():
        if keyword.kind is not keyword.KEYWORD_ONLY:
            continue
        settings = _argument_settings(name, hints[name])
        if settings is not None:
            flag = "--" + name.replace("_", "-")
            text = first_clauses(shell_text(descriptions.get(name, ""), flag)).replace("%", "%%")
            parser.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=text, **settings)


def given_options(parsed: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword arguments of `function` that are options on the command line."""
    keywords = inspect.signature(function).parameters.values()
    names = [keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY]
    return {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}


def shell_text(text: str, flag: str) -> str:
    """Reword the description of a keyword argument for the command line.

    "None does so" becomes "left out, it does so", "False" becomes the flag with "no-", and text
    about Python values is removed.

    >>> shell_text("draw it as one; None does so where there are many; False never.", "--fold")
    'draw it as one; left out, it does so where there are many; --no-fold never.'
    >>> shell_text('color by "device". In Python also by a function, or None.', "--color-by")
    'color by "device".'
    """
    text = text.partition(" In Python ")[0].replace("`math.inf`", "inf")
    text = re.sub(r"\. None: ", "; left out, ", text)
    text = re.sub(r"; None ", "; left out, it ", text)
    return re.sub(r"\bFalse\b", flag.replace("--", "--no-", 1), text)


def first_clauses(text: str, max_length: int = 110) -> str:
    """Cut a description after a sentence or clause, so that it fits in two lines of a terminal.

    >>> first_clauses("fold what repeats; left out, it does so above 40 nodes. More text.", 40)
    'fold what repeats'
    """
    ends = [found.start() for found in re.finditer(r"[;.](?= |$)", text)]
    fitting = [end for end in ends if end <= max_length]
    return text[: max(fitting, default=min(ends, default=len(text)))]


def _argument_settings(name: str, hint: Any) -> dict[str, Any] | None:
    """Return the arguments for `add_argument`; None if this keyword cannot be an option.

    Args:
        name: name of the keyword.
        hint: its type.
    """
    if get_origin(hint) in (Union, types.UnionType):
        # A command line cannot contain None or a callable, so only the remaining type is used.
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
            f"{text} is not a relative difference: pass a number of 0 or more, or inf."
        )
    return number


def _keyword_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Return name of a parameter -> its description in the "Args" section of the docstring."""
    _, _, rest = (inspect.getdoc(function) or "").partition("Args:\n")
    found: dict[str, str] = {}
    for names, text in re.findall(r"^    ([a-z_, ]+): (.*(?:\n     +.*)*)", rest, re.M):
        for name in names.split(", "):
            found[name] = " ".join(text.split())
    return found
