"""How long the nodes of a backward take on CUDA: the time between events on their stream.

An event is recorded when a node has its gradients, and one when the next node that the same thread
of the engine runs has its own: between them lie the node's work, its hooks, and the sums of
gradients that it takes part in; and, where the device has to wait for Python or for another stream,
that. If the stream has changed meanwhile the node has no duration, nor has the last one of a device
on which several streams ran nodes. `stop` may end a node earlier.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import Any

import torch

from ...internals.streams import current_device, current_stream


class CudaClock:
    """Events around the nodes of one backward run."""

    def __init__(self) -> None:
        # By thread: the node that it runs, on which device and stream, and since which event.
        self._running: dict[int, tuple[int, int, int, Any]] = {}
        self._streams: dict[int, set[int]] = {}  # of each device, those that ran nodes
        self._spans: list[tuple[int, Any, Any]] = []

    def stop(self) -> Any:
        """Note that this thread's node, if any, has ended. Returns the event."""
        return self._stop(get_ident())

    def start(self, node: int, event: Any) -> None:
        """Note that this thread's next node begins. `event`: one recorded just now, or None."""
        device = current_device()  # the engine makes it the node's
        if event is None or event.device.index != device:
            event = _recorded(device)
        if event is not None:
            stream = current_stream(device)
            self._streams.setdefault(device, set()).add(stream)
            self._running[get_ident()] = node, device, stream, event

    def finish(self) -> None:
        """Note that the run has ended. The caller's streams now wait for those of the nodes."""
        for thread, (_, device, _, _) in list(self._running.items()):
            if len(self._streams[device]) == 1:
                self._stop(thread)
        self.abandon()

    def abandon(self) -> None:
        """Note that what is running has no end, for the run has failed."""
        self._running.clear()

    def seconds(self) -> dict[int, float]:
        """Duration of each node that CUDA can still tell. Waits for the events."""
        found = {}
        for node, start, end in self._spans:
            with suppress(RuntimeError):
                end.synchronize()
                found[node] = start.elapsed_time(end) / 1000
        return found

    def _stop(self, thread: int) -> Any:
        known = self._running.pop(thread, None)
        if known is None:
            return None
        node, device, stream, start = known
        if current_stream(device) != stream:
            return None
        end = _recorded(device)
        if end is not None:
            self._spans.append((node, start, end))
        return end


def _recorded(device: int) -> Any:
    """An event on the current stream of a device; None if CUDA has failed."""
    with suppress(RuntimeError):
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event
    return None
