"""Test the queries over rows of calls: each test is a list of rows and the events that they show.

The programs that make such calls are in tests/findings/mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphviz_torch.findings.rules.broadcasts import AccidentalBroadcast
from graphviz_torch.findings.rules.clipping import ExtremeClipNorm
from graphviz_torch.findings.rules.custom_functions import CheckpointDiffers, RedrawnDropout
from graphviz_torch.findings.rules.cut_derivatives import SummedDerivative, UnusedDerivativeInput
from graphviz_torch.findings.rules.meaning.batches import RowOfData, UnscaledPixels
from graphviz_torch.findings.rules.meaning.masks import AttentionMask
from graphviz_torch.findings.rules.meaning.optimizer_lines import LineOfOneParameter
from graphviz_torch.findings.rules.meaning.sequences import LastStep, RowEncoding
from graphviz_torch.findings.rules.meaning.targets import LossTarget
from graphviz_torch.findings.rules.means import MeanOfUnequalMeans, MeanOverMaskedValues
from graphviz_torch.findings.rules.scores import SoftTargets
from graphviz_torch.findings.rules.terms import NumberTerm, UnusedSum
from graphviz_torch.findings.rules.unchanging import UnchangingTerm
from graphviz_torch.findings.rules.unused_values import IgnoredResult, UnusedLoss
from graphviz_torch.findings.rules.wrong_gradients import ReversedEstimator
from graphviz_torch.graph import TensorMeta
from graphviz_torch.graph.events import LeafBackward, NewLeaves
from graphviz_torch.internals.probes import Probe
from graphviz_torch.recording.program.events import (
    Events,
    NodeLine,
    RecordingNotes,
    TensorRecord,
)
from graphviz_torch.recording.program.identities import Identities
from graphviz_torch.recording.program.log import Found, Log
from graphviz_torch.recording.program.rows import (
    GraphRow,
    ResumeRow,
    Row,
    StepEndRow,
    TrainingStepRow,
)
from graphviz_torch.recording.queries.batches import IndexRow, LayerInputRow, Pixels, SingleRows
from graphviz_torch.recording.queries.checkpoints import (
    CheckpointedSegments,
    RandomStateRow,
    RedrawnDropouts,
    RepeatedForwardRow,
    SegmentCallRow,
)
from graphviz_torch.recording.queries.clip_bounds import ClipBounds, ClipRatioRow
from graphviz_torch.recording.queries.derivatives import (
    DerivativeResultRow,
    DerivativeRow,
    SummedDerivatives,
    UnusedInputs,
)
from graphviz_torch.recording.queries.leaves import (
    LeafRootRow,
    Leaves,
    NewLeafRow,
    ReachedLeavesRow,
)
from graphviz_torch.recording.queries.masks import AttentionMasks, MaskRow
from graphviz_torch.recording.queries.means import MaskedMeanRow, MaskedMeans
from graphviz_torch.recording.queries.optimizer_lines import ChangedRow, OptimizerLines, OwnStepRow
from graphviz_torch.recording.queries.pairs import (
    AddendRow,
    AddendsRow,
    BroadcastRow,
    LossSumRow,
    NumberRow,
    PairedTensors,
    ShapeRow,
)
from graphviz_torch.recording.queries.sequences import (
    LastStepRow,
    LastSteps,
    OrderedRow,
    Positions,
    RowEncodingRow,
    SequenceRow,
)
from graphviz_torch.recording.queries.straight_through import StraightThrough, SumOperand, SumRow
from graphviz_torch.recording.queries.targets import BatchTensorsRow, TargetRow, Targets
from graphviz_torch.recording.queries.temperatures import (
    DistributionLossRow,
    ScoreRow,
    Temperatures,
)
from graphviz_torch.recording.queries.unused_results import (
    FunctionsRow,
    IgnoredFunctionRow,
    IgnoredResults,
    LossReadRow,
    UnusedLosses,
)
from tests.recording.test_queries import END, found, line


def values(*numbers: float) -> Probe:
    return Probe(torch.tensor(numbers, dtype=torch.float64))


@pytest.mark.parametrize(
    ("numbers", "reported"),
    [((0, 255, 0), True), ((0, 100, 0), False), ((0, 255, 3), False), ((-1, 255, 0), False)],
)
def test_pixels_that_are_not_scaled(numbers: tuple[float, ...], reported: bool) -> None:
    rows = [LayerInputRow(line(1), 5, values(*numbers))]
    assert [e.event for e in found(Pixels(), rows)] == [UnscaledPixels()] * reported


def test_each_fault_of_a_mask_is_found() -> None:
    mask = MaskRow("add", line(1), (5,), ("added", "future"), values(0, 1))
    [event] = found(AttentionMasks(), [mask])
    assert (event.event, event.numbers) == (AttentionMask(function="add", use="future"), (5,))


@pytest.mark.parametrize(
    ("counts", "reported"), [((3, 0), True), ((0, 0), False), ((8, 0), False), ((3, 1), False)]
)
def test_a_mean_over_masked_values(counts: tuple[float, ...], reported: bool) -> None:
    rows = [MaskedMeanRow(line(1), 5, 4, values(*counts), among=8)]
    assert [e.event for e in found(MaskedMeans(), rows)] == [MeanOverMaskedValues()] * reported


@pytest.mark.parametrize(
    ("memory", "reported"), [((7, 7), 1), ((7, 7, 7), 2), ((7, 8), 0), ((7, 8, 7), 0)]
)
def test_the_same_rows_in_several_calls_are_an_encoding(
    memory: tuple[int, ...], reported: int
) -> None:
    rows = [RowEncodingRow(line(1), 5, number) for number in memory]
    assert [e.event for e in found(Positions(), rows)] == [RowEncoding()] * reported


X, STEP = SumOperand(1, requires_grad=True), SumOperand(2, requires_grad=True, is_step=True)


@pytest.mark.parametrize(
    ("difference", "use", "fault"),
    [
        ((STEP, X), SumRow(True, (X, SumOperand(3, False)), 0, line(1), 9), None),  # x + (q - x)
        ((X, STEP), SumRow(True, (X, SumOperand(3, False)), 0, line(1), 9), "value"),  # x + (x - q)
        (
            (STEP, X),
            SumRow(False, (X, SumOperand(3, False)), 4, line(1), 9),
            "value",
        ),  # x - (q - x)
        ((STEP, X), SumRow(True, (SumOperand(3, True), X._replace(requires_grad=False)), 0), None),
        (
            (STEP, X),  # (q - x) + x.detach()
            SumRow(True, (SumOperand(3, True), SumOperand(1, False)), 0, line(1), 9),
            "gradient",
        ),
        (
            (STEP, X),
            SumRow(True, (X, SumOperand(4, False)), 0, line(1), 9),
            None,
        ),  # another constant
    ],
)
def test_an_estimator_with_operands_in_the_wrong_order(
    difference: tuple[SumOperand, SumOperand], use: SumRow, fault: Any
) -> None:
    rows = [SumRow(False, difference, 3), use]
    expected = [] if fault is None else [ReversedEstimator(what=fault)]
    assert [each.event for each in found(StraightThrough(), rows)] == expected


def test_the_last_step_of_a_sequence() -> None:
    last = LastStepRow(2, (1,), line(1), 9)
    rows = [SequenceRow(1, 1, "lstm", 3), OrderedRow(1, 2, (4, 5, 6)), last]
    [event] = found(LastSteps(), rows)
    assert (event.event, event.latest) == (LastStep(function="lstm"), {"shorter": 3})
    other = [[rows[0], last], [*rows[:2], last._replace(axes=(0,))], [last]]
    assert not any(found(LastSteps(), each) for each in other)
    assert not found(LastSteps(), [rows[0], OrderedRow(1, 2, (4, 1, 6)), last])


def soft(scale: float, *, kind: Any = "probabilities", end: bool = False) -> list[Row]:
    """Return the rows of a student's scores, scaled by 0.5, beside a teacher's."""
    rows: list[Row] = [ScoreRow(None, 1, 0.5, "scores"), ScoreRow(1, 2, kind="log-probabilities")]
    rows += [ScoreRow(None, 3, scale, "scores"), ScoreRow(3, 4, kind=kind), ScoreRow(4, 5)]
    return [*rows, *[TrainingStepRow()] * end, DistributionLossRow("kl_div", (2, 5), line(1), 9)]


def test_the_scales_of_two_distributions() -> None:
    expected = SoftTargets(function="kl_div", scale=0.5, target_scale=1.0)
    assert [each.event for each in found(Temperatures(), soft(1.0))] == [expected]
    assert not found(Temperatures(), soft(0.5))
    assert not found(Temperatures(), soft(1.0, kind="log-probabilities"))
    assert not found(Temperatures(), soft(1.0, end=True))


def taken(*tensors: int, number: int | None = 0, more: tuple[Row, ...] = ()) -> list[Row]:
    """Return the rows of a step that takes a row of each of these tensors."""
    rows = [IndexRow(each, f"x{each}", 32, number, (1, 4), line(each)) for each in tensors]
    return [*rows, *more, END]


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        ([*taken(1, 2), *taken(3, 4)], True),
        ([*taken(1, 2), *taken(1, 2)], False),  # a single sample is meant
        ([*taken(1), *taken(3)], False),
        ([*taken(1, 2), *taken(3, 4, more=tuple(taken(3, number=1)[:1]))], False),  # all rows
        ([*taken(1, 2), *taken(3, 4, more=(ResumeRow(),))], False),
    ],
)
def test_a_step_of_one_row_of_the_data(rows: list[Row], reported: bool) -> None:
    row = RowOfData(labels=("x3", "x4"), rows=32, shapes=("[1, 4]", "[1, 4]"))
    assert [each.event for each in found(SingleRows(), rows)] == [row] * reported


def own_step(*changed: tuple[int, int], kinds: tuple[int, ...] = (1, 1, 1)) -> list[Row]:
    """Return the rows of a step of an optimizer whose lines change parameters."""
    parameters = {i: (100 + i, kind) for i, kind in enumerate(kinds)}
    return [
        OwnStepRow(1, "opt", 1, parameters),
        *[ChangedRow(line(at), (parameter,)) for at, parameter in changed],
        StepEndRow(),
    ]


@pytest.mark.parametrize(
    ("rows", "leaves"),
    [
        (own_step((1, 0), (1, 1), (1, 2), (2, 2)) * 2, [(102,)]),
        (own_step((1, 0), (1, 1), (1, 2), (2, 2)), []),  # a single step
        (own_step((1, 0), (1, 1), (2, 2)) * 2, []),  # no line changes all
        (own_step((1, 0), (1, 1), (1, 2), (2, 2), kinds=(1, 1, 2)) * 2, []),  # the only matrix
        ([*own_step((1, 0), (1, 1), (1, 2)), ChangedRow(line(2), (2,))] * 2, []),  # after a step
    ],
)
def test_a_line_that_changes_one_parameter(rows: list[Row], leaves: list[tuple[int]]) -> None:
    query = OptimizerLines()
    assert not found(query, rows)
    events = list(query.events_of_run())
    assert [each.leaves for each in events] == leaves
    assert all(each.event == LineOfOneParameter(optimizer="opt") for each in events)


@pytest.mark.parametrize(
    ("states", "now", "reported"),
    [
        ([(7, None)], (7, 1), True),  # the state at the start of backward
        ([(7, None)], (8, 1), False),  # a checkpoint restored another state
        ([(7, None), (8, 1)], (8, 2), True),  # the state after another module
        ([(7, None), (8, 1)], (8, 1), False),  # the same node runs a second module
        ([(8, None), (7, None)], (8, 1), False),  # the state of an earlier backward
    ],
)
def test_a_dropout_that_draws_again(
    states: list[tuple[int, int | None]], now: tuple[int, int], reported: bool
) -> None:
    event = RedrawnDropout(module="0")
    rows = [*[RandomStateRow(*each) for each in states], RepeatedForwardRow(*now, event, line(1))]
    assert [each.event for each in found(RedrawnDropouts(), rows)] == [event] * reported


def test_leaves_that_the_program_created() -> None:
    new = NewLeafRow(1, line(1), "torch.tensor", "as_leaf")
    root = LeafRootRow(1, LeafBackward(label="loss", maker=""), line(2), 100)
    begun, reached = found(Leaves(), [new, root, ReachedLeavesRow({1: 100, 2: 200})])
    assert (begun.event, begun.place) == (LeafBackward(label="loss", maker="torch.tensor"), line(1))
    assert (reached.event, reached.leaves) == (NewLeaves(maker="as_leaf"), {100})
    [other] = found(Leaves(), [new, root._replace(leaf=None), ReachedLeavesRow({2: 200})])
    assert (other.event, other.place) == (root.event, line(2))


META = TensorMeta((), "float32", "cpu")
ONE, TWO = (TensorRecord(label, META, number, 0) for label, number in (("one", 1), ("two", 2)))


@pytest.mark.parametrize(
    ("shape", "use", "reported"),
    [
        (None, {"column": 1}, True),
        (ShapeRow(1), {"column": 1}, False),  # the size 1 is meant
        (ShapeRow(2), {"column": 1}, True),
        (ShapeRow(1, matrix=5), {"reduced": (1, 5)}, True),  # x - x.sum(1)
        (ShapeRow(1, matrix=6), {"reduced": (1, 5)}, False),
        (None, {"reduced": (1, 5)}, False),
    ],
)
def test_a_broadcast_by_accident(shape: Row | None, use: dict[str, Any], reported: bool) -> None:
    rows = [
        *([] if shape is None else [shape]),
        BroadcastRow("sub", line(1), (9,), (ONE, TWO), **use),
    ]
    expected = [AccidentalBroadcast(operation="sub")] * reported
    assert [each.event for each in found(PairedTensors(), rows)] == expected


@pytest.mark.parametrize(
    ("second", "reported"), [((1, 0.2), True), ((1, 0.1), False), ((0, 0.2), False)]
)
def test_a_number_that_differs_between_steps(second: tuple[int, float], reported: bool) -> None:
    rows = [NumberRow(line(1), 9, 0, 0.1), NumberRow(line(1), 10, *second)]
    assert [e.event for e in found(PairedTensors(), rows)] == [NumberTerm()] * reported


@pytest.mark.parametrize(
    ("ran", "unused"),
    [((1,), "two"), ((2,), "one"), ((1, 2), None), ((), None), ((1, 2, 3), None)],
)
def test_a_sum_that_no_backward_uses(ran: tuple[int, ...], unused: str | None) -> None:
    query = PairedTensors()
    found(query, [AddendsRow(line(1), (ONE, TWO))])
    for _ in range(2):
        found(query, [LossSumRow(line(1), (1, 2, 3)), GraphRow(line(5), [-1, *ran])])
        events = list(query.events_of_run())
    assert [each.latest["unused"].label for each in events] == [unused] * (unused is not None)
    assert all(each.event == UnusedSum() for each in events)


@pytest.mark.parametrize(
    ("addends", "count"),
    [
        ([(0, 3.0), (1, 3.0), (2, 3.0), (3, 3.0)], 4),
        ([(0, 3.0), (1, 3.0), (2, 3.1)], 0),
        ([(0, 3.0), (1, 3.0)], 0),
        ([(0, 3.0), (1, 3.0), (1, 3.0)], 0),  # twice in one step
        ([(0, 0.0), (1, 0.0), (2, 0.0)], 0),  # a term that is switched off
    ],
)
def test_a_term_with_the_same_value(addends: list[tuple[int, float]], count: int) -> None:
    query = PairedTensors()
    rows = [AddendRow(line(1), 0, step, ONE, values(value)) for step, value in addends]
    assert not found(query, [AddendsRow(line(1), (TWO, ONE)), *rows])
    events = list(query.events_of_run())
    assert [each.latest["count"] for each in events] == [count] * bool(count)
    assert all(e.event == UnchangingTerm() and e.latest["term"].label == "two" for e in events)


@pytest.mark.parametrize(
    ("graphs", "reported"),
    [
        ([[1, 2], [3, 4]], True),  # the loss shares node 1, and then node 3
        ([[1, 2], [8]], False),  # a validation loss
        ([[1, 9], [3, 9]], False),
        ([[1, 2]], False),
    ],
)
def test_a_loss_that_is_read_only(graphs: list[list[int]], reported: bool) -> None:
    query, events = UnusedLosses(), []
    for step, numbers in enumerate(graphs):
        read = LossReadRow(
            "aux_loss", line(1), 9, dict.fromkeys((1 + 2 * step, 9), "MulBackward0"), step
        )
        assert not found(query, [read, GraphRow(line(5), numbers)])
        events += query.events_of_run()
    assert [each.event for each in events] == [UnusedLoss(label="aux_loss")] * reported


@pytest.mark.parametrize(
    ("ratios", "share"),
    [
        ([(0.01,)] * 5, 0.01),  # the bound is far below the norm
        ([(0.01,)] * 4, None),
        ([(0.01,)] * 5 + [(2.0,)], None),  # it does not always clip
        ([(200.0,)] * 5, 200.0),
        ([(200.0,)] * 5 + [(50.0,)], None),
        ([(200.0, 900.0)] * 5, 200.0),  # clip_grad_value_: bound / largest and bound / mean
        ([(50.0, 900.0)] * 5, None),
        ([(0.5, float("inf"))] * 5, None),  # gradients of only zeros
    ],
)
def test_a_bound_far_from_all_gradients(
    ratios: list[tuple[float, ...]], share: float | None
) -> None:
    query = ClipBounds()
    assert not found(query, [ClipRatioRow(line(1), "clip", values(*each)) for each in ratios])
    events = [(each.event, each.latest["share"]) for each in query.events_of_run()]
    assert events == ([] if share is None else [(ExtremeClipNorm(function="clip"), share)])


def test_a_custom_function_whose_node_no_graph_has() -> None:
    query, call = IgnoredResults(), IgnoredFunctionRow("Scale.apply()", line(1))
    found(query, [call, FunctionsRow(frozenset({"MulBackward0"}))])
    assert [each.event for each in query.events_of_run()] == [IgnoredResult(call="Scale.apply()")]
    found(query, [FunctionsRow(frozenset({"ScaleBackward"}))])
    assert not [*query.events_of_run()]


def target(*numbers: float, what: Any = "constant", size: int = 64, **more: Any) -> TargetRow:
    """Return the row of a target of cross_entropy."""
    operand = TensorRecord("target", TensorMeta((size,), "int64", "cpu"), None, 0)
    event = LossTarget(function="cross_entropy", what=what)
    return TargetRow(event, line(1), operand, values(*numbers), **more)


@pytest.mark.parametrize(
    ("rows", "latest"),
    [
        ([target(0, 2, 2)], {"count": 64, "among": 1}),  # all targets are 2
        ([target(0, 2, 2), target(0, 3, 3)], None),
        ([target(0, 0, 0, first_is_right=True)], None),  # a contrastive loss
        ([target(0, 2, 2, size=8)], None),
        ([target(64, 9, 0)], {"count": 1, "among": 1}),  # all are ignored
        ([target(0, 1, 5)], None),
        ([target(3, what="outside"), target(0, what="outside")], {"count": 3, "among": 128}),
        ([target(0, 1, 1, memory=7)], None),  # of no batch of a DataLoader
        ([BatchTensorsRow(frozenset({7})), target(0, 1, 1, memory=7)], {"count": 64, "among": 1}),
    ],
)
def test_targets_without_information(rows: list[Row], latest: dict[str, int] | None) -> None:
    query = Targets()
    assert not found(query, rows)
    counts = [
        {name: each.latest[name] for name in ("count", "among")} for each in query.events_of_run()
    ]
    assert counts == ([] if latest is None else [latest])


@pytest.mark.parametrize(
    ("times", "reported"),
    [(((0, 0), (0, 1)), True), (((0, 0), (1, 1)), False), (((0, 0),) * 2, False)],
)
def test_means_of_unequal_numbers_of_targets(times: Any, reported: bool) -> None:
    query = Targets()
    found(query, [target(48, 1, 5, time=times[0]), target(0, 1, 5, time=times[1])])
    events = [(each.event, dict(each.latest)) for each in query.events_of_run()]
    unequal = MeanOfUnequalMeans(function="cross_entropy"), {"calls": 2, "least": 16, "most": 64}
    assert events == [unequal] * reported


def test_rows_with_probes_are_read_when_a_graph_is_built() -> None:
    events = Events()
    log = Log(events, RecordingNotes())
    log.ask([Pixels()])
    row = LayerInputRow(line(1), 5, values(0, 255, 0))
    log.append(row)
    log.read()
    assert not events.noted_before(9)
    log.on_graphs_built()
    assert [record.event for record in events.noted_before(9)] == [UnscaledPixels()]
    log.append(row._replace(place=line(2)))
    log.end_step()  # no graph was built in this step
    log.on_graphs_built()
    assert len(events.noted_before(9)) == 1


def test_rows_of_which_only_some_have_a_probe_are_read_in_order_when_a_graph_is_built() -> None:
    events = Events()
    log = Log(events, RecordingNotes())
    log.ask([SummedDerivatives()])
    log.append(DerivativeRow(1, 2, 3, 1, line(4)))
    log.append(DerivativeRow(3, 2, 4, 2, line(5), values(1)))
    log.read()
    assert not events.noted_before(9)
    log.on_graphs_built()
    assert [record.event for record in events.noted_before(9)] == [SummedDerivative(components=2)]


def test_a_key_is_new_once_in_a_step_or_in_the_run() -> None:
    log = Log(Events(), RecordingNotes())
    assert [log.admits(MaskRow, key, most=2) for key in (1, 1, 2, 3)] == [True, False, True, False]
    assert log.admits(Pixels, 1, in_run=True)
    log.end_step()
    assert log.admits(MaskRow, 1)
    assert not log.admits(Pixels, 1, in_run=True)


@pytest.mark.parametrize("name", ["number", "memory_number"])
def test_a_number_is_never_used_for_a_second_tensor(name: str) -> None:
    identities, seen = Identities(), set[int]()
    number: Callable[[torch.Tensor], int] = getattr(identities, name)
    kept = torch.ones(2)
    first = number(kept)
    for _ in range(5000):  # the memory and the id() are those of the tensor before
        seen.add(number(torch.ones(2)))
    assert len(seen) == 5000
    assert first not in seen
    assert number(kept) == first


def test_views_share_the_number_of_their_memory() -> None:
    identities, x = Identities(), torch.ones(4)
    assert identities.find(x) is identities.find_memory(x) is None
    assert identities.memory_number(x) == identities.memory_number(x[1:])
    assert identities.number(x) != identities.number(x[1:])


@pytest.mark.parametrize(
    ("second", "reported"),
    [
        (DerivativeRow(3, 2, 4, 2, line(5), values(1)), True),
        (DerivativeRow(3, 9, 4, 2, line(5), values(1)), False),  # by another input
        (DerivativeRow(8, 2, 4, 2, line(5), values(1)), False),  # of no gradient
        (DerivativeRow(3, 2, 4, 1, line(5), values(1)), False),
        (DerivativeRow(3, 2, 4, 2, line(5), values(0)), False),
        (DerivativeRow(3, 2, 4, 2, line(5)), False),
    ],
)
def test_a_second_derivative_of_summed_components(second: DerivativeRow, reported: bool) -> None:
    rows = [DerivativeRow(1, 2, 3, 1, line(4)), second]
    expected = Found(SummedDerivative(components=2), line(5))
    assert found(SummedDerivatives(), rows) == [expected] * reported
    later = [rows[0], TrainingStepRow(), second]
    assert found(SummedDerivatives(), later) == []


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        ([DerivativeResultRow(line(5), True, "row", "weight", 7)] * 2, True),
        (
            [DerivativeResultRow(line(5), True, "row", "weight", 7), DerivativeResultRow(line(6))],
            True,
        ),
        (
            [DerivativeResultRow(line(5), True, "row", "weight", 7), DerivativeResultRow(line(5))],
            False,
        ),
        ([DerivativeResultRow(line(5))], False),
    ],
)
def test_a_line_that_never_returns_a_derivative_is_found(
    rows: list[DerivativeResultRow], reported: bool
) -> None:
    query = UnusedInputs()
    assert found(query, rows) == []
    event = UnusedDerivativeInput(label="row", source="weight")
    expected = Found(event, line(5), latest={"created": NodeLine(7)})
    assert list(query.events_of_run()) == [expected] * reported


def first(segment: int, module: str, learns: bool = True) -> SegmentCallRow:
    return SegmentCallRow(segment, module, line(3), learns=learns)


def again(segment: int, module: str, learns: bool = True) -> SegmentCallRow:
    return SegmentCallRow(segment, module, is_rerun=True, learns=learns)


@pytest.mark.parametrize(
    ("rows", "skipped", "added"),
    [
        ([first(1, "a"), first(1, "b"), again(1, "a")], ("b",), ()),
        ([first(1, "a"), again(1, "a"), again(1, "b")], (), ("b",)),
        # Two segments of one line, as in a loop over layers.
        ([first(1, "a"), first(2, "b"), again(2, "c"), again(1, "d")], ("a", "b"), ("d", "c")),
        ([first(1, "a"), first(1, "b"), again(1, "a", learns=False)], ("b",), ()),
        ([first(1, "a"), first(1, "b", learns=False), again(1, "a")], (), ()),
        ([first(1, "a")], (), ()),  # backward has not run the segment again
        ([again(1, "a")], (), ()),  # the first forward was not recorded
        ([first(1, "a"), TrainingStepRow(), again(1, "b")], (), ()),
    ],
)
def test_segments_that_run_other_modules_in_backward(
    rows: list[SegmentCallRow], skipped: tuple[str, ...], added: tuple[str, ...]
) -> None:
    latest = {"skipped": skipped, "added": added}
    expected = [Found(CheckpointDiffers(), line(3), latest=latest)] if skipped or added else []
    assert found(CheckpointedSegments(), [*rows, GraphRow(None, (1, 2))]) == expected


def test_segments_that_differ_are_found_in_each_backward() -> None:
    calls = [first(1, "a"), first(2, "b"), again(2, "c"), again(1, "c")]
    # Segment 1 is in the second graph, which also has a leaf.
    rows = [*calls[:3], GraphRow(None, (2,)), calls[3], GraphRow(None, (1, -1))]
    events = found(CheckpointedSegments(), rows)
    assert [event.latest["skipped"] for event in events] == [("b",), ("b", "a")]
