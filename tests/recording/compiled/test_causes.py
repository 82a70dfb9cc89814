"""Compare the reported cuts inside a compiled region with those of the uncompiled model.

Each row is the forward of a model. The expected findings are those of the model without
torch.compile, at the line that ends with "# cause".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.output_graph import OutputGraph
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from graphviz_torch import find, record
from graphviz_torch.graph import Finding, Graph
from tests.recording.test_compiled import INDUCTOR, nothing_compiled_stays  # noqa: F401

Forward = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """A model with two branches from the input, and a head after them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.encoder, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm, self.act = nn.BatchNorm1d(8), nn.ReLU(inplace=True)
        self.words = nn.Embedding(8, 8)
        self.calls = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(self, x)


FORWARDS: dict[str, Forward] = {}


def row(forward: Forward) -> Forward:
    FORWARDS[forward.__name__] = forward
    return forward


@row
def detach(m: Model, x: Tensor) -> Tensor:
    gate = m.gate(x).sigmoid()
    gate = gate.detach()  # cause
    return m.head(m.encoder(x) * gate)


@row
def detach_in_place(m: Model, x: Tensor) -> Tensor:
    gate = m.gate(x) * 2
    gate.detach_()  # cause
    return m.head(m.encoder(x) * gate)


@row
def detach_behind_in_place(m: Model, x: Tensor) -> Tensor:
    h = m.act(m.norm(m.encoder(x)))
    return m.head(h + m.gate(h).detach())  # cause


@row
def data(m: Model, x: Tensor) -> Tensor:
    gate = m.gate(x).data  # cause
    return m.head(m.encoder(x) + gate)


@row
def weight_detached(m: Model, x: Tensor) -> Tensor:
    scale = m.gate.weight.detach()  # cause
    return m.head(m.encoder(x) @ scale + m.gate.bias)


