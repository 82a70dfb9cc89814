"""Graphs made by hand: for each rule one that triggers it, and near ones that must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphviz_torch import Edge, GradientStats, Graph, Node, TensorMeta, Transfer
from graphviz_torch.graph import (
    Cause,
    Cut,
    Event,
    EventKind,
    Failure,
    Operand,
    Parameter,
    RetainedGraphs,
    SavedTensor,
    Step,
)

META = TensorMeta((64, 8), "float32", "cpu")
GPU = META._replace(device="cuda:0")
NUMBER = META._replace(shape=())
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
    fields = {"requires_grad": True, "module_called": True, "has_grad": True, **fields}
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
    return sent(**{"kind": "DtoH", "source": "cuda:0", "target": "cpu", "tensor": META} | fields)


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


KEPT = Operand("h", TensorMeta((4,), "float32", "cpu"))


def in_place(*causes: Cause, node: int | None = 1, kept: Operand | None = KEPT) -> Graph:
    """Backward of head.weight's sum could not run addmm."""
    graph = chain("head.weight", "AddmmBackward0", "SumBackward0")
    graph = graph.annotate(source={1: "net.py:7"}, module={1: "head"})
    failure = Failure("RuntimeError", "changed", "backward", "train.py:9")
    return replace(graph, failure=replace(failure, node=node, modified=kept, causes=causes))


def again(*nodes: int, where: str = "train.py:9") -> Graph:
    """Backward could not run addmm, which had run in an earlier one; the sum, too, if so said."""
    graph = in_place(Cause("backward", where, nodes), kept=None)
    return graph.annotate(source={2: "train.py:8"})


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


def passed(*norms: float | None, step: str = "MulBackward0") -> Graph:
    """body.weight, a step and a sum in a row, with the gradient that backward had at each."""
    graph = chain("body.weight", step, "SumBackward0")
    given = {
        i: (None,) if norm is None else stats(norm, zeros=float(norm == 0))
        for i, norm in enumerate(norms)
    }
    graph = graph.annotate(order={i: 2 - i for i in range(3)}, grad_outputs=given)
    return replace(graph, parameters=(lost("body.weight", node=0),))


def lost(name: str, **fields: Any) -> Parameter:
    return parameter(name, has_grad=False, **fields)


# rule: a graph that triggers it, the severity and the message; then graphs that must not.
def event(kind: EventKind, **fields: Any) -> Event:
    """At train.py:7."""
    return Event(kind, **{"where": "train.py:7", **fields})


def told(*events: Event, **fields: Any) -> Graph:
    """A model whose body.weight an optimizer updates, and what the program did beside the graph."""
    graph = model(events=events, **fields)
    return replace(graph, parameters=(parameter("body.weight", node=0, stepped=True),))


STEP = event("step", label="optimizer", detail="0", where="train.py:9")
COLUMN = Operand("y", TensorMeta((100, 1), "float32", "cpu"), "train.py:5", 1)
ROW = Operand("target", TensorMeta((100,), "float32", "cpu"))
NONE = Failure("TypeError", "unsupported operand: 'NoneType'", "", "train.py:7")
NON_LEAF = Failure("ValueError", "can't optimize a non-leaf Tensor", "", "train.py:7", (COLUMN,))
NO_GRAD = Failure(
    "RuntimeError", "element 0 of tensors does not require grad", "backward", "t.py:9"
)


def summed(cut: Cut = CUT) -> Graph:
    """The loss is the sum of two terms: one of body.weight, and one that was cut."""
    graph = chain("body.weight", "SumBackward0", "AddBackward0")
    graph = graph.annotate(
        outputs=dict.fromkeys((1, 2), (NUMBER,)), order={i: 2 - i for i in range(3)}
    )
    cut = replace(cut, before=0, after=(2,), where="net.py:7")
    return replace(
        graph, cuts=(cut,), parameters=(parameter("body.weight", node=0, got_gradient=True),)
    )


