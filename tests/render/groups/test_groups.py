"""Test the tree of groups, whose properties collapsed drawings rely on, by slow checks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
from graphviz_torch.render.groups.groups import Groups, group
from graphviz_torch.render.labels import TIMES

SMALL = TensorMeta((2,), "float32", "cpu")


def build(steps: list[tuple[str, str, list[int]]]) -> Graph:
    """A graph of (operation, scope, sources); the operation "leaf" makes a parameter."""
    nodes = [
        Node(i, "AccumulateGrad", (SMALL,), leaf="parameter", scope=scope)
        if name == "leaf"
        else Node(i, name, (SMALL,), operation=name.lower(), scope=scope, module=scope)
        for i, (name, scope, _) in enumerate(steps)
    ]
    edges = [
        Edge(source, i, 0, k)
        for i, (_, _, sources) in enumerate(steps)
        for k, source in enumerate(sources)
    ]
    return Graph(tuple(nodes), tuple(edges))


def blocks(count: int, *, scoped: bool) -> Graph:
    """`count` residual blocks: two operations with a parameter each, and the sum."""
    steps: list[tuple[str, str, list[int]]] = [("leaf", "", []), ("Embed", "embed", [0])]
    for block in range(count):
        start = len(steps) - 1
        scope = f"layers.{block}" if scoped else ""
        steps.append(("leaf", "", []))
        steps.append(("Mul", scope and f"{scope}.mul", [start, len(steps) - 1]))
        steps.append(("leaf", "", []))
        steps.append(("Addmm", scope and f"{scope}.linear", [len(steps) - 2, len(steps) - 1]))
        steps.append(("Add", scope, [start, len(steps) - 1]))
    return build(steps)


def chain(count: int, names: str) -> Graph:
    return build([(names[i % len(names)], "", [i - 1] if i else []) for i in range(count)])


def everything_below(tree: Groups, number: int) -> list[int]:
    found = list(tree.groups[number].nodes)
    for child in tree.groups[number].children:
        found += everything_below(tree, child)
    return sorted(found)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    randomness = random.Random(draw(st.integers(0, 10**6)))
    steps: list[tuple[str, str, list[int]]] = []
    scopes = ["", "a", "a.b", "a.b#2", "c.d/e", "c"]
    for i in range(draw(st.integers(0, 60))):
        sources = [randomness.randrange(i) for _ in range(randomness.randrange(3))] if i else []
        name = randomness.choice(["leaf", "Mul", "Add"]) if not sources else "Mul"
        steps.append((name, randomness.choice(scopes), sources if name != "leaf" else []))
    return build(steps)


@pytest.mark.parametrize("scope", ["", "norm"])
def test_leaves_that_read_leaves_keep_their_places_in_a_graph_made_by_hand(scope: str) -> None:
    steps = [("leaf", scope, []), ("leaf", scope, [0]), ("leaf", scope, [1]), ("Add", "", [2])]
    tree = group(build(steps))
    assert sorted(tree.places) == [0, 1, 2, 3]
    held = [i for part in tree.groups for i in part.nodes]
    assert sorted([*tree.nodes, *held]) == [0, 1, 2, 3]


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(4, 12), st.none() | st.integers(1, 12))
def test_every_node_is_in_one_place_and_no_level_is_over_the_limit(
    graph: Graph, limit: int, rows: int | None
) -> None:
    tree = group(graph, limit=limit, rows=rows)
    placed = sorted([*tree.nodes, *(i for part in tree.groups for i in part.nodes)])
    assert placed == list(range(len(graph.nodes)))
    assert len(tree.roots) + len(tree.nodes) <= limit
    assert len({part.path for part in tree.groups}) == len(tree.groups)
    for number, part in enumerate(tree.groups):
        assert part.id == number
        assert 0 < len(part.children) + len(part.nodes) <= limit
        assert list(part.nodes) == sorted(part.nodes)
        assert all(tree.of[i] == number for i in part.nodes)
        assert part.size == len(everything_below(tree, number))
        assert "/" not in part.path
        if part.parent is None:
            assert number in tree.roots
        else:
            assert part.parent < number
            assert number in tree.groups[part.parent].children
    assert all(tree.of[i] is None for i in tree.nodes)


def shape(graph: Graph, inside: list[int]) -> object:
    """What two groups of the same structure must share, written down the slow way."""
    operations = [i for i in inside if not graph.nodes[i].leaf]
    place = {i: k for k, i in enumerate(operations)}
    leaves = {i for i, node in enumerate(graph.nodes) if node.leaf}
    return (
        [graph.nodes[i].name for i in operations],
        sorted(
            (place[e.target], e.input_nr, place.get(e.source, "leaf"))
            for e in graph.edges
            if e.target in place and (e.source in place or e.source in leaves)
        ),
    )


@pytest.mark.parametrize("scoped", [True, False])
def test_groups_that_are_alike_hold_the_same_operations_and_edges(scoped: bool) -> None:
    graph = blocks(150, scoped=scoped)
    tree = group(graph, limit=20)
    alike = [part for part in tree.groups if part.like != part.id]
    assert len(alike) > 100
    for part in alike:
        first = tree.groups[part.like]
        assert first.like == first.id < part.id
        assert shape(graph, everything_below(tree, part.id)) == shape(
            graph, everything_below(tree, first.id)
        )


def test_a_group_with_another_edge_inside_is_not_alike() -> None:
    steps = [("Mul", "a.0", []), ("Add", "a.0", [0]), ("Sub", "a.0", [0, 1])]
    other = [("Mul", "a.1", [2]), ("Add", "a.1", [3]), ("Sub", "a.1", [4, 3])]
    tree = group(build([*steps, *other]))
    first, second = (part for part in tree.groups if part.path in ("a.0", "a.1"))
    assert second.like == second.id != first.like


def test_modules_become_groups_by_call() -> None:
    graph = build([("Mul", "enc.cell", []), ("Mul", "enc.cell#2", [0]), ("Add", "enc", [1])])
    tree = group(graph)
    assert [(part.path, part.name, part.kind) for part in tree.groups] == [
        ("enc", "enc", "module"),
        ("enc.cell", "cell", "module"),
        ("enc.cell#2", "cell#2", "module"),
    ]
    assert tree.groups[2].like == 1


def test_a_leaf_belongs_to_its_first_user() -> None:
    graph = build([("leaf", "", []), ("Mul", "late", []), ("Add", "first", [0]), ("Mul", "b", [0])])
    tree = group(graph)
    assert [tree.groups[number].path for number in tree.of if number is not None] == [
        "first",
        "late",
        "first",
        "b",
    ]


def test_without_modules_the_body_of_a_loop_is_found() -> None:
    tree = group(chain(1000, "ABCDE"), limit=100)
    bodies = [part for part in tree.groups if not part.children]
    assert {part.size for part in bodies} == {5}
    assert {tree.groups[part.like].path for part in bodies} == {"repeat 1-100.repeat 1"}
    assert [tree.groups[number].name for number in tree.roots] == ["repeat 1-100", "repeat 101-200"]


def test_a_long_chain_of_one_operation_is_one_group_of_its_name() -> None:
    tree = group(chain(1000, "A"), limit=100)
    (number,) = tree.roots
    whole = tree.groups[number]
    assert (whole.name, whole.kind, whole.size) == (f"a {TIMES} 1,000", "chain", 1000)
    inside = [tree.groups[child] for child in whole.children]
    assert [part.name for part in inside][:2] == ["operations 1-100", "operations 101-200"]
    assert {part.like for part in inside} == {inside[0].id}


def test_two_operations_in_turn_are_one_group_and_what_is_around_them_stays_outside() -> None:
    steps: list[tuple[str, str, list[int]]] = [("leaf", "", []), ("Start", "", [0])]
    steps += [("leaf", "", [])]
    steps += [("AB"[i % 2], "", [2 + i if i else 1, 2]) for i in range(301)]
    steps += [("End", "", [len(steps) - 1])]
    tree = group(build(steps), limit=100)
    (number,) = tree.roots
    assert (tree.groups[number].name, tree.groups[number].size) == (f"a, b {TIMES} 150", 300)
    assert tree.nodes == (0, 1, 2, 303, 304)


def test_a_row_of_equal_modules_is_not_a_chain() -> None:
    tree = group(blocks(300, scoped=True), limit=100)
    assert {part.kind for part in tree.groups} <= {"module", "run"}


def test_a_hundred_thousand_nodes_keep_the_limit_at_every_level() -> None:
    tree = group(blocks(20_000, scoped=True))
    assert max(len(part.children) + len(part.nodes) for part in tree.groups) <= 100
    assert len(tree.of) == 100_002


def test_a_long_row_of_modules_is_cut_into_as_many_runs_as_there_is_room_for() -> None:
    def tops(count: int, between: str = "") -> list[str]:
        steps: list[tuple[str, str, list[int]]] = [("Embed", "embed", [])]
        for block in range(count):
            steps.append((f"Op{block}", f"block.{block}", [len(steps) - 1]))
            if between:
                steps.append((between, "block", [len(steps) - 1]))
        steps.append(("Head", "head", [len(steps) - 1]))
        tree = group(build(steps), rows=20)
        (row,) = (part for part in tree.groups if part.path == "block")
        return [tree.groups[child].name for child in row.children]

    assert tops(20) == [str(block) for block in range(20)]
    assert tops(21) == [*(f"{block}-{block + 1}" for block in range(0, 20, 2)), "20"]
    assert tops(150)[:2] == ["0-7", "8-15"]
    assert len(tops(150)) == 19
    # Each run holds a module and the sum after it. The last sum stays outside: no run has room.
    assert tops(15, "Add") == [f"{block} and add" for block in range(14)] + ["14"]


def test_a_run_of_modules_and_what_is_between_them_is_called_by_the_modules() -> None:
    steps = [(f"Op{i}", "" if i % 2 else f"layer{i // 2}", [i - 1] if i else []) for i in range(13)]
    tree = group(build(steps), limit=5)
    names = [tree.groups[root].name for root in tree.roots]
    assert names == ["layer0-2", "layer3-4", "layer5-6"]


def test_too_small_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit=1 is too small"):
        group(chain(3, "A"), limit=1)
