"""The tab and the health pills, through TensorBoard's own server and data provider."""

from __future__ import annotations

import importlib.metadata
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from graphviz_torch import to_tensorboard
from graphviz_torch.graph import Edge, GradientStats, Graph, Node, TensorMeta
from graphviz_torch.recording.recording import record
from tests.support.models import MLP

pytest.importorskip("tensorboard")
from tensorboard.backend.application import TensorBoardWSGI
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.graph.graphs_plugin import GraphsPlugin
from werkzeug.test import Client

from graphviz_torch.render.view.payload import view_payload
from graphviz_torch.tensorboard.events import blob, pack, unpack, writing
from graphviz_torch.tensorboard.plugin import AutogradPlugin, HealthPillsPlugin
from graphviz_torch.tensorboard.plugin.pills import pills

META = TensorMeta((2, 2), "float32", "cpu")


def client(directory: Path) -> Client:
    """TensorBoard's web application with our plugins, over a log directory."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(directory))
    context = TBContext(data_provider=provider)
    plugins = [AutogradPlugin(context), HealthPillsPlugin(context), GraphsPlugin(context)]
    return Client(TensorBoardWSGI(plugins, data_provider=provider))


GOOD = GradientStats(2.0, 1.5, 0.1, 0.25, tensor=META)
BAD = GradientStats(1.0, 0.5, 0.1, 0.25, nan=1, inf=1, tensor=META)


def trained(scope: str = "fc", *stats: GradientStats) -> Graph:
    """One node in a scope, its gradient as given."""
    given = stats or (GOOD,)
    node = Node(0, "MulBackward0", (META,), operation="mul", scope=scope, grad_outputs=given)
    return Graph((node,), outputs=((0, 0),))


def ask(client: Client, names: list[str], **form: Any) -> Any:
    answer = client.post(
        "/data/plugin/debugger/health_pills",
        data={"node_names": json.dumps(names), "run": "__debugger_data__", **form},
    )
    assert answer.status_code == 200
    return answer.json


def test_the_package_offers_both_plugins_to_tensorboard() -> None:
    found = {e.name: e for e in importlib.metadata.entry_points(group="tensorboard_plugins")}
    assert found["graphviz_torch"].load() is AutogradPlugin
    assert found["graphviz_torch_health_pills"].load() is HealthPillsPlugin


def test_the_tab_is_listed_and_its_script_is_served_as_a_module(tmp_path: Path) -> None:
    to_tensorboard(trained(), tmp_path)
    web = client(tmp_path)
    listing = web.get("/data/plugins_listing").json
    assert listing["graphviz_torch"]["enabled"] is True
    assert listing["graphviz_torch"]["tab_name"] == "Autograd"
    script = web.get("/data/plugin/graphviz_torch/index.js")
    assert script.content_type.startswith("text/javascript")
    assert "export async function render()" in script.text
    view = web.get("/data/plugin/graphviz_torch/view.js")
    assert view.content_type.startswith("text/javascript")
    assert "export { mount }" in view.text


def test_the_tab_lists_runs_tags_and_steps_and_serves_each_graph(tmp_path: Path) -> None:
    early, late = trained("early"), trained("late")
    to_tensorboard(early, tmp_path / "a", step=1)
    to_tensorboard(late, tmp_path / "a", step=5)
    to_tensorboard(late, tmp_path / "b", tag="forward")
    web = client(tmp_path)
    listing = web.get("/data/plugin/graphviz_torch/graphs").json
    assert listing == {"a": {"graph": [1, 5]}, "b": {"forward": [0]}}
    for step, graph in ((1, early), (5, late)):
        answer = web.get(
            "/data/plugin/graphviz_torch/graph",
            query_string={"run": "a", "tag": "graph", "step": step},
        )
        assert answer.text == view_payload(graph, title=f"graph, step {step}")


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("", 400, "run, tag and step"),
        ("?run=.&tag=graph&step=x", 400, "run, tag and step"),
        ("?run=gone&tag=graph&step=0", 404, "no graph at run 'gone'"),
        ("?run=.&tag=graph&step=7", 404, "step 7"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(
    tmp_path: Path, query: str, code: int, message: str
) -> None:
    to_tensorboard(trained(), tmp_path)
    answer = client(tmp_path).get("/data/plugin/graphviz_torch/graph" + query)
    assert answer.status_code == code
    assert message in answer.text


@pytest.mark.parametrize("content", [b"", b"no gzip", pack(trained())[:40]])
def test_a_damaged_graph_is_answered_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    with writing(tmp_path) as write:
        write(blob("autograd/graph", "graphviz_torch", content), 0)
    web = client(tmp_path)
    answer = web.get("/data/plugin/graphviz_torch/graph?run=.&tag=graph&step=0")
    assert answer.status_code == 404
    assert "the graph in the event file is" in answer.text
    assert (
        web.post("/data/plugin/debugger/health_pills", data={"node_names": "[]"}).status_code == 404
    )


def test_a_graph_is_packed_into_the_same_bytes_each_time() -> None:
    assert pack(trained()) == pack(trained())
    assert unpack(pack(trained())) == trained()


def test_a_pill_counts_what_autograd_gave_the_node() -> None:
    torch.manual_seed(0)
    model = MLP()
    with record(model) as recording:
        hidden = model.fc1(torch.randn(16, 4))
        hidden.retain_grad()
        model.fc2(torch.relu(hidden)).sum().backward()
    found = pills(recording.graph)
    gradient = hidden.grad.abs()
    value = found["fc1/addmm[hidden]"]["value"]
    assert value[1] == gradient.numel()
    assert value[5] == (gradient == 0).sum().item() > 0
    assert value[6] == (gradient > 0).sum().item() > 0
    assert value[9] == pytest.approx(gradient.max().item())
    inside = [p["value"] for path, p in found.items() if path.startswith("fc1/")]
    assert found["fc1"]["value"][1] == sum(p[1] for p in inside), "a scope counts all its nodes"
    assert found["fc1"]["value"][9] == max(p[9] for p in inside)
    assert found["backward/fc1"]["value"] == found["fc1"]["value"]


def test_nan_and_inf_are_counted_apart_and_a_node_without_finite_values_has_no_range() -> None:
    assert pills(trained("fc", BAD))["fc/mul"]["value"][1:10] == [4, 1, 0, 0, 1, 1, 1, 0.0, 0.5]
    lost = GradientStats(0.0, 0.0, 0.0, 0.0, nan=4, tensor=META)
    assert pills(trained("fc", lost))["fc/mul"]["value"][8:10] == [None, None]
    assert pills(trained("fc", GradientStats(0, 0, math.nan, 0))) == {}, "of unknown size"


def test_pills_come_step_by_step_for_the_graph_whose_nodes_are_asked_for(tmp_path: Path) -> None:
    for step in (0, 10):
        to_tensorboard(trained("shown"), tmp_path / "a", step=step)
    to_tensorboard(trained("newer"), tmp_path / "b")
    web = client(tmp_path)
    answer = ask(web, ["__root__", "shown", "shown/mul"])
    assert {name: [p["step"] for p in steps] for name, steps in answer.items()} == {
        "shown": [0, 10],
        "shown/mul": [0, 10],
    }
    assert [p["step"] for p in ask(web, ["shown"], step=10)["shown"]] == [10]
    assert set(ask(web, ["newer"])) == {"newer"}
    assert ask(web, ["gone"]) == {}


def test_a_node_without_a_pill_at_a_step_leaves_a_gap_behind_a_node_that_has_all(
    tmp_path: Path,
) -> None:
    both = Graph(
        (*trained("a").nodes, *(n._replace(id=1, scope="b") for n in trained("a").nodes)),
        (Edge(0, 1),),
        ((1, 0),),
    )
    to_tensorboard(both.annotate(grad_outputs={1: ()}), tmp_path, step=0)
    to_tensorboard(both, tmp_path, step=1)
    answer = ask(client(tmp_path), ["b", "a"])
    assert list(answer) == ["a", "b"], "the page reads the steps off the first"
    assert [pill and pill["step"] for pill in answer["b"]] == [None, 1]


def test_alerts_name_the_nodes_with_nan_or_inf(tmp_path: Path) -> None:
    for step, stats in enumerate((GOOD, BAD, BAD)):
        to_tensorboard(trained("fc", stats), tmp_path, step=step)
    (row,) = client(tmp_path).post("/data/plugin/debugger/numerics_alert_report").json
    counts = row["nan_event_count"], row["pos_inf_event_count"]
    assert (row["tensor_name"], *counts) == ("fc/mul", 2, 2)


def test_the_first_alert_is_where_backward_met_the_first_inf(tmp_path: Path) -> None:
    model = MLP()
    with record(model) as recording:
        hidden = model.fc1(torch.randn(2, 4))
        hidden.register_hook(lambda gradient: gradient * math.inf)
        model.fc2(hidden).sum().backward()
    to_tensorboard(recording.graph, tmp_path)
    alerts = client(tmp_path).post("/data/plugin/debugger/numerics_alert_report").json
    names = [row["tensor_name"] for row in alerts]
    assert names[0] == "fc1/addmm[hidden]"
    assert {"fc1/weight", "fc1/bias"} <= set(names)
    assert not any(name.startswith("fc2") for name in names)


def test_without_our_data_nothing_is_shown_and_nothing_fails(tmp_path: Path) -> None:
    web = client(tmp_path)
    assert web.get("/data/plugins_listing").json["graphviz_torch"]["enabled"] is False
    assert web.get("/data/plugin/graphviz_torch/graphs").json == {}
    assert ask(web, ["x"]) == {}
    assert web.post("/data/plugin/debugger/numerics_alert_report").json == []


@pytest.mark.parametrize("names", ["{", "{}", "[1]", "[" * 100_000, f"{'[' * 500}{']' * 500}"])
def test_what_is_not_a_list_of_names_is_refused_with_a_sentence(tmp_path: Path, names: str) -> None:
    bad = client(tmp_path).post("/data/plugin/debugger/health_pills", data={"node_names": names})
    assert (bad.status_code, bad.text) == (400, "node_names must be a JSON list of names")
