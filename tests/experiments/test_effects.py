"""Test side effects of a forward in experiments: discarded, refused or undone."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphviz_torch.experiments import experiment
from tests.experiments.programs import classified, net, recorded

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def step(forward: Callable[..., Any], **modules: nn.Module) -> Any:
    return classified(forward, torch.randn(6, 4), fc=nn.Linear(4, 3), **modules)


def test_what_is_printed_or_logged_a_second_time_is_dropped(
    capsys: pytest.CaptureFixture[str], logged: Callable[..., list[logging.LogRecord]]
) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        print("out")
        print("err", file=sys.stderr)
        logging.getLogger("net").warning("log")
        return self.fc(x)

    records = logged("net")
    recording = step(forward)
    assert capsys.readouterr() == ("out\n", "err\n")
    assert [each.getMessage() for each in records] == ["log"]
    found = experiment(recording)
    assert capsys.readouterr() == ("", "")
    assert [each.getMessage() for each in records] == ["log"]
    assert found[0].holds is True
    logging.getLogger("net").warning("after")
    assert [each.getMessage() for each in records] == ["log", "after"]


def opens(path: Path) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        with path.open("a") as file:
            file.write("a line\n")
        return self.fc(x)

    return step(forward)


def holds_open(path: Path) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.log.write("a line\n")
        self.log.flush()
        return self.fc(x)

    model = net(forward, fc=nn.Linear(4, 3))
    model.log = path.open("w")
    return recorded(model, torch.randn(6, 4))


@pytest.mark.parametrize("program", [opens, holds_open])
def test_a_forward_that_writes_a_file_is_not_run_again(
    program: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "log.txt"
    recording = program(path)
    found = experiment(recording, "sample", "seed", "inputs", "float64", "memory_order")
    assert path.read_text() == "a line\n"
    assert {each.holds for each in found} == {None}, str(found)
    assert "log.txt" in found[0].message
    assert "it is not run again, and" in found[0].message
    log = getattr(recording.first_call.call.module, "log", None)
    if log is not None:  # it is the module's own again
        log.write("another\n")
        log.close()
        assert path.read_text() == "a line\nanother\n"


def test_a_forward_that_reads_a_file_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "scale.txt"
    path.write_text("2.0")
    [found] = experiment(step(lambda self, x: self.fc(x * float(path.read_text()))), "sample")
    assert found.holds is True


class OfNumpy(torch.autograd.Function):
    """A softmax over the batch in NumPy, which no operator shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = np.exp(x.detach().numpy())
        return torch.from_numpy(e / e.sum(0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class OfTorch(torch.autograd.Function):
    """The same softmax by an operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.softmax(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def numpy_function(self: Any, x: Tensor) -> Tensor:
    return self.fc(OfNumpy.apply(x))


def list_of_numbers(self: Any, x: Tensor) -> Tensor:
    return self.fc(x + torch.tensor((x * 2).tolist()).mean(0))


def array(self: Any, x: Tensor) -> Tensor:
    return self.fc(x - float(np.asarray(x).mean()))


@pytest.mark.parametrize(
    ("forward", "reader"),
    [(numpy_function, "numpy"), (list_of_numbers, "tolist"), (array, "__array__")],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("name", ["sample", "float64"])
def test_nothing_is_concluded_where_values_leave_pytorch(
    forward: Callable[..., Any], reader: str, name: str
) -> None:
    [found] = experiment(step(forward), name)
    assert (found.holds, found.finding) == (None, None)
    assert found.message.startswith(f"{reader}() takes these values out of PyTorch")
    assert "test_effects.py:" in found.where


def test_a_function_of_ones_own_is_followed_where_it_computes_with_operators() -> None:
    [found] = experiment(step(lambda self, x: self.fc(OfTorch.apply(x))), "sample")
    assert found.finding is not None
    assert "softmax" in found.operation


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_of_numbers_that_pytorch_does_not_draw_nothing_is_concluded(
    draw: Callable[[], float],
) -> None:
    found = experiment(step(lambda self, x: self.fc(x * (draw() > 0.5))), "seed")
    assert [(each.holds, each.finding) for each in found] == [(None, None)] * 2
    assert "numpy or random" in found[0].message


def test_a_module_of_random_numbers_that_is_loaded_later_draws_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "numpy.random")
        recording = step(lambda self, x: self.fc(x))
    found = experiment(recording, "seed")
    assert [each.holds for each in found] == [True, True]


class Drawing(nn.Module):
    """A model with generators and counters of its own, which also uses those of an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.own = torch.Generator().manual_seed(1)
        self.rngs = {"numpy": np.random.default_rng(1), "python": random.Random(1)}
        self.stats = SimpleNamespace(calls=0, seen=[])

    def forward(self, x: Tensor, given: Any) -> Tensor:
        self.stats.calls += 1
        self.stats.seen.append(self.stats.calls)
        given.calls += 1
        scale = self.rngs["numpy"].random() + self.rngs["python"].random()
        noise = torch.randn(x.shape, generator=self.own)
        return self.fc(x[: 7 - given.calls] * scale + noise[: 7 - given.calls])

    def state(self, given: Any) -> Any:
        numbers = self.rngs["numpy"].bit_generator.state, self.rngs["python"].getstate()
        own = self.own.get_state().tolist()
        return (*numbers, own, self.stats.calls, list(self.stats.seen), given.calls)


def test_generators_and_objects_that_are_held_are_put_back_and_the_run_is_the_same() -> None:
    model, given = Drawing(), SimpleNamespace(calls=0)
    recording = recorded(model, torch.randn(6, 4), given)
    before = model.state(given)
    found = experiment(recording)
    assert model.state(given) == before
    [ordered] = [each for each in found if each.name == "memory_order"]
    assert ordered.holds is True, str(ordered)  # with other numbers it would differ


def test_a_cache_that_is_given_is_as_before() -> None:
    cache = SimpleNamespace(keys=[])

    def forward(self: Any, x: Tensor, cache: Any) -> Tensor:
        cache.keys.append(self.fc(x))
        return torch.stack(cache.keys).sum(0)

    recording = recorded(net(forward, fc=nn.Linear(4, 3)), torch.randn(6, 4), cache)
    [key] = cache.keys
    assert experiment(recording, "sample", "seed", "inputs", "float64")
    assert len(cache.keys) == 1
    assert cache.keys[0] is key
