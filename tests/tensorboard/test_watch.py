"""Compare the gradient norms that watch() writes with the gradients."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

from graphviz_torch import watch
from graphviz_torch.tensorboard.module_norms import gradient_norms
from tests.support.programs import Functions


class Notes:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.seen.append((tag, scalar_value, global_step))


def training(steps: int, every: int) -> tuple[Notes, list[dict[str, float]]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    notes, expected = Notes(), []
    with watch(model, notes, every):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).pow(2).mean().backward()
            flat = {i: [p.grad.reshape(-1) for p in model[i].parameters()] for i in (0, 2)}
            expected.append({str(i): torch.cat(parts).norm().item() for i, parts in flat.items()})
            optimizer.step()
    optimizer.step()  # no longer watched
    return notes, expected


def test_every_nth_step_has_the_norm_of_each_modules_gradients() -> None:
    notes, expected = training(steps=5, every=2)
    assert [(tag, step) for tag, _, step in notes.seen] == [
        (f"gradient_norm/{i}", step) for step in (0, 2, 4) for i in (0, 2)
    ]
    for tag, value, step in notes.seen:
        assert value == pytest.approx(expected[step][tag.split("/")[1]])


def test_the_optimizer_of_another_model_is_not_counted() -> None:
    other = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with watch(torch.nn.Linear(2, 2), Notes()) as watching:
        other(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    assert watching.step == 0


def test_norms_are_those_of_sparse_and_half_gradients_too() -> None:
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    assert gradient_norms(embedding)[""] == pytest.approx(embedding.weight.grad.to_dense().norm())
    half = torch.nn.Linear(300, 1, bias=False).half()
    half.weight.grad = torch.full((1, 300), 100.0, dtype=torch.float16)
    assert gradient_norms(half)[""] == pytest.approx(100 * 300**0.5)


@pytest.mark.parametrize(
    ("model", "writer", "every", "said"),
    [
        (torch.nn.Linear(1, 1), Notes(), 0, "every=0"),
        (torch.ones(1), Notes(), 1, "model is a Tensor: pass a torch.nn.Module."),
        (torch.nn.Linear(1, 1), print, 1, "writer is a builtin_function_or_method: pass a Summ"),
        (torch.nn.Linear(1, 1), Notes(), 2.5, "every=2.5"),
        (torch.nn.Linear(1, 1), Notes(), "2", "every='2'"),
        (torch.nn.Linear(1, 1), Notes(), True, "every=True"),
    ],
)
def test_what_cannot_be_watched_is_refused(model: Any, writer: Any, every: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        watch(model, writer, every)


@pytest.mark.parametrize(
    ("held", "every", "rounds", "written"),
    [
        ([[0], [1]], 2, 3, [("0", 0), ("1", 0), ("0", 2), ("1", 2)]),
        ([[0, 1], [0, 1]], 1, 1, [("0", 0), ("1", 0)]),
        ([[0]], 1, 2, [("0", 0), ("1", 0), ("0", 1), ("1", 1)]),  # 1 when the next step begins
    ],
    ids=["one for each layer", "two of the same", "one for the first layer"],
)
def test_each_layer_is_written_once_a_step_whichever_optimizers_hold_it(
    held: list[list[int]], every: int, rounds: int, written: list[tuple[str, int]]
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    parameters = [[p for i in layers for p in model[i].parameters()] for layers in held]
    optimizers = [torch.optim.SGD(each, lr=0.1) for each in parameters]
    notes = Notes()
    with watch(model, notes, every) as watching:
        for _ in range(rounds):
            model(torch.ones(1, 2)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert watching.step == rounds
    assert [(tag[-1], step) for tag, _, step in notes.seen] == written


def test_each_module_is_measured_before_the_step_of_its_own_optimizer() -> None:
    model = torch.nn.ModuleDict({"d": torch.nn.Linear(1, 1), "g": torch.nn.Linear(1, 1)})
    optimizers = {k: torch.optim.SGD(part.parameters(), lr=0.0) for k, part in model.items()}
    notes = Notes()
    with watch(model, notes):
        for step in range(2):
            for name, factor in (("d", 1.0), ("g", 10.0)):
                optimizers[name].zero_grad()
                (model[name](torch.ones(1, 1)) * (factor + step)).sum().backward()
                optimizers[name].step()
    expected = {("d", 0): 1.0, ("g", 0): 10.0, ("d", 1): 2.0, ("g", 1): 11.0}
    seen = {(tag[-1], step): value for tag, value, step in notes.seen}
    assert seen == pytest.approx({key: value * 2**0.5 for key, value in expected.items()})
    assert len(notes.seen) == len(expected)


def test_a_full_disk_does_not_stop_the_training() -> None:
    class Full:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            raise OSError(28, "No space left on device")

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def train() -> None:
        with watch(model, Full()):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()

    before = model.bias.item()
    with pytest.warns(RuntimeWarning, match="No space left") as warned:
        train()
    assert len(warned) == 1
    assert model.bias.item() == pytest.approx(before - 3)


def test_a_summary_writer_gets_the_norms_and_a_ridge_of_them_by_depth(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    with SummaryWriter(str(tmp_path)) as writer, watch(model, writer):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).pow(2).mean().backward()
            optimizer.step()
            layers = (model[0], model[2])
            norms.append([torch.cat([p.grad.flatten() for p in m.parameters()]) for m in layers])
    expected = [[gradient.norm().item() for gradient in step] for step in norms]
    events = EventAccumulator(str(tmp_path)).Reload()
    for i, layer in enumerate((0, 2)):
        values = [(event.step, event.value) for event in events.Scalars(f"gradient_norm/{layer}")]
        assert values == [(step, pytest.approx(norm[i])) for step, norm in enumerate(expected)]
    assert len(events.Tensors("custom_scalars__config__")) == 1
    ridges = [make_ndarray(e.tensor_proto) for e in events.Tensors("gradient_norm by depth")]
    assert [ridge[:, 2].tolist() for ridge in ridges] == [pytest.approx(e) for e in expected]


def test_the_norm_of_a_huge_gradient_is_no_error() -> None:
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    model.weight.grad = torch.full_like(model.weight, 3e200)
    model.bias.grad = torch.full_like(model.bias, 4e200)
    assert gradient_norms(model) == {"": pytest.approx(5e200)}


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1e30, torch.float32),  # the square is too large for float32
        (3e38, torch.float32),  # the norm too
        (1e-30, torch.float32),
        (1e-44, torch.float32),
        (1e300, torch.float64),
        (1e-300, torch.float64),
        (3e38, torch.bfloat16),
        (1e30, torch.complex64),
        (0.0, torch.float32),
    ],
)
def test_a_norm_is_right_where_no_square_can_be_held(value: float, dtype: torch.dtype) -> None:
    model = torch.nn.Linear(3, 1, bias=False, dtype=dtype)
    model.weight.grad = torch.full((1, 3), value, dtype=dtype)
    exact = math.hypot(*(abs(v) for v in model.weight.grad[0].tolist()))
    assert gradient_norms(model) == {"": pytest.approx(exact, rel=1e-6, abs=0)}


def test_a_norm_says_inf_and_nan_where_the_gradient_has_them() -> None:
    model = torch.nn.Linear(3, 1)
    model.weight.grad = torch.tensor([[1.0, math.inf, 2.0]])
    model.bias.grad = torch.zeros(1)
    assert gradient_norms(model) == {"": math.inf}
    model.weight.grad = torch.tensor([[1.0, math.nan, 2.0]])
    assert math.isnan(gradient_norms(model)[""])


def test_a_norm_that_needs_no_second_look_is_one_copy_from_the_device() -> None:
    def copies(value: float) -> int:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        with Functions() as called:
            gradient_norms(model)
        names = [func.__name__ for func in called.calls]
        assert not {"item", "cpu", "numpy", "__float__", "__bool__"} & set(names)
        return names.count("tolist")

    assert (copies(1.0), copies(1e30)) == (1, 2)
