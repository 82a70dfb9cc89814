"""Test functions that torch.compile skips: they are recorded as uncompiled code, and reported.

The expected values come from the same model without torch.compile, and from Dynamo's own counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from graphviz_torch import find, record
from graphviz_torch.graph import Finding, Graph
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401

WAYS = ["first", "second", "third"]
X = torch.linspace(-1, 1, 32).view(4, 8)


class Net(nn.Module):
    way = "first"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.lstm, self.head = nn.LSTM(8, 8), nn.Linear(8, 1)


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
            if x.sum() > 0:  # here
                x = x * 2
        return self.head(x)


class Choosing(Net):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
            x = torch.where(x.sum() > 0, x * 2, x)
        return self.head(x)


class Recurrent(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.layers[0](x))[0].detach() * self.layers[1](x))  # here


class Asking(Net):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
            torch._dynamo.graph_break()  # here
        return self.head(x)


class OfManyKinds(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[WAYS.index(self.way)](x))


def compiled(model: Net, in_place: bool) -> Callable[[Tensor], Tensor]:
    if in_place:
        model.compile(backend="aot_eager")
        return model
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


def recorded(kind: type[Net], before: int | None, in_place: bool = False) -> Graph:
    """A step of such a model; before it is recorded it has made some: None for one uncompiled."""
    torch.manual_seed(0)
    model = kind()
    run: Any = model if before is None else compiled(model, in_place)
    for _ in range(before or 0):
        run(X).sum().backward()
    model.zero_grad()
    with record(model) as recording:
        run(X).sum().backward()
    return recording.graph


def described(graph: Graph) -> list[str]:
    return [repr([*node._replace(seconds=None)]) for node in graph.nodes]


def told(graph: Graph) -> tuple[list[Finding], list[Finding]]:
    """Return the findings about skipped functions, and the other findings."""
    found = find(graph)
    said = [one for one in found if one.rule == "compile-skipped"]
    return said, [one for one in found if one not in said]


SKIPPED = [
    (Branching, "a Python branch depends on the value of a tensor"),
    (Recurrent, "an RNN, GRU or LSTM is not compiled"),
    (Asking, "the program requests a graph break"),
]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(("kind", "why"), SKIPPED)
def test_what_is_skipped_is_recorded_as_uncompiled_and_is_said(
    kind: type[Net], why: str, before: int, in_place: bool
) -> None:
    eager, graph = recorded(kind, None), recorded(kind, before, in_place)
    assert counters["stats"]["unique_graphs"] == 0
    assert described(graph) == described(eager)
    [said], others = told(graph)
    assert others == find(eager)
    lines, first = inspect.getsourcelines(kind)
    if before:
        assert "torch.compile skipped forward() at test_skipped.py:" in said.message
        assert said.where == f"test_skipped.py:{first + _line(lines, 'def forward')}"
    else:
        assert why in said.message
        assert "cannot resume there and skips forward()" in said.message
        assert said.where == f"test_skipped.py:{first + _line(lines, '# here')}"


def _line(lines: list[str], text: str) -> int:
    [number] = [i for i, line in enumerate(lines) if text in line]
    return number


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


class OfBlocks(Net):
    """A model whose forward Dynamo skips, while it compiles the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.lstm(x)[0]))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("before", [0, 2])
def test_around_what_it_calls_that_is_compiled_modules_and_lines_are_eagers(
    before: int, in_place: bool
) -> None:
    def placed(graph: Graph) -> list[tuple[str, ...]]:
        inner = [node for node in graph.nodes if not node.leaf and node.operation != "compiled"]
        return sorted((node.operation, node.module, node.where) for node in inner)

    graph = recorded(OfBlocks, before, in_place)
    assert [node.module for node in graph.nodes if node.operation == "compiled"] == [
        "blocks.0",
        "blocks.1",
    ]
    assert placed(graph) == placed(recorded(OfBlocks, None))
    assert len(told(graph)[0]) == 1


@pytest.mark.parametrize("before", [0, 2])
def test_where_the_advice_is_followed_it_is_compiled_and_nothing_is_said(before: int) -> None:
    graph = recorded(Choosing, before)
    assert counters["stats"]["unique_graphs"] == 1
    assert not told(graph)[0]


def test_with_the_setting_that_the_advice_names_an_lstm_is_compiled() -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        graph = recorded(Recurrent, 0)
    assert counters["stats"]["unique_graphs"] == 1
    assert not told(graph)[0]


def test_a_function_that_was_compiled_as_often_as_it_may_be_is_said() -> None:
    torch.manual_seed(0)
    model = OfManyKinds()
    said = []
    with torch._dynamo.config.patch(recompile_limit=2):
        run = compiled(model, in_place=False)
        for way in WAYS:
            model.way = way
            with record(model) as recording:
                run(X).sum().backward()
            said.append(told(recording.graph)[0])
    assert [len(each) for each in said] == [0, 0, 1]
    assert counters["stats"]["unique_graphs"] == 2
    assert said[2][0].message.startswith(
        "torch.compile no longer compiles forward() at test_skipped.py:"
    )
    assert "as often as" in said[2][0].message


@pytest.mark.parametrize("before", [0, 1])
def test_a_cut_between_layers_of_pytorchs_that_are_compiled_in_place_is_told_as_in_eager(
    before: int,
) -> None:
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        encoder, head = nn.Linear(8, 8), nn.Linear(8, 1)
        if compiles:
            encoder.compile(backend="aot_eager")
            head.compile(backend="aot_eager")
        for _ in range(before):
            head(encoder(X)).sum().backward()
        encoder.zero_grad()
        with record(nn.ModuleList([encoder, head])) as recording:
            head(encoder(X).detach()).sum().backward()
        # From 2.15 on dynamo compiles these, too, and the second one once more.
        found.append(
            [
                (one.rule, one.message, one.where)
                for one in find(recording)
                if one.rule != "compile-recompile"
            ]
        )
    assert found[1] == found[0]
    assert [rule for rule, *_ in found[0]] == ["cut-gradient"]
