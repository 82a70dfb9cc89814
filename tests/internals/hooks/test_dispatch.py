"""Test the watch on operators, which is active only where copies between devices can happen."""

from __future__ import annotations

import pytest
import torch

from graphviz_torch import record, simulate_accelerator
from graphviz_torch.internals.hooks import dispatch as watching


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process that has only used the CPU."""
    for device in list(watching.DEVICE_LABELS):
        monkeypatch.delitem(watching.DEVICE_LABELS, device)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.usefixtures("alone")
def test_where_there_is_the_cpu_alone_no_kernel_is_registered() -> None:
    with record() as recording:
        assert not watching._libraries
        x = torch.ones(3, requires_grad=True)
        (x.to(torch.float64) * 2).sum().backward()
    assert recording.graph.transfers == ()


@pytest.mark.usefixtures("alone")
def test_a_device_that_appears_while_recording_is_watched() -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording, simulate_accelerator() as [device]:
        assert watching._libraries
        (x.to(device) * 2).sum().backward()
    assert [copy.phase for copy in recording.graph.transfers] == ["forward", "backward"]
    assert not watching._libraries


def test_an_accelerator_is_watched_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with record():
        assert watching._libraries
    assert not watching._libraries


def test_pytorch_is_not_told_of_an_autocast_that_nobody_has_switched_on() -> None:
    theirs = torch._C._is_any_autocast_enabled
    rnn, x = torch.nn.GRU(5, 7), torch.ones(3, 2, 5, dtype=torch.float64)
    with record():
        assert not torch._C._is_any_autocast_enabled()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch._C._is_any_autocast_enabled()
        with pytest.raises(ValueError, match="does not match weight dtype"):
            rnn(x)
        with record():
            pass
        assert not torch._C._is_any_autocast_enabled()
    assert torch._C._is_any_autocast_enabled is theirs
