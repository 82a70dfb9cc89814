"""Test that each listener gets the events that it requests, whatever other listeners request."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from graphviz_torch import Graph, find, record, simulate_accelerator
from graphviz_torch.findings.rules.freezing import EvalMode
from graphviz_torch.findings.rules.training import EarlySchedulerStep
from graphviz_torch.graph.events import OptimizerStep
from graphviz_torch.internals.frames import enter_program, leave_program
from graphviz_torch.internals.hooks.calls import Called, Calling, CallWatch, Raised
from graphviz_torch.internals.hooks.dispatch import Dispatched, OperatorWatch
from graphviz_torch.internals.hooks.optimizers import BatchWatch
from graphviz_torch.recording import listeners
from graphviz_torch.recording.backward import Backward
from graphviz_torch.recording.listener import BackwardBegan, BackwardEnded, Listener
from graphviz_torch.recording.live import LiveGraph
from graphviz_torch.recording.program import Program
from graphviz_torch.recording.program.program import Options
from graphviz_torch.recording.recorder import Columns
from graphviz_torch.recording.session import Session

Add = Callable[..., None]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Add:
    """Add listeners to all recordings of a test."""

    def more(*kinds: type[Listener]) -> None:
        monkeypatch.setattr(listeners, "LISTENERS", (*listeners.LISTENERS, *kinds))

    return more


def listening(functions: Any, into: list[Any], **methods: Any) -> type[Listener]:
    """A class that notes the functions of the calls that it is told of."""

    def called(self: Any, event: Called) -> None:
        into.append(event.func)

    body = {"functions": functions, "on_call_end": called, **methods}
    return type("Noting", (Listener,), body)


def step() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    (torch.sin(x) * 2).sum().backward()


def test_two_that_ask_for_the_same_function_are_both_told(add: Add) -> None:
    first: list[Any] = []
    second: list[Any] = []
    add(listening({torch.sin}, first), listening({torch.sin, Tensor.sum}, second))
    with record() as recording:
        step()
    assert first == [torch.sin]
    assert second == [torch.sin, Tensor.sum]
    assert [node.operation for node in recording.graph.nodes] == ["", "sin", "mul", "sum"]


def test_one_without_functions_is_told_of_every_call_that_computes_and_of_no_other(
    add: Add,
) -> None:
    every: list[Any] = []
    add(listening(None, every))
    with record():
        x = torch.ones(2, 3, requires_grad=True)
        assert x.shape == (2, 3)
        assert x.dim() == 2
        torch.sin(x)
    assert torch.sin in every
    assert Tensor.dim not in every
    assert Tensor.shape.__get__ not in every  # type: ignore[attr-defined]


def test_a_listener_has_a_seam_of_its_own_open_while_its_program_is_recorded(add: Add) -> None:
    asked: list[str] = []

    def batch_asked(self: Listener, event: str) -> None:
        asked.append(event)
        raise ValueError("of the listener")

    def watch(tell: Callable[[Any], None]) -> BatchWatch:
        return BatchWatch(on_request=lambda: tell("a batch"))

    add(
        type("Noting", (Listener,), {"watches": {"batch_asked": watch}, "batch_asked": batch_asked})
    )
    loader = DataLoader(range(2), batch_size=1)
    with record() as recording:
        list(loader)
        with ThreadPoolExecutor(1) as other:  # another program's
            other.submit(list, loader).result()
        step()
    list(loader)
    assert asked == ["a batch"] * 3  # the last finds none
    assert "not recorded: ValueError: of the listener" in recording.graph.nodes[-1].note


def test_what_one_raises_is_noted_and_the_next_one_is_told(add: Add) -> None:
    def fail(self: Any, event: Called) -> None:
        raise LookupError("no such thing")

    noted: list[Any] = []
    add(listening({torch.sin}, [], on_call_end=fail), listening({torch.sin}, noted))
    with record() as recording:
        step()
    assert noted == [torch.sin]
    said = "not recorded: LookupError: no such thing"
    assert said in recording.graph.nodes[-1].note
    assert find(recording).checked.missing == (said,)


def test_what_could_not_be_read_stands_behind_what_is_noted_and_of_its_own_step(add: Add) -> None:
    class Once(Listener):
        functions = frozenset((torch.sin,))
        calls = 0

        def on_call_end(self, event: Called) -> None:
            self.calls += 1
            if self.calls == 1:
                raise LookupError("of the first step")

        def node_columns(self, backward: Backward) -> Columns:
            return {"note": {node: "an output" for node, _ in backward.reading.ends}}

    add(Once)
    with record() as recording:
        steps = []
        for _ in range(2):
            step()
            steps += recording.next_step()
    notes = [graph.nodes[-1].note for graph in steps]
    assert notes == ["an output; not recorded: LookupError: of the first step", "an output"]


def test_a_listener_may_ask_in_which_module_a_call_begins_and_ends(add: Add) -> None:
    asked: list[str] = []

    class Modules(Listener):
        def on_module_start(self, event: object) -> None:
            asked.append(self.program.module)

        def on_module_end(self, event: object) -> None:
            asked.append(self.program.module)

    add(Modules)
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()))
    with record(model):
        model(torch.ones(1, 2)).sum().backward()
    assert asked == ["", "0", "0", "1", "1.0", "1.0", "1", ""]


def test_a_seam_that_two_ask_for_tells_each_once(add: Add) -> None:
    told: list[str] = []

    def came(self: Listener, event: object) -> None:
        told.append(type(self).__name__)

    body = {"watches": {"on_batch": BatchWatch}, "on_batch": came}
    add(type("One", (Listener,), body), type("Other", (Listener,), body))
    with record():
        list(DataLoader(range(2), batch_size=1))
        step()
    assert told == ["One", "Other"] * 2


def test_the_events_of_a_step_come_in_its_order(add: Add) -> None:
    told: list[str] = []

    class Order(Listener):
        functions = frozenset((torch.sin,))

        def on_call_start(self, event: Calling) -> None:
            told.append("calling")

        def on_call_end(self, event: Called) -> None:
            told.append("called")

        def on_module_start(self, event: object) -> None:
            told.append("module began")

        def on_module_end(self, event: object) -> None:
            told.append("module ended")

        def on_graph_read(self, live: LiveGraph) -> None:
            told.append("read")

        def on_backward_start(self, event: BackwardBegan) -> None:
            told.append(f"backward of {len(event.live.ids)}")

        def on_backward_end(self, event: BackwardEnded) -> None:
            told.append(f"ran {len(event.backward.ran or ())}")

        def on_optimizer_step_start(self, event: object) -> None:
            told.append("stepping")

        def on_optimizer_step_end(self, event: object) -> None:
            told.append("stepped")

    add(Order)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record(model):
        torch.sin(model(torch.ones(2, 3))).sum().backward()
        optimizer.step()
    assert told == [
        *("module began", "module ended", "calling", "called", "read"),
        *("backward of 6", "ran 6", "stepping", "stepped"),
    ]


def test_a_call_that_raises_is_told_as_such(add: Add) -> None:
    errors: list[str] = []

    def raised(self: Any, event: Raised) -> None:
        errors.append(type(event.error).__name__)

    add(listening(set(), [], on_call_error=raised))
    with pytest.raises(RuntimeError), record(notes=False):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert errors == ["RuntimeError"]


def test_operators_are_told_to_who_asked_with_and_without_a_device(add: Add) -> None:
    copies: list[str] = []
    products: list[str] = []

    class Products(Listener):
        operators = {"aten::mm": lambda args, result: True}  # noqa: RUF012
        everywhere = True

        def on_operator(self, event: Dispatched) -> None:
            products.append(event.operator)

    class Copies(Listener):
        operators = {"aten::_to_copy": lambda args, result: True}  # noqa: RUF012

        def on_operator(self, event: Dispatched) -> None:
            copies.append(event.operator)

    add(Products, Copies)
    with record():
        torch.eye(2) @ torch.eye(2)
    assert products == ["aten::mm"]
    with simulate_accelerator() as [device], record() as recording:
        torch.eye(2, requires_grad=True).to(device).sum().backward()
        torch.eye(2) @ torch.eye(2)
    assert products == ["aten::mm"] * 2
    assert "aten::_to_copy" in copies
    assert [copy.kind for copy in recording.graph.transfers] == ["HtoD", "DtoH"]


def test_watches_of_different_operators_stand_side_by_side() -> None:
    told: list[tuple[int, str]] = []

    def watch(number: int, operator: str) -> OperatorWatch:
        def tell(event: Dispatched) -> None:
            told.append((number, event.operator))

        return OperatorWatch({operator: lambda args, result: True}, tell, everywhere=True)

    with watch(1, "aten::mm"), watch(2, "aten::sin"):
        torch.eye(2) @ torch.eye(2)
        torch.eye(2).sin()
    torch.eye(2).sin()
    assert told == [(1, "aten::mm"), (2, "aten::sin")]


def test_a_watch_is_told_what_it_would_be_told_alone() -> None:
    outer, inner = "aten::matmul", "aten::mm"  # the former calls the latter
    asked = [[outer], [inner], [outer, inner], [inner]]
    told: list[list[str]] = [[] for _ in asked]

    def watch(number: int) -> OperatorWatch:
        operators = dict.fromkeys(asked[number], lambda args, result: True)
        note = told[number].append
        return OperatorWatch(operators, lambda e: note(e.operator), everywhere=True)

    def run() -> None:
        torch.eye(2) @ torch.eye(2)
        torch.mm(torch.eye(2), torch.eye(2))
        with pytest.raises(RuntimeError):
            torch.eye(2) @ torch.eye(3)

    for number in range(len(asked)):
        with watch(number):
            run()
    alone = [list(each) for each in told]
    assert alone == [[outer], [inner, inner], [outer, inner], [inner, inner]]
    with watch(0), watch(1), watch(2), watch(3):
        run()
    assert told == [each * 2 for each in alone]


def test_a_light_recording_leaves_out_the_listeners_that_observe_every_call() -> None:
    light = Session(None, None, Options("finite", True, False, True))
    assert {type(one).__name__ for one in light.listeners} <= {
        "Collectives",
        "Copies",
        "Cuts",
        "EarlySchedulers",
        "Failures",
        "FastPaths",
        "FiniteResults",
        "Gradients",
        "Replicas",
        "RowListener",
        "SmallResults",
        "StaleGradients",
        "Steps",
        "TrainingSetup",
        "Weights",
        "Wrappers",
    }
    queries = light.program.log.queries
    names = {"AnomalyModes", "CollectivesInGraph", "Modes", "OptimizerSteps", "Reruns"}
    assert {type(one).__name__ for one in queries} <= names
    assert not any("on_call_end" in query.rows_of for query in queries)
    assert len(Session(None, None, Options(True, True, True, True)).listeners) > 40


def test_a_program_that_is_not_here_is_not_told() -> None:
    noted: list[Any] = []
    key = object()
    one = listening(None, noted)(Program(None, None, Options(True, True, True, True)))
    watch = CallWatch((one,), key, noted.append)
    with watch:
        torch.ones(1).sin()
    assert noted == []
    enter_program(key)
    try:
        with watch:
            torch.sin(torch.ones(1))
    finally:
        leave_program(key)
    assert torch.sin in noted


def twice(into: Any, outof: tuple[Tensor]) -> None:
    """Double a gradient in place."""
    outof[0].mul_(2)


def trained(device: Any, **options: Any) -> list[Graph]:
    """The graphs of a training with a cut, a NaN, copies, a failure, steps in eval mode, and a
    checkpointed part that makes Inf and whose gradient is changed in place.
    """
    torch.manual_seed(0)
    encoder, head = nn.Linear(3, 4).to(device), nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    model = nn.ModuleDict({"encoder": encoder, "drop": nn.Dropout(), "head": head}).eval()
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    recording = record(model, notes=False, **options)
    with suppress(RuntimeError), recording:  # the last backward fails
        for _ in range(2):
            hidden = encoder(torch.randn(2, 3).to(device)).detach()
            loss = (head(model["drop"](hidden)) - 9).log().mean()
            loss.backward()
            scheduler.step()
            optimizer.step()
        x = torch.ones(3, requires_grad=True)
        part = checkpoint(lambda a: (a - 1).reciprocal(), x, use_reentrant=False)
        part.grad_fn.register_hook(twice)
        (part * 3).sum().backward()
        y = x.exp()
        y.add_(1)
        y.sum().backward()
    return [
        # NaN is not equal to itself, its text is.
        replace(
            graph,
            nodes=tuple(n._replace(seconds=None, values=repr(n.values)) for n in graph.nodes),
        )
        for graph in recording.graphs
    ]


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fingerprints": True},
    {"gradients": "finite", "memory": True},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_the_listeners_gives_the_same_graphs(
    seed: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulate_accelerator() as (device,):
        graphs = trained(device, **options)
        # Several note something of one moment, that an optimizer is about to step.
        told = {OptimizerStep} if "gradients" in options else {EarlySchedulerStep, EvalMode}
        assert told <= set(map(type, graphs[-1].events))
        # And two of one node.
        assert any(node.is_checkpointed and "; " in node.note for node in graphs[-2].nodes)
        order = list(listeners.LISTENERS)
        random.Random(seed).shuffle(order)
        monkeypatch.setattr(listeners, "LISTENERS", tuple(order))
        assert trained(device, **options) == graphs
