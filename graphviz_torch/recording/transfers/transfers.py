"""The copies between devices of one recording, and what becomes of the tensors they made.

Counted: every copy whose source and target devices differ, forward, backward and outside the graph;
also reads of one number (`item`, `float`, `if tensor`), of how many results there are (`x[mask]`,
`nonzero`, `unique`), and CPU indices into a tensor on another device.
Not counted: copies inside a kernel, collectives, copies that another thread makes, and what goes
to a meta tensor, which has no values.
`seconds` is time on the device's stream; None where it could not be measured. It is never an
estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...graph import TensorMeta, Transfer, TransferKind
from ...internals.functions import TensorBase
from ...internals.hooks.dispatch import Dispatched
from ...internals.tensors.memory import parts, storage_id, storage_ref
from ...internals.tensors.metadata import device_label
from ..program.source_lines import Place
from .operators import dispatched_copies


@dataclass(slots=True, eq=False)
class CopyRecord:
    """One copy, with what is known while it happens. Told what becomes of the tensor it made."""

    kind: TransferKind
    source: str
    target: str
    tensor: TensorMeta
    pinned: bool | None
    non_blocking: bool
    numbers: range  # of the nodes it made
    data: int
    node: int | None = None  # id of the one that backward was running ...
    run: int = 0  # ... in this backward run of the recording, from 1; 0 outside any
    place: Place | None = None
    module: str = ""
    in_forward: bool = False
    moment: int = 0
    operation: str = ""
    label: str = ""
    used: bool | None = None
    seconds: float | None = None

    def locate(self, place: Place | None, module: str, in_forward: bool, moment: int) -> None:
        """Where in the program it was made."""
        self.place, self.module = place, module
        self.in_forward, self.moment = in_forward, moment

    def attach_to_run(self, run: int, node: int | None) -> None:
        """A backward made it, and this node of its graph."""
        self.run, self.node = run, node

    def attach_to_call(self, operation: str, label: str) -> None:
        """A call of the user's made it, of a tensor with this label."""
        self.operation, self.label = operation, label

    def time(self, seconds: float) -> None:
        """The device took so long for it."""
        self.seconds = seconds

    def on_use(self) -> None:
        """An operation read the copy."""
        self.used = True

    def on_free(self) -> None:
        """The copy is gone; if nothing read it, it was for nothing."""
        self.used = bool(self.used)

    def transfer(self, node: int | None, where: str) -> Transfer:
        """The plain value, in a graph where it belongs to `node`."""
        return Transfer(
            self.kind,
            self.source,
            self.target,
            self.tensor,
            "backward" if self.run else "forward",
            node,
            where,
            self.module,
            self.operation,
            self.label,
            self.pinned,
            self.non_blocking,
            self.seconds,
            self.used,
            self.data,
            self.in_forward,
            self.moment,
        )


class Transfers:
    """The copies of one recording, in order."""

    def __init__(self) -> None:
        self.records: list[CopyRecord] = []
        self._data: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._numbers = 0

    def see(self, call: Dispatched) -> list[tuple[CopyRecord, Tensor, Tensor | None]]:
        """Note what a dispatched operator copied between devices.

        Returns what was noted, with the tensor that was copied and the tensor that the copy made.
        """
        noted = []
        for copy in dispatched_copies(call):
            source, target = device_label(copy.part.device), copy.moved.device
            if "meta" in (source.split(":")[0], target.split(":")[0]):
                continue
            record = CopyRecord(
                _kind(copy.part.device, copy.target),
                source,
                target,
                copy.moved,
                copy.pinned,
                copy.non_blocking,
                range(0) if copy.is_count else range(call.start, call.end),
                self._number(None if copy.is_count else copy.part),
            )
            if copy.made is not None:
                self._data[_identity(copy.made)] = (storage_ref(parts(copy.made)[0]), record.data)
            self.records.append(record)
            noted.append((record, copy.source, copy.made))
        return noted

    def forget(self) -> None:
        """The copies of a step are over: what data they moved is still known, while it is there."""
        self.records = []
        self._data = {key: row for key, row in self._data.items() if not row[0].expired()}

    def _number(self, source: Tensor | None) -> int:
        if source is None:  # new data
            self._numbers += 1
            return self._numbers - 1
        key = _identity(source)
        known = self._data.get(key)
        if known is None or known[0].expired():
            known = self._data[key] = (storage_ref(parts(source)[0]), self._numbers)
            self._numbers += 1
        return known[1]


def _kind(source: torch.device, target: torch.device) -> TransferKind:
    if source.type == "cpu":
        return "HtoD"
    return "DtoH" if target.type == "cpu" else "DtoD"


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors with the same memory and the same version of its contents."""
    found = parts(tensor)
    if len(found) != 1:
        return (id(tensor),)
    version = 0 if torch.is_inference(tensor) else tensor._version
    return storage_id(found[0]), TensorBase.storage_offset(found[0]), tuple(found[0].shape), version
