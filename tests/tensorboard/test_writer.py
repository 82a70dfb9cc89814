"""Test that graphs written for TensorBoard read back with every node and edge."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from graphviz_torch import record, to_tensorboard, trace
from graphviz_torch.export import to_pbtxt
from graphviz_torch.graph import Edge, GradientStats, Graph, Node, SavedTensor, TensorMeta, Transfer
from graphviz_torch.tensorboard import add_autograd_graph
from graphviz_torch.tensorboard import writer as front
from tests.support.graphs_tab import problems
from tests.support.models import MLP, UnrolledRNN, chain, gpt2, tokens, worked_example

pytest.importorskip("tensorboard")
from google.protobuf import text_format
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto import config_pb2, graph_pb2
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.graph.graphs_plugin import GraphsPlugin

from graphviz_torch.tensorboard.events import PREFIX, unpack
from graphviz_torch.tensorboard.graph_def import graph_def, run_metadata
from graphviz_torch.tensorboard.names import names

HOSTILE = [
    *("toString", "__proto__", "constructor", "constructor/length", "length", "hasOwnProperty"),
    *("valueOf", "__root__", "__function_library__x", "isPrototypeOf", "it's", 'say "hi"', "a b"),
    *("snow ☃", "new\nline", "tab\t", "back\\slash", "<b>", "a&b", "50%", "$x", "a;b", "a=b"),
    *("{x}", "^x", "x:1", "//", "~~", "a|b", "`x`", "@x", "!", "?", "*", "", " ", ".", "é", "日本"),
    *("Const", "NoOp", "x" * 300, "(1)", "x(1)"),
]

META = TensorMeta((2, 3), "float32", "cpu")


def star(labels: list[str], scope: str = "") -> Graph:
    """A leaf for each label, all used by one node."""
    nodes = [
        Node(i, "AccumulateGrad", (META,), label, "", "tensor", scope=scope)
        for i, label in enumerate(labels)
    ]
    last = Node(len(nodes), "StackBackward0", (META,), operation="stack", scope=scope)
    edges = [Edge(node.id, last.id, 0, node.id) for node in nodes]
    return Graph((*nodes, last), tuple(edges), ((last.id, 0),))


def read(directory: Path) -> GraphsPlugin:
    """TensorBoard's own Graphs plugin over a log directory."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(directory))
    return GraphsPlugin(TBContext(data_provider=provider))


def shown(directory: Path, run: str = ".", tag: str = "graph") -> graph_pb2.GraphDef:
    """The graph that the Graphs tab's server sends to the page."""
    text, kind = read(directory).graph_impl(RequestContext(), run, tag, False, experiment="")
    assert kind == "text/x-protobuf"
    graph = text_format.Parse(text, graph_pb2.GraphDef())
    assert not [*problems(graph)]
    return graph


def edges_of(graph: graph_pb2.GraphDef) -> Counter[tuple[str, str, int]]:
    """Data edges as the page's frontend reads them: it drops what names no node."""
    known = {node.name for node in graph.node}
    found: Counter[tuple[str, str, int]] = Counter()
    for node in graph.node:
        last = None
        for entry in node.input:
            source, _, slot = entry.partition(":")
            if source != last and source in known:
                found[source, node.name, int(slot or 0)] += 1
            last = source.removeprefix("^")
    return found


def expected_edges(graph: Graph) -> Counter[tuple[str, str, int]]:
    paths = names(graph)
    found = Counter(
        (paths.nodes[e.source], paths.nodes[e.target], e.output_nr) for e in graph.edges
    )
    for (node, nr), path in zip(graph.outputs, paths.outputs, strict=True):
        found[paths.nodes[node], path, nr] += 1
    return found


def attribute(node: Any, key: str) -> str:
    value = node.attr[key]
    return value.placeholder or value.s.decode()


def test_the_worked_example_reads_back_with_the_names_shapes_and_devices_of_autograd(
    tmp_path: Path,
) -> None:
    tensors = worked_example()
    traced = trace(tensors["y"], names=tensors)
    to_tensorboard(traced, tmp_path)
    graph = shown(tmp_path)
    assert graph == graph_def(traced)[0]
    assert [node.name for node in graph.node] == ["x", "add[a]", "pow[b]", "add[c]", "mean[y]", "y"]
    assert [node.op for node in graph.node] == ["Input", "add", "pow", "add", "mean", "Output"]
    assert {node.device for node in graph.node} == {"/device:CPU:0"}
    sizes = [node.attr["_output_shapes"].list.shape[0].dim for node in graph.node]
    assert [[dim.size for dim in dims] for dims in sizes] == [[3], [3], [3], [3], [], []]
    assert [attribute(node, "tensor") for node in graph.node][3:5] == ["f32[3] cpu", "f32[] cpu"]
    assert all(node.attr["T"].type == 1 for node in graph.node)


