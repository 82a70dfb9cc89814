"""Durations of copies: matched to made-up traces here, and to the profiler's own on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphviz_torch import record
from graphviz_torch.graph import TensorMeta
from graphviz_torch.memcpy import match, read
from graphviz_torch.transfers import Seen


def event(name: str, start: float, us: float, nbytes: int) -> dict[str, Any]:
    arguments = {"bytes": nbytes, "device": 0}
    return {"cat": "gpu_memcpy", "name": name, "ts": start, "dur": us, "args": arguments}


def seen(kind: Any, elements: int) -> Seen:
    tensor = TensorMeta((elements,), "float32", "cuda:0")
    return Seen(kind, "cpu", "cuda:0", tensor, False, False, range(0), 0)


def test_copies_between_devices_are_read_in_order() -> None:
    copies = read(
        [
            event("Memcpy DtoH (Device -> Pageable)", 9, 4, 4),
            event("Memcpy HtoD (Pageable -> Device)", 3, 2, 40),
            event("Memcpy DtoD (Device -> Device)", 5, 1, 40),
            {"cat": "kernel", "name": "Memcpy HtoD", "ts": 1, "dur": 1},
        ]
    )
    assert [(copy.kind, copy.nbytes, copy.seconds) for copy in copies] == [
        ("HtoD", 40, pytest.approx(2e-6)),
        ("DtoH", 4, pytest.approx(4e-6)),
    ]


def test_an_event_goes_to_the_first_copy_of_its_kind_and_bytes() -> None:
    copies = [seen("HtoD", 10), seen("HtoD", 5), seen("HtoD", 10), seen("DtoH", 10)]
    rest = match(
        copies,
        read(
            [
                event("Memcpy HtoD (Pinned -> Device)", 1, 1, 40),
                event("Memcpy HtoD (Pinned -> Device)", 2, 2, 40),
                event("Memcpy HtoD (Pageable -> Device)", 3, 3, 1234),
            ]
        ),
    )
    assert [copy.seconds for copy in copies] == [
        pytest.approx(1e-6),
        None,
        pytest.approx(2e-6),
        None,
    ]
    (unmatched,) = rest
    assert (unmatched.kind, unmatched.nbytes, unmatched.node) == ("HtoD", 1234, None)


def test_there_is_no_clock_without_cuda() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="clock=True"):
            record(clock=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="times copies on CUDA")
def test_every_copy_on_cuda_has_a_duration() -> None:
    x = torch.randn(1000, requires_grad=True)
    with record(clock=True) as recording:
        y = (x.cuda() * 2).sum().cpu()
        y.backward()
    copies = [copy for copy in recording.graph.transfers if copy.nbytes]
    assert len(copies) == 4
    assert all((copy.seconds or 0) > 0 for copy in copies)
