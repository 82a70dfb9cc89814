"""Find derivatives of `torch.func` by an argument that the differentiated function ignores."""

from __future__ import annotations

from collections.abc import Iterator

from ...findings.rules.gradient_reads import IgnoredFuncArgument
from ...internals.hooks.func_gradients import ZeroGradients, ZeroGradientWatch
from ..program.log import Found, Query
from ..program.rows import ObservedRow


class IgnoredFuncArguments(Query):
    """Find gradients of `torch.func` by an argument that a function ignores.

    >>> row = ObservedRow(ZeroGradients(2, None), place=((lambda: None).__code__, 0))
    >>> found = Found(IgnoredFuncArgument(tensors=2), row.place)
    >>> list(IgnoredFuncArguments().on_observed(row)) == [found]
    True
    """

    watches = (ZeroGradientWatch,)

    def on_observed(self, row: ObservedRow) -> Iterator[Found]:
        if isinstance(row.event, ZeroGradients):
            yield Found(IgnoredFuncArgument(tensors=row.event.inputs), row.place)
