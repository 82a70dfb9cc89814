"""Test files for other tools by reading each with the tool for which it is written."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import networkx
import pytest
import torch
from model_explorer import graph_builder, node_data_builder
from torch import nn

from graphviz_torch import Graph, record, trace
from graphviz_torch.export import to_chrome_trace, to_dict, to_model_explorer, to_networkx
from graphviz_torch.findings.rules.leaves import GradientRead
from graphviz_torch.findings.rules.meaning.shared_weights import RepeatedLayer
from graphviz_torch.graph import (
    Collective,
    Edge,
    GradientStats,
    Node,
    Parameter,
    RankTime,
    TensorMeta,
)
from graphviz_torch.graph.events import ParameterFreeze
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.integrations.exporters import SCHEMA


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return a recorded step of a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with record(model) as recording:
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
    return recording.graph


def test_networkx_knows_the_same_inputs_and_graphml_gives_them_back(
    graph: Graph, tmp_path: Path
) -> None:
    made = to_networkx(graph)
    assert networkx.is_directed_acyclic_graph(made)
    for node, inputs in enumerate(graph.inputs()):
        assert sorted(made.predecessors(node)) == sorted({edge.source for edge in inputs})
    networkx.write_graphml(made, tmp_path / "graph.graphml")
    again = networkx.read_graphml(tmp_path / "graph.graphml", node_type=int, force_multigraph=True)
    assert dict(again.nodes(data=True)) == dict(made.nodes(data=True))
    assert sorted(again.edges(data="output_nr")) == sorted(made.edges(data="output_nr"))


def test_a_name_that_xml_cannot_hold_is_escaped(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    made = to_networkx(trace(x * 2, names={"\x00<&": x}))
    networkx.write_graphml(made, tmp_path / "graph.graphml")
    again = networkx.read_graphml(tmp_path / "graph.graphml", node_type=int)
    assert again.nodes[0]["label"] == "\\x00<&"


def test_rows_are_json_that_the_published_schema_takes(graph: Graph) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    rows = json.loads(json.dumps(to_dict(graph), allow_nan=False))
    validator.validate(rows)
    assert [row["name"] for row in rows["nodes"]] == [node.name for node in graph.nodes]
    del rows["nodes"][0]["name"]
    assert not validator.is_valid(rows)


def test_rows_hold_numbers_that_json_does_not_know() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    with record() as recording:
        (x * x).sum().backward()
    rows = json.loads(json.dumps(to_dict(recording), allow_nan=False))
    [values] = [n["grad_outputs"][0]["values"] for n in rows["nodes"] if n["label"] == "x"]
    assert values == [2.0, "NaN", "Infinity"]
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(rows)


def test_rows_of_what_a_rank_has_of_a_gradient_are_taken_too() -> None:
    meta = TensorMeta((4,), "float32", "cpu")
    grad = GradientStats(1.0, 1.0, 0.5, 0.0, tensor=meta._replace(shape=(2,)), extent="local part")
    graph = Graph(
        (), parameters=(Parameter("weight", meta, True, grad=grad, shard=1, shard_count=2),)
    )
    rows = json.loads(json.dumps(to_dict(graph), allow_nan=False))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(rows)
    assert (rows["parameters"][0]["shard"], rows["parameters"][0]["grad"]["norm"]) == (1, 1.0)
    assert from_json(to_json(graph)) == graph


def test_an_event_in_rows_has_the_name_of_its_class() -> None:
    read = GradientRead("train.py:3", label="y")
    rows = to_dict(Graph((), events=(read, ParameterFreeze("train.py:1"), RepeatedLayer())))
    names = ["GradientRead", "ParameterFreeze", "RepeatedLayer"]
    assert [row["kind"] for row in rows["events"]] == names
    assert rows["events"][0]["label"] == "y"
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    validator.validate(json.loads(json.dumps(rows)))
    del rows["events"][0]["kind"]
    assert not validator.is_valid(json.loads(json.dumps(rows)))


def test_model_explorer_reads_the_graph_and_its_node_data(graph: Graph, tmp_path: Path) -> None:
    files = to_model_explorer(graph, tmp_path / "step.json")
    names = ["step.json", "step.gradient.json", "step.time.json", "step.memory.json"]
    assert [file.name for file in files] == names
    collection = of(graph_builder.GraphCollection, json.loads(files[0].read_text()))
    [made] = collection.graphs
    assert [node.id for node in made.nodes] == [str(node.id) for node in graph.nodes]
    edges = {
        (int(edge.sourceNodeId), int(node.id), int(edge.sourceNodeOutputId))
        for node in made.nodes
        for edge in node.incomingEdges
    }
    assert edges == {(edge.source, edge.target, edge.output_nr) for edge in graph.edges}
    assert {node.namespace for node in made.nodes} >= {"0", "1", "2"}
    for file in files[1:]:
        [(name, data)] = json.loads(file.read_text()).items()
        assert name == made.id
        node_data = of(node_data_builder.GraphNodeData, data)
        assert set(node_data.results) <= {node.id for node in made.nodes}


def of(kind: Any, value: Any) -> Any:
    """A value of one of the tool's own classes from JSON; a field that it lacks is an error."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: of(hints[name], each) for name, each in value.items()})  # type: ignore[operator]
    if isinstance(value, list):
        return [of(get_args(kind)[0], each) for each in value]
    if isinstance(value, dict):
        return {name: of(get_args(kind)[1], each) for name, each in value.items()}
    return value


