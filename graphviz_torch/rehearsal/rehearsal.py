"""Define `Rehearsal`, the result of rehearsing one rank, as plain data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..graph import Graph
from ..graph.immutable import NamedTuple, immutable
from ..graph.text import listing, print_text, printable
from ..graph.units import bytes_text, operations_text, seconds_text
from ..render.labels import TIMES
from .order import CollectiveCall, ordinal

FORMAT = "graphviz_torch rehearsal"  # value of "format" in JSON reports
OUTSIDE = "outside of modules"
# Role of memory -> its name in texts.
ROLES = {
    "parameter": "parameters",
    "optimizer": "optimizer state",
    "gradient": "gradients",
    "buffer": "buffers of modules",
    "input": "inputs",
    "gathered": "gathered parameters",
    "activation": "activations",
    "recomputed": "recomputed activations",
    "communication": "buffers of collectives",
    "temporary": "temporary",
}


class NamedBytes(NamedTuple):
    """A name and a number of bytes."""

    name: str
    nbytes: int


@immutable
class CollectiveStats:
    """All collectives of a step that have the same kind, dtype, group, phase, module and line."""

    kind: str
    dtype: str
    group: str  # name of the mesh dimension, or "ranks 1 and 3"; "" for all ranks
    group_size: int  # number of ranks
    count: int
    nbytes: int  # total size of this rank's inputs
    wire_bytes: int  # total bytes that this rank sends with ring algorithms
    phase: str
    module: str
    where: str

    @property
    def whole_bytes(self) -> int:
        """Size of the input of one of these collectives; for all_gather, of the output."""
        return self.nbytes // self.count * (self.group_size if self.kind == "all_gather" else 1)


class Moment(NamedTuple):
    """The memory of a rank at one moment of the step."""

    phase: str
    shares: tuple[NamedBytes, ...]  # bytes of each role


@immutable(slots=False)
class Rehearsal:
    """Memory, traffic and operations of one rank in the last rehearsed step.

    Sizes are bytes of storages.

    - `activations_bytes`: tensors that autograd saves for backward, except parameters, buffers,
      inputs and tensors that fully_shard gathers.
    - `gathered_bytes`: the peak of unsharded parameters.
    - `peak_bytes`: the peak of all memory, from the first call of a module in the step on. If the
      script uses a device, only memory on the device counts.
    - `flops`: operations of this rank, by PyTorch's formulas.
    - `seconds`: the duration of the rehearsal, not of a step.

    >>> import torch
    >>> from graphviz_torch.rehearsal import rehearse
    >>> def train():
    ...     torch.nn.Linear(10, 100)(torch.ones(5, 10)).sum().backward()
    >>> found = rehearse(train)
    >>> found.parameters_bytes, found.flops
    (4400, 20000)
    """

    ranks: int
    rank: int
    steps: int
    graph: Graph
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int
    activations_bytes: int
    gathered_bytes: int
    peak_bytes: int
    peak_at: str
    flops: int
    seconds: float
    device_memory: int | None
    at_peak: tuple[NamedBytes, ...]  # by role of memory, largest first
    lines: tuple[NamedBytes, ...]  # memory at the peak, by line, largest first
    saved: tuple[NamedBytes, ...]  # activations by module, largest first
    moments: tuple[Moment, ...]  # memory over the step
    collectives: tuple[CollectiveStats, ...]
    order: tuple[CollectiveCall, ...] = ()  # all collective calls of the run
    printed: tuple[str, ...] = ()  # lines that printed 0 instead of an unknown value
    unsaved: tuple[str, ...] = ()  # lines that saved tensors, for which no file was written
    meshes: tuple[tuple[int, ...], ...] = ()  # sizes of the program's meshes

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits into the device's memory; None if `device_memory` was not given."""
        return None if self.device_memory is None else self.peak_bytes <= self.device_memory

    @property
    def margin_bytes(self) -> int | None:
        """Bytes of device memory that are free at the peak; negative if the step does not fit."""
        return None if self.device_memory is None else self.device_memory - self.peak_bytes

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank sends in the step, if collectives use ring algorithms."""
        return sum(each.wire_bytes for each in self.collectives)

    def activation_bytes_of(self, module: str) -> int:
        """Return the bytes of a module's activations: the most that checkpointing can free."""
        return sum(s.nbytes for s in self.saved if f"{s.name}.".startswith(f"{module}."))

    def seconds_at_least(
        self, *, tflops: float | None = None, gbytes: float | None = None
    ) -> float:
        """Return a lower bound in seconds for the duration of a step.

        Args:
            tflops: speed of the device in 10^12 floating-point operations per second. It must be
                positive.
            gbytes: bandwidth of a rank in 10^9 sent bytes per second. It must be positive.
        """
        wire = self.wire_bytes
        computing = 0 if tflops is None else self.flops / tflops / 1e12
        return max(computing, 0 if gbytes is None else wire / gbytes / 1e9)

    def __repr__(self) -> str:
        return f"Rehearsal(rank {self.rank} of {self.ranks}, peak {bytes_text(self.peak_bytes)})"

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        yield (
            f"rank {self.rank} of {self.ranks:,}, {ordinal(self.steps)} step "
            f"(rehearsed here in {seconds_text(self.seconds)})"
        )
        yield f"peak {bytes_text(self.peak_bytes)} in {self.peak_at}{self._fitting()}"
        roles = [f"{ROLES[each.name]} {bytes_text(each.nbytes)}" for each in self.at_peak]
        yield f"    by role {', '.join(roles)}"
        yield f"    by line {_list_largest(self.lines, 'no line')}"
        if self.steps == 1:
            yield "    The first step creates the optimizer's state: rehearse 2 steps for the peak."
        yield (
            f"this rank keeps parameters {bytes_text(self.parameters_bytes)}, "
            f"gradients {bytes_text(self.gradients_bytes)}, "
            f"optimizer state {bytes_text(self.optimizer_bytes)}, "
            f"buffers of modules {bytes_text(self.buffers_bytes)}"
        )
        if self.saved:
            saved = bytes_text(self.activations_bytes)
            yield f"forward saves {saved} of activations, which backward frees one after the other"
            yield f"    by module {_list_largest(_by_module(self.saved), OUTSIDE)}"
        yield f"this rank computes {operations_text(self.flops)} in the step"
        if self.collectives:
            sent_bytes = bytes_text(self.wire_bytes)
            yield f"this rank sends {sent_bytes} in the step, if collectives run in a ring"
        rows = _merge_numbered(self.collectives)
        for each, modules in rows[:_MAX_ROWS]:
            yield f"    {_row(each, modules)}"
        if rows[_MAX_ROWS:]:
            count = sum(each.count for each, _ in rows[_MAX_ROWS:])
            rest = sum(each.wire_bytes for each, _ in rows[_MAX_ROWS:])
            yield f"    and {count:,} more, {bytes_text(rest)} sent"
        if self.printed:
            yield f"A rehearsal has no values: 0 was printed instead at {listing(self.printed)}"
        if self.unsaved:
            yield f"A rehearsal writes no checkpoint: nothing was saved at {listing(self.unsaved)}"

    def _fitting(self) -> str:
        if self.device_memory is None:
            return ""
        left = self.device_memory - self.peak_bytes
        size, share = bytes_text(self.device_memory), abs(left) / max(1, self.device_memory)
        if left < 0:
            return f": {bytes_text(-left)} ({share:.1%}) more than {size}"
        close = "too little, perhaps, for" if share < _TIGHT_MARGIN else "for"
        return (
            f"; fits in {size}, {bytes_text(left)} ({share:.1%}) are left, {close} the memory "
            "that CUDA and NCCL reserve"
        )

    def to_dict(
        self, *, tflops: float | None = None, gbytes: float | None = None
    ) -> dict[str, Any]:
        """Return the rehearsal as JSON values, as `rehearse --format json` prints it.

        Args:
            tflops, gbytes: arguments of `seconds_at_least`. If either is given, the result contains
                the lower bound under the key "bound".
        """
        names = CollectiveStats.__dataclass_fields__
        bound: dict[str, Any] = {}
        if tflops is not None or gbytes is not None:
            least = self.seconds_at_least(tflops=tflops, gbytes=gbytes)
            bound["bound"] = {"tflops": tflops, "bandwidth": gbytes, "seconds_at_least": least}
        return {
            "format": FORMAT,
            "ranks": self.ranks,
            "rank": self.rank,
            "parameters_bytes": self.parameters_bytes,
            "gradients_bytes": self.gradients_bytes,
            "optimizer_bytes": self.optimizer_bytes,
            "activations_bytes": self.activations_bytes,
            "gathered_bytes": self.gathered_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_at": self.peak_at,
            "fits": self.fits,
            "flops": self.flops,
            "wire_bytes": self.wire_bytes,
            "collectives": [
                {name: getattr(each, name) for name in names} for each in self.collectives
            ],
            "at_peak": {each.name: each.nbytes for each in self.at_peak},
            "activations": {each.name: each.nbytes for each in self.saved},
            "meshes": [list(sizes) for sizes in self.meshes],
            "seconds": self.seconds,
            **bound,
        }


