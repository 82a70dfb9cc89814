"""Measure how long each node of a backward takes on CUDA, with events on the nodes' streams.

A node's start event is recorded when the node receives its gradients. The end event is recorded
when the next node of the same engine thread receives gradients, or earlier if `stop` is called. The
time between the events contains the node's work, the node's hooks, the accumulation of its
gradients, and any time in which the device waits for Python or for another stream. A node has no
duration if the stream changed between the two events. If several streams of a device ran nodes, the
device's last node has no duration, either.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import Any

import torch

from ...internals.streams import current_device, current_stream


class CudaClock:
    """CUDA events around the nodes of one backward."""

    def __init__(self) -> None:
        # Thread -> its running node, the node's device and stream, and the node's start event.
        self._running: dict[int, tuple[int, int, int, Any]] = {}
        self._streams: dict[int, set[int]] = {}  # device -> streams that ran nodes
        self._spans: list[tuple[int, Any, Any]] = []  # (node, start event, end event)

    def stop(self) -> Any:
        """End the node that runs in this thread, and return its end event.

        Returns None if no node runs in this thread or the event cannot be recorded.
        """
        return self._stop(get_ident())

    def start(self, node: int, event: Any) -> None:
        """Begin the next node of this thread.

        Args:
            node: id of the node.
            event: the end event of the previous node, if it can be the start event of this node.
        """
        device = current_device()  # the engine sets it to the node's device
        if event is None or event.device.index != device:
            event = _record_event(device)
        if event is not None:
            stream = current_stream(device)
            self._streams.setdefault(device, set()).add(stream)
            self._running[get_ident()] = node, device, stream, event

    def finish(self) -> None:
        """End the last node of each device that ran all nodes on one stream.

        Called when all nodes have run, and the caller's streams wait for the nodes' streams.
        """
        for thread, (_, device, _, _) in list(self._running.items()):
            if len(self._streams[device]) == 1:
                self._stop(thread)
        self.abandon()

    def abandon(self) -> None:
        """Discard the measurements of running nodes, because the backward failed."""
        self._running.clear()

    def seconds(self) -> dict[int, float]:
        """Wait for the events, and return the nodes' durations in seconds, by node id."""
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
        end = _record_event(device)
        if end is not None:
            self._spans.append((node, start, end))
        return end


def _record_event(device: int) -> Any:
    """Record an event on the current stream of a device, and return it; None if CUDA fails."""
    with suppress(RuntimeError):
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event
    return None