def test_a_tagged_summary_reads_back_through_the_event_accumulator(tmp_path: Path) -> None:
    graph = trace(worked_example()["y"], names={}).annotate(seconds={1: 1e-5})
    to_tensorboard(graph, tmp_path, tag="forward", step=7)
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Tensors("forward")
    assert event.step == 7
    metadata = config_pb2.RunMetadata.FromString(event.tensor_proto.string_val[0])
    built, paths = graph_def(graph)
    assert metadata == run_metadata(graph, built, paths)
    assert not [*problems(built, metadata)]
    (event,) = events.Tensors(PREFIX + "forward")
    assert unpack(event.tensor_proto.string_val[0]) == graph


@pytest.mark.parametrize("backward", [False, True])
def test_hostile_names_keep_every_node_and_edge(tmp_path: Path, backward: bool) -> None:
    graph = star(HOSTILE)
    assert len(HOSTILE) >= 32
    to_tensorboard(graph, tmp_path, backward=backward)
    got = shown(tmp_path)
    found = edges_of(got)
    assert expected_edges(graph) <= found
    assert len(got.node) == len({node.name for node in got.node})
    assert len(got.node) == len(graph.nodes) * (1 + backward) + 1
    for label, node in zip(HOSTILE, got.node, strict=False):
        if label:
            shown_name = "".join(
                c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in label
            )
            assert attribute(node, "name") == shown_name, "the name itself is in the panel"


def test_hostile_scopes_keep_every_node_and_edge(tmp_path: Path) -> None:
    for i, scope in enumerate(HOSTILE):
        graph = star(["x", "weight"], scope=scope)
        to_tensorboard(graph, tmp_path / str(i))
        assert edges_of(shown(tmp_path / str(i))) == expected_edges(graph)


def test_a_square_keeps_both_edges_and_an_unbind_keeps_every_output(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    graph = trace(torch.stack((x * x).unbind()), names={"x": x})
    to_tensorboard(graph, tmp_path)
    found = edges_of(shown(tmp_path))
    assert found["x", "mul", 0] == 2
    assert [found["unbind", "stack", nr] for nr in range(3)] == [1, 1, 1]
    assert found == expected_edges(graph)


def test_names_that_the_tab_would_read_as_something_else_are_changed() -> None:
    x = torch.ones(2, requires_grad=True)
    padded = trace(torch.nn.functional.pad(x, (1, 1)) + 1, names={})
    built = graph_def(padded, backward=True)[0].node
    assert any("onstantPad" in node.op for node in built)
    assert not any("Const" in node.op for node in built)  # which the tab swallows
    added = trace(x.scatter_add(0, torch.tensor([0]), torch.ones(1, requires_grad=True)), names={})
    assert graph_def(added)[0].node[-2].op == "scatter_add_"  # not a reference edge
    series = graph_def(star([f"x{i}" for i in range(9)] + ["y1", "y2"]))[0].node
    assert [node.name for node in series][:11] == [f"x{i}_" for i in range(9)] + ["y1", "y2"]


def test_a_recorded_model_is_nested_by_its_modules() -> None:
    graph = Graph(
        (
            Node(0, "AccumulateGrad", (META,), "body.fc.weight", "", "parameter"),
            Node(1, "MulBackward0", (META,), operation="mul", scope="body.fc"),
            Node(2, "MulBackward0", (META,), "y", "mul", scope="body.fc#2"),
        ),
        (Edge(0, 1), Edge(0, 2, 0, 1), Edge(1, 2)),
        ((2, 0),),
    )
    assert names(graph).nodes == ["body/fc/weight", "body/fc/mul", "body/fc#2/mul[y]"]
    assert names(graph).outputs == ["y"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: trace(chain(3000), names={}),
        lambda: trace(gpt2(2)(tokens()).logits, names={}),
        lambda: trace(UnrolledRNN(300)(torch.ones(1, 4)), names={}),
        lambda: star([f"x{i}" for i in range(1500)]),
        lambda: trace([t.sum() for t in torch.ones(900, 1, requires_grad=True).unbind()], names={}),
    ],
    ids=["chain", "gpt2", "rnn", "leaves", "outputs"],
)
def test_no_scope_has_more_than_a_hundred_children(make: Any) -> None:
    children: dict[str, set[str]] = {}
    built, _ = graph_def(make(), backward=True)
    assert not [*problems(built)]
    for node in built.node:
        parts = node.name.split("/")
        for depth in range(len(parts)):
            children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    # 100, and at the top the outputs and the scope of the backward.
    assert max(map(len, children.values())) <= 112