def _list_largest(shares: Sequence[NamedBytes], nameless: str) -> str:
    """Return a text with the largest sizes, and the total of all others.

    Args:
        shares: names and sizes, largest first.
        nameless: text to print for an empty name.
    """
    whole = sum(each.nbytes for each in shares)
    parts: list[str] = []
    rest = whole
    for each in shares:
        if len(parts) == _MAX_LISTED or (parts and rest < _NEGLIGIBLE * whole):
            break
        parts.append(f"{each.name or nameless} {bytes_text(each.nbytes)}")
        rest -= each.nbytes
    if len(parts) < len(shares):
        parts.append(f"and {len(shares) - len(parts):,} more, {bytes_text(rest)}")
    return ", ".join(parts)


def pattern(module: str) -> str:
    """Replace numbers in a module's path: "layers.31.attention" becomes "layers.*.attention"."""
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", module)


def _by_module(shares: Sequence[NamedBytes]) -> list[NamedBytes]:
    """Add up the sizes of modules whose paths differ only in numbers: layers.0, layers.1."""
    totals, names = Counter[str](), Counter[str]()
    for each in shares:
        name = pattern(each.name)
        totals[name] += each.nbytes
        names[name] += 1
    single = {pattern(each.name): each.name for each in shares}
    return [
        NamedBytes(
            f"{names[name]:,} {TIMES} {name} together" if names[name] > 1 else single[name], nbytes
        )
        for name, nbytes in totals.most_common()
    ]


