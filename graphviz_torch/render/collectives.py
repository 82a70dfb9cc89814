"""Write the collectives of nodes and modules as text, for all output formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ..graph import Collective, GraphLike, graph_of, short_dtype
from ..graph.text import listing
from ..graph.units import bytes_text, count_text
from . import labels

# maximum number of lines in a box; if there are more, collectives that differ only in size share
# one
_MAX_LINES = 4
_PEERS = {"send": " to rank {}", "recv": " from rank {}"}


def collectives(graph: GraphLike) -> list[Collective]:
    """Return the collectives of a graph in program order.

    Each collective has its source line and module. A graph from `trace` has no collectives.

    Args:
        graph: a graph or a recording of this rank.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> collectives(trace(torch.ones(3, requires_grad=True).sum()))
    []
    """
    return list(graph_of(graph).collectives)


def merge_equal(sent: Iterable[Collective]) -> list[tuple[Collective, int]]:
    """Return (collective, count) for collectives that are equal except for their node.

    >>> one = Collective("all_reduce", 8, "float32", 2)
    >>> [(each.kind, times) for each, times in merge_equal([one, replace(one, node=3)])]
    [('all_reduce', 2)]
    """
    return list(Counter(replace(each, node=None) for each in sent).items())


def describe_collectives(sent: Iterable[Collective]) -> list[str]:
    """Return lines of text about the collectives of a box. Equal collectives share a line.

    >>> one = Collective("all_gather", 4096, "bfloat16", 8, group="dp", phase="forward")
    >>> describe_collectives([one, replace(one, phase="backward")])
    ['all_gather 4.0 KiB bf16 · dp, 8 ranks \N{MULTIPLICATION SIGN}2 · forward, backward']
    """
    kinds: dict[tuple[object, ...], list[Collective]] = {}
    for each in sent:
        kind = each.kind, each.dtype, each.group_size, each.group, each.peer
        kinds.setdefault(kind, []).append(each)
    if sum(len({each.nbytes for each in some}) for some in kinds.values()) > _MAX_LINES:
        return [_line(some) for some in kinds.values()]
    return [
        _line([each for each in some if each.nbytes == size])
        for some in kinds.values()
        for size in dict.fromkeys(each.nbytes for each in some)
    ]


def _line(some: list[Collective]) -> str:
    """Return a line about collectives of one kind and group.

    If their sizes differ, the line contains the total.
    """
    first, many, phases = some[0], len(some), dict.fromkeys(each.phase for each in some)
    summed = len({each.nbytes for each in some}) > 1
    said = f"{many:,} {labels.TIMES} {first.kind}" if summed else first.kind
    if first.kind != "barrier":
        size = bytes_text(sum(each.nbytes for each in some) if summed else first.nbytes)
        said += f"{', in all' if summed else ''} {size} {short_dtype(first.dtype)}"
    if first.peer is not None and first.kind in _PEERS:
        said += _PEERS[first.kind].format(first.peer)
    else:
        name = f"{first.group}, " if first.group else ""
        said += f" · {name}{count_text(first.group_size, 'rank')}"
    said += f" {labels.TIMES}{many:,}" if many > 1 and not summed else ""
    when = ", ".join(phase for phase in phases if phase != "other")
    return f"{said} · {when}" if when else said


def description(each: Collective) -> str:
    """Return all details of a collective except its kind, in one line.

    >>> description(Collective("send", 8, "float32", 2, peer=1, where="train.py:7"))
    '8 B f32 to rank 1 · train.py:7'
    """
    said = _line([replace(each, phase="other")]).removeprefix(each.kind).removeprefix(" · ")
    phase = "" if each.phase == "other" else each.phase
    waited = f"waited for at {each.waited_where}" if each.waited_where else ""
    rest = (phase, each.module, payload_text(each), each.where, waited)
    return " · ".join(filter(None, (said.strip(), *rest)))


def payload_text(each: Collective) -> str:
    """Return the names of the parameters that a collective sends, or its change of placements."""
    return each.change or listing(each.parameters, 2)
