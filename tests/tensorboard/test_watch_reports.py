"""Test that watch() reports late faults with their step, and nothing in healthy trainings."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import load, watch
from graphviz_torch.graph import Training
from graphviz_torch.internals.hooks.optimizers import _INSTALLATION
from graphviz_torch.recording.health import health
from graphviz_torch.recording.health.checks import PATIENCE, HealthChecks, WatchReport

Fault = Callable[["Net", torch.optim.Optimizer, int], object]


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let watch() read all gradients in each step, however busy the machine is."""
    monkeypatch.setattr(health, "_MIN_COST", 60.0)


class Net(nn.Module):
    """Two branches, whose results are added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(8, 1)
        self.gate, self.both, self.scale = 1.0, True, 1.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.both:
            hidden = hidden + self.gate * self.second(x)
        result: Tensor = self.last(hidden) * self.scale
        return result


def train(
    fault: Fault | None, steps: int = 120, **options: object
) -> tuple[list[WatchReport], Net]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            fault(model, optimizer, step)
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            (model(x).squeeze(1) - x.sum(1)).square().mean().backward()
            optimizer.step()
    return watching.reports, model


def setting(at: int, name: str, value: object) -> Fault:
    return lambda model, _, step: setattr(model, name, value) if step == at else None


def rate(at: int, value: float) -> Fault:
    def change(model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == at:
            optimizer.param_groups[0]["lr"] = value

    return change


BRANCH = ("second.0.weight", "second.0.bias")


@pytest.mark.parametrize(
    ("fault", "kind", "step", "words", "parameters"),
    [
        pytest.param(
            setting(70, "scale", math.nan),
            "nonfinite-loss",
            70,
            "The loss is NaN in step 70. mul at test_watch_reports.py:",
            None,
            id="NaN",
        ),
        pytest.param(
            setting(70, "scale", math.inf),
            "nonfinite-gradient",
            70,
            "before step 70",
            None,
            id="inf",
        ),
        pytest.param(
            setting(40, "gate", 0.0),
            "no-gradient",
            40 + PATIENCE - 1,
            "second.0.weight and second.0.bias had a gradient of exactly zero in 20 consecutive "
            "steps, from step 40 on",
            BRANCH,
            id="a branch that is multiplied by zero",
        ),
        pytest.param(
            setting(40, "both", False),
            "no-gradient",
            40 + PATIENCE - 1,
            "had no gradient in 20 consecutive steps, from step 40 on",
            BRANCH,
            id="a branch that is left out",
        ),
        pytest.param(
            setting(80, "scale", 1000.0),
            "gradient-spike",
            80,
            "in step 80. The largest",
            (),
            id="a spike",
        ),
    ],
)
def test_a_late_fault_is_told_with_its_step(
    fault: Fault, kind: str, step: int, words: str, parameters: tuple[str, ...] | None
) -> None:
    reports, _ = train(fault)
    first = reports[0]
    assert (first.rule, first.step) == (kind, step)
    assert words in first.message
    assert parameters is None or first.parameters == parameters
    assert len([each for each in reports if each.rule == kind]) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(rate(20, 0.0), "zero-learning-rate"), (rate(60, 3.0), "large-update")],
    ids=["a rate of zero", "a rate that ran off"],
)
def test_a_rate_that_changes_weights_no_more_or_too_much_is_told(fault: Fault, kind: str) -> None:
    reports, _ = train(fault, steps=1000)
    assert kind in {each.rule for each in reports}


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_a_healthy_training_has_no_reports(make: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 2))
    optimizer = make(model.parameters(), lr=1e-2)  # type: ignore[call-arg]
    with watch(model) as watching:
        for _ in range(300):
            optimizer.zero_grad()
            words = torch.randint(0, 20, (8, 3))
            target = (words.sum(1) > 30).long()
            nn.functional.cross_entropy(model(words), target).backward()
            optimizer.step()
    assert watching.reports == []
    assert watching.step == 300


def test_the_gradient_is_told_before_the_optimizer_spreads_it(
    logged: Callable[..., list[logging.LogRecord]],
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finite = []

    class Look(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            finite.append(bool(model.weight.isfinite().all()))

    logged("graphviz_torch")
    logger, look = logging.getLogger("graphviz_torch"), Look()
    logger.addHandler(look)
    with watch(model):
        model(torch.full((1, 2), math.nan)).sum().backward()
        optimizer.step()
    logger.removeHandler(look)
    assert finite == [True]
    assert not model.weight.isfinite().any()


def test_the_steps_after_a_report_are_recorded_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, folder=tmp_path / "trouble") as watching:
        for step in range(12):
            optimizer.zero_grad()
            model.scale = math.nan if step == 5 else 1.0
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    assert [each.step for each in watching.reports] == [5]
    assert [step.number for step in watching.steps] == [6, 7]
    labels = {node.label for node in watching.steps[0].graph.nodes}
    assert {"last.weight", "first.0.weight"} <= labels
    written = load(tmp_path / "trouble" / "run.json.gz")
    assert isinstance(written, Training)
    assert [step.number for step in written.steps] == [6, 7]


def test_a_watched_training_is_bit_equal_and_nothing_is_left() -> None:
    before = _INSTALLATION.watchers
    _, watched = train(setting(40, "gate", 0.0))
    assert _INSTALLATION.watchers == before
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(120):
        model.gate = 0.0 if step >= 40 else 1.0
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        (model(x).squeeze(1) - x.sum(1)).square().mean().backward()
        optimizer.step()
    for a, b in zip(watched.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_half_and_sparse_gradients_are_neither_zero_nor_infinite() -> None:
    half = nn.Linear(200, 200).half()
    words = nn.Embedding(50, 4, sparse=True)
    optimizers = [
        torch.optim.SGD(half.parameters(), lr=0),
        torch.optim.SparseAdam(words.parameters()),
    ]
    with watch(nn.ModuleList([half, words])) as watching:
        for _ in range(PATIENCE + 5):
            for parameter in half.parameters():
                parameter.grad = torch.full_like(parameter, 2000.0)  # the norm is beyond float16
            words.zero_grad()
            words(torch.tensor([1, 2])).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert watching.reports == []


def test_memory_that_grows_in_each_sample_is_told_once() -> None:
    signs = HealthChecks([])
    steady = [100 << 20, 300 << 20] * 10
    assert not [each for i, size in enumerate(steady) for each in signs.memory(i, size)]
    signs = HealthChecks([])
    growing = [(400 + 20 * i) << 20 for i in range(20)]
    [told] = [each for i, size in enumerate(growing) for each in signs.memory(i, size)]
    assert told.message.endswith("from 400 MiB to 540 MiB.")


@pytest.mark.parametrize("wide", [False, True], ids=["few parameters", "many"])
def test_a_loss_that_is_not_finite_is_told_in_its_step_though_all_take_too_long_to_read(
    wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_MIN_COST", 0.0)
    monkeypatch.setattr(health, "_COST_SHARE", 1e-9)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40 if wide else 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    counts = []
    read, read_one = health.quick_norms, health.is_finite
    monkeypatch.setattr(health, "quick_norms", lambda g: counts.append(len(g)) or read(g))
    monkeypatch.setattr(health, "is_finite", lambda g: counts.append(len(g.shape)) or read_one(g))
    with watch(model) as watching:
        for step in range(222):
            optimizer.zero_grad()
            result = model(torch.randn(4, 4))
            if step == 221:
                result.register_hook(lambda gradient: gradient * math.nan)
            result.square().mean().backward()
            optimizer.step()
    # The first bias is read in every step; of 6 parameters all in every fourth, of 80 a part;
    # of a weight that is sampled two: what it was, and its change.
    assert set(counts[-20:]) == ({2, 10, 11} if wide else {1, 2, 6})
    [report] = [each for each in watching.reports if each.rule == "nonfinite-gradient"]
    assert (report.rule, report.step) == ("nonfinite-gradient", 221)
    assert len(report.parameters) == (80 if wide else 6)


def test_a_norm_that_jumps_where_the_training_has_converged_is_not_told() -> None:
    signs = HealthChecks(["weight"])
    norms = [1.0] * 50 + [1e-8] * 60 + [1e-6] + [1e-8] * 60 + [0.5]
    told = [each for i, norm in enumerate(norms) for each in signs.gradients(i, {0: norm})]
    assert [(each.rule, each.step) for each in told] == [("gradient-spike", len(norms) - 1)]


def test_an_ignored_rule_is_not_reported_and_a_mistyped_one_raises() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, ignore=["nonfinite-loss", "nonfinite-gradient"]) as watching:
        model(torch.full((1, 2), math.nan)).sum().backward()
        optimizer.step()
    assert watching.reports == []
    with pytest.raises(ValueError, match="Did you mean 'nonfinite-loss'"):
        watch(model, ignore=["nonfinite-los"])


def test_a_loss_in_a_function_transform_is_not_read_and_causes_no_log(
    logged: Callable[..., list[logging.LogRecord]],
) -> None:
    records = logged("graphviz_torch")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    with watch(model):
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(2, 3))
    assert each["0.weight"].shape == (2, 4, 3)
    assert records == []


class Unreadable:
    """An object of the program that raises an exception at each read of an attribute."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


def test_no_code_of_the_programs_variables_is_called(
    logged: Callable[..., list[logging.LogRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = logged("graphviz_torch")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = Unreadable()  # a name of an average, whose weights watch() compares
    calls: list[object] = []
    index = Tensor.__getitem__
    monkeypatch.setattr(Tensor, "__getitem__", lambda t, i: (calls.append(i), index(t, i))[1])
    with watch(model):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    assert records == []
    assert calls == []
    assert type(ema) is Unreadable
