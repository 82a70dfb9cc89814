"""Test the Autograd tab through TensorBoard's own server and data provider."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from graphviz_torch import to_tensorboard
from graphviz_torch.graph import GradientStats, Graph, Node, TensorMeta

pytest.importorskip("tensorboard")
from tensorboard.backend.application import TensorBoardWSGI
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.graph.graphs_plugin import GraphsPlugin
from werkzeug.test import Client

from graphviz_torch.render.view.payload import view_payload
from graphviz_torch.tensorboard.events import blob, pack, unpack, writing
from graphviz_torch.tensorboard.plugin import AutogradPlugin

META = TensorMeta((2, 2), "float32", "cpu")


def client(directory: Path) -> Client:
    """TensorBoard's web application with our plugins, over a log directory."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(directory))
    context = TBContext(data_provider=provider)
    plugins = [AutogradPlugin(context), GraphsPlugin(context)]
    return Client(TensorBoardWSGI(plugins, data_provider=provider))


GOOD = GradientStats(2.0, 1.5, 0.1, 0.25, tensor=META)
BAD = GradientStats(1.0, 0.5, 0.1, 0.25, nan=1, inf=1, tensor=META)


def trained(scope: str = "fc", *stats: GradientStats) -> Graph:
    """One node in a scope, its gradient as given."""
    given = stats or (GOOD,)
    node = Node(0, "MulBackward0", (META,), operation="mul", scope=scope, grad_outputs=given)
    return Graph((node,), outputs=((0, 0),))


def test_the_package_offers_its_plugin_to_tensorboard() -> None:
    found = {e.name: e for e in importlib.metadata.entry_points(group="tensorboard_plugins")}
    assert found["graphviz_torch"].load() is AutogradPlugin


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
        ("?run=gone&tag=graph&step=0", 404, "there is no graph with run 'gone'"),
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


def test_a_graph_is_packed_into_the_same_bytes_each_time() -> None:
    assert pack(trained()) == pack(trained())
    assert unpack(pack(trained())) == trained()


def test_without_our_data_nothing_is_shown_and_nothing_fails(tmp_path: Path) -> None:
    web = client(tmp_path)
    assert web.get("/data/plugins_listing").json["graphviz_torch"]["enabled"] is False
    assert web.get("/data/plugin/graphviz_torch/graphs").json == {}
