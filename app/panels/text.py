"""The terms that a newcomer needs, behind a (?); numbers with units; text that stays text."""

from __future__ import annotations

import math

NODE = (
    "**Node** (`grad_fn`): what PyTorch notes down for each operation, so that backward can "
    "later compute gradients through it."
)
LEAF = (
    "**Leaf**: a tensor that no operation made, such as an input or a parameter. Backward ends "
    "there and adds the gradient to its `.grad`."
)
GRADIENT = (
    "**Gradient**: how much the output changes when a value changes a little. Backward computes "
    "it node by node, from the output to the leaves."
)
SAVED = "**Saved** tensors: what a node keeps from forward because its backward needs it again."
TRANSFER = (
    "**Transfer**: a copy of a tensor from one device to another. HtoD goes to an accelerator, "
    "DtoH comes back to the CPU, DtoD goes between two accelerators. A copy inside the graph is "
    "repeated in backward, the other way."
)


def size(nbytes: float | None) -> str:
    """`1536` -> `"1.5 KiB"`; None, where it is not known, -> `"? B"`."""
    if nbytes is None:
        return "? B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    if unit == "B":
        return f"{nbytes:.0f} B"
    return f"{math.floor(10 * nbytes + 0.5) / 10:.1f} {unit}"  # halves up, as the view has them


def duration(seconds: float | None) -> str:
    """`0.0015` -> `"1.5 ms"`; None, where it was not measured, -> `"not measured"`."""
    if seconds is None:
        return "not measured"
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    return f"{seconds / scale:.3g} {unit}"


def short(number: float) -> str:
    """`1020` -> `"1.02 k"`, `2_500_000` -> `"2.5 M"`."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5 or unit == " T":
            break
        number /= 1000
    return f"{number:.3g}{unit}"


def count(number: int, thing: str) -> str:
    """`count(1, "node")` -> `"1 node"`, `count(2, "node")` -> `"2 nodes"`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def escape(text: str) -> str:
    """A name as it is, where Streamlit would read Markdown in it; on one line."""
    special = "\\`*_{}[]()#+-.!|~$:<>&"
    return "".join(f"\\{letter}" if letter in special else letter for letter in text).replace(
        "\n", " "
    )


def prose(text: str) -> str:
    r"""A sentence of ours: as `escape`, but what stands between backticks is code, as it is meant.

    >>> print(prose("Try `mean(x ** 2)`, or 2 * 3."))
    Try `mean(x ** 2)`, or 2 \* 3\.
    """
    parts = text.replace("\n", " ").split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escape(text)
    return "".join(
        f"`{part}`" if i % 2 and part.strip() else escape(part) for i, part in enumerate(parts)
    )
