"""Test data and calls without a node in the view: they follow the nodes, which keep their ids."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Node
from graphviz_torch.render.groups.groups import group
from graphviz_torch.render.view.node_columns import groups_around, with_untracked
from tests.render.test_untracked import F32, copied, model


def test_nodes_keep_their_ids_and_each_entry_is_an_item_before_what_takes_it() -> None:
    graph = model()
    shown, places = with_untracked(graph, range(len(graph.nodes)))
    assert shown.nodes[:2] == graph.nodes
    image, backbone, target = shown.nodes[2:]
    assert [image.label, backbone.label, target.label] == [
        "image",
        "backbone · ResNet",
        "target",
    ]
    assert backbone.note == "frozen"
    assert target.values == ((0.5,),)
    ends = {(edge.source, edge.target) for edge in shown.edges}
    assert ends == {(0, 1), (2, 3), (3, 0), (4, 1)}
    assert places[2] < places[3] < 0
    assert 0 < places[4] < 1


def test_an_item_is_in_the_group_of_the_module_around_its_call() -> None:
    graph = model(label="head.base", module="head.base")
    shown, _ = with_untracked(graph, range(len(graph.nodes)))
    groups = group(graph)
    around = groups_around(groups, shown.nodes[2:])
    [head] = [each.id for each in groups.groups if each.path == "head"]
    assert around == [None, head, None]


def test_a_call_is_in_its_own_module_if_the_module_has_only_parameters_in_the_graph() -> None:
    weight = Node(2, "AccumulateGrad", (F32,), "weight", leaf="parameter", module="backbone.fc")
    graph = model()
    shown, _ = with_untracked(replace(graph, nodes=(*graph.nodes, weight)), range(3))
    assert [node.module for node in shown.nodes[3:]] == ["", "backbone", ""]


def test_a_copy_of_data_is_at_the_item_of_the_data() -> None:
    graph = copied(7, 1)
    shown, _ = with_untracked(graph, range(len(graph.nodes)))
    [image] = [node.id for node in shown.nodes if node.label == "image"]
    assert [copy.node for copy in shown.transfers] == [image, None]