def test_a_chrome_trace_holds_the_measured_times_in_the_order_of_backward(
    graph: Graph, tmp_path: Path
) -> None:
    made = to_chrome_trace(graph, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == made
    events = [event for event in made["traceEvents"] if event["ph"] == "X"]
    ran = sorted((n for n in graph.nodes if n.order is not None), key=lambda n: n.order or 0)
    assert [event["args"]["node"] for event in events] == [node.id for node in ran]
    assert sum(event["dur"] for event in events) == pytest.approx(
        1e6 * sum(node.seconds or 0 for node in ran)
    )
    for one, next_ in pairwise(events):
        assert one["ts"] + one["dur"] == pytest.approx(next_["ts"])


def test_a_trace_without_measured_times_is_refused() -> None:
    with pytest.raises(ValueError, match="no time was measured"):
        to_chrome_trace(trace(torch.ones(2, requires_grad=True) * 2))


def test_a_missing_package_is_named_with_what_to_install(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "networkx", None)
    with pytest.raises(ImportError, match="pip install networkx"):
        to_networkx(graph)


def test_a_chrome_trace_marks_what_ranks_sent_at_the_end_of_the_node_that_was_running() -> None:
    sent = Collective("all_reduce", 96, "float32", 2, phase="backward", node=1, module="fc")
    elsewhere = replace(sent, node=None), replace(sent, phase="forward")
    nodes = (
        Node(0, "AccumulateGrad", (), order=1, seconds=2e-6),
        Node(1, "MulBackward0", (), order=0, seconds=3e-6),
    )
    graph = Graph(nodes, (Edge(0, 1),), ((1, 0),), collectives=(sent, *elsewhere))
    [mark] = [event for event in to_chrome_trace(graph)["traceEvents"] if event["ph"] == "i"]
    assert (mark["name"], mark["ts"], mark["args"]["bytes"]) == ("all_reduce", 3.0, 96)


def test_a_chrome_trace_has_a_track_for_each_rank_that_stood_in_collectives() -> None:
    times = RankTime(0, "", 10.0, 4.0, 4.0), RankTime(1, "", 1002.0, 1.0, 1.0)
    sent = Collective("barrier", 0, group_size=2, times=times)
    graph = Graph(
        (Node(0, "MulBackward0", (), order=0, seconds=3e-6),), (), ((0, 0),), collectives=(sent,)
    )
    stood = [event for event in to_chrome_trace(graph)["traceEvents"] if event["pid"] == 1]
    assert [(event["tid"], event["dur"]) for event in stood] == [(0, 4e6), (1, 1e6)]
    assert stood[0]["ts"] + stood[0]["dur"] == stood[1]["ts"] + stood[1]["dur"]


def test_what_a_node_sends_to_other_ranks_is_on_it_in_other_tools(tmp_path: Path) -> None:
    sent = Collective("all_gather", 96, "float32", 2, group="tp", phase="forward", node=1)
    nodes = Node(0, "AccumulateGrad", (), "x"), Node(1, "MulBackward0", ())
    graph = Graph(nodes, (Edge(0, 1),), ((1, 0),), collectives=(sent,))
    said = "all_gather 96 B float32 · tp, 2 ranks"
    made = to_networkx(graph)
    assert [data.get("collectives") for _, data in made.nodes(data=True)] == [None, said]
    [file] = to_model_explorer(graph, tmp_path / "step.json")
    [explorer] = json.loads(file.read_text())["graphs"]
    assert [row["value"] for row in explorer["nodes"][1]["attrs"][-1:]] == [said]
    assert {"key": "between ranks", "value": said} not in explorer["nodes"][0]["attrs"]
