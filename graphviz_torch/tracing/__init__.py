"""Read live autograd nodes (`grad_fn`) into a `Graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from .tracer import iter_grad_fns as iter_grad_fns
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".tracer": "iter_grad_fns",
        },
    )
