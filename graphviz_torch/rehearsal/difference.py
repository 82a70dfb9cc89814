"""Compare the memory, traffic and operations of two rehearsals, before and after a change.

Numbered modules, such as the layers of a list, are counted together. Collectives are compared
without their lines, because lines move when the script is edited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..graph.immutable import NamedTuple, immutable
from ..graph.text import first_items, print_text, printable
from ..graph.units import bytes_text, operations_text
from .rehearsal import FORMAT, OUTSIDE, ROLES, Rehearsal, pattern

Report = Mapping[str, Any]  # the result of `Rehearsal.to_dict()`
_ROWS, _MORE = 8, "    and {:,} more"  # largest number of rows in a list, and text for the rest
_SIZES = ("parameters", "gradients", "optimizer", "activations", "gathered")
_FIGURES = (
    ("peak", "peak_bytes"),
    *((name, f"{name}_bytes") for name in _SIZES),
    ("operations", "flops"),
    ("on the wire", "wire_bytes"),
)
_PLACES = ("kind", "group", "module")  # keys of a collective in a report whose values are text
_LARGEST = 1 << 63


class FigureChange(NamedTuple):
    """A number that differs between two rehearsals."""

    name: str
    before: int
    after: int


@immutable(slots=False)
class RehearsalDiff:
    """The differences between two rehearsals. Each list begins with the largest difference.

    `figures` contains totals in bytes, and the number of "operations". `at_peak` contains the bytes
    at the peak by role of the memory. `activations` contains the bytes of activations by module.
    `collectives` contains the bytes that collectives send, by kind, group and module, and `counts`
    the number of these collectives.

    >>> import torch
    >>> from graphviz_torch.rehearsal import compare_rehearsals, rehearse
    >>> def train(rows):
    ...     torch.nn.Linear(10, 100)(torch.ones(rows, 10)).sum().backward()
    >>> found = compare_rehearsals(rehearse(lambda: train(4)), rehearse(lambda: train(8)))
    >>> print(found.to_text().splitlines()[-1])
    operations 16 kFLOP → 32 kFLOP (+16 kFLOP, +100.0%)
    """

    before: Report
    after: Report
    figures: tuple[FigureChange, ...]
    at_peak: tuple[FigureChange, ...]
    activations: tuple[FigureChange, ...]
    collectives: tuple[FigureChange, ...]
    counts: tuple[FigureChange, ...]

    def __bool__(self) -> bool:
        return any((self.figures, self.at_peak, self.activations, self.collectives, self.counts))

    def to_dict(self) -> dict[str, Any]:
        """Return the differences as JSON values. Each number becomes a list [before, after]."""
        lists = ("figures", "at_peak", "activations", "collectives", "counts")
        rows = {name: getattr(self, name) for name in lists}
        return {
            "format": "graphviz_torch rehearsal diff",
            **{
                name: {each.name: [each.before, each.after] for each in changes}
                for name, changes in rows.items()
            },
        }

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the differences as text, one per line."""
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        before, after = self.before, self.after
        for name in ("ranks", "rank", "meshes"):
            if before[name] != after[name]:
                yield f"{name} {_plain(before[name])} → {_plain(after[name])}"
        figures = {each.name: each for each in self.figures}
        if "peak" in figures:
            yield _row(figures["peak"], bytes_text)
        if before["peak_at"] != after["peak_at"]:
            yield f"    in {before['peak_at']} → {after['peak_at']}"
        named = [each._replace(name=ROLES.get(each.name, each.name)) for each in self.at_peak]
        yield from _rows(named, bytes_text)
        for name in _SIZES:
            if name in figures:
                yield _row(figures[name], bytes_text)
            if name == "activations":
                yield from _rows(self.activations, bytes_text)
        if "operations" in figures:
            yield _row(figures["operations"], operations_text)
        if "on the wire" in figures:
            yield _row(figures["on the wire"], bytes_text)
        counts = {each.name: each for each in self.counts}
        names = dict.fromkeys(each.name for each in (*self.collectives, *self.counts))
        wires = {each.name: each for each in self.collectives}
        lines = []
        for name in names:
            parts = [
                f"{counts[name].before:,} → {counts[name].after:,} times" if name in counts else "",
                _change(wires[name], bytes_text) if name in wires else "",
            ]
            lines.append(f"    {name} {', '.join(filter(None, parts))}")
        yield from first_items(lines, _ROWS, _MORE)
        if not self:
            yield "The two rehearsals are equal."


