"""Compare the reported differences of two graphs with edits that the test made."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphviz_torch import Graph, diff, record, trace
from graphviz_torch.compare import GraphDiff
from graphviz_torch.comparison.matching import align
from graphviz_torch.graph import Edge, GradientStats, Node, TensorMeta
from tests.support.models import Transformer, tokens

META = TensorMeta((2, 3), "float32", "cpu")


def chain(*names: str) -> Graph:
    """Return a graph in which each node uses the previous one."""
    nodes = tuple(Node(i, name, (META,), operation=name) for i, name in enumerate(names))
    edges = tuple(Edge(i, i + 1) for i in range(len(names) - 1))
    return Graph(nodes, edges, ((len(names) - 1, 0),))


def mlp(*activations: nn.Module, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for activation in activations:
        parts += [nn.Linear(4, 4), activation]
    return nn.Sequential(*parts, nn.Linear(4, 2))


def traced(model: nn.Module, names: object = None) -> Graph:
    return trace(model(torch.ones(3, 4)).sum(), names=model if names is None else names)


@pytest.mark.parametrize("names", [None, {}], ids=["labels", "no labels"])
def test_a_graph_does_not_differ_from_itself(names: object) -> None:
    a, b = (traced(mlp(nn.ReLU(), nn.ReLU(), nn.Tanh()), names) for _ in range(2))
    difference = diff(a, b)
    assert not difference
    assert difference.pairs == tuple((i, i) for i in range(len(a.nodes)))
    assert (
        difference.to_text() == f"No difference in {len(a.nodes)} nodes and {len(a.edges)} edges."
    )
    assert difference.union() == b
    assert difference.marks() == {}


def test_a_wider_layer_is_changed_in_shape_where_the_shapes_say_so() -> None:
    def model(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    difference = diff(traced(model(8)), traced(model(16)))
    assert not difference.added
    assert not difference.removed
    assert {change.what for change in difference.changed} == {"shape"}
    changed = {difference.b.nodes[change.b].label or change.after for change in difference.changed}
    # The transposed weights have no label, so their new shapes stand for them.
    assert changed == {"0.weight", "0.bias", "2.weight", "[4, 16]", "[3, 16]", "[16, 2]"}


def test_another_dtype_device_gradient_and_time_are_told_apart() -> None:
    stats = GradientStats(1.0, 1.0, 0.5, 0.0)
    base = chain("x", "mul", "sum").annotate(
        grad_outputs=dict.fromkeys(range(3), (stats,)), seconds=dict.fromkeys(range(3), 0.001)
    )
    other = base.annotate(
        outputs={0: (META._replace(dtype="float64"),), 1: (META._replace(device="cuda:0"),)},
        grad_outputs={1: (stats._replace(norm=1.1),), 2: (stats._replace(norm=1 + 1e-6),)},
        seconds={2: 0.01},
    )
    timed = diff(base, other, time_tolerance=1.0)
    found = [(change.b, change.what) for change in timed.changed]
    assert found == [(0, "dtype"), (1, "device"), (1, "gradient"), (2, "time")]
    assert diff(base, other).changed == timed.changed[:-1]  # times differ from run to run
    assert timed.to_text().splitlines()[1:] == [
        "shapes:",
        "  ~ x: dtype float32 -> float64",
        "  ~ mul: device cpu -> cuda:0",
        "values:",
        "  ~ mul: gradient norm 1 -> 1.1",
        "times:",
        "  ~ sum: time 1 ms -> 10 ms",
    ]
    near = base.annotate(grad_outputs={1: (stats._replace(norm=1 + 1e-6, max_abs=1 + 1e-6),)})
    (change,) = diff(base, near, gradient_tolerance=1e-7).changed
    assert (change.before, change.after) == ("norm 1, max 1", "norm 1.000001, max 1.000001")
    tolerant = diff(base, other, gradient_tolerance=0.2, time_tolerance=20)
    assert [change.what for change in tolerant.changed] == ["dtype", "device"]
    (became_nan,) = diff(base, base.annotate(grad_outputs={0: (stats._replace(nan=2),)})).changed
    assert became_nan.after == "norm 1, max 1 with 2 NaN and 0 Inf"
    # A value that one side alone recorded is not compared.
    plain = chain("x", "mul")
    assert not diff(plain, plain.annotate(seconds={0: 1.0}, label={0: "w"}, module={1: "fc"}))


def test_changes_of_alike_blocks_share_a_line_unless_all_is_asked_for() -> None:
    names = [f"block.{i}" for i in range(5)]
    a = chain(*["mul"] * 5).annotate(label=dict(enumerate(f"{name}.w" for name in names)))
    wide = META._replace(shape=(9,))
    b = a.annotate(outputs=dict.fromkeys(range(5), (wide,)))
    found = diff(a, b)
    what = f"shape {list(META.shape)} -> [9]"
    times = "\N{MULTIPLICATION SIGN}"
    assert found.to_text().splitlines()[2:] == [f"  ~ block.*.w: {what}  {times} 5"]
    each = [f"  ~ {name}.w: {what}" for name in names]
    assert found.to_text(wide=True).splitlines()[2:] == each
    many = diff(chain(*"abcdefgh"), chain("z" * 90))
    assert "  ... and 6 more (wide=True shows all)" not in many.to_text(wide=True)
    assert "  ... and 7 more (wide=True shows all)" in many.to_text(limit=2)
    assert max(map(len, many.to_text().splitlines())) == 80


def test_two_inputs_that_were_swapped_are_edges_removed_and_added() -> None:
    def pair(first: int, second: int) -> Graph:
        names = ("AccumulateGrad", "AccumulateGrad", "SubBackward0")
        nodes = [Node(i, name, (META,)) for i, name in enumerate(names)]
        nodes[0], nodes[1] = nodes[0]._replace(label="x"), nodes[1]._replace(label="y")
        return Graph(tuple(nodes), (Edge(first, 2, 0, 0), Edge(second, 2, 0, 1)), ((2, 0),))

    difference = diff(pair(0, 1), pair(1, 0))
    assert not difference.added
    assert set(difference.removed_edges) == {Edge(0, 2, 0, 0), Edge(1, 2, 0, 1)}
    assert set(difference.added_edges) == {Edge(1, 2, 0, 0), Edge(0, 2, 0, 1)}
    assert "- edge x -> SubBackward0, input 0" in difference.to_text()


def test_a_renamed_module_is_no_difference_but_told() -> None:
    torch.manual_seed(0)
    first = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    second = nn.ModuleDict({"c": nn.Linear(4, 4), "d": nn.Linear(4, 4)})

    def run(model: nn.ModuleDict) -> Graph:
        out = torch.ones(3, 4)
        for part in model.values():
            out = part(out).relu()
        return trace(out.sum(), names=model)

    difference = diff(run(first), run(second))
    assert not difference
    assert difference.renamed == (("a", "c"), ("b", "d"))
    assert str(difference).splitlines() == [
        f"No difference in {len(difference.b.nodes)} nodes and {len(difference.b.edges)} edges "
        "but for names:",
        "names:",
        "  = a is now c",
        "  = b is now d",
    ]


def test_another_mode_of_a_module_is_told_of_those_that_both_have() -> None:
    def graph(model: nn.Module) -> Graph:
        with record(model) as recording:
            model(torch.ones(2, 3)).sum().backward()
        return recording.graph

    layers = nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 3)
    before = graph(nn.Sequential(*layers))
    layers[1].eval()
    after = graph(nn.Sequential(*layers, nn.Tanh()))
    found = diff(before, after)
    assert [str(change) for change in found.changed_modules] == ["1: mode train -> eval"]


def test_the_order_in_which_nodes_are_listed_does_not_matter() -> None:
    graph = traced(mlp(nn.ReLU(), nn.Tanh(), nn.ReLU()))
    assert not diff(graph, shuffled(graph, random.Random(3)))


def shuffled(graph: Graph, random: random.Random) -> Graph:
    """The same graph with its nodes in another topological order."""
    waiting = [len(edges) for edges in graph.inputs()]
    users = graph.users()
    ready, order = [i for i, n in enumerate(waiting) if n == 0], []
    while ready:
        node = ready.pop(random.randrange(len(ready)))
        order.append(node)
        for edge in users[node]:
            waiting[edge.target] -= 1
            if waiting[edge.target] == 0:
                ready.append(edge.target)
    place = {node: i for i, node in enumerate(order)}
    return Graph(
        tuple(graph.nodes[node]._replace(id=i) for i, node in enumerate(order)),
        tuple(e._replace(source=place[e.source], target=place[e.target]) for e in graph.edges),
        tuple((place[node], nr) for node, nr in graph.outputs),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 12))
    nodes, edges = [], []
    for i in range(count):
        sources = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        edges.extend(Edge(source, i, 0, nr) for nr, source in enumerate(sources))
        name = draw(st.sampled_from(["Add", "Mul", "Relu"])) if sources else "AccumulateGrad"
        label = draw(st.sampled_from(["", "w", f"w{i}"])) if not sources else ""
        nodes.append(Node(i, name, (META,), label, leaf="" if sources else "parameter"))
    return Graph(tuple(nodes), tuple(edges), ((count - 1, 0),))


@settings(max_examples=150, deadline=None)
@given(graphs(), graphs())
def test_the_difference_turns_the_first_graph_into_the_second(a: Graph, b: Graph) -> None:
    difference = diff(a, b)
    to_b = dict(difference.pairs)
    assert len(to_b) == len(set(to_b.values()))
    assert all(a.nodes[i].name == b.nodes[j].name for i, j in difference.pairs)
    # By hand: take away, rename, put in; what comes out is b.
    assert set(range(len(b.nodes))) == {*to_b.values(), *difference.added}
    assert set(range(len(a.nodes))) == {*to_b, *difference.removed}
    kept = set(a.edges) - set(difference.removed_edges)
    carried = {e._replace(source=to_b[e.source], target=to_b[e.target]) for e in kept}
    assert carried | set(difference.added_edges) == set(b.edges)
    assert not carried & set(difference.added_edges)


@settings(max_examples=150, deadline=None)
@given(graphs(), graphs())
def test_the_union_is_a_graph_in_topological_order_with_everything_in_it(
    a: Graph, b: Graph
) -> None:
    difference = diff(a, b)
    union, marks = difference.union(), difference.marks()
    assert [node.id for node in union.nodes] == list(range(len(union.nodes)))
    assert all(edge.source < edge.target for edge in union.edges)
    assert len(union.nodes) == len(b.nodes) + len(difference.removed)
    assert sum(mark == "removed" for mark in marks.values()) == len(difference.removed)
    assert sum(mark == "added" for mark in marks.values()) == len(difference.added)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_a_graph_with_names_for_its_leaves_is_found_again_in_any_order(
    graph: Graph, random: random.Random
) -> None:
    named = graph.annotate(label={n.id: f"p{n.id}" for n in graph.nodes if n.leaf})
    assert not diff(named, shuffled(named, random))


def longest(a: str, b: str) -> int:
    """Return the length of a longest common subsequence, by the textbook algorithm."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            same = table[i][j] + 1 if x == y else 0
            table[i + 1][j + 1] = max(same, table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@settings(max_examples=300, deadline=None)
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_alignment_of_two_sequences_is_a_longest_one(a: str, b: str) -> None:
    pairs = align(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert pairs == sorted(pairs)
    assert len({j for _, j in pairs}) == len(pairs) == longest(a, b)


def test_sequences_with_nothing_in_common_are_aligned_at_once() -> None:
    assert align(range(5000), range(5000, 10000)) == []


def with_norms(depth: int) -> nn.Sequential:
    parts = [(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*(part for parts in parts for part in parts), nn.Linear(4, 2))


def transformer(activation: Callable[[], nn.Module], without: int | None = None) -> nn.Module:
    model = Transformer(4)
    for layer in model.layers:
        layer.mlp[1] = activation()
    if without is not None:
        del model.layers[without]
    return model


def squared(out: torch.Tensor) -> torch.Tensor:
    return ((out - 1) ** 2).mean()


# A model, another one, and the edges that differ, counted by hand. `squared` is sub, pow and mean
# in place of sum: one edge less and three more.
EDITS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], torch.Tensor, int]] = {
    "every activation": (
        lambda: mlp(*[nn.ReLU()] * 6),
        lambda: mlp(*[nn.Tanh()] * 6),
        torch.ones(3, 4),
        6 * (2 + 2) + 4,
    ),
    "a block more": (
        lambda: mlp(*[nn.ReLU()] * 4),
        lambda: mlp(*[nn.ReLU()] * 5),
        torch.ones(3, 4),
        (6 + 1) + 4,
    ),
    "a norm in each block": (
        lambda: mlp(*[nn.ReLU()] * 6),
        lambda: with_norms(6),
        torch.ones(3, 4),
        6 * (4 + 1) + 4,
    ),
    "every activation of a transformer": (
        lambda: transformer(nn.GELU),
        lambda: transformer(nn.ReLU),
        tokens(),
        4 * (2 + 2) + 4,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_no_more_nodes_and_edges_differ_than_must(name: str) -> None:
    first, second, x, edges = EDITS[name]
    a = trace(first()(x).sum(), names={})
    b = trace(squared(second()(x)), names={})
    difference = diff(a, b)
    names = [Counter(node.name for node in graph.nodes) for graph in (a, b)]
    assert Counter(b.nodes[i].name for i in difference.added) == names[1] - names[0]
    assert Counter(a.nodes[i].name for i in difference.removed) == names[0] - names[1]
    assert difference.changed == ()
    assert len(difference.added_edges) + len(difference.removed_edges) == edges


def test_a_block_taken_out_of_a_transformer_leaves_the_others_in_pairs() -> None:
    whole, less = transformer(nn.GELU), transformer(nn.GELU, without=2)
    a, b = (trace(squared(model(tokens())), names=model) for model in (whole, less))
    difference = diff(a, b)
    assert len(difference.removed) == len(a.nodes) - len(b.nodes)
    assert (difference.added, difference.changed) == ((), ())


def test_the_batch_size_changes_shapes_and_nothing_else() -> None:
    model = transformer(nn.GELU)
    small, large = (trace(model(tokens(8, n)).sum(), names={}) for n in (2, 4))
    found = diff(small, large)
    assert {change.what for change in found.changed} == {"shape"}
    assert (found.added, found.removed, found.added_edges) == ((), (), ())


def test_what_now_runs_the_other_way_round_makes_no_circle() -> None:
    a, b = chain("x", "sin", "relu", "cos", "sum"), chain("x", "cos", "sin", "sum")
    pairs = ((0, 0), (1, 2), (3, 1), (4, 3))
    crossed = GraphDiff(a, b, pairs, (), (2,), (), b.edges, a.edges)
    union = crossed.union()
    assert [node.name for node in union.nodes] == ["x", "cos", "sin", "relu", "sum"]
    # relu follows sin, which now comes after cos: its way on to cos would lead back.
    assert union.edges == (Edge(0, 1), Edge(1, 2), Edge(2, 4), Edge(2, 3))
    assert crossed.marks() == {3: "removed"}


def test_two_branches_that_look_the_same_are_not_mixed_up() -> None:
    nodes = tuple(Node(i, name, (META,)) for i, name in enumerate("xaabb"))
    a = Graph(nodes, (Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 4)))
    assert not diff(a, replace(a, edges=(Edge(0, 1), Edge(0, 2), Edge(1, 4), Edge(2, 3))))


def test_of_two_users_that_look_alike_neither_is_taken_for_the_other() -> None:
    def fork(*names: str) -> Graph:
        nodes = [Node(0, "x", (META,))]
        nodes += [Node(i, name, (META,)) for i, name in enumerate(names, 1)]
        return Graph(tuple(nodes), tuple(Edge(0, i) for i in range(1, len(nodes))))

    difference = diff(fork("sin", "sin", "cos"), fork("sin", "cos"))
    assert len(difference.removed) == 1
    assert not difference.added


def test_a_weight_is_never_paired_with_a_bias() -> None:
    meta = TensorMeta((4,), "float32", "cpu")

    def leaf(label: str) -> Graph:
        first = Node(0, "AccumulateGrad", (meta,), label, leaf="parameter")
        last = Node(1, "MulBackward0", (meta,), operation="mul")
        return Graph((first, last), (Edge(0, 1),), ((1, 0),))

    found = diff(leaf("norm.weight"), leaf("norm.bias"))
    assert (found.pairs, found.removed, found.added) == (((1, 1),), (0,), (0,))
    renamed = diff(leaf("norm.weight"), leaf("head.weight"))
    assert not renamed


def test_a_notebook_shows_the_differences_in_colour_and_escapes_names() -> None:
    before, after = chain("exp", "sin"), chain("exp", "<b>")
    shown = diff(before, after)
    assert repr(shown) == (
        "<GraphDiff: 2 -> 2 nodes: 1 added, 1 removed, 0 changed; 1 -> 1 edges: 1 added, 1 removed>"
    )
    page = shown._repr_html_()
    assert '<span style="color: #c22a1e">  - sin' in page
    assert '<span style="color: #1a7f37">  + &lt;b&gt;' in page
    assert repr(diff(before, before)) == "<GraphDiff: No difference in 2 nodes and 1 edges.>"
    assert shown.direction == "From the first graph to the second"
    titled = diff(before, after, titles=("MLP", "Detached layer"))
    assert titled.to_text().startswith("From MLP to Detached layer: 2 -> 2 nodes")


def test_what_feeds_the_same_node_is_the_same_though_others_have_its_name() -> None:
    """Of a row mul, sin, mul one has the second mul in common, and so the sin before it."""

    def graph(names: list[str], *ends: tuple[int, int]) -> Graph:
        rows = enumerate(names)
        nodes = tuple(Node(i, name + "Backward0", (META,), operation=name) for i, name in rows)
        return Graph(nodes, tuple(Edge(*end) for end in ends), ((len(names) - 1, 0),))

    before = graph(["mul", "sin", "cos", "mul"], (0, 1), (1, 2), (1, 3))
    after = graph(["sin", "sin", "mul", "mul"], (0, 1), (1, 3))
    assert {(1, 1), (3, 3)} <= set(diff(before, after).pairs)
