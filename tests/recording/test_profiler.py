"""Test durations of copies with made-up traces; test_cuda_copies.py uses the profiler."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphviz_torch import record
from graphviz_torch.graph import TensorMeta
from graphviz_torch.recording import recording as recordings
from graphviz_torch.recording.transfers.copies import CopyRecord, match
from graphviz_torch.recording.transfers.profiler import Clock, read


def event(name: str, start: float, us: float, nbytes: int, **arguments: int) -> dict[str, Any]:
    """As Kineto writes one, in CuptiActivity.cpp (name and arguments) and output_json.cpp."""
    arguments = {"bytes": nbytes} | (arguments or {"device": 0})
    return {"cat": "gpu_memcpy", "name": name, "ts": start, "dur": us, "args": arguments}


def copied(kind: Any, elements: int) -> CopyRecord:
    tensor = TensorMeta((elements,), "float32", "cuda:0")
    return CopyRecord(kind, "cpu", "cuda:0", tensor, False, False, range(0), 0)


def test_copies_between_devices_are_read_in_order_and_nothing_else() -> None:
    # memcpyKindString in libkineto/src/cupti_strings.cpp; a memset is of another category.
    others = ["Memcpy DtoD (Device -> Device)", "Memcpy HtoH (Pageable -> Pinned)"]
    events = [event(name, 1, 1, 4) for name in [*others, "Memset (Device)"]]
    events += [
        event("Memcpy DtoH (Device -> Pageable)", 9, 4, 4),
        event("Memcpy HtoD (Pageable -> Device)", 3, 2, 40),
        {"cat": "kernel", "name": "Memcpy HtoD", "ts": 1, "dur": 1},
    ]
    assert [(copy.kind, copy.nbytes, copy.seconds) for copy in read(events)] == [
        ("HtoD", 40, pytest.approx(2e-6)),
        ("DtoH", 4, pytest.approx(4e-6)),
    ]


def test_an_event_goes_to_the_first_copy_of_its_kind_and_bytes() -> None:
    copies = [copied("HtoD", 10), copied("HtoD", 5), copied("HtoD", 10), copied("DtoH", 10)]
    sizes = [40, 40, 1234]
    events = [event("Memcpy HtoD (Pinned -> Device)", i, i, n) for i, n in enumerate(sizes, 1)]
    (unmatched,) = match(copies, read(events))
    micros = [copy.seconds and round(copy.seconds * 1e6, 3) for copy in copies]
    assert micros == [1, None, 2, None]
    assert (unmatched.kind, unmatched.nbytes, unmatched.node) == ("HtoD", 1234, None)


def test_copies_are_matched_in_the_order_of_the_calls_and_not_of_the_device() -> None:
    # The first copy waits in a busy stream; the second overtakes it in another.
    copies = [copied("HtoD", 10), copied("HtoD", 10)]
    late = event("Memcpy HtoD (Pinned -> Device)", 9, 1, 40, device=0, correlation=5)
    early = event("Memcpy HtoD (Pinned -> Device)", 3, 2, 40, device=0, correlation=8)
    assert match(copies, read([early, late])) == []
    assert [copy.seconds for copy in copies] == [pytest.approx(1e-6), pytest.approx(2e-6)]


def test_a_copy_between_two_cards_names_both() -> None:
    # CuptiActivity.cpp: CUpti_ActivityMemcpy2 has no "device".
    peers = {"fromDevice": 1, "inDevice": 1, "toDevice": 0}
    events = [event("Memcpy PtoP (Device -> Device)", 1, 5, 64, **peers)]
    (unmatched,) = match([], read(events))
    assert (unmatched.kind, unmatched.source, unmatched.target) == ("DtoD", "cuda:1", "cuda:0")
    assert unmatched.tensor.device == "cuda:0"


def test_there_is_no_clock_without_cuda() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="clock=True"):
            record(clock=True)


def test_a_device_that_nobody_used_is_left_alone_and_one_that_failed_ends_no_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(device: int) -> None:
        waited.append(device)
        raise RuntimeError("CUDA error: device-side assert triggered")

    def export(path: str) -> None:
        Path(path).write_text('{"traceEvents": []}')

    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device == 1, False)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    clock = Clock()
    clock._profile = SimpleNamespace(stop=lambda: None, export_chrome_trace=export)  # type: ignore[assignment]
    clock.__exit__()
    assert (waited, clock.copies) == ([1], [])


def test_copies_that_the_profiler_tells_when_it_ends_are_in_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class EndedClock(Clock):
        def __enter__(self) -> Clock:
            return self

        def __exit__(self, *_: object) -> None:
            self.copies = read([event("Memcpy HtoD (Pinned -> Device)", 1, 3, 40)])

    monkeypatch.setattr(recordings, "Clock", EndedClock)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        recording = record(clock=True)
    with recording:
        torch.ones(3, requires_grad=True).sum().backward()
    (copy,) = recording.graph.transfers
    assert (copy.kind, copy.nbytes, copy.seconds) == ("HtoD", 40, pytest.approx(3e-6))
