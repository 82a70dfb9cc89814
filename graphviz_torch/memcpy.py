"""How long copies took on the device, from the profiler's memcpy events.

Each event is matched to the first copy of its kind and its bytes that has none yet, in the order in
which both happened. What PyTorch copies inside a kernel has no copy to match, and is listed for
itself. Copies within one device are left out. Not seen on a GPU yet: written from the format of the
profiler's trace, with made-up traces for its tests.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .graph import TensorMeta, Transfer, TransferKind
from .transfers import Seen

_KINDS: dict[str, TransferKind] = {
    "Memcpy HtoD": "HtoD",
    "Memcpy DtoH": "DtoH",
    "Memcpy PtoP": "DtoD",
}


class Memcpy(NamedTuple):
    """One copy that the device made."""

    kind: TransferKind
    nbytes: int
    seconds: float
    device: str
    name: str  # the profiler's: "Memcpy HtoD (Pageable -> Device)"


class Clock:
    """A context that profiles CUDA's copies. Another profiler cannot run meanwhile."""

    def __init__(self) -> None:
        self.copies: list[Memcpy] = []

    def __enter__(self) -> Clock:
        activities = [torch.profiler.ProfilerActivity.CUDA]
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            self.copies = read(json.loads(path.read_text())["traceEvents"])


def read(events: Iterable[dict[str, Any]]) -> list[Memcpy]:
    """The copies between devices in a trace of the profiler, in order."""
    found = []
    for event in sorted(events, key=lambda event: float(event.get("ts", 0))):
        name = str(event.get("name", ""))
        kind = _KINDS.get(name[: len("Memcpy HtoD")])
        if event.get("cat") == "gpu_memcpy" and kind is not None:
            details = event.get("args", {})
            found.append(
                Memcpy(
                    kind,
                    int(details.get("bytes", 0)),
                    float(event["dur"]) / 1e6,
                    f"cuda:{details.get('device', 0)}",
                    name,
                )
            )
    return found


def match(seen: Iterable[Seen], copies: Iterable[Memcpy]) -> list[Transfer]:
    """Give each copy that was seen its duration; returns the events that no copy explains."""
    open_: dict[tuple[str, int | None], deque[Seen]] = defaultdict(deque)
    for copy in seen:
        open_[copy.kind, copy.tensor.nbytes].append(copy)
    unmatched = []
    for event in copies:
        waiting = open_[event.kind, event.nbytes]
        if waiting:
            waiting.popleft().seconds = event.seconds
            continue
        source, target = {
            "HtoD": ("cpu", event.device),
            "DtoH": (event.device, "cpu"),
            "DtoD": (event.device, event.device),
        }[event.kind]
        tensor = TensorMeta((event.nbytes,), "uint8", target)
        unmatched.append(
            Transfer(
                *(event.kind, source, target, tensor, "forward"),
                operation=event.name,
                seconds=event.seconds,
            )
        )
    return unmatched
