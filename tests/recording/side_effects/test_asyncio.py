"""Test asyncio tasks that record alternately in one thread: each records its own calls."""

from __future__ import annotations

import asyncio

import torch
from torch import nn

from graphviz_torch import Graph, record


async def train(width: int, steps: int, turns: list[int]) -> list[Graph]:
    model = nn.Linear(width, 1)
    with record(model) as recording:
        for _ in range(steps):
            loss = model(torch.ones(2, width)).sum()
            await asyncio.sleep(0)
            loss.backward()
            turns.append(width)
            await asyncio.sleep(0)
            model.weight.detach()
    return recording.graphs


async def alone(turns: list[int]) -> None:
    for _ in range(6):
        torch.ones(7, requires_grad=True).exp().sum().backward()
        turns.append(0)
        await asyncio.sleep(0)


def test_tasks_that_record_in_turns_do_not_see_each_others_backwards() -> None:
    turns: list[int] = []

    async def together() -> tuple[list[Graph], list[Graph], None]:
        return await asyncio.gather(train(3, 4, turns), train(5, 2, turns), alone(turns))

    three, five, _ = asyncio.run(together())
    assert turns != sorted(turns)  # they took turns
    for width, graphs, steps in ((3, three, 4), (5, five, 2)):
        assert len(graphs) == steps
        for graph in graphs:
            assert [p.tensor.shape for p in graph.parameters] == [(1, width), (1,)]
            assert {node.module for node in graph.nodes} == {""}
            assert {p.got_gradient or bool(p.node is not None) for p in graph.parameters} == {True}
            shapes = {meta.shape for node in graph.nodes for meta in node.outputs if meta}
            assert not {(7,), (1, 8 - width)} & shapes


def test_a_task_that_is_made_inside_a_block_is_recorded_with_it() -> None:
    async def block() -> list[Graph]:
        x = torch.ones(2, requires_grad=True)

        async def backward() -> None:
            x.exp().sum().backward()

        with record() as recording:
            await asyncio.gather(backward(), backward())
        return recording.graphs

    assert [[node.name for node in graph.nodes] for graph in asyncio.run(block())] == [
        ["AccumulateGrad", "ExpBackward0", "SumBackward0"]
    ] * 2
