"""Test a recording as one graph: which graphs it contains, their titles, and all shifted ids."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, find, record
from graphviz_torch.findings.rules.leaves import DataAssignment
from graphviz_torch.graph import (
    Cause,
    Cut,
    Edge,
    Failure,
    Finding,
    Node,
    Operand,
    Parameter,
    RetainedGraphs,
    SavedTensor,
    Step,
    TensorMeta,
    Transfer,
)
from graphviz_torch.graph.events import LossCall
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.render.resolve import graph_and_findings, resolve_findings
from tests.render.drawing.test_whole import recorded
from tests.support.zoo import gan

F32 = TensorMeta((3,), "float32", "cpu")


def everywhere(label: str, source: str = "a.py:1") -> Graph:
    """A graph that names a node at every place that has an id."""
    saved = SavedTensor("self", F32, 12, shared_with=0)
    nodes = (
        Node(0, "AccumulateGrad", (F32,), "w", leaf="parameter"),
        Node(1, "MulBackward0", (F32,), label, "mul", where=source, saved=(saved,), order=0),
    )
    part = Operand("w", F32, node=0)
    return Graph(
        nodes,
        (Edge(0, 1),),
        ((1, 0),),
        (Transfer("HtoD", "cpu", "cuda:0", F32, "forward", 1, label=label),),
        (Parameter("w", F32, True, 0), Parameter("lost", F32, True)),
        (Cut("detach", F32, 0, (1,)),),
        Failure("RuntimeError", "no", node=1, operands=(part,), modified=part, causes=(C,)),
        Step(retained=RetainedGraphs(2, node=1)),
        (LossCall(operands=(part,), nodes=(1,)), DataAssignment(value=part)),
    )


C = Cause("add_", nodes=(1,))


def test_both_losses_of_a_gan_are_parts_under_their_names_and_lines() -> None:
    recording = gan()
    critic, generator = recording.graphs
    whole, _ = graph_and_findings(recording)
    whole.check()
    last = [graph.nodes[graph.outputs[0][0]] for graph in (critic, generator)]
    titles = [f"{node.label} · {node.where}" for node in last]
    assert whole.segments == ((0, titles[0]), (len(critic.nodes), titles[1]))
    assert whole.segments[0][1].startswith("critic_loss · zoo.py:")
    assert [node._replace(order=None) for node in whole.nodes[: len(critic.nodes)]] == [
        node._replace(order=None) for node in critic.nodes
    ]
    moved = whole.edges[len(critic.edges) :]
    by = len(critic.nodes)
    ends = [(edge.source - by, edge.target - by) for edge in moved]
    assert ends == [(edge.source, edge.target) for edge in generator.edges]
    assert from_json(to_json(whole)) == whole


def test_findings_are_those_of_find_unless_others_are_given() -> None:
    recording = gan()
    _, auto = graph_and_findings(recording)
    assert auto == graph_and_findings(recording, findings=find(recording))[1]
    graph = replace(everywhere("a"), failure=None)
    judged = tuple(find(graph))
    assert judged
    about = Finding("made-up", "info", "x")
    assert [graph_and_findings(graph, findings=given)[1] for given in ("auto", [about], None)] == [
        judged,
        (about,),
        (),
    ]
    assert resolve_findings(object()) == ()
    with pytest.raises(ValueError, match="findings='all': pass a result of `find`"):
        resolve_findings(graph, "all")  # type: ignore[arg-type]


def test_every_id_of_a_later_part_moves() -> None:
    whole, _ = graph_and_findings(recorded(everywhere("a"), everywhere("b")))
    whole.check()
    assert whole.nodes[3].saved[0].shared_with == 2
    assert whole.outputs == ((1, 0), (3, 0))
    assert [transfer.node for transfer in whole.transfers] == [1, 3]
    assert [(p.name, p.node) for p in whole.parameters] == [("w", 0), ("w", 2), ("lost", None)]
    assert [(cut.before, cut.after) for cut in whole.cuts] == [(0, (1,)), (2, (3,))]
    failure = whole.failure
    assert failure is not None
    assert failure.modified is not None
    assert (failure.node, failure.modified.node, failure.operands[0].node) == (3, 2, 2)
    assert failure.causes[0].nodes == (3,)
    assert whole.step.retained is not None
    assert whole.step.retained.node == 3
    calls = [event for event in whole.events if isinstance(event, LossCall)]
    assert [(call.nodes, call.operands[0].node) for call in calls] == [((1,), 0), ((3,), 2)]
    values = [event.value for event in whole.events if isinstance(event, DataAssignment)]
    assert [value.node for value in values if value] == [0, 2]
    assert [node.order for node in whole.nodes] == [None, 0, None, 1]


def test_a_copy_that_every_graph_lists_stands_once_at_the_node_of_the_one_that_has_it() -> None:
    copy = Transfer("HtoD", "cpu", "cuda:0", F32, "forward", moment=4)
    other = replace(copy, moment=5)
    first = replace(everywhere("a"), transfers=(replace(copy, node=1), other))
    second = replace(everywhere("b"), transfers=(copy, replace(other, node=0)))
    about = Finding("made-up", "info", "x", transfers=(1,), nodes=(0,), steps=(1,))
    whole, found = graph_and_findings(recorded(first, second), findings=[about])
    assert whole.transfers == (replace(copy, node=1), replace(other, node=2))
    assert found == (replace(about, nodes=(2,)),)


def test_a_recording_of_one_graph_is_that_graph() -> None:
    with record() as recording:
        (torch.ones(3, requires_grad=True) * 2).sum().backward()
    whole, _ = graph_and_findings(recording)
    assert whole is recording.graph
    assert whole.segments == ()


def test_of_a_loop_the_last_step_is_drawn() -> None:
    model = nn.Linear(2, 2)
    with record(model) as recording:
        for _ in range(5):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
    assert len(recording.graphs) == 5
    found = [Finding("made-up", "info", "x", nodes=(1,), steps=steps) for steps in ((0, 4), (1,))]
    whole, moved = graph_and_findings(recording, findings=found)
    assert whole is recording.graphs[4]
    assert [finding.nodes for finding in moved] == [(1,), ()]


def test_the_last_of_a_loop_stands_beside_another_loss_and_says_of_how_many() -> None:
    graphs = [everywhere("a"), everywhere("b", "b.py:2"), everywhere("a"), everywhere("a")]
    whole, _ = graph_and_findings(recorded(*graphs))
    assert whole.segments == ((0, "b · b.py:2"), (2, "a · a.py:1 · the last of 3"))


def test_findings_of_a_recording_name_the_nodes_of_their_graph() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    with record(model) as recording:
        fine = model[0](torch.ones(1, 2)).sum()
        fine.backward()
        wrong = (model[1](torch.ones(1, 2)) * float("inf")).sum()
        wrong.backward()
    found = find(recording)
    assert any(finding.nodes for finding in found)
    whole, moved = graph_and_findings(recording, findings=found)
    for before, after in zip(found, moved, strict=True):
        graph = recording.graphs[before.steps[-1]]
        for here, there in zip(after.nodes, before.nodes, strict=True):
            assert whole.nodes[here].outputs == graph.nodes[there].outputs
            assert whole.nodes[here].where == graph.nodes[there].where


def test_a_long_title_is_cut() -> None:
    whole, _ = graph_and_findings(recorded(everywhere("a" * 9_999, "b" * 9_999), everywhere("b")))
    assert len(whole.segments[0][1]) < 100


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (((3, "a"), (2, "b")), "begin at nodes"),
        (((9, "a"),), "begin at nodes"),
        (((-1, "a"),), "begin at nodes"),
        (((0, "a"),) * 1_001, "segments has 1,001 entries"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts: tuple[tuple[int, str], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(everywhere("a"), segments=parts).check()
