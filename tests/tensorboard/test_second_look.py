"""Test that watch() names the cause of a NaN before the optimizer spreads it."""

from __future__ import annotations

import copy
import inspect
import math
import weakref

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import watch
from graphviz_torch.recording.health import health
from graphviz_torch.recording.health.checks import WatchReport


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MIN_COST", 60.0)


class Net(nn.Module):
    """A model with state that a second run could change: dropout, batch norm, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 1)
        self.fault, self.calls = "", 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.drop(self.norm(self.body(x)))
        if self.fault == "log":
            h = torch.log(h)  # cause of log
        if self.fault == "sqrt":
            h = torch.sqrt(h * 0) + h  # cause of sqrt
        result: Tensor = self.head(h)
        return result


def line(cause: str) -> str:
    code, first = inspect.getsourcelines(Net)
    [found] = [first + i for i, text in enumerate(code) if text.rstrip().endswith(cause)]
    return f"test_second_look.py:{found}"


def train(
    fault: str, *, watched: bool, on: torch.device | str = "cpu"
) -> tuple[list[WatchReport], list[Tensor], list[list[Tensor]]]:
    torch.manual_seed(0)
    model = Net().to(on)
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grads: list[list[Tensor]] = []
    watching = watch(model) if watched else None
    try:
        for step in range(6):
            x = torch.randn(8, 4)
            model.fault = fault if step == 3 else ""
            if model.fault == "data":
                x[5, 1] = math.nan
            loss = model(x.to(on)).square().mean()
            if model.fault == "loss":
                loss = (loss - 1e3).log()
            optimizer.zero_grad()
            loss.backward()
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            optimizer.step()
            for mean, p in zip(ema.parameters(), model.parameters(), strict=True):
                mean.lerp_(p.detach(), 0.1)
    finally:
        if watching is not None:
            watching.remove()
    state = [*model.state_dict().values(), *ema.state_dict().values(), torch.rand(3)]
    state.append(torch.tensor(model.calls))
    reports = [] if watching is None else watching.reports
    return reports, [tensor.clone() for tensor in state], grads


FAULTS = {
    "log": ("nonfinite-loss", f"log at {line('# cause of log')} made "),
    "sqrt": ("nonfinite-gradient", f"sqrt at {line('# cause of sqrt')} received a finite gradient"),
    "data": ("nonfinite-loss", "The model's input is not finite: x contains 1 NaN in row 5."),
    "loss": ("nonfinite-loss", "log after the model, before backward at test_second_look.py:"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_made_a_loss_or_gradient_nan_is_named_once(fault: str) -> None:
    reports, *_ = train(fault, watched=True)
    kind, words = FAULTS[fault]
    assert [(each.rule, each.step) for each in reports] == [(kind, 3)]
    assert words in reports[0].message


@pytest.mark.parametrize("fault", ["log", "data"])
def test_it_is_named_on_the_simulated_accelerator_too(fault: str, sim: torch.device) -> None:
    reports, *_ = train(fault, watched=True, on=sim)
    kind, words = FAULTS[fault]
    assert (reports[0].rule, reports[0].step) == (kind, 3)
    assert words in reports[0].message


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_second_run_moves_nothing(fault: str) -> None:
    _, after, grads = train(fault, watched=True)
    _, bare, bare_grads = train(fault, watched=False)
    for a, b in zip(after, bare, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    for given, expected in zip(grads, bare_grads, strict=True):
        assert all(
            torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
            for a, b in zip(given, expected, strict=True)
        )


def test_arguments_are_let_go_when_the_step_ends_and_the_class_is_as_before() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model):
        assert "__call__" in vars(Net)
        x = torch.randn(8, 4)
        ref = weakref.ref(x)
        model(x).sum().backward()
        optimizer.step()
        del x
        assert ref() is None
        assert not model._forward_pre_hooks
        assert type(copy.deepcopy(model)) is Net
    assert "__call__" not in vars(Net)


def test_an_infinite_loss_of_a_scaler_that_skips_the_step_is_not_told() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    with watch(model) as watching:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean() * 100
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert watching.reports == []


@pytest.mark.parametrize("changed", [True, False])
def test_a_call_whose_argument_was_changed_is_not_made_again(changed: bool) -> None:
    model = Net()
    model.body.requires_grad_(False)  # what learns does not keep the argument
    calls: list[int] = []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with watch(model) as watching:
        model.fault, x = "log", torch.randn(8, 4)
        loss = model(x).mean()
        if changed:
            x.mul_(2)
        loss.backward()
        optimizer.step()
    assert watching.reports[0].message.startswith("The loss is NaN in step 0. log")
    assert len(calls) == (1 if changed else 2)


def test_a_loss_that_is_nan_in_a_closure_is_told_with_the_step_that_called_it() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)
    with watch(model) as watching:
        for step in range(4):

            def closure() -> Tensor:
                optimizer.zero_grad()
                out = model(torch.ones(2, 4)).square()
                loss: Tensor = (torch.log(-out - 1) if step == 2 else out).mean()  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert [(r.step, r.rule) for r in watching.reports][:1] == [(2, "nonfinite-loss")]
