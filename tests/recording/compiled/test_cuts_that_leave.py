"""Test cuts inside a compiled region whose results the program uses outside.

Each row is a compiled function that returns the result of a cut. The expected findings are those of
the function without torch.compile, at the line that ends with "# cause".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import find, record
from graphviz_torch.graph import Graph
from tests.recording.test_compiled import INDUCTOR, nothing_compiled_stays  # noqa: F401

Cutting = Callable[["Model", Tensor], tuple[Tensor, ...]]
Step = Callable[["Model", Callable[[Tensor], tuple[Tensor, ...]]], Tensor]
X = torch.linspace(-1, 1, 32).view(4, 8)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)


def detached(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    h = m.encoder(x)
    return m.gate(h).detach(), m.head(h)  # cause


def under_no_grad(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    h = m.encoder(x)
    with torch.no_grad():
        gate = m.gate(h)  # cause
    return gate, m.head(h)


def chosen(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    return m.gate(x).argmax(-1).float(), m.head(m.encoder(x))  # cause


def data(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    return m.gate(x).data, m.head(m.encoder(x))  # cause


def detached_and_more(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    gate = m.gate(x).detach()  # cause
    return gate.exp() * 2, m.head(m.encoder(x))


def cut_is_all_of_it(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    return (m.gate(m.encoder(x)).detach(),)  # cause


def all_under_no_grad(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (m.gate(x).relu(),)  # cause


def all_chosen(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    return (m.gate(x).argmax(-1)[:, None].float() * torch.ones(8),)  # cause


def cut_twice(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    return (m.gate(m.encoder(x).detach()).detach(),)  # cause  # cause


def nothing_is_cut(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    return m.gate(x), m.head(m.encoder(x))


ROWS = (
    detached,
    under_no_grad,
    chosen,
    data,
    detached_and_more,
    cut_is_all_of_it,
    all_under_no_grad,
    all_chosen,
    cut_twice,
    nothing_is_cut,
)


def a_factor(m: Model, run: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor:
    gate, *rest = run(X)
    return (gate.mean() * (rest[0] if rest else m.head(X))).square().mean()


def a_term(m: Model, run: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor:
    gate, *rest = run(X)
    return (rest[0] if rest else m.head(X)).square().mean() + gate.mean()


def in_a_copy(m: Model, run: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor:
    gate, *rest = run(X)
    return (gate.clone().sum() * (rest[0] if rest else m.head(X))).mean()


def not_used(m: Model, run: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor:
    _, *rest = run(X)
    return (rest[0] if rest else m.head(X)).square().mean()


def recorded(
    cutting: Cutting, steps: Sequence[Step], backend: str | None, before: int = 0
) -> list[Graph]:
    """Record each of the steps, which share a model, after `before` steps without a recording."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model()

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return cutting(model, x)

    ran = run if backend is None else torch.compile(run, backend=backend)
    for _ in range(before):
        steps[0](model, ran).backward()
    graphs = []
    for step in steps:
        model.zero_grad()
        with record(model) as recording:
            step(model, ran).backward()
        recording.graph.check()
        graphs.append(recording.graph)
    return graphs


def told(graph: Graph) -> list[tuple[str, ...]]:
    """What is said of it; of a result inside a region it is not known what it is called."""
    found = find(graph)
    return sorted((one.rule, one.severity, one.where, one.cause, one.advice) for one in found)


