"""Graphs that trigger the rules on transfers, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphviz_torch.graph import Graph, Transfer
from tests.findings.by_hand.graphs import META, MIB, NUMBER, Case, chain, model

GPU = META._replace(device="cuda:0")


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


CASES: dict[str, Case] = {
    "unused-copy": Case(
        moved(sent(used=False, operation="cuda")),
        "warning",
        "x was copied to cuda:0 at train.py:12, but the copy was never used.",
        [
            moved(sent(used=True)),
            moved(sent(used=None)),
            moved(read(used=False)),
            moved(sent(used=False, library="lightning")),
        ],
    ),
    "repeated-copy": Case(
        moved(*[sent(data=1) for _ in range(3)]),
        "warning",
        "x was copied from cpu to cuda:0 3 times, 4.0 KiB more than one copy needs at train.py:12.",
        [
            moved(*[sent(data=i) for i in range(3)]),  # another batch each time
            moved(*[sent() for _ in range(3)]),
            moved(sent(data=1), sent(data=1, target="cuda:1"), sent(data=1, target="cuda:2")),
            moved(*[read(data=1, operation="add_", tensor=NUMBER) for _ in range(3)]),  # alpha=x
        ],
    ),
    "round-trip": Case(
        detour(2),
        "warning",
        "h went from cuda:0 to cpu at net.py:3 and came back at train.py:12 with 2 nodes in "
        "between.",
        [
            detour(30),
            moved(sent(data=1), read(data=2)),
            moved(sent(data=1), read(data=1, operation="to", library="torch.distributed")),
            copied("tensor"),
        ],
    ),
    "pageable-copy": Case(
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
    "tiny-copies": Case(
        moved(*[sent(data=i) for i in range(20)]),
        "info",
        "20 copies from cpu to cuda:0 in a row at train.py:12 move 40.0 KiB in total.",
        [
            moved(*[sent(data=i) for i in range(5)]),
            moved(*[sent(data=i, tensor=GPU._replace(shape=(MIB,))) for i in range(20)]),
            # A training loop: a batch, its targets, and the loss read back.
            moved(*[sent(data=i, where=f"train.py:{i % 2}") for i in range(40)]),
            moved(*[sent(label="body.weight") for _ in range(20)]),
        ],
    ),
    "device-sync": Case(
        moved(read(operation="item", in_forward=True)),
        "warning",
        "x is read with item() in the forward of the model at train.py:12: each read waits for "
        "all queued work of cuda:0.",
        [
            moved(read(operation="item")),
            moved(sent(operation="item", in_forward=True)),
            moved(*[read(operation="item", library="torch.amp") for _ in range(9)]),
        ],
    ),
    "copy-in-backward": Case(
        copied("parameter"),
        "warning",
        "w: 1 copy between devices inside the graph (2.0 KiB). Backward copies the gradients back.",
        [moved(sent())],
    ),
}
