"""Test rules that compare the graphs of several steps or ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from graphviz_torch import Finding, Graph, find, record
from graphviz_torch.graph import Collective, RankTime
from graphviz_torch.graph.events import OptimizerStep
from tests.findings.by_hand.graphs import chain, event, lost, model, parameter
from tests.findings.by_hand.processes import (
    AVERAGE,
    EXCHANGE,
    EXCHANGED,
    LARGE,
    LATE,
    MESH,
    SAME,
    expert,
    micro_batches,
    rank,
    summed,
)


def step(number: int) -> Graph:
    """Return the graph of a running total after some steps."""
    graph = chain("w", *["MulBackward0", "AddBackward0"] * number)
    return graph.annotate(where={n.id: "train.py:8" for n in graph.nodes if n.name[0] == "A"})


def test_a_loss_kept_with_its_history_makes_the_graph_grow() -> None:
    found = [f for f in find(step(3), [step(1), step(2)]) if f.rule == "retained-graph"]
    assert [f.severity for f in found] == ["warning"]
    assert "2 nodes in each step (3, 5 and 7 nodes)" in found[0].message
    assert "train.py:8" in found[0].message


@pytest.mark.parametrize(
    "sizes", [(2, 2, 2), (1, 3, 2), (1, 2, 4), (3, 2, 1), (1, 2), (4, 1, 2, 3)]
)
def test_a_graph_of_changing_size_does_not_grow_and_two_steps_are_no_trend(
    sizes: tuple[int, ...],
) -> None:
    *before, last = (step(n) for n in sizes)
    assert find(last, before) == []


@pytest.mark.parametrize(("once", "severities"), [(True, ["info", "warning"]), (False, [])])
def test_a_loss_of_weights_that_were_stacked_before_the_loop_has_constant_gradients(
    once: bool, severities: list[str]
) -> None:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    x, stacked = torch.arange(3.0), torch.stack(weights)
    with record() as recording:
        steps = []
        for _ in range(3):
            stacked = stacked if once else torch.stack(weights)
            optimizer.zero_grad()
            (stacked * x).square().sum().backward(retain_graph=True)
            optimizer.step()
            steps.append(recording.next_step()[-1])
    found = [f for f in find(steps[-1], steps[:-1]) if f.rule == "constant-loss"]
    assert sorted(f.severity for f in found) == severities


@pytest.mark.parametrize(("size", "severity"), [(2048, "info"), (LARGE, "warning")])
def test_gradients_averaged_in_each_micro_batch_are_told_by_what_is_sent_in_vain(
    size: int, severity: str
) -> None:
    *before, last = micro_batches(synced=2, size=size)
    [found] = [f for f in find(last, before) if f.rule == "redundant-all-reduce"]
    assert found.severity == severity
    assert found.message.startswith(
        "The gradients of body.weight are averaged 2 times at train.py:9 before an optimizer steps "
        "with them: 2.0 "
    )


@pytest.mark.parametrize(
    "graphs",
    [
        micro_batches(synced=1),
        micro_batches(synced=2, stepped=False),
        [
            replace(graph, events=micro_batches(synced=2)[1].events)
            for graph in micro_batches(synced=2)
        ],
    ],
    ids=["no_sync", "no step", "a step after each"],
)
def test_gradients_averaged_once_for_a_step_are_left_alone(graphs: list[Graph]) -> None:
    assert find(graphs[1], graphs[:1]) == []


def test_a_rank_that_skipped_a_parameter_is_named_with_it() -> None:
    good, bad = model(parameter("head.weight")), model(lost("head.weight", module_called=False))
    (found,) = find([good, bad, good])
    assert (found.rule, found.severity) == ("ddp-unused-parameter", "error")
    assert found.message == (
        "Rank 1 has no gradient for head.weight, but other ranks have one: its module was never "
        "called."
    )


@pytest.mark.parametrize(
    "ranks",
    [
        [model(parameter("a.weight")), model(parameter("a.weight"))],
        [model(lost("a.weight")), model(lost("a.weight"))],
        [model(lost("a.weight", requires_grad=False)), model(parameter("a.weight"))],
        [],
    ],
    ids=["both", "neither", "frozen", "no ranks"],
)
def test_ranks_that_agree_have_no_findings(ranks: list[Graph]) -> None:
    assert find(ranks) == []


def on(group: str, *sent: Collective) -> Graph:
    """Return a rank of one of the groups with the name of the mesh dimension."""
    return rank(*(replace(each, times=(RankTime(0, group, 0.0),)) for each in sent))


def test_a_group_is_compared_by_itself_where_several_have_the_name_of_its_mesh_dimension() -> None:
    same = [on("a", MESH), on("a", MESH)]
    assert find([*same, on("b", MESH, EXCHANGED), on("b", MESH, EXCHANGED)]) == []
    [found] = find([*same, on("b", MESH, EXCHANGED), on("b", EXCHANGED, MESH)])
    assert found.rule == "mismatched-collectives"
    assert found.message == (
        "Ranks call different collectives: call 1 of tp is all_reduce of 4 B "
        "float32 at train.py:11 on rank 2, and all_gather of 4 B float32 at train.py:11 on rank 3."
    )


def test_where_times_are_missing_groups_of_one_name_are_not_compared() -> None:
    timeless = [rank(MESH), on("a", MESH), on("b", EXCHANGED), on("b", MESH)]
    assert find(timeless) == []


def rated(checksums: tuple[int, ...], *rates: float | None) -> Graph:
    """Return a rank that averages, and whose optimizer steps with these learning rates."""
    graph = summed(rank(AVERAGE), *checksums)
    stepped = event(OptimizerStep, optimizer="optimizer", learning_rates=rates)
    return replace(graph, events=(stepped,))


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([(0.1, 0.1), (0.1, 0.2)], "the learning rate is 0.1 on rank 0 and 0.2 on rank 1."),
        ([(None, 0.1), (None, 0.2)], "the learning rate is 0.1 on rank 0 and 0.2 on rank 1."),
        ([(None,), (0.1,)], "their gradients are averaged at train.py:9."),
        ([(), ()], "their gradients are averaged at train.py:9."),
    ],
)
def test_ranks_that_come_apart_with_other_rates_name_the_first_pair_that_differs(
    rates: list[tuple[float | None, ...]], said: str
) -> None:
    ranks = [rated(sums, *own) for sums, own in zip((SAME, LATE), rates, strict=True)]
    [found] = [each for each in find(ranks) if each.rule == "diverged-replicas"]
    assert found.message.endswith(said)


def test_of_a_replicated_part_of_a_dtensor_no_average_is_told() -> None:
    ranks = [summed(rank(), *sums, wrapper="DTensor") for sums in (SAME, LATE)]
    [found] = [each for each in find(ranks) if each.rule == "diverged-replicas"]
    assert "averaged" not in found.message
    assert "these ranks have the same shard of a DTensor" in found.message


def test_experts_that_get_tokens_by_all_to_all_may_start_with_equal_weights() -> None:
    alike = [expert((1, 0), (2, 5), (3, 6)), expert((1, 0), (5, 7), (6, 8))]
    averaging = [replace(each, collectives=(AVERAGE,)) for each in alike]
    exchanging = [replace(each, collectives=(AVERAGE, EXCHANGE)) for each in alike]
    assert "diverged-replicas" in [each.rule for each in find(averaging)]
    assert "diverged-replicas" not in [each.rule for each in find(exchanging)]


def spikes(*losses: float, scale: float = 1.0) -> list[Finding]:
    """Return what is reported about steps whose losses are the quotients 1 / loss."""
    weight = torch.nn.Parameter(torch.tensor(scale))
    with record() as recording:
        steps = []
        for loss in losses:
            (weight / torch.tensor(1 / loss)).backward()
            steps.append(recording.next_step()[-1])
    found = find(steps[-1], steps[:-1])
    return [each for each in found if each.rule == "loss-spike"]


def test_a_loss_that_jumps_and_falls_names_the_quotient() -> None:
    [found] = spikes(1e9, 0.5)
    assert "1.00e9 in one step, and 0.5 in the step after it. The cause is div at" in found.message
    [found] = spikes(0.5, 0.4, 1e7)
    assert "1.00e7 in one step, and 0.4 in the step before it" in found.message


def test_steps_with_different_losses_are_not_compared() -> None:
    weight = torch.nn.Parameter(torch.tensor(1.0))
    with record() as recording:
        (weight * 1e9).backward()
        before = recording.next_step()
        weight.square().backward()
    assert "loss-spike" not in [each.rule for each in find(recording, before)]


def test_an_overlap_of_raw_scores_is_reported_without_the_spike_that_it_causes() -> None:
    model, target = torch.nn.Linear(2, 1, bias=False), torch.tensor([[1.0], [1.0]])
    torch.nn.init.ones_(model.weight)
    with record(model) as recording:
        steps = []
        for last in (-1.5, 0.0):  # the scores 1 and -3, whose sum is minus that of the target
            scores = model(torch.tensor([[0.5, 0.5], [-1.5, last]]))
            size = scores.sum() + target.sum()
            (1 - (2 * (scores * target).sum() + 1e-6) / (size + 1e-6)).backward()
            steps.append(recording.next_step()[-1])
    reported = {each.rule for each in find(steps[-1], steps[:-1])}
    assert "overlap-loss" in reported
    assert "loss-spike" not in reported


@pytest.mark.parametrize("losses", [(5e3, 1e-2), (1e6, 1e5), (2.0, 1.0), (1e9,), (math.inf, 1.0)])
def test_a_loss_that_falls_fast_or_stays_large_is_left_alone(losses: tuple[float, ...]) -> None:
    assert spikes(*losses) == []
