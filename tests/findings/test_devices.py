"""Findings on devices, on recordings of models with common mistakes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Finding, record, simulate_accelerator
from tests.support.models import MLP
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def test_mixed_devices_are_explained_and_the_error_passes_unchanged(sim: torch.device) -> None:
    model = MLP().to(sim)
    recording = record(model)

    def train() -> None:
        with recording:
            x = torch.randn(64, 4)
            model(x)

    with pytest.raises(RuntimeError, match="same device") as raised:
        train()
    found = only("mixed-devices", recording.graph)
    assert recording.graph.failure is not None
    assert recording.graph.failure.message == str(raised.value)
    assert " on cpu" in found.message
    assert "fc1.weight on sim:0" in found.message


def test_a_model_that_was_left_behind_is_what_to_move(sim: torch.device) -> None:
    model = nn.Linear(4, 4)
    recording = record(model)
    with pytest.raises(RuntimeError), recording:
        model(torch.ones(2, 4, device=sim))
    advice = only("mixed-devices", recording.graph).advice
    assert advice.startswith('Move what lies elsewhere: the model, with model.to("sim:0")')


def test_shapes_that_do_not_fit_are_explained_with_what_was_given() -> None:
    recording = record(MLP())
    with pytest.raises(RuntimeError), recording:
        MLP()(torch.randn(3, 5))
    assert "f32[3, 5] cpu" in only("failed", recording.graph).message


def test_an_operand_on_another_device_is_named_and_told_how_to_move() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.pos = torch.ones(4)  # no buffer: to() leaves it where it is

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + self.pos

    def failed(run: Callable[[], Tensor]) -> Finding:
        recording = record(model)
        with pytest.raises(RuntimeError), recording:
            run()
        return only("mixed-devices", recording.graph)

    with simulate_accelerator() as [device]:
        model = Model().to(device)
        batch = {"y": torch.ones(2, 4)}
        attribute = failed(lambda: model(torch.ones(2, 4, device=device)))
        assert "self.pos on cpu" in attribute.message
        assert 'self.register_buffer("pos", ...)' in attribute.advice
        item = failed(lambda: model.fc(torch.ones(2, 4, device=device)) - batch["y"])
        assert "batch['y'] on cpu" in item.message
        assert """batch['y'] = batch['y'].to("sim:0")""" in item.advice
