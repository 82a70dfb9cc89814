"""Test that the check of written graphs detects each known fault of the Graphs tab."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tensorboard")
from tensorboard.compat.proto import config_pb2, graph_pb2, node_def_pb2

from graphviz_torch.tensorboard.names import REFERENCE_OPS, RESERVED
from tests.support.graphs_tab import problems


def add(
    graph: graph_pb2.GraphDef, name: str, op: str = "add", *inputs: str, outputs: int = 1
) -> node_def_pb2.NodeDef:
    node = graph.node.add(name=name, op=op, device="/device:CPU:0", input=inputs)
    for _ in range(outputs):
        node.attr["_output_shapes"].list.shape.add()
    return node


def sound() -> graph_pb2.GraphDef:
    graph = graph_pb2.GraphDef()
    add(graph, "x", "Input")
    add(graph, "scope/add", "add", "x", "^|", "x")
    return graph


def profile(graph: graph_pb2.GraphDef) -> config_pb2.RunMetadata:
    metadata = config_pb2.RunMetadata()
    metadata.function_graphs.add().pre_optimization_graph.CopyFrom(graph)
    device = metadata.step_stats.dev_stats.add(device="/device:CPU:0")
    stats = device.node_stats.add(node_name="x", all_start_micros=1, all_end_rel_micros=5)
    stats.output.add().tensor_description.shape.SetInParent()
    return metadata


def test_a_sound_graph_has_no_problem() -> None:
    assert not [*problems(sound(), profile(sound()))]


Change = Callable[[graph_pb2.GraphDef], object]
TRAPS: dict[str, tuple[Change, str]] = {
    "no name": (lambda g: add(g, ""), "a node has no name"),
    "a name twice": (lambda g: add(g, "x"), "node 'x': 2 nodes have this name"),
    "an empty scope": (lambda g: add(g, "a//b"), "node 'a//b': '//' in a name"),
    "two tildes": (lambda g: add(g, "a~~b"), "node 'a~~b': '~~' in a name"),
    "the functions' scope": (
        lambda g: add(g, "__function_library__f/x"),
        "node '__function_library__f/x': a first segment",
    ),
    "no operation": (lambda g: add(g, "n", ""), "node 'n' has no operation"),
    "Const": (lambda g: add(g, "n", "PadConstNd"), "node 'n': operation 'PadConstNd' contains"),
    "Summary": (lambda g: add(g, "n", "MySummary"), "node 'n': operation 'MySummary' ends in"),
    "NoOp": (lambda g: add(g, "n", "NoOp"), "node 'n': operation 'NoOp' is moved"),
    "merged": (lambda g: add(g, "n", "mul", "x", "x:0"), "node 'n': two inputs from 'x' follow"),
    "merged control": (lambda g: add(g, "n", "mul", "x", "^x"), "node 'n': two inputs from 'x'"),
    "a dropped edge": (lambda g: add(g, "n", "mul", "gone"), "node 'n': input 'gone' names no"),
    "a loop": (lambda g: add(g, "n", "mul", "n"), "node 'n': an edge to itself"),
    "no shape": (lambda g: add(g, "n", "mul", "x:3"), "node 'n': 'x' has no shape for output 3"),
    "a device": (
        lambda g: setattr(add(g, "n"), "device", "cuda:0"),
        "node 'n': device 'cuda:0' is not like",
    ),
    "octal numbers": (
        lambda g: setattr(add(g, "n").attr["k"], "s", "é".encode()),
        "node 'n': attribute 'k' is not ASCII",
    ),
    "a long attribute": (
        lambda g: setattr(add(g, "n").attr["k"], "s", b"x" * 5000),
        "node 'n': attribute 'k' has 5000 bytes",
    ),
    "a crowd": (lambda g: [add(g, f"s/n({i})") for i in range(201)], "scope 's' has 201 children"),
    "a series": (lambda g: [add(g, f"s/n{i}") for i in range(3, 9)], "node 's/n3' and those"),
}
TRAPS |= {
    f"{name} first": (lambda g, name=name: add(g, f"{name}/x"), f"node '{name}/x': a first segment")
    for name in sorted(RESERVED)
}
TRAPS |= {
    f"{op} of nothing": (lambda g, op=op: add(g, "n", op), f"node 'n': operation '{op}' changes")
    for op in sorted(REFERENCE_OPS)
}
TRAPS |= {
    f"{char!r} in a name": (lambda g, char=char: add(g, f"a{char}b"), f"node {f'a{char}b'!r}")
    for char in "^{}<\"'`|&%@!?*=$; :\n\t\\"
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_found_and_names_the_node(trap: str) -> None:
    change, message = TRAPS[trap]
    graph = sound()
    change(graph)
    found = list(problems(graph))
    assert any(text.startswith(message) for text in found), found


def test_an_empty_graph_is_found() -> None:
    assert list(problems(graph_pb2.GraphDef())) == ["the graph is empty: the tab shows an error."]


@pytest.mark.parametrize("name", ["net/length", "net/toString", "a#2/x", "a.b-(1)[c],~d", "日本"])
def test_what_is_harmless_is_left_alone(name: str) -> None:
    graph = sound()
    add(graph, name)
    assert not [*problems(graph)]


def test_scopes_and_different_operations_are_no_series() -> None:
    graph = sound()
    for i in range(9):
        add(graph, f"layer{i}/add")
        add(graph, f"n{i}", f"op{i}")
    assert not [*problems(graph)]


MEASUREMENTS: dict[str, tuple[Callable[[config_pb2.RunMetadata], object], str]] = {
    "a start of zero": (
        lambda m: setattr(m.step_stats.dev_stats[0].node_stats[0], "all_start_micros", 0),
        "node 'x': a start of 0",
    ),
    "an output without a shape": (
        lambda m: m.step_stats.dev_stats[0].node_stats[0].output.add(),
        "node 'x': a measured output without a shape",
    ),
    "a device that does not match": (
        lambda m: setattr(m.step_stats.dev_stats[0], "device", "cuda:0"),
        "device 'cuda:0' of measurements",
    ),
    "another device": (
        lambda m: setattr(m.step_stats.dev_stats[0], "device", "/device:cuda:0"),
        "node 'x': measured on '/device:cuda:0'",
    ),
    "no such node": (
        lambda m: setattr(m.step_stats.dev_stats[0].node_stats[0], "node_name", "gone"),
        "measured node 'gone' is not in the graph",
    ),
    "a negative time": (
        lambda m: setattr(m.step_stats.dev_stats[0].node_stats[0], "all_end_rel_micros", -1),
        "node 'x': a negative time",
    ),
    "two graphs": (lambda m: m.function_graphs.add(), "several graphs in one tag"),
}


@pytest.mark.parametrize("trap", MEASUREMENTS)
def test_a_trap_of_the_profile_is_found(trap: str) -> None:
    change, message = MEASUREMENTS[trap]
    metadata = profile(sound())
    change(metadata)
    found = list(problems(sound(), metadata))
    assert any(text.startswith(message) for text in found), found
