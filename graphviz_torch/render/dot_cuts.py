"""The places where a gradient was cut, as dashed lines from what was cut off to what went on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..graph import Cut, Finding, Graph
from . import dot_text as say
from .visible import Visible, dot_id

_NO_CALLS = {"data": ".data", "no_grad": "no_grad", "inference_mode": "inference_mode"}
SCISSORS = "\N{BLACK SCISSORS}"


def cut_lines(
    graph: Graph, drawn: Visible, colors: Mapping[str, str], findings: Iterable[Finding]
) -> Iterator[str]:
    """A line for each cut that has both its sides in the drawing; of several alike, one."""
    told = [(set(finding.nodes), colors[finding.severity]) for finding in findings]
    keys = {*drawn.nodes, *(~number for number in drawn.boxes)}
    seen = set()
    for cut in graph.cuts:
        for after in cut.after if cut.before is not None else ():
            assert cut.before is not None
            ends = drawn.key(cut.before), drawn.key(after)
            line = (*ends, cut.how, cut.where)
            if line in seen or ends[0] == ends[1] or not keys.issuperset(ends):
                continue
            seen.add(line)
            both = {cut.before, after}
            color = next((color for nodes, color in told if both <= nodes), colors["muted"])
            yield (
                f"\t{dot_id(ends[0])} -> {dot_id(ends[1])} [style=dashed arrowhead=none "
                f'color="{color}" fontcolor="{color}" label=<{_label(cut)}>]'
            )


def _label(cut: Cut) -> str:
    how = _NO_CALLS.get(cut.how, f"{cut.how}()")
    lines = (f" {SCISSORS} {how}", f" {cut.where}" if cut.where else "")
    return "".join(f'{say.escape(line)}<BR ALIGN="LEFT"/>' for line in lines if line)