def used(graph: Graph) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The nodes that took what each cut gave, by how and where it was cut."""
    return {
        (cut.how, cut.where): sorted(
            (graph.nodes[node].operation, graph.nodes[node].where) for node in cut.after
        )
        for cut in graph.cuts
    }


def causes(cutting: Cutting) -> list[str]:
    lines, first = inspect.getsourcelines(cutting)
    at = (i for i, line in enumerate(lines, first) if line.endswith("  # cause\n"))
    return [f"test_cuts_that_leave.py:{i}" for i in at]


STEPS = (a_factor, a_term, in_a_copy, not_used)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("cutting", ROWS)
def test_a_cut_that_leaves_a_region_is_named_as_in_eager(cutting: Cutting, before: int) -> None:
    # In the first step the region is compiled or traced again, in the others it is known.
    first = (ROWS.index(cutting) + before // 2) % len(STEPS)
    steps = [*STEPS[first:], *STEPS[:first]]
    if cutting is nothing_is_cut:
        steps.remove(not_used)  # its gradient would be zeros of the compiled code
    graphs = [recorded(cutting, steps, backend, before) for backend in ("aot_eager", None)]
    for step, compiled, eager in zip(steps, *graphs, strict=True):
        assert told(compiled) == told(eager), step
        for cut, users in used(eager).items():
            assert used(compiled).get(cut, []) == users, step
        named = {
            one.where for one in find(compiled) if one.cause.startswith("cut by") and one.where
        }
        assert named <= {*causes(cutting)}, step
        assert named or cutting is nothing_is_cut or step is not_used, step


@pytest.mark.parametrize("backend", [INDUCTOR])
@pytest.mark.parametrize("cutting", [detached, all_under_no_grad])
def test_inductor_names_it_too(cutting: Cutting, backend: str) -> None:
    [compiled], [eager] = (recorded(cutting, [a_factor], name, 1) for name in (backend, None))
    assert told(compiled) == told(eager) != []


def test_each_block_that_shares_compiled_code_has_its_own_cut() -> None:
    found = []
    for backend in None, "aot_eager":
        torch.manual_seed(0)
        model = nn.ModuleList([Model(), Model(), Model()])

        def run(block: Model, x: Tensor) -> Tensor:
            return block.gate(x).detach()

        ran = run if backend is None else torch.compile(run, backend=backend)
        heads = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
        for _ in range(2):
            with record(nn.ModuleList([model, heads])) as recording:
                features = [ran(block, X) for block in model[:2]]  # type: ignore[arg-type]
                sum(head(x).sum() for head, x in zip(heads, features, strict=True)).backward()
        found.append(told(recording.graph))
    assert found[0] == found[1] != []


def test_the_code_of_a_region_calls_its_graph_as_before_and_after_an_error() -> None:
    def graphs() -> dict[str, Any]:
        return {
            name: caller.__closure__[caller.__code__.co_freevars.index("fn")].cell_contents
            for name, caller in globals().items()
            if name.startswith("__compiled_fn")
        }

    model = Model()
    ran = torch.compile(lambda x: detached(model, x), backend="aot_eager")
    ran(X)
    before = graphs()
    assert before
    with record(model):
        a_term(model, ran).backward()
    assert graphs() == before
    with record(model), pytest.raises(RuntimeError):
        ran(torch.ones(4, 3))
    assert graphs().items() >= before.items()


class Extractor(nn.Module):
    """Its encoder's hook keeps a cut copy; what it gives itself is not used."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.Tanh())]
        self.encoder, self.head = nn.Sequential(*layers), nn.Linear(8, 4)
        self.kept: list[Tensor] = []
        self.encoder[0].register_forward_hook(self.keep)

    def keep(self, module: nn.Module, given: object, result: Tensor) -> None:
        self.kept.append(result.clone().detach())


def whole(model: Extractor) -> Callable[[Tensor], Tensor]:
    return torch.compile(model.encoder, backend="aot_eager")


def in_place(model: Extractor) -> Callable[[Tensor], Tensor]:
    model.encoder.compile(backend="aot_eager")
    return model.encoder


def each_in_place(model: Extractor) -> Callable[[Tensor], Tensor]:
    """Dynamo leaves the head to Python; nobody sees that it takes the copy."""
    model.head.compile(backend="aot_eager")
    return in_place(model)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("compiling", [whole, in_place, each_in_place])
def test_a_region_whose_own_result_is_not_used_has_its_cut(
    compiling: Callable[[Extractor], Callable[[Tensor], Tensor]], depth: int, before: int
) -> None:
    found = []
    for how in compiling, None:
        torch.manual_seed(0)
        model = Extractor(depth)
        encoder = how(model) if how else model.encoder

        def step(model: Extractor = model, encoder: Any = encoder) -> None:
            encoder(X)
            model.head(model.kept.pop()).square().mean().backward()

        for _ in range(before):
            step()
        model.zero_grad()
        with record(model) as recording:
            step()
        recording.graph.check()
        # From 2.15 on dynamo compiles layers in place, too, and the second one once more.
        told = [one for one in find(recording) if one.rule != "compile-recompile"]
        found.append([(one.rule, one.where, one.cause) for one in told])
    assert found[0] == found[1] != []


@pytest.mark.parametrize("before", [0, 2])
def test_nothing_is_said_of_what_a_compiler_does_without_gradients(before: int) -> None:
    """AOTAutograd runs its code under no_grad(): that is not the program's."""
    [graph] = recorded(nothing_is_cut, [a_factor], "aot_eager", before)
    assert not graph.cuts
    assert not [one for one in find(graph) if "no_grad" in one.message]
