"""Test regions that were compiled before the recording, and are traced again for it.

The expected values come from the same steps without torch.compile or without a recording.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from graphviz_torch import record
from graphviz_torch.recording.compiled_trace import OperationTrace
from tests.recording.compiled.test_as_eager_has_it import nodes_and_edges, recorded
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor, *more: Tensor, scale: float = 2.0, **options: Any) -> Tensor:
        self.calls += 1
        x = self.a(x) * scale
        for each in more:
            x = x + each
        return x * options.get("factor", 1)


class WithSuper(Base):
    """A model whose forward needs the cell `__class__`."""

    def forward(self, x: Tensor, *more: Tensor, scale: float = 2.0, **options: Any) -> Tensor:
        return self.drop(self.b(super().forward(x, *more, scale=scale, **options)))


class WithCells(Base):
    """A model whose argument an inner function uses."""

    def forward(self, x: Tensor, *more: Tensor, **options: Any) -> Tensor:
        def twice() -> Tensor:
            return self.a(x) + self.b(x)

        return twice().relu()


class Overwriting(Base):
    """A model that reassigns one argument, and changes another in place."""

    def forward(self, x: Tensor, *more: Tensor, **options: Any) -> Tensor:
        x = self.a(x)
        x = self.b(x)
        x.mul_(3)
        return x.sigmoid()


class Breaking(Base):
    """A model with two graph breaks, one of which depends on a value."""

    def forward(self, x: Tensor, *more: Tensor, **options: Any) -> Tensor:
        x = self.a(x)
        if x.sum() > -1e9:
            x = x.relu()
        torch._dynamo.graph_break()
        return self.b(x)


KINDS = (WithSuper, WithCells, Overwriting, Breaking)
X = torch.linspace(-1, 1, 32).view(4, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_of_any_shape_has_the_nodes_of_eager(kind: type[Base]) -> None:
    model = kind()
    given: dict[str, Any] = {"scale": 3.0, "factor": 2} if kind is WithSuper else {}
    more = (torch.ones(8),) if kind is WithSuper else ()
    eager = recorded(model, model, X, *more, **given)
    run = torch.compile(model, backend="aot_eager")
    compiled = recorded(model, run, X, *more, before=2, **given)
    assert nodes_and_edges(compiled)[0] == nodes_and_edges(eager)[0]


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def trained(watched: Callable[[], Any]) -> tuple[Any, ...]:
    """Return all observable results of a step of a model that was compiled before."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    random.seed(0)
    model = WithSuper()
    run = torch.compile(model, backend="aot_eager")
    run(X).sum().backward()
    model.zero_grad()
    with watched() as seen:
        loss = run(X).square().mean()
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    names = [name for name in vars(sys.modules[__name__]) if "_c" in name or "builtins" in name]
    counts = {name: dict(counted) for name, counted in counters.items()}
    random_state = torch.get_rng_state().tolist(), random.getstate()
    what = seen.seen if isinstance(seen, Counting) else None
    return (
        [loss.tolist(), *[g.tolist() for g in gradients]],
        model.calls,
        len(names),
        counts,
        (random_state),
        what,
    )


def test_nothing_of_the_step_is_changed() -> None:
    assert trained(record) == trained(nullcontext)


def test_a_mode_of_the_programs_sees_what_it_saw() -> None:
    class Recorded(Counting):
        def __enter__(self) -> Any:
            self.recording = record()
            super().__enter__()
            self.recording.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.recording.__exit__(*error)
            super().__exit__(*error)

    assert trained(Recorded)[-1] == trained(Counting)[-1]


def test_it_is_traced_once_and_not_where_it_was_told_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced, begin = [], OperationTrace.__init__

    def counted(self: OperationTrace) -> None:
        traced.append(self)
        begin(self)

    monkeypatch.setattr(OperationTrace, "__init__", counted)
    run = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    for letter in "brrbr":
        with record() if letter == "r" else nullcontext():
            run(X).sum().backward()
    assert len(traced) == 1
    torch._dynamo.reset()
    for letter in "rrbr":
        with record() if letter == "r" else nullcontext():
            run(X).sum().backward()
    assert len(traced) == 2


def test_of_what_cannot_be_traced_again_the_region_is_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(8, 8)
    run = torch.compile(model, backend="aot_eager")
    info = type(run(X).grad_fn)._forward_cls._lazy_backward_info  # type: ignore[union-attr]
    for node in info.bw_module.graph.nodes:
        node.meta.clear()  # as inductor leaves it

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("not this version")

    monkeypatch.setattr(torch._dynamo.convert_frame, "compile_frame", fails)
    with record(model) as recording:
        run(X).sum().backward()
    [region] = [node for node in recording.graph.nodes if "torch.compile region" in node.note]
    assert "could not be traced again" in region.note
