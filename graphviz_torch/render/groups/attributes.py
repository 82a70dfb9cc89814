"""Which attributes tell that an operation computes something else than another of its name.

Blocks whose operations differ in one of them are not alike: a `pow 2` is not a `pow 3`. An
attribute that only tells a place in a sequence does not count. So the steps of an unrolled loop, of
which each selects its own row, stay alike, and so do blocks that cut their weights out of one
stacked tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ...graph import Edge, Node

# By what autograd's name of the operation starts with, the attributes that tell which part of a
# tensor is read or written; by "", those of any operation that tell where a generator of random
# numbers stands, and what the program calls data. How much is read is in the shapes of the outputs.
_PLACES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("Select", frozenset(("index", "idx"))),  # x[3], x.select(0, 3), select_scatter, select_copy
    ("Slice", frozenset(("start", "end"))),  # x[3:5], narrow, tensor_split, slice_scatter
    ("Narrow", frozenset(("start",))),  # narrow_copy
    ("AsStrided", frozenset(("storage_offset",))),
    ("", frozenset(("seed", "philox_seed", "philox_offset", "data"))),
)
# What gives each part of a tensor as an output. The number of an output is a place as well, where
# no other output is used.
_PARTS: Final = ("Unbind", "Split", "UnsafeSplit", "Chunk")


@lru_cache(maxsize=4096)
def distinguishing(name: str, attributes: tuple[str, ...]) -> tuple[str, ...]:
    """The attributes that count, of an operation with this name of autograd's.

    >>> distinguishing("SelectBackward0", ("dim=0", "index=3"))
    ('dim=0',)
    >>> distinguishing("PowBackward0", ("exponent=3",))
    ('exponent=3',)
    """
    places = frozenset().union(*(names for start, names in _PLACES if name.startswith(start)))
    return tuple([text for text in attributes if text.partition("=")[0] not in places])


def only_part_used(nodes: Sequence[Node], edges: Sequence[Edge]) -> set[int]:
    """The nodes that divide a tensor, where one output is used: `x.unbind()[3]`."""
    dividing = {name for name in {node.name for node in nodes} if name.startswith(_PARTS)}
    used: dict[int, set[int]] = {}
    for edge in edges if dividing else ():
        if nodes[edge.source].name in dividing:
            used.setdefault(edge.source, set()).add(edge.output_nr)
    return {i for i, outputs in used.items() if len(outputs) == 1}