def test_devices_and_transfers_are_told_apart(tmp_path: Path) -> None:
    metas = [TensorMeta((2,), "float32", d) for d in ("cpu", "cuda:1", "sim:0", "meta")]
    nodes = tuple(
        Node(i, "ToCopyBackward0", (meta,), operation="to_copy") for i, meta in enumerate(metas)
    )
    moves = (Transfer("HtoD", "cpu", "cuda:1", metas[1], "forward", node=1, pinned=False),)
    graph = Graph(nodes, tuple(Edge(i, i + 1) for i in range(3)), ((3, 0),), moves)
    built, _ = graph_def(graph)
    assert [node.device.rpartition("/device:")[2] for node in built.node] == [
        *("CPU:0", "cuda:1", "sim:0", "meta:0"),
        "meta:0",
    ]
    assert [attribute(node, "role") for node in built.node][:2] == ["forward", "transfer"]
    moved = attribute(built.node[1], "transfer")
    assert moved == "cpu -> cuda:1 in forward, 8 bytes, pageable"


def measured() -> Graph:
    """Two modules and a node outside: 3 us + 4 us in `a`, 5 us in `b`, one not measured."""
    scopes = ["a", "b", "a", ""]
    nodes = tuple(
        Node(i, "MulBackward0", (META,), operation="mul", scope=scope)
        for i, scope in enumerate(scopes)
    )
    graph = Graph(nodes, tuple(Edge(i, i + 1) for i in range(3)), ((3, 0),))
    kept = SavedTensor("self", META, 24)
    return graph.annotate(seconds={0: 3e-6, 1: 5e-6, 2: 4.2e-6}, saved={1: (kept,)})


def test_only_what_was_measured_has_a_time_and_memory_and_a_scope_their_sum(
    tmp_path: Path,
) -> None:
    graph = measured()
    to_tensorboard(graph, tmp_path)
    text, _ = read(tmp_path).run_metadata_impl(RequestContext(), "", ".", "graph")
    metadata = text_format.Parse(text, config_pb2.RunMetadata())
    stats = {s.node_name: s for d in metadata.step_stats.dev_stats for s in d.node_stats}
    times = {name: s.all_end_rel_micros for name, s in stats.items() if s.all_end_rel_micros}
    assert times == {"a/mul": 3, "a/mul(1)": 4, "b/mul": 5}
    assert {n: s.memory[0].total_bytes for n, s in stats.items() if s.memory} == {"b/mul": 24}
    # White, not hatched away: the tab hatches nodes without time, memory and output shapes.
    assert all(s.output for s in stats.values())
    assert set(stats) == {node.name for node in graph_def(graph)[0].node}
    # The tab takes last end - first start for a scope.
    spans: dict[str, list[int]] = {"a": [], "b": []}
    for name in times:
        start = stats[name].all_start_micros
        spans[name[0]] += [start, start + times[name]]
    assert {scope: max(ends) - min(ends) for scope, ends in spans.items()} == {"a": 7, "b": 5}


def test_in_the_backward_scope_memory_is_that_of_the_gradients() -> None:
    stats = GradientStats(1.0, 1.0, 1.0, 0.0, tensor=META)
    graph = measured().annotate(grad_outputs={0: (stats,), 2: (stats, None)})
    built, paths = graph_def(graph, backward=True)
    metadata = run_metadata(graph, built, paths, backward=True)
    found = {s.node_name: s for d in metadata.step_stats.dev_stats for s in d.node_stats}
    memory = {name: s.memory[0].total_bytes for name, s in found.items() if s.memory}
    assert memory == {"b/mul": 24, "backward/a/mul": 24, "backward/a/mul(1)": 24}
    times = {name for name, s in found.items() if s.all_end_rel_micros}
    assert times == {"backward/a/mul", "backward/a/mul(1)", "backward/b/mul"}


def test_memory_without_times_is_no_time_in_the_numbers_of_a_page() -> None:
    graph = measured().annotate(seconds=dict.fromkeys(range(4)))
    built, paths = graph_def(graph)
    (device,) = run_metadata(graph, built, paths).step_stats.dev_stats
    timed = [s for s in device.node_stats if s.all_end_rel_micros]
    assert [s.node_name for s in timed] == ["output"]
    assert float(timed[0].all_start_micros) + float(timed[0].all_end_rel_micros) == float(
        timed[0].all_start_micros
    )


