"""Show the copies between devices and the collectives of a step as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..findings.check import find
from ..graph import Collective, Graph, Transfer
from ..graph.text import printable
from ..graph.units import bytes_text, count_text
from ..render.collectives import merge_equal, payload_text

_COPIES = ("copy", "phase", "tensor", "copies", "bytes", "ms", "how", "where")
_COLLECTIVES = ("collective", "phase", "times", "bytes", "group", "of", "where")
_ROWS = 500  # maximum number of rows in a table; a line below it sums up the other rows


def transfers_markdown(graph: Graph) -> str:
    """Return Markdown with totals for each direction, findings, and tables.

    The first table has the copies between devices, the largest first. Identical copies at the same
    source line share a row. The time of a row, in milliseconds, is measured on the device; it is
    empty unless all copies of the row were measured. The second table has the collectives, in
    program order.

    >>> from graphviz_torch.graph import Graph
    >>> transfers_markdown(Graph(()))
    'No transfer was recorded.'
    """
    parts = [_copies_of(graph)] if graph.transfers else []
    parts += [_collectives_of(graph)] if graph.collectives else []
    return "\n\n".join(parts) or "No transfer was recorded."


def _copies_of(graph: Graph) -> str:
    lines = []
    for kind in sorted({transfer.kind for transfer in graph.transfers}):
        some = [transfer for transfer in graph.transfers if transfer.kind == kind]
        lines.append(f"- **{kind}**: {_copies(len(some))}, {_total(some)}")
    for finding in find(graph):
        if finding.transfers:
            where = f" ({_cell(finding.where)})" if finding.where else ""
            lines.append(
                f"- **{finding.severity}**: {_cell(finding.message)} {_cell(finding.advice)}{where}"
            )
    groups: dict[Transfer, list[Transfer]] = {}
    for transfer in graph.transfers:
        groups.setdefault(_without_position(transfer), []).append(transfer)
    rows = sorted(groups.values(), key=lambda some: -sum(t.nbytes or 0 for t in some))
    lines += ["", *_table(_COPIES, map(_row, rows[:_ROWS]))]
    if len(rows) > _ROWS:
        rest = [transfer for some in rows[_ROWS:] for transfer in some]
        lines += ["", f"And {_copies(len(rest))} more, {_total(rest)}."]
    return "\n".join(lines)


def _collectives_of(graph: Graph) -> str:
    lines = []
    for kind in sorted({each.kind for each in graph.collectives}):
        some = [each for each in graph.collectives if each.kind == kind]
        total = bytes_text(sum(each.nbytes for each in some))
        lines.append(f"- **{kind}**: {count_text(len(some), 'time')}, {total} given")
    rows = merge_equal(graph.collectives)
    lines += [
        "",
        *_table(_COLLECTIVES, (_collective_row(each, times) for each, times in rows[:_ROWS])),
    ]
    if len(rows) > _ROWS:
        more = sum(times for _, times in rows[_ROWS:])
        lines += ["", f"And {count_text(more, 'collective')} more."]
    return "\n".join(lines)


def _collective_row(each: Collective, times: int) -> list[str]:
    return [
        each.kind,
        each.phase,
        str(times),
        bytes_text(each.nbytes * times),
        _cell(", ".join(filter(None, (each.group, count_text(each.group_size, "rank"))))),
        _cell(payload_text(each)),
        _cell(" ".join(filter(None, (each.where, each.module)))),
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"|{'|'.join(titles)}|"
    yield "|---" * len(titles) + "|"
    for row in rows:
        yield f"|{'|'.join(row)}|"


def _without_position(transfer: Transfer) -> Transfer:
    return replace(
        transfer, node=None, seconds=None, used=None, data=None, in_forward=None, moment=None
    )


def _row(some: list[Transfer]) -> list[str]:
    first = some[0]
    seconds = [transfer.seconds for transfer in some]
    measured = [value for value in seconds if value is not None]
    memory = {None: "", True: "pinned", False: "pageable"}[first.pinned]
    how = (first.operation, memory, "non-blocking" if first.non_blocking else "")
    return [
        _cell(f"{first.kind} {first.source} → {first.target}"),
        first.phase,
        _cell(f"{first.label}: {first.tensor}" if first.label else str(first.tensor)),
        str(len(some)),
        _total(some),
        f"{sum(measured) * 1e3:.3g}" if len(measured) == len(some) else "",
        _cell(", ".join(filter(None, how))),
        _cell(" ".join(filter(None, (first.where, first.module)))),
    ]


def _total(some: list[Transfer]) -> str:
    known = [transfer.nbytes for transfer in some if transfer.nbytes is not None]
    text = bytes_text(sum(known))
    return (
        text if len(known) == len(some) else f"{text} and {len(some) - len(known)} of unknown size"
    )


def _copies(count: int) -> str:
    return "1 copy" if count == 1 else f"{count} copies"


def _cell(text: str) -> str:
    """Escape all characters that have a meaning in Markdown or in its tables."""
    text = printable(text.replace("\n", " "))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]#])", r"\\\1", text)
    return text.replace("|", "&#124;")
