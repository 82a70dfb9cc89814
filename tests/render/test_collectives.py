"""Test that a picture shows each collective once: at its node, at its module, or separately."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from graphviz_torch import Graph
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.graph import Collective, Edge, Node, TensorMeta
from graphviz_torch.render.collectives import describe_collectives, description
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.labels import TIMES

META = (TensorMeta((8,), "float32", "cpu"),)
GATHER = Collective("all_gather", 96, "float32", 2, group="dp", phase="forward")
BLOCKS = 3


def model(*sent: Collective) -> Graph:
    """Blocks of a norm, a layer and an activation, then a loss outside of them."""
    nodes: list[Node] = []
    for block in range(BLOCKS):
        for name, kind in (("norm", "mul"), ("up", "addmm"), ("act", "relu")):
            scope, start = f"blocks.{block}.{name}", len(nodes)
            for i, operation in enumerate((kind, "sin")):
                where = {"module": scope, "scope": scope}
                nodes.append(Node(start + i, "AddBackward0", META, operation=operation, **where))
    nodes.append(Node(len(nodes), "SumBackward0", META, "loss", "sum"))
    edges = tuple(Edge(i, i + 1) for i in range(len(nodes) - 1))
    return Graph(tuple(nodes), edges, ((len(nodes) - 1, 0),), collectives=sent)


def of_blocks(name: str = "") -> list[Collective]:
    """One in each block, for its parameters, while backward is somewhere else."""
    paths = [f"blocks.{block}{name}" for block in range(BLOCKS)]
    return [replace(GATHER, node=0, module=path, parameters=(f"{path}.weight",)) for path in paths]


def counted(text: str) -> int:
    """Return the number of collectives that the lines of a picture mention."""
    said = re.findall(rf"(?:([\d,]+) {TIMES} )?all_\w+[^<\n\"]*?ranks(?: {TIMES}(\d+))?", text)
    return sum(int(before or behind or 1) for before, behind in said)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("depth", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("write", [to_dot, to_mermaid])
def test_each_stands_once_however_much_is_open(write, depth, fold) -> None:  # type: ignore[no-untyped-def]
    reduce = replace(GATHER, kind="all_reduce", group="tp")
    sent = [
        *of_blocks(),
        *of_blocks(".up"),
        *[replace(reduce, node=6 * block + 2) for block in range(BLOCKS)],
        replace(reduce, phase="backward", module="blocks"),
        replace(reduce, phase="optimizer"),
        replace(reduce, module="a.module.that.did.not.run"),
    ]
    text = write(model(*sent), depth=depth, fold=fold)
    assert counted(text) == len(sent)
    [alone] = [line for line in text.splitlines() if line.strip().startswith("sent")]
    assert counted(alone) == 2 + (fold and depth != 0)  # no frame around blocks drawn as one


def test_the_node_that_sends_has_the_form_of_a_collective_and_no_other() -> None:
    graph = model(replace(GATHER, node=3), *of_blocks())
    forms = re.findall(r'^\s+(\w+) \[.*shape="hexagon"', to_dot(graph, fold=False), re.M)
    assert forms == ["3"]
    assert "class n3 collective" in to_mermaid(graph, fold=False)
    assert "sent between ranks" in to_dot(graph, fold=False)
    assert "hexagon" not in to_dot(model())
    assert "sent between ranks" not in to_dot(model())


def test_what_belongs_to_no_module_has_a_box_of_its_own() -> None:
    graph = model(replace(GATHER, kind="send", peer=1), replace(GATHER, kind="send", peer=1))
    assert f'sent[/"between ranks<br/>send 96 B f32 to rank 1 {TIMES}2 · forward"/]' in to_mermaid(
        graph
    )
    assert "to rank 1" in to_dot(graph)
    assert "to rank 1" not in to_dot(graph, module="blocks.1")


def test_blocks_alike_say_it_once_for_all() -> None:
    drawing = draw(model(*of_blocks()), {"fold": True, "depth": 1})
    [[key, sent]] = drawing.collectives.items()
    assert key is not None
    assert key < 0
    assert len(sent) == BLOCKS
    assert f"all_gather 96 B f32 · dp, 2 ranks {TIMES}3 · forward" in to_mermaid(
        drawing.graph, depth=1
    )


def test_many_sizes_in_one_box_are_summed() -> None:
    some = [replace(GATHER, nbytes=1024 * (1 + i)) for i in range(8)]
    assert describe_collectives(some) == [
        f"8 {TIMES} all_gather, in all 36.0 KiB f32 · dp, 2 ranks · forward"
    ]


def test_a_line_names_two_parameters_and_how_many_more_or_the_change_of_placements() -> None:
    size = f"96 B f32 · dp, {GATHER.group_size} ranks · forward"
    some = replace(GATHER, parameters=("up.weight", "up.bias"))
    assert description(some) == f"{size} · up.weight and up.bias"
    more = replace(GATHER, parameters=("up.weight", "up.bias", "down.weight"))
    assert description(more) == f"{size} · up.weight, up.bias and 1 more"
    changed = replace(some, change="Shard(0) -> Replicate()")
    assert description(changed) == f"{size} · Shard(0) -> Replicate()"
    assert description(GATHER) == size
