"""Detect views of data that exchange the sizes of two axes, where a permute was probably meant.

A view is checked if it creates no node and if the user's own code calls it. Views that create a
node are checked by rules, because the graph contains more information about them. Views by
libraries are not checked, because a library that splits attention heads may exchange sizes
correctly. A view that exchanges n and n + 1 is not reported, because it may be the relative shift
of attention positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...findings.rules.meaning.wrong_axes import ReorderedView
from ...internals.frames import OWN, code_owner
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..program import Program
from ..program.log import Found, Query, RowsOf


def reordered_views(event: Called, program: Program) -> Iterable[Found]:
    """Return the view that a call of the user's own code returns, if it reorders sizes of data."""
    given, result = event.args[0] if event.args else None, event.result
    if event.end > event.start or type(given) is not Tensor or type(result) is not Tensor:
        return ()
    before, after = tuple(given.shape), tuple(result.shape)
    if before == after or not (torch.is_grad_enabled() and _are_reordered(before, after)):
        return ()
    if code_owner(event.frame.f_code.co_filename) != OWN:
        return ()
    found = ReorderedView(function=event.func.__name__, before=before, after=after)
    return (Found(found, program.place(event.frame)),)


class DataViews(Query):
    """Find views of data whose shape has the same sizes in another order."""

    functions = frozenset((TensorBase.view, TensorBase.reshape, torch.reshape))
    rows_of: ClassVar[RowsOf] = {"on_call_end": reordered_views}


def _are_reordered(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return True if two shapes have the same sizes in another order, except for sizes of 1.

    The result is False if only two sizes n and n + 1 are exchanged.

    >>> _are_reordered((8, 32, 32, 3), (8, 3, 32, 32)), _are_reordered((8, 1, 32), (8, 32))
    (True, False)
    >>> _are_reordered((8, 5, 6), (8, 6, 5))
    False
    """
    left, right = ([size for size in sizes if size != 1] for sizes in (before, after))
    if left == right or sorted(left) != sorted(right):
        return False
    moved = sorted({one for one, other in zip(left, right, strict=True) if one != other})
    return len(moved) != 2 or moved[1] - moved[0] > 1
