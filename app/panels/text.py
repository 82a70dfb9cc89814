"""Texts of the app: explanations of terms, numbers with units, and escaping for Markdown."""

from __future__ import annotations

import math

NODE = (
    "**Node** (`grad_fn`): PyTorch's record of an operation, with which backward can later compute "
    "gradients through it."
)
LEAF = (
    "**Leaf**: a tensor that is not the result of a recorded operation, such as an input or a "
    "parameter. Backward ends there and adds the gradient to its `.grad`."
)
GRADIENT = (
    "**Gradient**: how much the output changes when a value changes a little. Backward computes "
    "it node by node, from the output to the leaves."
)
SAVED = "**Saved** tensors: tensors of forward that a node keeps because its backward needs them."
TRANSFER = (
    "**Transfer**: a copy of a tensor from one device to another. HtoD goes to an accelerator, "
    "DtoH comes back to the CPU, DtoD goes between two accelerators. A copy inside the graph is "
    "repeated in backward, in the other direction."
)


def size(nbytes: float | None) -> str:
    """Return a number of bytes with a unit, such as "1.5 KiB"; "? B" for None."""
    if nbytes is None:
        return "? B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    if unit == "B":
        return f"{nbytes:.0f} B"
    return f"{math.floor(10 * nbytes + 0.5) / 10:.1f} {unit}"  # rounds halves up, as the view does


def duration(seconds: float | None) -> str:
    """Return a duration with a unit, such as "1.5 ms"; "not measured" for None."""
    if seconds is None:
        return "not measured"
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    return f"{seconds / scale:.3g} {unit}"


def short(number: float) -> str:
    """Return a number with a metric prefix: "1.02 k" for 1020, "2.5 M" for 2,500,000."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5 or unit == " T":
            break
        number /= 1000
    return f"{number:.3g}{unit}"


def count(number: int, thing: str) -> str:
    """Return a number with its noun: "2 nodes" for `count(2, "node")`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def escape(text: str) -> str:
    """Return a text as one line, with the special characters of Markdown escaped."""
    special = "\\`*_{}[]()#+-.!|~$:<>&"
    return "".join(f"\\{letter}" if letter in special else letter for letter in text).replace(
        "\n", " "
    )


def prose(text: str) -> str:
    r"""Return a sentence with Markdown's special characters escaped, except in backticks.

    >>> print(prose("Try `mean(x ** 2)`, or 2 * 3."))
    Try `mean(x ** 2)`, or 2 \* 3\.
    """
    parts = text.replace("\n", " ").split("`")
    if len(parts) % 2 == 0:  # a backtick is unpaired
        return escape(text)
    return "".join(
        f"`{part}`" if i % 2 and part.strip() else escape(part) for i, part in enumerate(parts)
    )
