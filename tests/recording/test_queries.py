"""Test the queries over the log: each test is a list of rows and the events that they show.

The programs that write such rows are in tests/recording/events and tests/findings.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Iterable
from typing import Any

import pytest

from graphviz_torch.findings.rules.anomaly_mode import AnomalyMode
from graphviz_torch.findings.rules.freezing import EvalMode
from graphviz_torch.findings.rules.gradient_reads import SummedGradientsRead
from graphviz_torch.findings.rules.meaning.calls import (
    DropoutInEvalMode,
    RepeatedBatch,
    UnneededRetainGraph,
)
from graphviz_torch.findings.rules.meaning.compiled import SkippedFunction
from graphviz_torch.findings.rules.meaning.optimizers import (
    RecreatedOptimizer,
    StepWithoutGradients,
    ZeroLearningRate,
)
from graphviz_torch.findings.rules.meaning.schedulers import (
    ContinuedSchedule,
    NeverSteppedScheduler,
    RateSetByHand,
    RestartedSchedule,
    SchedulerPastEnd,
    SchedulerStepsTooOften,
    UnusedScheduler,
)
from graphviz_torch.findings.rules.modes import TrainModeWithoutGradients
from graphviz_torch.findings.rules.ranks.in_place import CollectiveInGraph
from graphviz_torch.findings.rules.training import (
    DiscardedGradients,
    MixedLosses,
    UnevenAccumulation,
)
from graphviz_torch.findings.rules.watched_parameters import ReplacedParameters
from graphviz_torch.graph.events import (
    AccumulatedBackwards,
    GradientClearing,
    GradientClip,
    OptimizerStep,
)
from graphviz_torch.internals.compiler.skipped import Skipped
from graphviz_torch.internals.frames import CodePosition
from graphviz_torch.internals.hooks.anomaly_mode import AnomalySwitch
from graphviz_torch.internals.hooks.func_gradients import ZeroGradients
from graphviz_torch.recording.program.events import (
    Events,
    MethodCall,
    RecordingNotes,
    UserLine,
    VariableLine,
)
from graphviz_torch.recording.program.log import Found, Log, Query
from graphviz_torch.recording.program.rows import (
    AverageRow,
    BackwardRow,
    BatchRow,
    ClearRow,
    ClipRow,
    CosineRow,
    GradientReadRow,
    GraphRow,
    GroupRow,
    ObservedRow,
    OptimizerRow,
    ProgramEndRow,
    ResumeRow,
    Row,
    SchedulerRow,
    StepEndRow,
    StepRow,
    TrainingStepRow,
    UnscaleRow,
)
from graphviz_torch.recording.queries.anomaly_mode import AnomalyModeRow, AnomalyModes
from graphviz_torch.recording.queries.backwards import Accumulation, RetainingLines
from graphviz_torch.recording.queries.batches import RepeatedBatches
from graphviz_torch.recording.queries.collectives import CollectiveRow, CollectivesInGraph
from graphviz_torch.recording.queries.gradient_life import (
    ClearedGradients,
    Clips,
    MixedGradients,
    SummedGradients,
)
from graphviz_torch.recording.queries.graph_breaks import SkippedFunctions
from graphviz_torch.recording.queries.modes import (
    DropoutModes,
    DropoutRow,
    EvalModes,
    ForwardRow,
    FrozenNormRow,
    TrainModesWithoutGradients,
)
from graphviz_torch.recording.queries.optimizers import (
    LostStates,
    OptimizerSteps,
    StepsWithoutGradients,
    ZeroLearningRates,
)
from graphviz_torch.recording.queries.replaced_parameters import (
    ReachedParametersRow,
    TemporaryParameters,
    WaitingParametersRow,
)
from graphviz_torch.recording.queries.schedulers import HandSetRates, Schedulers

CODE = (lambda: None).__code__
ONE, TWO, OTHER = frozenset({1}), frozenset({1, 2}), frozenset({3})


def line(number: int) -> CodePosition:
    """Return a source position that stands for a line."""
    return CODE, number


def backward(at: int = 10, reached: frozenset[int] = TWO, **fields: Any) -> BackwardRow:
    return BackwardRow(line(at), leaves=reached, reached=reached, **fields)


def step(at: int = 20, parameters: frozenset[int] = TWO, **fields: Any) -> StepRow:
    return StepRow(fields.pop("optimizer", 1), "opt", line(at), parameters=parameters, **fields)


END = StepEndRow()


def clear(parameters: frozenset[int] = TWO, at: int = 30) -> ClearRow:
    return ClearRow(parameters, line(at))


def clip(parameter: int = 1, storage: int | None = 100, backwards: int = 1) -> ClipRow:
    return ClipRow(parameter, "clip_grad_norm_", line(40), storage, backwards)


def found(query: Query, rows: Iterable[Row]) -> list[Found]:
    """Return the events that a query finds in these rows, in order."""
    return [each for row in rows for each in query.read(row)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([backward(), step(), END, clear()], []),
        ([backward(), clear(), step()], [GradientClearing()]),
        ([backward(), clear(ONE), step()], []),  # one of the gradients is used
        ([backward(), GradientReadRow(1), clear(), step()], []),
        ([backward(), GradientReadRow(1, is_use=False), clear()], [GradientClearing()]),
        ([backward(), UnscaleRow(), clear(), step()], []),
        ([step(), backward(), END, clear()], []),  # a closure runs backward during the step
        ([backward(), ResumeRow(), clear()], []),
        ([backward(), backward(), step()], []),
        ([backward(), step(has_copies=True, parameters=OTHER), END, clear()], []),
        ([backward(), step(parameters=OTHER), END, clear()], [GradientClearing()]),
        # The gradients of line 10 are cleared in part, before a step uses gradients of line 11.
        (
            [backward(), backward(11, OTHER), clear(), step(), END, backward()],
            [DiscardedGradients()],
        ),
        ([backward(), step(), END, backward(), clear(), backward()], [GradientClearing()]),
        # The gradients of a discriminator are cleared before the generator's are used.
        ([backward(reached=ONE | OTHER), clear(OTHER), step(parameters=ONE), END] * 2, []),
    ],
)
def test_gradients_that_are_cleared_before_any_use(rows: list[Row], expected: list[Any]) -> None:
    assert [each.event for each in found(ClearedGradients(), rows)] == expected


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([backward(10, frozenset({1, 3})), step(20, OTHER), END, backward(11), step(21)], (10, 11)),
        ([backward(10, frozenset({1, 3})), step(20, OTHER), END, backward(10), step(21)], None),
        ([backward(10, frozenset({1, 3})), backward(11), step(20, OTHER), END, step(21)], None),
        (
            [backward(10, frozenset({1, 3})), step(20, OTHER), clear(), backward(11), step(21)],
            None,
        ),
        (
            [
                backward(10, frozenset({1, 3})),
                step(20, OTHER),
                END,
                GradientReadRow(1, is_use=False),
                backward(11),
                step(21),
            ],
            None,
        ),
        # Of two pairs of lines, the first in the source is named, however the id() are ordered.
        (
            [
                backward(12, frozenset({1, 3})),
                backward(10, frozenset({2, 3})),
                step(20, OTHER),
                END,
                backward(11),
                step(21),
            ],
            (10, 11),
        ),
        # Another tensor has the id() now.
        (
            [
                backward(10, frozenset({1, 3})),
                step(20, OTHER),
                END,
                backward(11, ONE, new=ONE),
                step(21),
            ],
            None,
        ),
    ],
)
def test_a_step_with_the_gradients_of_two_losses(
    rows: list[Row], lines: tuple[int, int] | None
) -> None:
    events = found(MixedGradients(), rows)
    assert [each.event for each in events] == ([] if lines is None else [MixedLosses()])
    for each in events if lines else ():
        assert (each.place, each.latest["second"].place) == tuple(map(line, lines or ()))
        assert each.latest["stepped"].place == line(21)


@pytest.mark.parametrize(
    ("rows", "moments"),
    [
        ([backward(), clip(), clip(2), step()], ["in time"]),
        ([backward(), step(), END, clip()], ["after the step"]),
        ([backward(is_scaled=True), clip()], ["while scaled"]),
        ([backward(is_scaled=True), UnscaleRow(), clip()], ["in time"]),
        ([clip(storage=None), backward()], ["before backward"]),
        ([backward(), clip(3, None)], []),
        ([backward(), clip(3)], []),  # the gradient does not come from a recorded backward
        ([backward(), clip(), backward(), clip(backwards=2)], ["in time", "each backward"]),
        (
            [backward(), clip(), step(), END, clear(), backward(), clip(backwards=2)],
            ["in time"] * 2,
        ),
        ([backward(), clip(), AverageRow(frozenset({100}))], ["in time", "before the average"]),
        ([backward(), clip(), AverageRow(frozenset({101}))], ["in time"]),
        ([backward(), step(), END, backward(shards=TWO), clip()], ["in time"]),
        ([backward(), step(), END, backward(reached=OTHER, shards=ONE), clip()], []),
    ],
)
def test_the_moment_of_a_clip(rows: list[Row], moments: list[str]) -> None:
    expected = [GradientClip(function="clip_grad_norm_", moment=each) for each in moments]  # type: ignore[arg-type]
    assert [each.event for each in found(Clips(), rows)] == expected


def test_steps_that_use_several_backwards_and_one_that_uses_fewer() -> None:
    three: list[Row] = [*[backward(roots=(7,))] * 3, step()]
    rows: list[Row] = [*three, *three, *three, backward(), step()]
    events = found(Accumulation(), rows)
    assert [each.event for each in events] == [
        AccumulatedBackwards(backwards=3),
        AccumulatedBackwards(backwards=3),
        UnevenAccumulation(usual=3, backwards=1),
    ]
    assert (events[0].numbers, events[1].latest["steps"]) == ((7,), 3)


def test_a_step_whose_gradients_the_program_read_is_no_accumulation() -> None:
    rows: list[Row] = [backward(), backward(), step(reads_gradients=True)]
    assert not found(Accumulation(), rows * 3)


def batch(number: int, value: int, loader: int = 1, **fields: Any) -> BatchRow:
    return BatchRow(loader, number, {"": value}, **fields)


def test_workers_that_return_the_same_batches() -> None:
    rows = [batch(i, i // 2, workers=2, left=5 - i) for i in range(6)]
    events = found(RepeatedBatches(), rows)
    assert [each.event for each in events][-1] == RepeatedBatch(what="workers", workers=2)
    assert events[-1].latest == {"count": 3, "among": 6}
    assert not found(RepeatedBatches(), [batch(i, i, workers=2) for i in range(6)])


def test_a_shuffled_pass_that_repeats_the_last_one() -> None:
    rows = [batch(i, i, shuffles=True, left=4 - i) for i in range(5)]
    again = found(RepeatedBatches(), rows * 2)
    assert [(each.event, each.latest["count"]) for each in again] == [
        (RepeatedBatch(what="pass"), 5)
    ]
    assert not found(RepeatedBatches(), [*rows, ResumeRow(), *rows])
    assert not found(RepeatedBatches(), [row._replace(shuffles=False) for row in rows * 2])


def test_passes_that_read_only_the_first_batch() -> None:
    first = batch(0, 5, left=9)
    assert len(found(RepeatedBatches(), [first, END] * 3)) == 1
    assert not found(RepeatedBatches(), [first] * 3)  # without steps, this is not a training


def groups(*rates: float | None) -> tuple[GroupRow, ...]:
    return tuple(GroupRow(1, rate) for rate in rates)


@pytest.mark.parametrize(
    ("rates", "what"),
    [
        ([groups(0.0)] * 3, "all"),
        ([groups(0.0)] * 2, ""),
        ([groups(0.1), *[groups(0.0)] * 3], "end"),
        ([*[groups(0.0)] * 3, groups(0.1)], ""),
        ([groups(0.1, 0.0)] * 3, "group"),
        ([groups(-0.1)], "negative"),
        ([groups(None)] * 3, ""),
        ([(GroupRow(0, 0.0), GroupRow(1, 0.1))] * 3, ""),  # the group is empty
    ],
)
def test_learning_rates_of_zero(rates: list[tuple[GroupRow, ...]], what: str) -> None:
    query = ZeroLearningRates()
    rows = [step(groups=each, steps=i + 1) for i, each in enumerate(rates)]
    assert not found(query, [OptimizerRow(1), *rows])
    events = [each.event for each in query.events_of_run()]
    kinds = [each.what for each in events if isinstance(each, ZeroLearningRate)]
    assert kinds == ([what] if what else [])


@pytest.mark.parametrize(
    ("schedulers", "name", "call"),
    [
        ([], "", ""),
        ([SchedulerRow(5, "self.plan", 1)], "self.plan", MethodCall("step", "plan", (CODE,))),
        ([SchedulerRow(5, "a", 1), SchedulerRow(6, "b", 1)], "", ""),
        ([SchedulerRow(5, "a", 2)], "", ""),
    ],
)
def test_the_scheduler_of_an_optimizer_whose_rate_ends_at_zero(
    schedulers: list[Row], name: str, call: Any
) -> None:
    query = ZeroLearningRates()
    rates = [1.0, 0.0, 0.0, 0.0]
    rows = [step(groups=(GroupRow(2, rate),), steps=i + 1) for i, rate in enumerate(rates)]
    assert not found(query, [OptimizerRow(1, around=(CODE,)), *schedulers, *rows])
    [end] = query.events_of_run()
    assert end.event == ZeroLearningRate(what="end", optimizer="opt", scheduler=name)
    assert end.latest == {"count": 3, "steps": 4, "scheduled": call}


COSINE = [0.05 * (1 + math.cos(math.pi * i / 8)) for i in range(17)]
TRIANGLES = [0.1 - 0.01 * abs(i % 12 - 6) for i in range(36)]
WARM_UP = [0.01, 0.02, 0.03, 0.04]


@pytest.mark.parametrize(
    ("rates", "fields", "what"),
    [
        ([(0.1,)] * 3, {"attribute_rate": 0.05}, "attribute"),
        ([(0.1,)] * 3, {"attribute_rate": 0.1}, ""),
        ([(rate,) for rate in COSINE], {"attribute_rate": 0.05}, "rise"),
        ([(rate,) for rate in COSINE], {"is_scheduled": True}, ""),
        ([(rate,) for rate in COSINE[:11]], {}, ""),  # a last step may be rounded
        ([(rate,) for rate in [*COSINE[:8], *COSINE[:8]]], {}, ""),  # a warm restart
        ([(rate,) for rate in TRIANGLES], {}, ""),
        ([(rate,) for rate in WARM_UP * 3], {}, "restart"),
        ([(rate,) for rate in WARM_UP * 2], {}, ""),
        ([(rate,) for rate in [*WARM_UP, *[0.04] * 9]], {}, ""),
        ([(0.1, 0.1), (0.05, 0.1), (0.02, 0.1)], {}, "group"),
        ([(0.1, 0.02), (0.05, 0.02), (0.03, 0.02)], {}, ""),  # group 1 has a rate of its own
        ([(0.1, 0.1), (0.05, 0.05), (0.02, 0.02)], {}, ""),
        ([(0.1, 0.1), (0.01, 0.1), (0.01, 0.1)], {}, ""),  # set once
        ([(10.0**-i,) for i in range(20)], {"is_scheduled": True}, "vanished"),
        ([(10.0**-i,) for i in range(18)], {"is_scheduled": True}, ""),
        ([(None,), (0.1,)], {"attribute_rate": 0.05}, ""),
    ],
)
def test_learning_rates_that_are_set_by_hand(
    rates: list[tuple[float | None, ...]], fields: dict[str, Any], what: str
) -> None:
    query = HandSetRates()
    rows = [step(groups=groups(*each), steps=i + 1, **fields) for i, each in enumerate(rates)]
    assert not found(query, [OptimizerRow(1), *rows])
    events = [each.event for each in query.events_of_run()]
    assert [each.what for each in events if isinstance(each, RateSetByHand)] == [what][: bool(what)]


def test_a_group_with_an_option_of_the_program_may_keep_its_rate() -> None:
    query = HandSetRates()
    for number, rate in enumerate([0.1, 0.05, 0.02], 1):
        groups = GroupRow(1, rate), GroupRow(1, 0.1, has_own_options=True)
        row = step(groups=groups, steps=number)
        found(query, [OptimizerRow(1), row] if number == 1 else [row])
    assert not [*query.events_of_run()]


def test_rates_in_the_defaults_of_an_optimizer_are_not_read() -> None:
    query, other = HandSetRates(), HandSetRates()
    for number, rate in enumerate([0.1, 0.05, 0.02], 1):
        row = step(groups=groups(0.1), steps=number, default_rate=rate)
        found(query, [OptimizerRow(1), row] if number == 1 else [row])
        found(other, [OptimizerRow(1), row._replace(default_rate=0.1)])
    (event,) = query.events_of_run()
    assert event.event == RateSetByHand(what="defaults", optimizer="opt")
    assert not [*other.events_of_run()]


def test_steps_without_any_gradient() -> None:
    empty: dict[str, Any] = {"has_gradients": False, "learning": (3,), "parameters": OTHER}
    alone, reached = StepsWithoutGradients(), StepsWithoutGradients()
    found(alone, [backward(), step(**empty), backward(), step(**empty, steps=2)])
    (event,) = alone.events_of_run()
    assert (event.event, event.leaves) == (StepWithoutGradients(optimizer="opt"), (3,))
    both = backward(reached=OTHER)  # an optimizer that clears its gradients during the step
    found(reached, [both, step(**empty), both, step(**empty, steps=2)])
    assert not [*reached.events_of_run()]


def test_an_optimizer_that_is_created_for_each_step_loses_its_state() -> None:
    query, kept = LostStates(), LostStates()
    for i in range(3):
        found(query, [step(optimizer=i, first=5), StepEndRow(5, has_state=True)])
        found(kept, [step(first=5, has_state=i > 0), StepEndRow(5, has_state=True)])
    (event,) = query.events_of_run()
    assert (event.event, event.latest) == (
        RecreatedOptimizer(what="optimizer", name="opt"),
        {"count": 3, "steps": 0},
    )
    assert not [*kept.events_of_run()]


def test_each_step_is_an_event_with_its_rates() -> None:
    (event,) = found(OptimizerSteps(), [backward(), step(groups=groups(0.1, 0.2), foreign=1)])
    assert event.event == OptimizerStep(optimizer="opt", foreign=1)
    assert event.latest == {"learning_rates": (0.1, 0.2)}


class Broken(Query):
    """A query that fails."""

    def on_clear(self, row: ClearRow) -> None:
        raise ValueError("broken")


EVAL = backward(eval_layers=(("0", "Dropout"), ("1", "Dropout"), ("2", "BatchNorm1d")))


@pytest.mark.parametrize(
    ("rows", "modules"),
    [
        ([EVAL, step()], [("0", 3, ("Dropout", "BatchNorm1d"))]),
        ([EVAL, backward(), step()], []),  # an attack, and then the training
        ([EVAL, TrainingStepRow(), step()], []),
        ([EVAL], []),
    ],
)
def test_steps_after_a_backward_in_eval_mode(rows: list[Row], modules: list[Any]) -> None:
    modes = [each.event for each in found(EvalModes(), [OptimizerRow(1), *rows])]
    assert modes == [EvalMode(module=path, count=n, classes=kinds) for path, n, kinds in modules]


def test_the_line_of_a_mode_is_that_of_the_call_of_eval_around_the_step() -> None:
    optimizer = OptimizerRow(1, around=(CODE,))
    for rows in ([optimizer, EVAL, step()], [EVAL, step(), optimizer]):  # in any order at a step
        [mode] = found(EvalModes(), rows)
        assert mode.place == MethodCall("eval", "", (CODE,))


def test_a_dropout_that_drops_values_in_both_modes() -> None:
    train, evaluated = DropoutRow("dropout", line(1), True), DropoutRow("dropout", line(1), False)
    elsewhere = evaluated._replace(place=line(2))
    assert found(DropoutModes(), [train, train, elsewhere]) == []
    [both] = found(DropoutModes(), [train, elsewhere, evaluated])
    assert (both.event, both.place) == (DropoutInEvalMode(function="dropout"), line(1))


def forward(at: int, module: str = "teacher", **fields: Any) -> ForwardRow:
    return ForwardRow(module, (line(1), line(at)), ("dropout",), False, **fields)


def test_forwards_without_gradients_in_train_mode() -> None:
    trained = forward(3)._replace(has_gradients=True)
    rows: list[Row] = [trained, forward(5), forward(5, learns=False), step()]
    expected = TrainModeWithoutGradients(module="teacher", active=("dropout",), frozen=True)
    query = TrainModesWithoutGradients()
    assert found(query, rows[:3]) == list(query.events_of_run()) == []  # nothing is trained
    assert found(query, rows[3:]) == []
    [without] = query.events_of_run()
    assert (without.event, without.place, without.latest) == (expected, line(5), {"count": 2})


@pytest.mark.parametrize(("path", "reported"), [("teacher.norm", False), ("model.norm", True)])
def test_a_frozen_norm_is_reported_unless_its_module_is(path: str, reported: bool) -> None:
    query = TrainModesWithoutGradients()
    updated_by_hand = GraphRow(None, [1], steps=1)
    assert not found(query, [FrozenNormRow(path, line(7)), forward(5), updated_by_hand])
    expected = TrainModeWithoutGradients(active=("batch norm",), frozen=True)
    events = [each for each in query.events_of_run() if each.event == expected]
    latest = {"module": path, "layers": 1}
    assert [(each.place, each.latest) for each in events] == [(line(7), latest)] * reported


def graph(numbers: tuple[int, ...], by: Any = "retain_graph", **fields: Any) -> GraphRow:
    return GraphRow(line(10), (-1, *numbers), retained_by=by, **fields)


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([graph((1, 2)), graph((3, 4))], 2),
        ([graph((1, 2))], None),  # the program may still use a single graph
        ([graph((1, 2)), graph((2, 3), None), graph((4,))], None),
        ([graph((1, 2)), graph((2, 3), None, ran=(0, 2)), graph((4,))], 2),  # node 3 alone ran
        ([graph((1,)), ResumeRow(), graph((2,))], None),
        ([graph((1,)), graph((2,)), TrainingStepRow()], None),
        ([graph((1,)), TrainingStepRow(), graph((2,)), TrainingStepRow(), graph((3,))], 3),
    ],
)
def test_graphs_that_are_retained_without_need(rows: list[Row], count: int | None) -> None:
    query = RetainingLines()
    assert found(query, rows) == []
    events = [(each.event, each.place, each.latest) for each in query.events_of_run()]
    expected = UnneededRetainGraph(by="retain_graph"), line(10), {"count": count}
    assert events == ([] if count is None else [expected])


@pytest.mark.parametrize(
    ("rows", "nodes"),
    [
        ([GraphRow(None, [-1, 3, 4, 5], roots=(5,))], [(3,), (4,)]),
        ([GraphRow(None, [-1, 3], roots=(3,))], []),  # the loss itself is averaged
        ([TrainingStepRow(), GraphRow(None, [3, 4], roots=(5,))], []),
        ([GraphRow(None, [3], roots=(5,)), GraphRow(None, [3], roots=(5,))], [(3,)]),
    ],
)
def test_collectives_inside_a_graph(rows: list[Row], nodes: list[tuple[int, ...]]) -> None:
    changed = CollectiveRow("all_reduce", line(8), {3: "h", 4: "g", 5: "loss"})
    events = sorted(found(CollectivesInGraph(), [changed, *rows]), key=lambda each: each.numbers)
    assert [each.numbers for each in events] == nodes
    labels = {3: "h", 4: "g"}
    expected = [CollectiveInGraph(kind="all_reduce", label=labels[n]) for (n,) in nodes]
    assert [each.event for each in events] == expected
    assert {each.place for each in events} <= {line(8)}


NEW = OptimizerRow(1, around=(CODE,), is_new=True)


def scheduler(steps: int, last: int | None = None, **fields: Any) -> SchedulerRow:
    last = steps if last is None else last
    return SchedulerRow(1, "self.plan", fields.pop("optimizer", 1), steps, last, **fields)


def scheduled(*rows: Row) -> list[Found]:
    """Return what is found in these rows, after the first step of an optimizer."""
    return found(Schedulers(), [NEW, scheduler(0), step(), *rows])


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([step(steps=2), scheduler(3)], 3),
        ([step(steps=2), scheduler(2)], None),
        ([scheduler(2)], None),  # one step of the optimizer may follow others that were not seen
        ([step(steps=2), backward(is_scaled=True), scheduler(3)], None),  # the scaler may skip
        ([backward(is_scaled=True), TrainingStepRow(), step(steps=2), scheduler(3)], 3),
        ([step(steps=2), scheduler(3, optimizer=2)], None),
    ],
)
def test_a_scheduler_that_steps_more_often(rows: list[Row], count: int | None) -> None:
    pace = SchedulerStepsTooOften(scheduler="self.plan", optimizer="opt")
    place = MethodCall("step", "plan", (CODE,))
    expected = Found(pace, place, latest={"count": count, "steps": 2})
    assert scheduled(*rows) == ([] if count is None else [expected])


@pytest.mark.parametrize(
    ("cosine", "label"),
    [
        (CosineRow(end=8, last=9), "self.plan"),
        (CosineRow(end=8, last=9, is_inner=True), "CosineAnnealingLR of self.plan"),
        (CosineRow(end=8, last=8), None),
        (CosineRow(end=3, last=9), None),  # it was past its end before it was found
    ],
)
def test_a_cosine_schedule_past_its_end(cosine: CosineRow, label: str | None) -> None:
    found = scheduled(step(steps=9), scheduler(4, cosines=(cosine,)))
    expected = SchedulerPastEnd(scheduler=label or "", optimizer="opt")
    assert [(each.event, each.latest) for each in found] == (
        [] if label is None else [(expected, {"count": 9, "end": 8})]
    )


def test_a_scheduler_whose_optimizer_never_steps() -> None:
    assert scheduled(scheduler(2, optimizer=0)) == []
    [unused] = scheduled(scheduler(3, optimizer=0))
    assert unused.event == UnusedScheduler(scheduler="self.plan")
    assert (unused.place, unused.latest) == (MethodCall("step", "plan"), {"count": 3})


@pytest.mark.parametrize(
    ("last", "new", "state", "reported"),
    [
        (0, True, True, True),
        (5, True, True, False),
        (0, False, True, False),
        (0, True, False, False),
    ],
)
def test_a_schedule_that_starts_again(last: int, new: bool, state: bool, reported: bool) -> None:
    rows: list[Row] = [NEW._replace(is_new=new), scheduler(0, last), step(has_state=state)]
    place = MethodCall("load_state_dict", "opt", (CODE,), or_any=True)
    latest = {"assigned": VariableLine("plan", (CODE,))}
    restarted = RestartedSchedule(scheduler="self.plan", optimizer="opt")
    assert found(Schedulers(), rows) == [Found(restarted, place, latest=latest)] * reported


@pytest.mark.parametrize(
    ("last", "new", "old", "state", "reported"),
    [
        (15, True, False, True, True),
        (1, True, False, True, False),  # it may have stepped before the optimizer by mistake
        (15, False, False, True, False),  # the optimizer has made steps that were not seen
        (15, True, True, True, False),
        (15, True, False, False, False),  # an optimizer that never has a state, such as SGD
    ],
)
def test_a_schedule_that_continues_without_the_state_of_its_optimizer(
    last: int, new: bool, old: bool, state: bool, reported: bool
) -> None:
    first, end = step(has_state=old), StepEndRow(has_state=state)
    rows: list[Row] = [NEW._replace(is_new=new), scheduler(0, last), first, end]
    place = MethodCall("load_state_dict", "plan", or_any=True)
    continued = ContinuedSchedule(scheduler="self.plan", optimizer="opt")
    expected = Found(continued, place, latest={"last": last, "stepped": UserLine(line(20))})
    assert found(Schedulers(), [*rows, step(steps=2), end]) == [expected] * reported


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        ([step(steps=5), ProgramEndRow()], True),
        ([step(steps=4), ProgramEndRow()], False),
        ([step(steps=5)], False),
        ([step(steps=5), scheduler(1), ProgramEndRow()], False),
        ([step(steps=5), scheduler(0, is_unknown=True), ProgramEndRow()], False),
    ],
)
def test_a_scheduler_that_never_steps(rows: list[Row], reported: bool) -> None:
    never = NeverSteppedScheduler(scheduler="self.plan", optimizer="opt")
    latest = {"steps": 5, "assigned": VariableLine("plan", (CODE,))}
    assert scheduled(*rows) == [Found(never, line(20), latest=latest)] * reported


def test_events_of_hooks_are_read_without_a_listener() -> None:
    zero = ObservedRow(ZeroGradients(2, None), line(9))
    code = found.__code__
    offset, last = max(dis.findlinestarts(code))
    [event] = found(SkippedFunctions(), [ObservedRow(Skipped(code, last, "logging.Logger")), zero])
    assert event.event == SkippedFunction(function="found", reason="logging.Logger")
    assert event.place == (code, offset)


ON = ObservedRow(AnomalySwitch(True, False, False, None), line(5))
AGAIN = ObservedRow(AnomalySwitch(True, True, False, None), line(6))
RESTORED = ObservedRow(AnomalySwitch(True, False, True, None), line(7))
DEBUGGED = [AnomalyModeRow(True), step(), END]
USUAL = [AnomalyModeRow(False), step(), END]


@pytest.mark.parametrize(
    ("rows", "place", "steps"),
    [
        ([ON, *DEBUGGED * 3], line(5), [2, 3]),
        ([*DEBUGGED * 2], None, [2]),  # on before the recording began
        ([ON, AGAIN, *DEBUGGED * 2], line(5), [2]),
        ([ON, *USUAL, RESTORED, *DEBUGGED * 2], line(5), [2]),
        ([ON, *[step(), AnomalyModeRow(True), END] * 2], line(5), [2]),  # a closure
        ([ON, *DEBUGGED, *USUAL, *DEBUGGED * 2], line(5), [3]),
        ([ON, *DEBUGGED], None, []),
        ([ON, *DEBUGGED, *[step(), END] * 3], None, []),  # steps without a backward
        ([ON, *USUAL * 3], None, []),
        ([ON, *DEBUGGED, *USUAL, *DEBUGGED], None, []),
        ([ON, *DEBUGGED, ResumeRow(), *DEBUGGED], None, []),
        ([ON, ResumeRow(), *DEBUGGED * 2], None, [2]),  # maybe switched on again in the pause
        ([ON, AnomalyModeRow(True), step(optimizer=1), END, step(optimizer=2), END], None, []),
    ],
)
def test_consecutive_steps_in_anomaly_mode(
    rows: list[Row], place: CodePosition | None, steps: list[int]
) -> None:
    expected = [Found(AnomalyMode(), place, latest={"steps": number}) for number in steps]
    assert found(AnomalyModes(), rows) == expected


def test_events_belong_to_the_backward_after_which_their_row_was_appended() -> None:
    events, notes = Events(), RecordingNotes()
    log = Log(events, notes)
    log.ask([Broken(), ClearedGradients()])
    events.begin_backward()
    log.append(backward())
    log.append(clear())
    events.begin_backward()
    log.on_graphs_built()
    (record,) = events.noted_before(1)
    assert (record.event, record.first, record.place) == (GradientClearing(), 1, line(30))
    assert notes.lines == ("not recorded: ValueError: broken",)


def test_the_log_is_bounded() -> None:
    events = Events()
    log = Log(events, RecordingNotes())
    log.ask([OptimizerSteps()])
    for _ in range(10_000):
        log.append(step())
    assert len(log._unread) < 1000
    log.on_graphs_built()
    assert [record.times for record in events.noted_before(0)] == [10_000]


FIRST, SECOND = backward(10, roots=(5,)), backward(11, roots=(6,))
READ, WHOLE = GradientReadRow(1), GraphRow(line(12), (4, 5, 6, 7), None, (7,))


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        ([FIRST, READ, SECOND, READ, WHOLE], True),
        ([FIRST, READ, SECOND, READ, clear(), WHOLE], True),
        ([FIRST, READ, clear(), SECOND, READ, WHOLE], False),
        ([FIRST, READ, SECOND, WHOLE], False),
        ([FIRST, READ, SECOND, READ], False),  # accumulation over batches
        ([FIRST, READ, SECOND, READ, step(), WHOLE], False),
        ([FIRST, READ, SECOND, READ, ResumeRow(), WHOLE], False),
        ([FIRST, READ, SECOND, GradientReadRow(9), WHOLE], False),
        ([FIRST, READ, SECOND, READ._replace(is_use=False), WHOLE], False),
    ],
)
def test_gradients_of_several_losses_that_are_read_as_a_sum(
    rows: list[Row], reported: bool
) -> None:
    expected = Found(SummedGradientsRead(backwards=2), line(11))
    assert found(SummedGradients(), rows) == [expected] * reported


TEMPORARY = ReachedParametersRow(line(10), {"weight": 1, "bias": 2})
WAITING = WaitingParametersRow(line(20), {"weight": 3, "bias": 2})


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        ([TEMPORARY, WAITING] * 3, [2, 3]),
        ([TEMPORARY, WAITING], []),  # a single step may be intended
        ([TEMPORARY, WAITING, WAITING], []),  # the second step uses no gradient
        ([TEMPORARY, WaitingParametersRow(line(20), {"bias": 2})] * 3, []),  # the same tensor
        ([TEMPORARY, WaitingParametersRow(line(20), {"other": 3})] * 3, []),
        ([TEMPORARY, ResumeRow(), WAITING] * 3, []),
        ([TEMPORARY, TrainingStepRow(), WAITING] * 3, []),
    ],
)
def test_parameters_that_backward_reached_and_that_were_put_back(
    rows: list[Row], steps: list[int]
) -> None:
    events = found(TemporaryParameters(), rows)
    assert [each.latest["steps"] for each in events] == steps
    for each in events:
        assert (each.event, each.place) == (
            ReplacedParameters(parameters=("weight",), count=1),
            line(20),
        )
        assert each.latest["backward"] == UserLine(line(10))