def compare_rehearsals(before: Rehearsal | Report, after: Rehearsal | Report) -> RehearsalDiff:
    """Return the differences between two rehearsals.

    Args:
        before: a rehearsal of one rank, or the parsed output of `rehearse --format json`.
        after: the same for the changed script.

    Raises:
        ValueError: if `before` or `after` is not such a report.

    >>> import torch
    >>> from graphviz_torch.rehearsal import rehearse
    >>> def train(rows):
    ...     torch.nn.Linear(10, 100)(torch.ones(rows, 10)).sum().backward()
    >>> found = compare_rehearsals(rehearse(lambda: train(4)), rehearse(lambda: train(8)))
    >>> [each for each in found.figures if each.name == "operations"]
    [FigureChange(name='operations', before=16000, after=32000)]
    """
    a, b = _report(before), _report(after)
    return RehearsalDiff(
        a,
        b,
        tuple(FigureChange(name, a[key], b[key]) for name, key in _FIGURES if a[key] != b[key]),
        _changes(a["at_peak"], b["at_peak"]),
        _changes(_modules(a), _modules(b)),
        _changes(_collectives(a, "wire_bytes"), _collectives(b, "wire_bytes")),
        _changes(_collectives(a, "count"), _collectives(b, "count")),
    )


def _check_report(given: Any) -> Report:
    """Return `given`, after checking that it is the report of one rank, with the right types.

    Raises:
        ValueError: if `given` is not such a report.
    """
    if not isinstance(given, Mapping) or given.get("format") != FORMAT or not _is_whole(given):
        raise ValueError(
            "this is not a rehearsal of one rank: pass the output of `graphviz-torch rehearse "
            "--rank 0 --format json`."
        )
    return given


def _is_whole(given: Report) -> bool:
    meshes, sent = given.get("meshes"), given.get("collectives")
    if not isinstance(meshes, list) or not isinstance(sent, list):
        return False
    if not all(isinstance(each, list) for each in meshes):
        return False
    if not all(isinstance(each, Mapping) for each in sent):
        return False
    by_name: list[Any] = [given.get("at_peak"), given.get("activations")]
    if not all(isinstance(each, Mapping) for each in by_name):
        return False
    texts = [given.get("peak_at"), *(row.get(name) for row in sent for name in _PLACES)]
    numbers = [given.get("ranks"), given.get("rank"), *(given.get(key) for _, key in _FIGURES)]
    numbers += [row.get(name) for row in sent for name in ("wire_bytes", "count")]
    numbers += [size for each in by_name for size in each.values()]
    numbers += [size for each in meshes for size in each]
    return all(isinstance(text, str) for text in texts) and all(
        type(number) is int and 0 <= number < _LARGEST for number in numbers
    )


def _report(given: Rehearsal | Report) -> Report:
    return given.to_dict() if isinstance(given, Rehearsal) else _check_report(given)


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[FigureChange, ...]:
    names = dict.fromkeys((*before, *after))
    found = [FigureChange(name, before.get(name, 0), after.get(name, 0)) for name in names]
    found = [each for each in found if each.before != each.after]
    return tuple(sorted(found, key=lambda each: -abs(each.after - each.before)))


def _modules(report: Report) -> Counter[str]:
    found = Counter[str]()
    for name, nbytes in report["activations"].items():
        found[pattern(name) or OUTSIDE] += nbytes
    return found


def _collectives(report: Report, figure: str) -> Counter[str]:
    found = Counter[str]()
    for each in report["collectives"]:
        place = " · ".join(filter(None, (each["group"], pattern(each["module"]))))
        found[f"{each['kind']} {place}".rstrip()] += each[figure]
    return found


def _rows(changes: Sequence[FigureChange], text: Callable[[int], str]) -> Iterator[str]:
    yield from first_items([f"    {_row(each, text)}" for each in changes], _ROWS, _MORE)


def _row(change: FigureChange, text: Callable[[int], str]) -> str:
    return f"{change.name} {_change(change, text)}"


def _change(change: FigureChange, text: Callable[[int], str]) -> str:
    more = change.after - change.before
    by = f"{'+' if more > 0 else '-'}{text(abs(more))}"
    share = f", {more / change.before:+.1%}" if change.before and change.after else ""
    return f"{text(change.before)} → {text(change.after)} ({by}{share})"


def _plain(value: Any) -> str:
    if not isinstance(value, Sequence):
        return f"{value:,}"
    return ", ".join("x".join(map(str, sizes)) for sizes in value) or "none"
