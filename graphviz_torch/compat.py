"""Provide functions of other libraries under the same names: `make_dot` of torchviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph.lazy import lazy_names

if TYPE_CHECKING:
    from .render.draw import make_dot as make_dot
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".render.draw": "make_dot",
        },
    )
