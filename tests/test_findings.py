"""Each rule on the smallest graph that triggers it, and on the nearest one that must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from graphviz_torch import (
    Edge,
    Finding,
    GradientStats,
    Graph,
    Node,
    TensorMeta,
    Transfer,
    find,
    find_across,
    rules,
)
from graphviz_torch.graph import Cut, Failure, Operand, Parameter, SavedTensor

META = TensorMeta((64, 8), "float32", "cpu")
GPU = META._replace(device="cuda:0")
MIB = 1 << 20


def stats(norm: float = 1.0, zeros: float = 0.0, **bad: int) -> tuple[GradientStats, ...]:
    return (GradientStats(norm, norm, 0.0, zeros, **bad),)


def chain(*names: str, **fields: Any) -> Graph:
    """One node after the other; a name without "Backward" is a leaf that is a parameter."""
    nodes = tuple(
        Node(i, name, (META,), operation=name.removesuffix("Backward0").lower(), **fields)
        if name.endswith("Backward0")
        else Node(i, "AccumulateGrad", (META,), label=name, leaf="parameter", **fields)
        for i, name in enumerate(names)
    )
    edges = tuple(Edge(i, i + 1) for i in range(len(names) - 1))
    return Graph(nodes, edges, ((len(names) - 1, 0),))


def parameter(name: str, **fields: Any) -> Parameter:
    fields = {"requires_grad": True, "called": True, "has_grad": True, **fields}
    return Parameter(name, META, **fields)


def model(*lost: Parameter, **fields: Any) -> Graph:
    """A graph in which body.weight has a gradient; `lost` may have none."""
    graph = replace(chain("body.weight", "AddmmBackward0"), **fields)
    return replace(graph, parameters=(parameter("body.weight", node=0), *lost))


def sent(**fields: Any) -> Transfer:
    """x goes from the CPU to the GPU at train.py:12."""
    known: dict[str, Any] = {
        "kind": "HtoD",
        "source": "cpu",
        "target": "cuda:0",
        "tensor": GPU,
        "phase": "forward",
        "where": "train.py:12",
        "label": "x",
        "operation": "to",
    }
    return Transfer(**known | fields)


def read(**fields: Any) -> Transfer:
    """x comes back to the CPU."""
    return sent(kind="DtoH", source="cuda:0", target="cpu", tensor=META, **fields)


def moved(*transfers: Transfer) -> Graph:
    return replace(model(), transfers=transfers)


def copied(leaf: str) -> Graph:
    """w, a leaf on the CPU, is copied to the GPU inside the graph."""
    graph = chain("w", "ToCopyBackward0", "SumBackward0")
    nodes = (graph.nodes[0]._replace(leaf=leaf), *graph.nodes[1:])
    transfers = (sent(node=1, label="w"), read(node=1, phase="backward", label=""))
    return replace(graph, nodes=nodes, transfers=transfers)


def detour(between: int) -> Graph:
    """h leaves the GPU inside the graph, and is back after some nodes on the CPU."""
    middle = ["SinBackward0"] * between
    graph = chain("w", "MulBackward0", "ToCopyBackward0", *middle, "ToCopyBackward0")
    back = len(graph.nodes) - 1
    devices = {0: (GPU,), 1: (GPU,), back: (GPU,)}
    graph = graph.annotate(outputs=devices, label={1: "h"})
    transfers = (read(node=2, label="", where="net.py:3"), sent(node=back, label=""))
    return replace(graph, transfers=transfers)


def deep(growth: float, shared: bool = False) -> Graph:
    """Eight weights, one behind the other, with a gradient that grows by a factor at each."""
    nodes, edges = [], []
    for i in range(8):
        leaf, user = (0 if shared else 2 * i), (i + 1 if shared else 2 * i + 1)
        if not shared or i == 0:
            nodes.append(Node(leaf, "AccumulateGrad", (META,), f"fc{i}.weight", leaf="parameter"))
        norm = growth ** (7 - i)
        nodes.append(Node(user, "MmBackward0", (META,), operation="mm", grad_outputs=stats(norm)))
        edges.append(Edge(leaf, user, 0, 1))
        if i:
            edges.append(Edge(user - (1 if shared else 2), user))
    return Graph(tuple(nodes), tuple(edges), ((len(nodes) - 1, 0),))


def relu(before: float, after: float, users: int = 1) -> Graph:
    """A ReLU and the node before it, with the share of zeros in the gradient at each."""
    graph = chain("w", "AddmmBackward0", "ReluBackward0", "SumBackward0")
    gradients = {1: stats(zeros=before), 2: stats(zeros=after)}
    extra = tuple(Edge(1, 3, 0, nr) for nr in range(1, users))
    return replace(graph.annotate(grad_outputs=gradients), edges=graph.edges + extra)


def units(dead: float) -> Graph:
    """The same, with a bias whose gradient tells the units that are dead."""
    bias = Node(0, "AccumulateGrad", (META._replace(shape=(8,)),), "fc.bias", leaf="parameter")
    graph = relu(0.96, 0.0).annotate(label={0: "fc.bias"}, outputs={0: bias.outputs})
    return graph.annotate(grad_outputs={0: stats(zeros=dead)})


def root(broken: dict[int, Any], **fields: Any) -> Graph:
    """x goes into sqrt and into an addition; what backward found at each node."""
    nodes = (
        Node(0, "AccumulateGrad", (META,), "x", leaf="tensor"),
        Node(1, "SqrtBackward0", (META,), operation="sqrt", source="train.py:5"),
        Node(2, "AddBackward0", (META,), operation="add"),
        Node(3, "SumBackward0", (META,), "loss", operation="sum"),
    )
    edges = (Edge(0, 1), Edge(1, 2), Edge(0, 2, 0, 1), Edge(2, 3))
    graph = Graph(nodes, edges, ((3, 0),), **fields)
    gradients = {i: broken.get(i, stats()) for i in range(4)}
    return graph.annotate(grad_outputs=gradients, order={3: 0, 2: 1, 1: 2, 0: 3})


def kept(*saved: SavedTensor, module: str = "fc") -> Graph:
    graph = chain("w", "AddmmBackward0", "MulBackward0")
    return graph.annotate(saved={1: saved}, module={1: module})


def saved(nbytes: int, elements: int, **fields: Any) -> SavedTensor:
    return SavedTensor("self", TensorMeta((elements,), "float32", "cpu"), nbytes, **fields)


def wide(**dtypes: str) -> Graph:
    names = {"w": 0, "mul": 1, "sum": 2}
    outputs = {names[n]: (META._replace(dtype=dtype),) for n, dtype in dtypes.items()}
    return chain("w", "MulBackward0", "SumBackward0").annotate(outputs=outputs)


def mixed(first: str, second: str, shape: tuple[int, ...] = (4,)) -> Graph:
    operands = (
        Operand("x", TensorMeta(shape, "float32", first), "train.py:3"),
        Operand("fc.weight", TensorMeta((4, 4), "float32", second), "train.py:8"),
    )
    message = "bad\nstack"
    return replace(model(), failure=Failure("RuntimeError", message, "addmm", "net.py:9", operands))


CUT = Cut("detach", META, before=2, after=(1,), where="net.py:7", label="h")


def cut(cut: Cut = CUT, **fields: Any) -> Graph:
    """head.weight is used by node 2, whose result was cut."""
    graph = chain("body.weight", "AddmmBackward0")
    more = (
        Node(2, "AddmmBackward0", (META,), operation="addmm"),
        Node(3, "AccumulateGrad", (META,), "head.weight", leaf="parameter"),
    )
    lost = parameter("head.weight", **{"has_grad": False, "node": 3} | fields)
    graph = replace(graph, nodes=graph.nodes + more, edges=(*graph.edges, Edge(3, 2)), cuts=(cut,))
    return replace(graph, parameters=(parameter("body.weight", node=0), lost))


def lost(name: str, **fields: Any) -> Parameter:
    return parameter(name, has_grad=False, **fields)


# rule: a graph that triggers it, the severity and the message; then graphs that must not.
CASES: dict[str, tuple[Graph, str, str, list[Graph]]] = {
    "mixed-devices": (
        mixed("cpu", "cuda:0"),
        "error",
        "addmm at net.py:9 got x on cpu (made at train.py:3) and fc.weight on cuda:0 "
        "(made at train.py:8).",
        [mixed("cuda:0", "cuda:0"), mixed("cpu", "cuda:0", shape=()), model()],
    ),
    "failed": (
        mixed("cpu", "cpu"),
        "error",
        "addmm at net.py:9 ended with RuntimeError: bad; it got x (f32[4] cpu) and "
        "fc.weight (f32[4, 4] cpu).",
        [mixed("cpu", "cuda:0"), model(failure=Failure("KeyboardInterrupt", ""))],
    ),
    "never-called": (
        model(lost("head.0.weight", called=False), lost("head.0.bias", called=False)),
        "warning",
        "head.0.weight and head.0.bias got no gradient: head was never called.",
        [
            model(parameter("head.weight", called=False)),  # used without its module
            model(lost("head.weight", called=False, requires_grad=False)),
            # No backward ran in the block: nothing has a gradient yet.
            Graph((), parameters=(lost("a.weight", called=True), lost("b.weight", called=False))),
        ],
    ),
    "cut-gradient": (
        cut(),
        "warning",
        "head.weight got no gradient: h was cut by detach() at net.py:7.",
        [cut(has_grad=True), cut(requires_grad=False), cut(called=False, node=None)],
    ),
    "unused-result": (
        model(lost("head.weight")),
        "warning",
        "head.weight got no gradient: head ran, but backward did not come by it.",
        [model(lost("head.weight", called=False)), cut()],
    ),
    "frozen": (
        model(lost("head.weight", requires_grad=False)),
        "info",
        "head.weight is frozen: requires_grad is False.",
        [model(lost("head.weight"))],
    ),
    "not-in-optimizer": (
        model(parameter("head.weight", in_optimizer=False)),
        "warning",
        "head.weight got a gradient, but no optimizer that stepped holds it.",
        [model(parameter("head.weight")), model(lost("head.weight", in_optimizer=False))],
    ),
    "vanishing-gradient": (
        deep(0.1),
        "warning",
        "The gradient vanishes along depth: its norm goes from 1 at mm to 1e-07 at mm over 8 "
        "nodes, and fc0.weight and fc1.weight hardly learn.",
        [deep(0.3), deep(1.0)],
    ),
    "exploding-gradient": (
        deep(5.0),
        "warning",
        "The gradient explodes along depth: its norm goes from 1 at mm to 7.8e+04 at mm over 8 "
        "nodes.",
        [deep(2.0), deep(1.0)],
    ),
    "dead-relu": (
        relu(0.9995, 0.0),
        "warning",
        "relu is dead: 100.0% of its elements let no gradient through.",
        [
            relu(0.97, 0.0),  # a sparse transformer
            relu(0.9995, 0.9995),  # it was zero already
            relu(0.9995, 0.0, users=2),
            relu(1.0, 1.0),
            units(0.3),
        ],
    ),
    "nonfinite-gradient": (
        root({0: stats(inf=2)}),
        "error",
        "SqrtBackward0 (sqrt) turned a finite gradient (norm 1) of its inputs x "
        "(f32[64, 8] cpu) into 2 Inf.",
        [root({}), chain("w", "SqrtBackward0")],
    ),
    "unused-copy": (
        moved(sent(used=False, operation="cuda")),
        "warning",
        "x was copied to cuda:0 at train.py:12, and the copy was never used.",
        [moved(sent(used=True)), moved(sent(used=None)), moved(read(used=False))],
    ),
    "repeated-copy": (
        moved(*[sent(data=1) for _ in range(3)]),
        "warning",
        "x was copied from cpu to cuda:0 3 times, 4.0 KiB more than once would need "
        "at train.py:12.",
        [
            moved(*[sent(data=i) for i in range(3)]),  # another batch each time
            moved(*[sent() for _ in range(3)]),
            moved(sent(data=1), sent(data=1, target="cuda:1"), sent(data=1, target="cuda:2")),
        ],
    ),
    "round-trip": (
        detour(2),
        "warning",
        "h went from cuda:0 to cpu at net.py:3 and came back at train.py:12 with 2 nodes in "
        "between.",
        [detour(30), moved(sent(data=1), read(data=2)), copied("tensor")],
    ),
    "pageable-copy": (
        moved(sent(pinned=False, tensor=GPU._replace(shape=(MIB,)))),
        "info",
        "x (4.0 MiB) was copied to cuda:0 from pageable memory at train.py:12.",
        [
            moved(sent(pinned=True, tensor=GPU._replace(shape=(MIB,)))),
            moved(sent(pinned=None, tensor=GPU._replace(shape=(MIB,)))),
            moved(sent(pinned=False)),
            moved(sent(pinned=False, label="body.weight", tensor=GPU._replace(shape=(MIB,)))),
        ],
    ),
    "tiny-copies": (
        moved(*[sent(data=i) for i in range(20)]),
        "warning",
        "20 copies cpu to cuda:0 in a row at train.py:12 move 40.0 KiB in all.",
        [
            moved(*[sent(data=i) for i in range(5)]),
            moved(*[sent(data=i, tensor=GPU._replace(shape=(MIB,))) for i in range(20)]),
            # A training loop: a batch, its targets, and the loss read back.
            moved(*[sent(data=i, where=f"train.py:{i % 2}") for i in range(40)]),
            moved(*[sent(label="body.weight") for _ in range(20)]),
        ],
    ),
    "blocking-read": (
        moved(read(operation="item", in_forward=True)),
        "warning",
        "x is read with item() in the forward of the model at train.py:12: each waits for all "
        "that cuda:0 still has to do.",
        [moved(read(operation="item")), moved(sent(operation="item", in_forward=True))],
    ),
    "copy-in-backward": (
        copied("parameter"),
        "warning",
        "w: 1 copy between devices inside the graph (2.0 KiB), which backward must repeat for "
        "the gradient.",
        [moved(sent())],
    ),
    "most-memory": (
        kept(saved(3 * MIB, MIB), saved(MIB, MIB)),
        "info",
        "Backward keeps 4.0 MiB of activations, most of it in fc (4.0 MiB, 100%).",
        [kept(saved(1000, 250)), kept(saved(3 * MIB, MIB, kind="parameter"))],
    ),
    "float64-crept-in": (
        wide(mul="float64", sum="float64"),
        "warning",
        "mul made float64, and 2 of 3 nodes hold it, though the parameters are float32.",
        [wide(), wide(w="float64", mul="float64", sum="float64")],
    ),
    "view-keeps-storage": (
        kept(saved(8 * MIB, 1000)),
        "warning",
        "addmm in fc saves self (f32[1000] cpu, 3.9 KiB), a view that keeps 8.0 MiB alive.",
        [
            kept(saved(8 * MIB, 2 * MIB)),
            kept(saved(8 * MIB, 1000, kind="input")),
            kept(saved(8 * MIB, 1000), saved(0, 2 * MIB, shared_with=1)),
        ],
    ),
}


def only(rule: str, graph: Graph) -> list[Finding]:
    return [finding for finding in find(graph) if finding.rule == rule]


def test_every_rule_has_a_sentence_an_example_and_a_near_miss() -> None:
    table = dict(rules())
    assert len(table) == len(rules())
    assert set(CASES) == set(table) - {"growing-graph", "skipped-parameter"}
    assert all(sentence.endswith(".") and len(sentence) > 30 for sentence in table.values())
    assert all(misses for _, _, _, misses in CASES.values())


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_finds_what_it_is_for(rule: str) -> None:
    graph, severity, message, _ = CASES[rule]
    (found,) = only(rule, graph)
    assert (found.severity, found.message) == (severity, message)
    assert found.cause
    assert found.advice
    assert all(0 <= node < len(graph.nodes) for node in found.nodes)
    assert all(0 <= transfer < len(graph.transfers) for transfer in found.transfers)


@pytest.mark.parametrize(
    ("rule", "number"), [(rule, i) for rule, case in CASES.items() for i in range(len(case[3]))]
)
def test_the_rule_is_silent_on_the_near_miss(rule: str, number: int) -> None:
    assert only(rule, CASES[rule][3][number]) == []


def test_a_graph_of_which_nothing_was_recorded_has_no_findings() -> None:
    assert find(Graph(())) == []
    assert find(chain("w", "MulBackward0", "SumBackward0")) == []


def test_errors_come_first_then_warnings_then_the_rest() -> None:
    graph = replace(mixed("cpu", "cuda:0"), transfers=(sent(used=False),))
    graph = replace(graph, parameters=(*graph.parameters, lost("f.weight", requires_grad=False)))
    assert [finding.severity for finding in find(graph)] == ["error", "warning", "info"]


def test_the_advice_is_the_line_to_write() -> None:
    (unused,) = only("unused-copy", moved(sent(used=False, operation="cuda")))
    assert unused.advice.startswith("Replace x.cuda() with x = x.cuda() at train.py:12")
    (mix,) = only("mixed-devices", mixed("cpu", "cuda:0"))
    assert mix.advice == 'Move what lies elsewhere: x = x.to("cuda:0").'
    (pageable,) = only("pageable-copy", CASES["pageable-copy"][0])
    assert 'x.to("cuda:0", non_blocking=True)' in pageable.advice


@pytest.mark.parametrize(
    ("how", "severity", "cause"),
    [
        ("detach", "warning", "cut by detach()"),
        ("data", "warning", "cut by .data"),
        ("no_grad", "warning", "cut by torch.no_grad()"),
        ("item", "error", "cut by item()"),
        ("numpy", "error", "cut by numpy()"),
        ("argmax", "error", "cut by argmax()"),
        ("integer", "error", "cut by an integer cast"),
    ],
)
def test_each_way_to_cut_has_its_own_words(how: str, severity: str, cause: str) -> None:
    (found,) = only("cut-gradient", cut(replace(CUT, how=how)))
    assert (found.severity, found.cause) == (severity, cause)
    assert found.nodes == (3, 2, 1)  # the parameter, and both sides of the cut
    assert "net.py:7" in found.advice


def test_a_cut_whose_nodes_are_not_known_is_told_by_its_module() -> None:
    unknown = replace(CUT, before=None, module="head")
    assert only("cut-gradient", cut(unknown, node=None))
    assert not only("cut-gradient", cut(replace(unknown, module="body"), node=None))


def test_an_accuracy_read_with_argmax_is_not_blamed_for_a_detach() -> None:
    metric = replace(CUT, how="argmax", after=(), where="metrics.py:2")
    graph = replace(cut(), cuts=(metric, CUT))
    (found,) = only("cut-gradient", graph)
    assert found.cause == "cut by detach()"


def test_many_parameters_of_one_cause_are_one_finding() -> None:
    names = [f"head.{i}.weight" for i in range(6)]
    (found,) = only("never-called", model(*[lost(name, called=False) for name in names]))
    assert found.message.startswith("head.0.weight, head.1.weight, head.2.weight and 3 more got")


def test_a_loss_that_was_cut_everywhere_still_names_the_cut() -> None:
    message = "element 0 of tensors does not require grad and does not have a grad_fn"
    failure = Failure("RuntimeError", message, "backward", "train.py:9")
    graph = Graph(
        (), parameters=(lost("fc.weight"),), cuts=(replace(CUT, before=None, module="fc"),)
    )
    rules = [finding.rule for finding in find(replace(graph, failure=failure))]
    assert rules == ["failed", "cut-gradient"]


def test_in_an_unrolled_rnn_the_weights_still_learn_from_the_late_steps() -> None:
    (found,) = only("vanishing-gradient", deep(0.1, shared=True))
    assert found.severity == "info"


def test_dead_units_are_told_by_the_bias_where_there_are_enough_rows() -> None:
    (found,) = only("dead-relu", units(0.95))
    assert "95.0% of its units" in found.message


def test_a_sum_is_not_blamed_for_what_sqrt_did() -> None:
    # The gradient of x is the sum of what sqrt and the addition give: only one has such a slope.
    (found,) = only("nonfinite-gradient", root({0: stats(inf=2)}))
    assert found.nodes[0] == 1
    assert found.where == "train.py:5"
    assert "sqrt" in found.advice


def test_the_first_node_in_backward_order_is_the_one_that_is_named() -> None:
    (found,) = only("nonfinite-gradient", root({0: stats(nan=1), 1: stats(nan=1)}))
    assert found.nodes[0] == 2


def test_a_gradient_that_was_nan_from_the_start_says_so() -> None:
    (found,) = only("nonfinite-gradient", root({i: stats(nan=1) for i in range(4)}))
    assert found.message == (
        "The gradient that backward started from, at loss, is not finite: 1 NaN."
    )


def test_an_overflow_of_the_scaled_loss_is_no_error() -> None:
    (found,) = only("nonfinite-gradient", root({0: stats(inf=2)}, loss_scale=65536.0))
    assert found.severity == "info"
    assert "65536" in found.advice
    (bad,) = only("nonfinite-gradient", root({0: stats(nan=2)}, loss_scale=65536.0))
    assert bad.severity == "error"


def test_the_same_leaf_copied_again_and_again_is_told_by_the_graph_alone() -> None:
    nodes = (
        Node(0, "AccumulateGrad", (META,), "w", leaf="tensor"),
        *(Node(i, "ToCopyBackward0", (GPU,), operation="to_copy") for i in (1, 2, 3)),
    )
    edges = tuple(Edge(0, i) for i in (1, 2, 3))
    transfers = tuple(sent(node=i, label="w") for i in (1, 2, 3))
    assert only("repeated-copy", Graph(nodes, edges, transfers=transfers))


def test_data_that_goes_there_and_back_untouched_is_a_round_trip() -> None:
    big = META._replace(shape=(MIB,))
    (found,) = only("round-trip", moved(sent(data=1, tensor=big), read(data=1)))
    assert found.message.endswith("with no nodes in between.")
    assert found.transfers == (0, 1)


def test_a_pageable_copy_in_every_step_is_a_warning() -> None:
    large = sent(pinned=False, tensor=GPU._replace(shape=(MIB,)))
    (found,) = only("pageable-copy", moved(*[replace(large, data=i) for i in range(3)]))
    assert found.severity == "warning"
    assert "12.0 MiB, 3 times" in found.message


def test_reading_the_loss_in_a_loop_is_worth_knowing_and_no_more() -> None:
    (found,) = only("blocking-read", moved(*[read(operation="item", data=i) for i in range(5)]))
    assert found.severity == "info"
    assert "in a loop" in found.message


def test_a_cast_that_was_asked_for_is_no_warning() -> None:
    graph = chain("w", "ToCopyBackward0").annotate(outputs={1: (META._replace(dtype="float64"),)})
    (found,) = only("float64-crept-in", graph)
    assert found.severity == "info"


def step(number: int) -> Graph:
    """The graph of a running total after some steps."""
    graph = chain("w", *["MulBackward0", "AddBackward0"] * number)
    return graph.annotate(source={n.id: "train.py:8" for n in graph.nodes if n.name[0] == "A"})


def test_a_loss_kept_with_its_history_makes_the_graph_grow() -> None:
    found = [f for f in find(step(3), [step(1), step(2)]) if f.rule == "growing-graph"]
    assert [f.severity for f in found] == ["warning"]
    assert "2 nodes in each step (3, 5 and 7 nodes)" in found[0].message
    assert "train.py:8" in found[0].message


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 3, 2), (1, 2, 4), (3, 2, 1)])
def test_a_graph_of_changing_size_does_not_grow(sizes: tuple[int, int, int]) -> None:
    first, second, last = (step(n) for n in sizes)
    assert find(last, [first, second]) == []


def test_two_steps_are_no_trend() -> None:
    assert find(step(2), [step(1)]) == []


def test_a_rank_that_skipped_a_parameter_is_named_with_it() -> None:
    good, bad = model(parameter("head.weight")), model(lost("head.weight", called=False))
    (found,) = find_across([good, bad, good])
    assert found.rule == "skipped-parameter"
    assert found.severity == "error"
    assert found.message == (
        "Rank 1 skipped head.weight, which other ranks have a gradient for: its module was never "
        "called there."
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: [model(parameter("a.weight")), model(parameter("a.weight"))],
        lambda: [model(lost("a.weight")), model(lost("a.weight"))],
        lambda: [model(lost("a.weight", requires_grad=False)), model(parameter("a.weight"))],
        lambda: [],
    ],
    ids=["both", "neither", "frozen", "no ranks"],
)
def test_ranks_that_agree_have_no_findings(make: Callable[[], list[Graph]]) -> None:
    assert find_across(make()) == []
