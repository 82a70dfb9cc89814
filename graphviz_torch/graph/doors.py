"""What a value is asked for that stands on it: to be read of a tensor, and to be shown.

All other arrows of the house go from a room to those below. Here are the two that go up, each taken
when it is asked for: a saved graph is read without torch, and judged without a picture.
"""

from __future__ import annotations

import sys
from typing import Any


def read(value: Any, inputs: tuple[Any, ...], names: Any) -> Any:
    """The graph of a tensor, or of a module called with inputs; None for any other value."""
    if sys.modules.get("torch") is None:  # then nothing of torch's can have been given
        return None
    from ..recording import target

    return target.read(value, inputs, names)


def shown(value: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """What a notebook shows of a graph or a recording, by MIME type."""
    from ..render import draw

    return dict(draw.draw_graph(value)._repr_mimebundle_(include, exclude))
