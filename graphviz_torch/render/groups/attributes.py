"""Attributes that distinguish operations of one name when blocks are compared.

`pow 2` differs from `pow 3`. An attribute that is only a position in a sequence is ignored, so the
steps of an unrolled loop, each of which selects its own row, are isomorphic, and so are blocks that
slice their weights from one stacked tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ...graph import Edge, Node

# (prefix of the autograd name, attributes to ignore): the position of the part that is read or
# written; for "", that is any operation, the state of the random generator and the name of data.
# The size of the part is compared by the shape of the output.
_PLACES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("Select", frozenset(("index", "idx"))),  # x[3], x.select(0, 3), select_scatter, select_copy
    ("Slice", frozenset(("start", "end"))),  # x[3:5], narrow, tensor_split, slice_scatter
    ("Narrow", frozenset(("start",))),  # narrow_copy
    ("AsStrided", frozenset(("storage_offset",))),
    ("", frozenset(("seed", "philox_seed", "philox_offset", "data"))),
)
# Operations with one output for each part of a tensor. If a single output is used, its output_nr is
# ignored, as the index of a select is.
_PARTS: Final = ("Unbind", "Split", "UnsafeSplit", "Chunk")


@lru_cache(maxsize=4096)
def distinguishing(name: str, attributes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes of an operation that distinguish it; `name` is its autograd name.

    >>> distinguishing("SelectBackward0", ("dim=0", "index=3"))
    ('dim=0',)
    >>> distinguishing("PowBackward0", ("exponent=3",))
    ('exponent=3',)
    """
    places = frozenset().union(*(names for start, names in _PLACES if name.startswith(start)))
    return tuple([text for text in attributes if text.partition("=")[0] not in places])


def only_part_used(nodes: Sequence[Node], edges: Sequence[Edge]) -> set[int]:
    """Return the nodes that split a tensor and have only one used output: `x.unbind()[3]`."""
    dividing = {name for name in {node.name for node in nodes} if name.startswith(_PARTS)}
    used: dict[int, set[int]] = {}
    for edge in edges if dividing else ():
        if nodes[edge.source].name in dividing:
            used.setdefault(edge.source, set()).add(edge.output_nr)
    return {i for i, outputs in used.items() if len(outputs) == 1}
