"""Show which rank waits for which: as an SVG timeline, and as sentences.

Ranks have no common clock, so their rows are aligned at the end of the first common collective.
Bars show the time in collectives. Between two bars, a rank does something else, such as computing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..graph import Collective, GraphLike, graph_of
from ..graph.collective import align_times, rank_waits
from ..graph.text import first_items, ranks_text
from ..graph.units import seconds_text
from .chart import svg_escape, svg_line, svg_start, svg_text
from .collectives import description
from .style import COLORS

if TYPE_CHECKING:
    from .dot.picture import Picture

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 720, 64, 24, 46, 30
_MAX_RANKS = 64  # maximum number of rows
_MAX_WAITS = 5  # maximum number of sentences
_MIN_WAIT = 1e-3  # seconds; shorter waits are not reported


def rank_chart(graphs: GraphLike | Iterable[GraphLike]) -> Picture:
    """Return a picture of the time that each rank spent in collectives, one row per rank.

    Args:
        graphs: the merged graph that `graphviz-torch run` writes under torchrun, or one graph per
            rank.

    Raises:
        ValueError: if the times of fewer than two ranks were recorded. Times are recorded for gloo,
            with which the CPU waits for a result. For NCCL they are not, because a GPU's stream
            waits instead.

    >>> from dataclasses import replace
    >>> from graphviz_torch.graph import Graph, RankTime
    >>> times = RankTime(0, "", 1.0, 3.5, 3.5), RankTime(1, "", 4.0, 0.5, 0.5)
    >>> one = Collective("all_reduce", 8, "float32", 2, times=times)
    >>> chart = rank_chart(Graph((), collectives=(one,)))
    >>> "rank 0 waited 3 s for rank 1 in all_reduce" in chart.source
    True
    """
    # `Picture` is imported here, because the interactive view uses this module without it.
    from .dot.picture import Picture

    every = list(graphs) if isinstance(graphs, (list, tuple)) else [graphs]
    sent = [each for graph in every for each in graph_of(graph).collectives]
    if not has_times(sent):
        raise ValueError(
            "the times of fewer than two ranks were recorded: pass the file that "
            "`graphviz-torch run` writes under torchrun on gloo, or a graph of each rank."
        )
    return Picture.of_svg(rank_rows(sent, _WIDTH, wait_lines(sent)))


def has_times(collectives: Iterable[Collective]) -> bool:
    """Return True if the times of at least two ranks were recorded."""
    return len({time.rank for each in collectives for time in each.times}) > 1


def rank_rows(collectives: Sequence[Collective], width: int, lines: Sequence[str] = ()) -> str:
    """Return the SVG of `rank_chart`.

    Args:
        collectives: the collectives of all ranks.
        width: width of the picture in pixels.
        lines: lines of text to write below the rows.
    """
    bars = align_times(collectives)
    ranks = sorted(bars)[:_MAX_RANKS]
    every = [(begin, begin + long) for rank in ranks for begin, long, _ in bars[rank]]
    low, high = min(begin for begin, _ in every), max(end for _, end in every)
    scale = (width - _LEFT - _RIGHT) / max(high - low, 1e-9)
    bottom = _TOP + _ROW * len(ranks)
    title = "When each rank waited in a collective"
    height = bottom + 24 + (22 + 18 * len(lines)) * bool(lines)
    out = [svg_start(width, height, title), svg_text(12, 22, title, size=15 if lines else 13)]
    ticks = max(1, (width - _LEFT - _RIGHT) // 90)
    for tick in range(ticks + 1):
        seconds = (high - low) * tick / ticks
        at = _LEFT + seconds * scale
        out.append(svg_line(at, _TOP - 6, at, bottom))
        out.append(svg_text(at, bottom + 16, seconds_text(seconds), "muted", "middle", 11))
    for number, rank in enumerate(ranks):
        y = _TOP + _ROW * number
        out.append(svg_text(_LEFT - 10, y + 15, f"rank {rank}", "ink", "end"))
        out += [
            _bar(_LEFT + (begin - low) * scale, y, max(1.5, long * scale), long, each)
            for begin, long, each in bars[rank]
        ]
    for number, line in enumerate(lines):
        out.append(svg_text(12, bottom + 42 + 18 * number, line))
    return "".join([*out, "</svg>"])


def wait_lines(collectives: Iterable[Collective]) -> list[str]:
    """Return sentences about ranks that waited for other ranks, longest wait first.

    Waits of less than a millisecond are left out.

    >>> from graphviz_torch.graph import RankTime
    >>> times = RankTime(0, "", 1.0, 3.5, 3.5), RankTime(1, "", 4.0, 0.5, 0.5)
    >>> wait_lines([Collective("barrier", 0, group_size=2, where="train.py:9", times=times)])
    ['rank 0 waited 3 s for rank 1 in barrier at train.py:9']
    """
    sums: dict[tuple[int, str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each, late, seconds in rank_waits(collectives):
        for rank, long in seconds:
            sums[late, each.kind, each.where][rank] += long
    longest = sorted(sums.items(), key=lambda item: -max(item[1].values()))
    lines = []
    for (late, kind, where), waits in longest:
        some = [rank for rank, long in waits.items() if long >= _MIN_WAIT]
        if some:
            most = seconds_text(max(waits.values()))
            duration = f"up to {most}" if len(some) > 1 else most
            place = f" at {where}" if where else ""
            lines.append(f"{ranks_text(some)} waited {duration} for rank {late} in {kind}{place}")
    return first_items(lines, _MAX_WAITS)


def _bar(x: float, y: float, width: float, seconds: float, each: Collective) -> str:
    fill, line = COLORS["collective"][0], COLORS["collective_line"][0]
    title = svg_escape(f"{each.kind} {description(each)} · took {seconds_text(seconds)}")
    name = svg_text(x + 4, y + 15, each.kind, "ink", size=11) if width > 8 * len(each.kind) else ""
    return (
        f'<g><title>{title}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="21" '
        f'fill="{fill}" stroke="{line}"/>{name}</g>'
    )
