"""Test the queries over rows of calls: each test is a list of rows and the events that they show.

The programs that make such calls are in tests/findings/mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphviz_torch.findings.rules.cut_derivatives import SummedDerivative
from graphviz_torch.findings.rules.meaning.last_steps import LastStep
from graphviz_torch.findings.rules.meaning.masks import AttentionMask
from graphviz_torch.findings.rules.meaning.optimizer_lines import LineOfOneParameter
from graphviz_torch.findings.rules.meaning.pixels import UnscaledPixels
from graphviz_torch.findings.rules.meaning.positions import RowEncoding
from graphviz_torch.findings.rules.meaning.straight_through import ReversedEstimator
from graphviz_torch.findings.rules.means import MeanOverMaskedValues
from graphviz_torch.findings.rules.scores import SoftTargets
from graphviz_torch.findings.rules.single_rows import RowOfData
from graphviz_torch.internals.probes import Probe
from graphviz_torch.recording.program.events import Events, RecordingNotes
from graphviz_torch.recording.program.identities import Identities
from graphviz_torch.recording.program.log import Found, Log
from graphviz_torch.recording.program.rows import ResumeRow, Row, StepEndRow, TrainingStepRow
from graphviz_torch.recording.queries.last_steps import (
    LastStepRow,
    LastSteps,
    OrderedRow,
    SequenceRow,
)
from graphviz_torch.recording.queries.masks import AttentionMasks, MaskRow
from graphviz_torch.recording.queries.means import MaskedMeanRow, MaskedMeans
from graphviz_torch.recording.queries.optimizer_lines import ChangedRow, OptimizerLines, OwnStepRow
from graphviz_torch.recording.queries.pixels import LayerInputRow, Pixels
from graphviz_torch.recording.queries.positions import Positions, RowEncodingRow
from graphviz_torch.recording.queries.single_rows import IndexRow, SingleRows
from graphviz_torch.recording.queries.straight_through import StraightThrough, SumOperand, SumRow
from graphviz_torch.recording.queries.summed_derivatives import DerivativeRow, SummedDerivatives
from graphviz_torch.recording.queries.temperatures import (
    DistributionLossRow,
    ScoreRow,
    Temperatures,
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