def two_terms(stepped: bool | None, cut_off: bool = True) -> Graph:
    """The loss is the sum of a term of body.weight, which is stepped, and one of head.weight."""
    graph = chain("body.weight", "SumBackward0", "AddBackward0")
    head = (
        Node(3, "AccumulateGrad", (META,), "head.weight", leaf="parameter"),
        Node(4, "SumBackward0", (NUMBER,), operation="sum"),
    )
    edges = (*graph.edges, Edge(3, 4), Edge(4, 2, 0, 1))
    graph = replace(graph, nodes=graph.nodes + head, edges=edges)
    graph = graph.annotate(outputs={1: (NUMBER,), 2: (NUMBER,)}, order={2: 0, 1: 1, 0: 2})
    graph = graph.annotate(source={2: "train.py:8"})
    cuts = (replace(CUT, before=None, after=(4,)),) if cut_off else ()
    known = parameter("body.weight", node=0, got_gradient=True, stepped=True)
    other = parameter("head.weight", node=3, got_gradient=True, stepped=stepped, in_optimizer=True)
    return replace(graph, cuts=cuts, parameters=(known, other))


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
    "changed-in-place": (
        in_place(Cause("add_", "net.py:8", (2,), "h += 1")),
        "error",
        "backward at train.py:9 failed: addmm in head at net.py:7 needs h (f32[4] cpu) as it was, "
        "and add_ at net.py:8 (h += 1) changed it in place.",
        [in_place(kept=None), in_place(node=None), again(1, 2)],
    ),
    "backward-twice": (
        again(1, 2),
        "error",
        "backward at train.py:9 failed: sum at train.py:8 uses addmm in head at net.py:7, which "
        "backward at train.py:9 had run, and freed what it kept.",
        [in_place(Cause("add_", "net.py:8")), in_place(kept=None)],
    ),
    "never-called": (
        model(lost("head.0.weight", module_called=False), lost("head.0.bias", module_called=False)),
        "warning",
        "head.0.weight and head.0.bias got no gradient: head was never called.",
        [
            model(parameter("head.weight", module_called=False)),  # used without its module
            model(lost("head.weight", module_called=False, requires_grad=False)),
            # An earlier backward gave it one.
            model(lost("head.weight", module_called=False, got_gradient=True)),
            # No backward ran in the block: nothing has a gradient yet.
            Graph(
                (),
                parameters=(
                    lost("a.weight", module_called=True),
                    lost("b.weight", module_called=False),
                ),
            ),
        ],
    ),
    "cut-gradient": (
        cut(),
        "warning",
        "head.weight got no gradient: h was cut by detach() at net.py:7.",
        [cut(has_grad=True), cut(requires_grad=False), cut(module_called=False, node=None)],
    ),
    "unused-result": (
        model(lost("head.weight")),
        "warning",
        "head.weight got no gradient: head ran, but the loss does not depend on its result.",
        [model(lost("head.weight", module_called=False)), cut()],
    ),
    "dropped-gradient": (
        passed(None, 1.0, 1.0, step="ScaleBackward0"),
        "error",
        "body.weight got no gradient: scale received one and gave none on the way there.",
        [passed(1.0, 1.0, 1.0), passed(0.0, 1.0, 1.0), passed(None, None, None)],
    ),
    "zero-gradient": (
        passed(0.0, 1.0, 1.0, step="RoundBackward0"),
        "warning",
        "body.weight got a gradient of zeros only: round has slope 0 everywhere.",
        [
            passed(1.0, 1.0, 1.0, step="RoundBackward0"),  # it came by another way
            passed(0.0, 0.0, 0.0, step="RoundBackward0"),  # there was none to pass on
            passed(0.0, 1.0, 1.0),  # a factor that is 0 now, as in LoRA at its start
        ],
    ),
    "frozen": (
        model(lost("head.weight", requires_grad=False)),
        "info",
        "head.weight is frozen: requires_grad is False.",
        [model(lost("head.weight"))],
    ),
    "not-in-optimizer": (
        model(parameter("head.weight", stepped=False)),
        "warning",
        "head.weight got a gradient, but no optimizer holds it.",
        [model(parameter("head.weight")), model(lost("head.weight", stepped=False))],
    ),
    "loss-input": (
        chain("head.weight", "SoftmaxBackward0", "ViewBackward0", "NllLossBackward0").annotate(
            operation={3: "nll_loss"}, source={3: "train.py:9"}
        ),
        "warning",
        "nll_loss at train.py:9 takes log-probabilities, and got probabilities from softmax.",
        [
            chain("head.weight", "SoftmaxBackward0", "LogBackward0", "NllLossBackward0").annotate(
                operation={3: "nll_loss"}
            ),
            chain("head.weight", "NllLossBackward0").annotate(operation={1: "nll_loss"}),
        ],
    ),
    "vanishing-gradient": (
        deep(0.1),
        "warning",
        "The gradient vanishes along depth: its norm goes from 1 at mm to 1e-07 at mm over 8 "
        "nodes, and fc0.weight and fc1.weight hardly learn.",
        [deep(0.5), deep(1.0)],
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
        "SqrtBackward0 (sqrt) received a finite gradient (norm 1) and gave 2 Inf to its inputs x "
        "(f32[64, 8] cpu).",
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
            moved(*[read(data=1, operation="add_", tensor=NUMBER) for _ in range(3)]),  # alpha=x
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
        "info",
        "20 copies cpu to cuda:0 in a row at train.py:12 move 40.0 KiB in all.",
        [
            moved(*[sent(data=i) for i in range(5)]),
            moved(*[sent(data=i, tensor=GPU._replace(shape=(MIB,))) for i in range(20)]),
            # A training loop: a batch, its targets, and the loss read back.
            moved(*[sent(data=i, where=f"train.py:{i % 2}") for i in range(40)]),
            moved(*[sent(label="body.weight") for _ in range(20)]),
        ],
    ),
    "uncleared-gradient": (
        replace(chain("w", "MulBackward0"), step=Step(stale_gradients="train.py:9")),
        "warning",
        "The optimizer's step at train.py:9 used the gradients of an earlier step again: they were "
        "not cleared in between.",
        [chain("w", "MulBackward0")],
    ),
    "kept-history": (
        replace(
            chain("w", "MulBackward0"), step=Step(retained=RetainedGraphs(4, "total", "train.py:8"))
        ),
        "warning",
        "The graphs of 4 earlier steps are still alive: total keeps what train.py:8 made, with its "
        "history.",
        [chain("w", "MulBackward0")],
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
        "Backward keeps 4.0 MiB of activations, most of it in fc (addmm, 4.0 MiB, 100%).",
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
    "scheduler-stepped-first": (
        told(event("schedule", label="scheduler", detail="optimizer")),
        "warning",
        "scheduler.step() at train.py:7 ran before optimizer had stepped once: the first learning "
        "rate of the schedule is never used.",
        [told(STEP)],
    ),
    "unstepped-term": (
        two_terms(False),
        "warning",
        "A term of the loss at train.py:8 reaches only head.weight, which the optimizer of this "
        "step does not hold: h was cut by detach() at net.py:7.",
        [two_terms(True), two_terms(None)],
    ),
    "lost-gradient": (
        told(event("clear", operation="optimizer", times=6), STEP),
        "warning",
        "optimizer.zero_grad() at train.py:7 cleared gradients that no step had used, 6 times.",
        [
            told(event("clear", operation="optimizer", times=2), replace(STEP, times=9)),
            told(event("clear", times=6)),  # by model.zero_grad(), and nobody steps
        ],
    ),
    "clipped-in-vain": (
        told(event("clip", operation="clip_grad_norm_", detail="after the step")),
        "warning",
        "clip_grad_norm_() at train.py:7 clips gradients after the step that used them, and so "
        "changes nothing.",
        [
            told(event("clip", operation="clip_grad_norm_", detail="in time")),
            told(event("clip", detail="in time"), event("clip", detail="nothing")),
        ],
    ),
    "optimizer-never-stepped": (
        told(event("backward", label="D.weight, D.bias")),
        "warning",
        "backward at train.py:7 gives D.weight, D.bias a gradient, but the optimizer that holds "
        "them never stepped.",
        [told(STEP)],
    ),
    "attribute-without-effect": (
        told(event("attribute", label="body", detail="requires_grad")),
        "warning",
        "requires_grad was set on the module body at train.py:7: that is an attribute of the "
        "module and freezes nothing.",
        [
            replace(
                told(event("attribute", label="body.weight", detail="require_grad")),
                parameters=(parameter("body.weight", requires_grad=False), parameter("a.weight")),
            )
        ],
    ),
    "everything-frozen": (
        Graph(
            (),
            parameters=(parameter("fc.weight", requires_grad=False),),
            events=(event("frozen"),),
            failure=NO_GRAD,
        ),
        "error",
        "All 1 parameters are frozen at train.py:7: requires_grad is False, so the loss needs no "
        "gradient.",
        [Graph((), parameters=(parameter("fc.weight"),), failure=NO_GRAD)],
    ),
    "trained-in-eval-mode": (
        told(event("eval", label="drop", operation="Dropout", detail="1", nodes=(0,))),
        "warning",
        "The model was trained in eval mode: Dropout (drop) worked as in evaluation; "
        "eval() was called at train.py:7.",
        [model(events=(event("eval", label="drop", operation="Dropout", nodes=(0,)),))],
    ),
    "loss-is-a-leaf": (
        told(event("leaf", label="loss", operation="requires_grad", nodes=(0,)), outputs=((0, 0),)),
        "error",
        "backward started from loss, which was made a leaf by requires_grad at train.py:7: a leaf "
        "has no history, so nothing else gets a gradient.",
        [told(event("leaf", label="x", nodes=(0,)))],  # backward starts from what follows
    ),
    "gradient-of-a-result": (
        told(event("grad", label="y", operands=(COLUMN,), nodes=(1,)), failure=NONE),
        "error",
        "y.grad at train.py:7 is None: y is not a leaf, for it was computed at train.py:5 by "
        "addmm.",
        [told(failure=NONE)],
    ),
    "optimizer-got-a-result": (
        told(failure=NON_LEAF),
        "error",
        "The optimizer at train.py:7 got y, which is not a leaf: it was computed at train.py:5 by "
        "addmm.",
        [told(failure=NONE)],
    ),
    "data-replaced": (
        told(event("data", label="x", operands=(COLUMN,), nodes=(1,))),
        "warning",
        "x.data = y at train.py:7 takes the values and cuts the gradient: what y came from learns "
        "nothing through x.",
        [told()],
    ),
    "not-registered": (
        replace(
            told(event("unregistered", label="layers", detail="list", nodes=(0,))), parameters=()
        ).annotate(source={1: "net.py:3"}),
        "warning",
        "body.weight got a gradient at net.py:3, but no optimizer holds them: layers, set at "
        "train.py:7, is a plain list, so they are not registered.",
        [told()],
    ),
    "accidental-broadcast": (
        told(event("broadcast", operation="mse_loss", operands=(COLUMN, ROW))),
        "warning",
        "mse_loss at train.py:7 broadcast y [100, 1] with target [100] to [100, 100]: each element "
        "is paired with every other.",
        [told(event("loss", operation="mse_loss", operands=(COLUMN, COLUMN)))],
    ),
    "loss-call": (
        replace(
            chain("w", "SoftmaxBackward0", "SqueezeBackward0"),
            events=(event("loss", operation="kl_div", operands=(replace(COLUMN, node=2), ROW)),),
        ),
        "warning",
        "kl_div at train.py:7 takes log-probabilities, and got probabilities from softmax.",
        [
            replace(
                chain("w", "LogSoftmaxBackward0"),
                events=(event("loss", operation="kl_div", operands=(COLUMN, ROW)),),
            )
        ],
    ),
    "constant-term": (
        summed(),
        "warning",
        "A term of the loss has no gradient and trains nothing: h was cut by detach() at net.py:7.",
        [
            replace(summed(), cuts=(replace(CUT, before=1, after=(1,)),)),  # within a term
            summed().annotate(outputs={2: (META,)}),  # not a single number
        ],
    ),
    "nonfinite-value": (
        told(
            event(
                "nonfinite",
                label="loss",
                operation="addmm",
                detail="made 2 NaN: its divisor has 2 zeros",
                operands=(COLUMN,),
                nodes=(1,),
            )
        ),
        "error",
        "addmm at train.py:5 made 2 NaN: its divisor has 2 zeros; the loss and what follows are "
        "not finite.",
        [told(event("nonfinite", operands=(COLUMN,), nodes=(1,)))],  # masked, as it seems
    ),
}
