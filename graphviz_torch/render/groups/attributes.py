"""Choose the attributes of an operation that count when two blocks are compared.

An exponent counts, because `pow 2` differs from `pow 3`. An index does not: each step of an
unrolled loop selects another row of the input, but the steps are still isomorphic. So are blocks
that slice their weights from one stacked tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ...graph import Edge, Node

# (prefix of the autograd name, attributes to ignore). Most of these attributes say where a slice
# begins or ends. The size of a slice is compared anyway, because it is in the output's shape. The
# prefix "" applies to all operations: their random generator state and name of the data are
# ignored.
_PLACES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("Select", frozenset(("index", "idx"))),  # x[3], x.select(0, 3), select_scatter, select_copy
    ("Slice", frozenset(("start", "end"))),  # x[3:5], narrow, tensor_split, slice_scatter
    ("Narrow", frozenset(("start",))),  # narrow_copy
    ("AsStrided", frozenset(("storage_offset",))),
    ("", frozenset(("seed", "philox_seed", "philox_offset", "data"))),
)
# Operations that return a tuple of slices. If only one slice is used, its output_nr is ignored,
# like the index of a select.
_PARTS: Final = ("Unbind", "Split", "UnsafeSplit", "Chunk")


@lru_cache(maxsize=4096)
def distinguishing(name: str, attributes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes that count when operations are compared.

    Args:
        name: autograd's name of the operation.
        attributes: all attributes of the operation.

    >>> distinguishing("SelectBackward0", ("dim=0", "index=3"))
    ('dim=0',)
    >>> distinguishing("PowBackward0", ("exponent=3",))
    ('exponent=3',)
    """
    places = frozenset().union(*(names for start, names in _PLACES if name.startswith(start)))
    return tuple([text for text in attributes if text.partition("=")[0] not in places])


def only_part_used(nodes: Sequence[Node], edges: Sequence[Edge]) -> set[int]:
    """Return nodes that split a tensor into parts, if only one is used, as in `x.unbind()[3]`."""
    dividing = {name for name in {node.name for node in nodes} if name.startswith(_PARTS)}
    used: dict[int, set[int]] = {}
    for edge in edges if dividing else ():
        if nodes[edge.source].name in dividing:
            used.setdefault(edge.source, set()).add(edge.output_nr)
    return {i for i, outputs in used.items() if len(outputs) == 1}
