"""Measure how long copies take on the device, with the profiler's memcpy events.

Events and recorded copies are sorted by the calls that issued them. Each event is matched to the
first unmatched copy of the same kind and size. Copies inside kernels match no recorded copy, and
are listed separately. Copies within one device are left out. So are copies between two devices that
ROCm names "Memcpy DtoD", because this name is also used for copies within one device.

The events have Kineto's format (see CuptiActivity.cpp). An event has a name such as "Memcpy HtoD
(Pinned -> Device)", the number of bytes, a correlation id, which numbers the call that issued the
copy, and the device, or both devices of a copy between two GPUs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ...graph import TransferKind
from ...graph.immutable import NamedTuple
from ...internals.streams import is_set_up

_KINDS: dict[str, TransferKind] = {
    "Memcpy HtoD": "HtoD",
    "Memcpy DtoH": "DtoH",
    "Memcpy PtoP": "DtoD",
}


class Memcpy(NamedTuple):
    """A copy that a device made, as the profiler reports it."""

    kind: TransferKind
    nbytes: int
    seconds: float
    source: str  # device that the data come from, such as "cuda:0"
    target: str  # device that the data are copied to
    name: str  # the profiler's name, such as "Memcpy HtoD (Pageable -> Device)"


class Clock:
    """A context manager that profiles CUDA copies.

    No other profiler can run at the same time.
    """

    def __init__(self) -> None:
        self.copies: list[Memcpy] = []

    def __enter__(self) -> Clock:
        activities = [torch.profiler.ProfilerActivity.CUDA]
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        for device in range(torch.cuda.device_count()):
            # An unused device is left out, because `synchronize` would initialize it.
            if is_set_up(device):
                with suppress(RuntimeError):  # the device has failed
                    torch.cuda.synchronize(device)
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            self.copies = read(json.loads(path.read_text())["traceEvents"])


def read(events: Iterable[dict[str, Any]]) -> list[Memcpy]:
    """Return the copies between devices in a profiler trace, in the order of the issuing calls."""
    copies = [event for event in events if event.get("cat") == "gpu_memcpy"]
    found = []
    for event in sorted(copies, key=_call_order):
        name = str(event.get("name", ""))
        kind = _KINDS.get(name[: len("Memcpy HtoD")])
        if kind is not None:
            details = event.get("args", {})
            device = details.get("device", 0)
            found.append(
                Memcpy(
                    kind,
                    int(details.get("bytes", 0)),
                    float(event["dur"]) / 1e6,
                    "cpu" if kind == "HtoD" else f"cuda:{details.get('fromDevice', device)}",
                    "cpu" if kind == "DtoH" else f"cuda:{details.get('toDevice', device)}",
                    name,
                )
            )
    return found


def _call_order(event: dict[str, Any]) -> tuple[int, float]:
    # Sorted by the issuing calls, because several streams may run copies in another order.
    return int(event.get("args", {}).get("correlation", 0)), float(event.get("ts", 0))