def test_nothing_measured_offers_no_profile(tmp_path: Path) -> None:
    to_tensorboard(trace(worked_example()["y"], names={}), tmp_path / "traced")
    to_tensorboard(measured(), tmp_path / "measured")
    info = read(tmp_path).info_impl(RequestContext(), experiment="")
    offered = {run: info[run]["tags"]["graph"] for run in ("traced", "measured")}
    assert [offered[run]["op_graph"] for run in offered] == [True, True]
    assert [offered[run]["profile"] for run in offered] == [False, True]


def test_the_backward_scope_mirrors_the_graph_with_gradients_on_its_edges() -> None:
    tensors = worked_example()
    built, paths = graph_def(trace(tensors["y"], names=tensors), backward=True)
    nodes = {node.name: node for node in built.node}
    assert list(nodes["backward/x"].input) == ["x", "backward/add[a]"]
    assert nodes["backward/x"].op == "AssignAdd"
    assert nodes["backward/pow[b]"].op == "PowBackward0"
    assert list(nodes["backward/mean[y]"].input) == ["^y"]
    assert paths.backward == "backward"


def test_the_panel_holds_what_was_recorded() -> None:
    stats = GradientStats(2.0, 1.5, 0.25, 0.5, nan=1, values=(1.5, -1.0))
    node = Node(
        *(0, "AddmmBackward0", (META,), "☃", "addmm"),
        module="fc",
        scope="fc#2",
        where="train.py:41",
        saved=(SavedTensor("mat1", META, 24),),
        grad_outputs=(stats,),
        order=3,
        seconds=1.25e-5,
    )
    entry = graph_def(Graph((node,), outputs=((0, 0),)))[0].node[0]
    assert entry.name == "fc#2/addmm[_]"
    assert entry.attr["saved_bytes"].i == 24
    expected = {
        "name": "☃",
        "module": "fc#2",
        "line": "train.py:41",
        "autograd": "AddmmBackward0",
        "backward": "ran as number 4, took 12.5 us",
        "gradient": "norm 2, max 1.5, mean 0.25, 50% zero, 1 NaN, 0 Inf, [1.5, -1]",
    }
    assert {key: attribute(entry, key) for key in expected} == expected


def test_a_summary_writer_keeps_its_own_scalars_and_takes_several_tags(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("loss", 1.0, 0)
    y = worked_example()["y"]
    graph = add_autograd_graph(y, writer, tag="first", step=0)
    add_autograd_graph(y, writer, tag="second", step=5, backward=True)
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    assert [node.label for node in graph.nodes] == ["", "", "", "", "y"], "the caller's variables"
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in events.Scalars("loss")] == [1.0, 0.5]
    assert {"first", "second"} <= set(events.Tags()["tensors"])
    assert len(shown(tmp_path, tag="second").node) == 11


def test_ranks_are_runs_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        to_tensorboard(trace(MLP()(torch.ones(1, 4)), names={}), tmp_path / f"rank{rank}")
    assert set(read(tmp_path).info_impl(RequestContext(), experiment="")) == {"rank0", "rank1"}


def test_a_pbtxt_for_the_upload_button_parses_to_the_same_graph(tmp_path: Path) -> None:
    graph = star(HOSTILE)
    path = to_pbtxt(graph, tmp_path / "graph.pbtxt")
    text = path.read_text(encoding="utf-8")
    assert text_format.Parse(text, graph_pb2.GraphDef()) == graph_def(graph)[0]


def test_an_empty_graph_and_a_wrong_writer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no nodes"):
        to_tensorboard(Graph(()), tmp_path)
    with pytest.raises(TypeError, match="int: pass a directory or a SummaryWriter"):
        to_tensorboard(measured(), 3)
    assert not list(tmp_path.iterdir())


def test_a_message_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_MAX_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        to_tensorboard(measured(), tmp_path)


def test_an_old_tensorboard_gets_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorboard.version.VERSION", "2.19.1")
    said = r"TensorBoard 2\.19\.1 is too old: version 2\.20 is needed"
    with pytest.raises(ImportError, match=said):
        front.require()
    monkeypatch.setattr("tensorboard.version.VERSION", "2.20.0rc1")
    front.require()


def test_a_missing_tensorboard_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "import torch, graphviz_torch as g\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "try: g.to_tensorboard(g.trace(x * 2), sys.argv[1])\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert 'pip install -U "graphviz-torch[tensorboard]"' in done.stdout


def test_the_scope_of_a_numbered_layer_has_its_class() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
    scopes = {path.partition("/")[0] for path in names(recording.graph).nodes if "/" in path}
    assert scopes == {"0[Linear]", "1[Tanh]", "2[Linear]"}
