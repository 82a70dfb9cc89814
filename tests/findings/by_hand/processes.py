"""Graphs that trigger the rules on what ranks send, and similar ones that do not.

For a rule that compares ranks, the graphs of two ranks are given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from graphviz_torch.findings.rules.ranks.averages import DdpUnusedParameter, WrapperBypass
from graphviz_torch.graph import (
    Collective,
    Cut,
    Edge,
    Failure,
    Graph,
    ModuleRow,
    Node,
    Replica,
    Step,
    TensorMeta,
    Transfer,
)
from graphviz_torch.graph.events import OptimizerStep
from tests.findings.by_hand.graphs import (
    META,
    MIB,
    Case,
    chain,
    event,
    lost,
    model,
    parameter,
    stats,
)


class RankCase(NamedTuple):
    """Graphs of ranks, what the rule says of them, and near ones of which it must say nothing."""

    graphs: list[Graph]
    severity: str
    message: str
    near_misses: list[list[Graph]]


AVERAGE = Collective(
    "all_reduce", 2048, "float32", 2, where="train.py:9", parameters=("body.weight",),
    gradients=True,
)  # fmt: skip
LOSS = Collective("all_reduce", 4, "float32", 2, where="train.py:11")
EXCHANGE = replace(LOSS, kind="all_to_all")
MESH = replace(LOSS, group="tp", group_size=2)
EXCHANGED = replace(MESH, kind="all_gather")


READ = Transfer("DtoH", "cuda:0", "cpu", META, "forward", where="train.py:12")


def rank(
    *moved: Collective | Transfer, norm: float = 1.0, gradient: float = 1.0, head: float = 0.0
) -> Graph:
    """A model whose body.weight learns; where `head` is given head.weight does too, and it is its
    gradient."""
    graph = model(
        collectives=tuple(each for each in moved if isinstance(each, Collective)),
        transfers=tuple(each for each in moved if isinstance(each, Transfer)),
    )
    body = parameter("body.weight", node=0, stepped=True, norm=norm)
    graph = graph.annotate(grad_outputs={0: stats(gradient)})
    if not head:
        return replace(graph, parameters=(body,))
    more = parameter("head.weight", node=1, stepped=True, norm=2.0)
    graph = graph.annotate(grad_outputs={0: stats(gradient), 1: stats(head)})
    return replace(graph, parameters=(body, more))


def failed(graph: Graph) -> Graph:
    return replace(graph, failure=Failure("ValueError", "no data", "", "train.py:10"))


def twice(graph: Graph) -> list[Graph]:
    """Two ranks that do the same."""
    return [graph, graph]


OTHER = replace(AVERAGE, parameters=("head.weight",))
HALF = replace(AVERAGE, group="dp", group_size=1)
VALUES = replace(AVERAGE, gradients=False)
ONE, OTHERS = rank(AVERAGE, gradient=1.0), rank(AVERAGE, gradient=2.0)


def summed(graph: Graph, *checksums: int, kind: Any = "parameter", wrapper: str = "") -> Graph:
    """The checksums of body.weight before three steps and after each."""
    name = "body.weight" if kind == "parameter" else "body.mean"
    replica = Replica(name, kind, (0, 1), wrapper, checksums)
    return replace(graph, step=Step(replicas=(replica,), checksum_steps=(0, 0, 1, 2)))


def expert(*checksums: tuple[int, int]) -> Graph:
    """A rank whose expert has these checksums of its weight and of its bias."""
    weights, biases = zip(*checksums, strict=True)
    parts = (("expert.up.weight", weights), ("expert.norm.bias", biases))
    replicas = tuple(Replica(name, "parameter", (0, 1), "", sums) for name, sums in parts)
    return replace(rank(), step=Step(replicas=replicas, checksum_steps=(0, 0, 1)))


ALONE, STEPPED = rank(), event(OptimizerStep, optimizer="optimizer")
SAME, LATE, ONCE = (5, 6, 7, 8), (5, 6, 7, 9), (5, 0, 7, 9)
DDP = "DistributedDataParallel"


RANKS: dict[str, RankCase] = {
    "diverged-replicas": RankCase(
        [summed(ALONE, *SAME, wrapper=DDP), summed(ALONE, *LATE, wrapper=DDP)],
        "error",
        "body.weight differs between the ranks since step 2: DistributedDataParallel wraps the "
        "model, but the gradients are not averaged.",
        [
            twice(summed(ALONE, *SAME, wrapper=DDP)),
            [summed(ALONE, *SAME), summed(ALONE, 1, 2, 3, 4)],  # never the same: stages
            # of an expert that each rank has of its own only the zeros were the same
            [expert((1, 0), (2, 5), (3, 6)), expert((4, 0), (5, 7), (6, 8))],
            [summed(ALONE, *SAME), summed(ALONE, *ONCE)],  # averaged now and then
            [summed(ALONE, *ONCE), summed(ALONE, *SAME[:3], 9)],  # equal at the end
            [summed(ALONE, *SAME), summed(ALONE, *LATE), ALONE],  # another step
            [summed(rank(AVERAGE), *SAME), failed(summed(rank(AVERAGE), *LATE))],
        ],
    ),
    "skipped-step": RankCase(
        [replace(rank(AVERAGE), events=(STEPPED,)), rank(AVERAGE, gradient=2)],
        "error",
        "Rank 1 did not step after the last backward, but rank 0 did at train.py:7, although "
        "all ranks average the gradients.",
        [
            twice(rank(AVERAGE)),  # the last micro-batch is to come
            [replace(rank(), events=(STEPPED,)), rank()],  # each trains a model of its own
            [replace(rank(AVERAGE), events=(STEPPED,)), failed(rank(AVERAGE))],
        ],
    ),
    "diverged-buffers": RankCase(
        [summed(rank(AVERAGE), *sums, kind="buffer") for sums in (SAME, LATE)],
        "warning",
        "body.mean differs between the ranks, which train one model: each rank evaluates with its "
        "own buffers, and a checkpoint contains the buffers of only one rank.",
        [
            [summed(rank(AVERAGE), *SAME, kind="buffer")] * 2,
            [summed(rank(), *sums, kind="buffer") for sums in (SAME, LATE)],
            [summed(rank(AVERAGE), *sums, kind="buffer") for sums in (SAME, ONCE)],
        ],
    ),
    "ddp-unused-parameter (on a rank)": RankCase(
        [model(parameter("head.weight")), model(lost("head.weight", module_called=False))],
        "error",
        "Rank 1 has no gradient for head.weight, but other ranks have one: its module was never "
        "called.",
        [twice(model(lost("head.weight")))],
    ),
    "mismatched-collectives": RankCase(
        [rank(AVERAGE, LOSS), rank(AVERAGE)],
        "error",
        "Ranks call different collectives: call 2 of all ranks is all_reduce of 4 B float32 at "
        "train.py:11 on rank 0, and nothing on rank 1.",
        [
            twice(rank(AVERAGE, LOSS)),
            [rank(AVERAGE, LOSS), failed(rank(AVERAGE))],  # the failure is told by itself
            [rank(MESH), rank()],  # rank 1 may be in another group of that name
            [*twice(rank(MESH)), *twice(rank(EXCHANGED))],  # so are these: two stages of a pipeline
            [rank(replace(LOSS, kind="send")), rank(replace(LOSS, kind="recv"))],
            [rank(EXCHANGE), rank(replace(EXCHANGE, nbytes=8))],
            # Buckets of DDP, guessed of their sizes.
            [rank(replace(AVERAGE, phase="backward")), rank(replace(OTHER, phase="backward"))],
        ],
    ),
    "rank-only-sync": RankCase(
        [rank(AVERAGE, READ), rank(AVERAGE, gradient=2)],
        "info",
        "Rank 0 alone reads values back from a device, 1 time at train.py:12: the other ranks "
        "wait in the next collective until the read is done.",
        [
            [rank(AVERAGE, READ), rank(AVERAGE, READ, gradient=2)],
            [rank(READ), rank()],  # each trains a model of its own
            [rank(AVERAGE, replace(READ, kind="HtoD")), rank(AVERAGE, gradient=2)],
        ],
    ),
    "diverged-replicas (from the start)": RankCase(
        [rank(AVERAGE, norm=1.0), rank(AVERAGE, norm=1.1, gradient=2.0)],
        "error",
        "The values of body.weight differ between the ranks, although the ranks average the "
        "gradients at train.py:9.",
        [
            [rank(AVERAGE, norm=1.0), rank(AVERAGE, norm=1.000001, gradient=2.0)],  # other devices
            [rank(norm=1.0), rank(norm=1.1)],  # stages of a pipeline
            [rank(VALUES, norm=1.0), rank(VALUES, norm=1.1)],  # the weights are averaged
            [rank(HALF, norm=1.0), rank(HALF, norm=1.1)],  # with other ranks than these
        ],
    ),
    "repeated-batch (on all ranks)": RankCase(
        twice(ONE),
        "warning",
        "Both ranks computed the same gradients before they averaged them at train.py:9: each had "
        "the same batch.",
        [
            [ONE, OTHERS],
            twice(rank()),  # of tensor parallelism: a replica
            twice(rank(HALF)),
            twice(rank(AVERAGE, gradient=0.0)),
            [ONE],
        ],
    ),
    "diverged-replicas (not averaged)": RankCase(
        [rank(AVERAGE, gradient=1, head=1), rank(AVERAGE, gradient=2, head=3)],
        "error",
        "head.weight got different gradients on the ranks, and these are not averaged, unlike "
        "those of body.weight: the copies diverge.",
        [
            [rank(AVERAGE, gradient=1, head=1), rank(AVERAGE, gradient=2, head=1)],  # a replica
            [rank(AVERAGE, OTHER, gradient=i, head=i) for i in (1, 2)],
            [rank(AVERAGE, replace(LOSS, nbytes=4096), gradient=i, head=i) for i in (1, 2)],
            [rank(gradient=i, head=i) for i in (1, 2)],  # each trains a model of its own
        ],
    ),
}  # fmt: skip


BYPASS = event(WrapperBypass, wrapper="model", nodes=(0,))
STEP = event(OptimizerStep, optimizer="optimizer")
GATHER = Collective(
    "all_gather", 128, "float32", 2, phase="forward", module="cell", where="train.py:8",
    parameters=("cell.weight",), gradients=False,
)  # fmt: skip
SCATTER = replace(GATHER, kind="reduce_scatter", phase="backward", gradients=True)


def sending(*sent: Collective, **fields: Any) -> Graph:
    return model(collectives=sent, **fields)


def called(*scopes: str) -> Graph:
    """A node made by each of these calls of modules."""
    nodes = [Node(i, "AddmmBackward0", (META,), scope=scope) for i, scope in enumerate(scopes)]
    return Graph(tuple(nodes))


def cell(*sent: Collective, scopes: tuple[str, ...] = ("cell", "cell#2", "head")) -> Graph:
    return replace(called(*scopes), collectives=sent)


def units(*names: tuple[str, ...], side: int = 2048) -> Graph:
    """Parameters of 16 MiB each, gathered as these units."""
    large = TensorMeta((side, 2048), "float32", "cpu")
    parameters = [replace(parameter(name), tensor=large) for unit in names for name in unit]
    sent = [replace(GATHER, parameters=unit, module="") for unit in names]
    return Graph((), parameters=tuple(parameters), collectives=tuple(sent))


SPLIT, WHOLE = "Shard(0) on tp, local [2, 4]", "Replicate on tp, local [4, 4]"


def redistributed(*placements: str, titles: str = "mm Redistribute Redistribute relu") -> Graph:
    """A chain of nodes with these placements; the second one gathers."""
    graph = chain(*(f"{title}Backward0" for title in titles.split()))
    nodes = tuple(
        node._replace(operation=title, placement=placement, where=f"train.py:{node.id + 1}")
        for node, title, placement in zip(graph.nodes, titles.split(), placements, strict=True)
    )
    gather = Collective("all_gather", 32, "float32", 2, group="tp", node=1)
    return replace(graph, nodes=nodes, collectives=(gather,))


BACK = redistributed(SPLIT, "", SPLIT, SPLIT)
NORMS = replace(
    chain("body.weight", "native_batch_normBackward0", module="norm"),
    modules=(ModuleRow("norm", "train"),),
    collectives=(AVERAGE,),
).annotate(
    module_class=dict.fromkeys((0, 1), "Net/BatchNorm1d(8)"),
    outputs={1: (TensorMeta((2, 8), "float32", "cpu"),)},
)
BY_DDP = replace(AVERAGE, phase="backward", node=0, own=True, where="train.py:8")
CELLS = tuple(f"{i}.weight" for i in range(4))

CASES: dict[str, Case] = {
    "ddp-bypassed": Case(
        model(events=(BYPASS,)),
        "error",
        "The forward at train.py:7 did not go through model, so the gradients that the "
        "optimizer used were not averaged: each rank trains its own model.",
        [
            sending(AVERAGE, events=(BYPASS,)),  # by hand
            sending(replace(AVERAGE, nbytes=1024, dtype="bfloat16"), events=(BYPASS,)),
            model(events=(STEP,)),
        ],
    ),
    "ddp-unused-parameter": Case(
        model(events=(event(DdpUnusedParameter, parameters=("spare.weight", "spare.bias")),)),
        "error",
        "DistributedDataParallel waits for the gradients of spare.weight and spare.bias, on "
        "which the loss of the forward at train.py:7 does not depend. Their buckets are not "
        "averaged, and the next forward raises an error.",
        [model(events=(STEP,))],
    ),
    "redundant-all-reduce": Case(
        sending(BY_DDP, AVERAGE),
        "warning",
        "The gradients of body.weight, which DistributedDataParallel has averaged in backward, "
        "are reduced again at train.py:9: 2.0 KiB are sent needlessly, and without a "
        "division the sum is 2 times the average.",
        [
            sending(AVERAGE, AVERAGE),  # all by hand
            sending(BY_DDP, OTHER),
            sending(BY_DDP, VALUES),  # the weights are averaged
            sending(BY_DDP, replace(AVERAGE, group="tp")),  # summed over other ranks
            sending(BY_DDP, LOSS),
        ],
    ),
    "non-differentiable-all-gather": Case(
        model(cuts=(Cut("all_gather", META, 0, (1,), "train.py:9", label="features"),)),
        "warning",
        "all_gather at train.py:9 is not differentiable, but the loss uses the gathered copy of "
        "features: no gradient flows back through the copy.",
        [
            model(cuts=(Cut("all_gather", META, 0, (), "train.py:9"),)),  # for a log
            model(cuts=(Cut("detach", META, 0, (1,), "train.py:9"),)),
        ],
    ),
    "fsdp-regather": Case(
        cell(GATHER, GATHER, GATHER, SCATTER),
        "info",
        "The parameters of cell are gathered 3 times in one forward at train.py:8, because they "
        "are freed after each call of the module.",
        [
            cell(GATHER, SCATTER, GATHER, SCATTER),  # two steps
            cell(GATHER, replace(GATHER, phase="backward"), SCATTER),
            cell(GATHER, GATHER),  # evaluation: no backward
            cell(GATHER, GATHER, SCATTER, scopes=("cell", "#2.cell")),  # two forwards of the model
            cell(GATHER, GATHER, SCATTER, scopes=("cell", "other#2.cell")),
        ],
    ),
    "fsdp-single-unit": Case(
        units(CELLS),
        "info",
        "All 4 parameters, 64.0 MiB, are gathered at once at train.py:8, without overlap with "
        "computation, and each rank then has the whole model in memory.",
        [
            units(CELLS[:2], CELLS[2:]),
            units(CELLS, side=2047),
            units(("embedding.weight",), side=8192),  # cannot be divided
        ],
    ),
    "redistributed-back": Case(
        BACK,
        "info",
        "The result of mm (Shard(0) on tp) is redistributed at train.py:2 and redistributed "
        "back at train.py:3, without a computation in between: 32 B are sent needlessly.",
        [
            redistributed(SPLIT, "", WHOLE, WHOLE),
            redistributed(SPLIT, "", "", SPLIT, titles="mm Redistribute relu Redistribute"),
            replace(BACK, edges=(*BACK.edges, Edge(1, 3))),  # the whole one is used too
            replace(BACK, collectives=()),  # nothing is sent
        ],
    ),
    "unsynced-batch-norm": Case(
        NORMS,
        "info",
        "norm normalizes only the 2 rows of each rank, while the ranks average gradients.",
        [
            replace(NORMS, collectives=()),
            replace(NORMS, modules=(ModuleRow("norm", "eval"),)),
            NORMS.annotate(outputs={1: (TensorMeta((16, 8), "float32", "cpu"),)}),
            NORMS.annotate(module_class={1: "Net/SyncBatchNorm(8)"}),
        ],
    ),
}


def micro_batches(*, synced: int, stepped: bool = True, size: int = 2048) -> list[Graph]:
    """Two backwards of one recording, so many of which average; the optimizer steps after them."""
    sent = replace(AVERAGE, nbytes=size, phase="backward")
    rows = [[0, None], [None, 0]] if synced == 2 else [[None], [0]]
    graphs = [
        sending(*(replace(sent, node=node, own=node is not None) for node in row)) for row in rows
    ]
    graphs[1] = replace(graphs[1], events=(STEP,) * stepped)
    return graphs


LARGE = 2 * MIB