def _merge_numbered(every: Sequence[CollectiveStats]) -> list[tuple[CollectiveStats, int]]:
    """Merge equal collectives of modules whose paths differ only in numbers.

    Each result is (merged collective, number of modules).
    """
    found: dict[tuple[Any, ...], list[CollectiveStats]] = {}
    for each in every:
        size = each.nbytes / each.count, each.wire_bytes / each.count
        place = each.group, each.phase, pattern(each.module), each.where
        key = each.kind, each.dtype, *place, size
        found.setdefault(key, []).append(each)
    rows = []
    for same in found.values():
        if len(same) == 1:
            rows.append((same[0], 1))
            continue
        whole = replace(
            same[0],
            count=sum(each.count for each in same),
            nbytes=sum(each.nbytes for each in same),
            wire_bytes=sum(each.wire_bytes for each in same),
            module=pattern(same[0].module),
        )
        rows.append((whole, len(same)))
    return sorted(rows, key=lambda row: -row[0].wire_bytes)


def _row(each: CollectiveStats, modules: int) -> str:
    many = " each" if each.count > 1 else ""
    of = f" in {modules:,} modules" if modules not in (1, each.count) else ""
    size = bytes_text(each.whole_bytes)
    what = f"of {size} {each.dtype}".rstrip() if each.nbytes else ""
    ranks = f"{each.group_size:,} ranks"
    group = ranks if not each.group else each.group
    group = f"{group} ({ranks})" if each.group and "rank" not in each.group else group
    place = " · ".join(filter(None, (each.phase, group, each.module, each.where)))
    head = " ".join(filter(None, (f"{each.count:,} {TIMES} {each.kind}{of}", what)))
    return f"{head}{many}, {bytes_text(each.wire_bytes)} sent · {place}"


_MAX_LISTED = 8  # largest number of names in a list
_NEGLIGIBLE = 0.05  # names with less than this fraction of the total are left out
_TIGHT_MARGIN = 0.1  # fraction of device memory that is left for uncounted memory
_MAX_ROWS = 12  # largest number of rows of collectives in a text
# Collective -> function of the number n of ranks, which returns the number of bytes that a rank
# sends with a ring algorithm, as a multiple of the size of its input.
_RING: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "barrier": lambda n: 0,
    "recv": lambda n: 0,
}


def collective_stats(graph: Graph, groups: dict[str, str]) -> tuple[CollectiveStats, ...]:
    """Return the collectives of a graph, with one entry for all identical collectives.

    Args:
        graph: the graph of the step.
        groups: name of a process group in the graph -> name in the result.
    """
    counts, given, wire = Counter[Any](), Counter[Any](), Counter[Any]()
    for each in graph.collectives:
        group = groups.get(each.group, each.group)
        place = each.phase, each.module, each.where
        key = each.kind, each.dtype, group, each.group_size, place
        counts[key] += 1
        given[key] += each.nbytes
        factor = _RING.get(each.kind)
        wire[key] += round(each.nbytes * (1 if factor is None else factor(each.group_size)))
    return tuple(
        CollectiveStats(kind, dtype, group, size, counts[key], given[key], wire[key], *place)
        for key in counts
        for kind, dtype, group, size, place in [key]
    )


def named_bytes(totals: Sequence[tuple[str, int]]) -> tuple[NamedBytes, ...]:
    """Convert (name, size) pairs to `NamedBytes`, and drop pairs of size 0."""
    return tuple(NamedBytes(name, nbytes) for name, nbytes in totals if nbytes)