@row
def no_grad(m: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = m.gate(x)  # cause
    return m.head(m.encoder(x) * gate)


@row
def no_grad_of_an_expression(m: Model, x: Tensor) -> Tensor:
    gate = m.gate(x)
    with torch.no_grad():
        scale = gate.exp()  # cause
    return m.head(m.encoder(x) * scale)


@row
def everything_before_the_head(m: Model, x: Tensor) -> Tensor:
    h = m.gate(m.encoder(x))
    return m.head(h.detach())  # cause


@row
def argmax(m: Model, x: Tensor) -> Tensor:
    chosen = m.gate(x).argmax(-1)  # cause
    return m.head(m.encoder(x) + m.words(chosen))


@row
def indices_of_topk(m: Model, x: Tensor) -> Tensor:
    indices = m.gate(x).topk(2).indices  # cause
    return m.head(m.encoder(x) + m.words(indices).sum(1))


@row
def indices_of_max(m: Model, x: Tensor) -> Tensor:
    _, chosen = m.gate(x).max(-1)  # cause
    return m.head(m.encoder(x) + m.words(chosen))


@row
def comparison(m: Model, x: Tensor) -> Tensor:
    mask = m.gate(x) > 0  # cause
    return m.head(m.encoder(x) * mask)


@row
def cast_to_integers(m: Model, x: Tensor) -> Tensor:
    chosen = (m.gate(x)[:, 0].sigmoid() * 7).long()  # cause
    return m.head(m.encoder(x) + m.words(chosen))


@row
def one_hot(m: Model, x: Tensor) -> Tensor:
    chosen = m.gate(x).argmax(-1)  # cause
    return m.head(m.encoder(x) * F.one_hot(chosen, 8))


@row
def draw_without_a_gradient(m: Model, x: Tensor) -> Tensor:
    noisy = Normal(m.gate(x), 1.0, validate_args=False).sample()  # cause
    return m.head(m.encoder(x) + noisy)


@row
def draw_of_a_category(m: Model, x: Tensor) -> Tensor:
    chosen = Categorical(logits=m.gate(x), validate_args=False).sample()  # cause
    return m.head(m.encoder(x) + m.words(chosen))


@row
def two_in_a_row(m: Model, x: Tensor) -> Tensor:
    gate = m.gate(m.encoder(x).detach())  # cause
    return m.head(x * gate)


@row
def ones_of_a_mask(m: Model, x: Tensor) -> Tensor:
    mask = torch.where(m.gate(x).ge(0), 1.0, 0.5)  # cause
    return m.head(m.encoder(x) * mask)


@row
def nothing_is_cut(m: Model, x: Tensor) -> Tensor:
    return m.head(m.encoder(x) * m.gate(x) + m.words(x[:, 0].long()))


@row
def a_metric_beside_the_way(m: Model, x: Tensor) -> Tensor:
    logits = m.head(m.encoder(x) * m.gate(x) + m.words(x[:, 0].long()))
    logits.argmax(-1).eq(0).float().mean()
    return logits - logits.detach().mean()


def recorded(forward: Forward, backend: str | None, before: int = 0) -> Graph:
    torch.manual_seed(0)
    model = Model(forward)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if backend is not None:
        model.compile(backend=backend)
    x = torch.rand(4, 8)
    for _ in range(before):
        model(x).square().mean().backward()
        optimizer.zero_grad()
    with record(model) as recording:
        model(x).square().mean().backward()
        optimizer.step()
    recording.graph.check()
    return recording.graph


LOST = ("cut-gradient", "backward-returned-none", "zero-gradient")


def told(graph: Graph) -> list[Any]:
    """Return the findings about lost gradients, without the names of tensors."""

    def described(found: Finding) -> tuple[str, ...]:
        return found.rule, found.severity, found.where, found.cause, found.advice

    return [described(found) for found in find(graph) if found.rule in LOST]


def causes(forward: Forward) -> list[str]:
    lines, first = inspect.getsourcelines(forward)
    at = (i for i, line in enumerate(lines, first) if line.endswith("  # cause\n"))
    return [f"test_causes.py:{i}" for i in at]


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", FORWARDS)
def test_a_cut_inside_is_named_as_in_eager_with_its_line(name: str, before: int) -> None:
    forward = FORWARDS[name]
    compiled = recorded(forward, "aot_eager", before)
    assert any("torch.compile region" in node.note for node in compiled.nodes)
    eager = recorded(forward, None, before)
    assert told(compiled) == told(eager)
    named = {found.where for found in find(compiled) if found.rule == "cut-gradient"}
    assert sorted(named) == causes(forward)


@pytest.mark.parametrize("backend", [INDUCTOR])
def test_inductor_names_a_cut_in_a_model_that_was_compiled_before(backend: str) -> None:
    compiled = recorded(detach, backend, before=2)
    assert told(compiled) == told(recorded(detach, None, before=2)) != []


def test_dynamo_is_as_before_after_a_compilation_and_one_that_failed() -> None:
    run, compiler = torch._dynamo.utils.run_node, OutputGraph.call_user_compiler
    recorded(detach, "aot_eager")
    assert (torch._dynamo.utils.run_node, OutputGraph.call_user_compiler) == (run, compiler)

    def fails(graph: object, inputs: object) -> None:
        raise RuntimeError("no code")

    with record(), pytest.raises(BackendCompilerFailed):
        torch.compile(nn.Linear(2, 2), backend=fails)(torch.ones(1, 2))
    assert (torch._dynamo.utils.run_node, OutputGraph.call_user_compiler) == (run, compiler)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


@pytest.mark.parametrize("before", [0, 2])
def test_a_cut_between_two_regions_is_named_as_in_eager(before: int) -> None:
    found = []
    for backend in None, "aot_eager":
        model = nn.ModuleList([Block(8), Block(4)])
        for block in model if backend else ():
            block.compile(backend=backend)

        def step(model: nn.ModuleList = model) -> None:
            features = model[0](torch.ones(4, 8)).detach()
            model[1](features).sum().backward()

        for _ in range(before):
            step()
        model.zero_grad()
        with record(model) as recording:
            step()
        found.append([row[:4] for row in told(recording.graph)])  # without the advice
    assert found[0] == found[1] != []
