"""Test findings on a backward that failed in a custom Function or in a hook."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from graphviz_torch import Graph, find, record
from graphviz_torch.graph import Failure, Node, Operand, Parameter, TensorMeta
from tests.support.failing import failing, leaf, line
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


class Broken(Function):
    """A Function whose backward calls the given function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.run(gradient), None


def refuse(gradient: Tensor) -> Tensor:
    raise RuntimeError("no gradient today")  # raises


@pytest.mark.parametrize(
    ("backward", "said"), [(refuse, "no gradient today"), (lambda g: g[0], "invalid gradient")]
)
def test_a_custom_function_whose_backward_fails(
    backward: Callable[[Tensor], Tensor], said: str
) -> None:
    def program() -> None:
        y = Broken.apply(leaf().exp(), backward)  # custom
        y.sin().sum().backward()

    graph = failing(program, said)
    found = only("exception", graph)
    assert f", in Broken at {line(program, 'custom')}" in found.message
    assert (found.where == line(refuse, "raises")) is (backward is refuse)
    assert graph.failure is not None
    assert graph.nodes[graph.failure.node or 0].name == "BrokenBackward"


def hooked(hook: Callable[[Tensor], Tensor]) -> None:
    h = leaf().exp()
    h.register_hook(hook)
    h.sin().sum().backward()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda: hooked(refuse), "no gradient today"),
        (lambda: hooked(lambda gradient: gradient[0]), "has changed the size"),
        (lambda: torch.autograd.grad(leaf().exp().sum(), leaf()), "not have been used"),
    ],
    ids=["in a hook", "of a hook's result", "of an unused input"],
)
def test_an_error_outside_the_nodes_is_no_nodes(program: Callable[[], Any], said: str) -> None:
    failure = failing(program, said).failure
    assert failure is not None
    assert failure.node is None


class Labels(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        raise ValueError(f"label {index} is of no class:\n  it has 3\nand 4")  # raises


def test_the_error_of_a_worker_is_told_with_its_own_message_and_line() -> None:
    recording, batches = record(), torch.utils.data.DataLoader(Labels(), num_workers=1)
    with pytest.raises(ValueError, match="Caught"), recording:
        next(iter(batches))
    found = only("exception", recording.graph)
    assert found.where == line(Labels.__getitem__, "raises")
    assert "raised in a worker of the DataLoader" in found.message
    assert found.message.endswith("label 0 is of no class: it has 3 and 4.")


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: leaf() @ torch.ones(2, 2), "The last dimension of the input"),
        (lambda: torch.stack([leaf(), leaf()[:2]]), "Pad the tensors to one size"),
        (lambda: torch.bernoulli(leaf().exp() + 2), ""),
        (lambda: torch.cholesky_inverse(leaf()[:2]), "Check the shapes and dtypes"),
    ],
)
def test_shapes_are_to_be_looked_at_only_where_the_error_speaks_of_them(
    call: Callable[[], Tensor], advice: str
) -> None:
    recording = record()
    with suppress(RuntimeError), recording:
        call()
    found = only("exception", recording.graph)
    assert found.advice.startswith(advice)
    assert bool(found.advice) is bool(advice)


def test_an_error_after_one_that_was_caught_is_its_own() -> None:
    def program() -> None:
        h = leaf().exp()
        h += 1
        with suppress(RuntimeError):
            h.sum().backward()
        raise RuntimeError("no such file")

    graph = failing(program, "no such file")
    (found,) = [f for f in find(graph) if f.severity == "error"]
    assert found.rule == "exception"
    assert "no such file" in found.message
    assert graph.failure is not None
    assert graph.failure.message == "no such file"


def test_a_backward_that_failed_says_nothing_of_cuts_and_optimizers() -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    def program() -> None:
        optimizer.step()
        y = Broken.apply(model(torch.ones(2, 3)), refuse)
        other(y).sum().backward()

    rules = {f.rule for f in find(failing(program, "no gradient today")) if f.severity != "info"}
    assert rules == {"exception"}


def test_an_exception_that_was_caught_is_not_held() -> None:
    with record():
        activation = torch.ones(5)
        gone = weakref.ref(activation)
        with suppress(RuntimeError):
            torch.ones(3) + activation
        del activation
        gc.collect()
        assert gone() is None


def test_a_second_backward_that_the_program_catches_itself_is_told_too() -> None:
    model = nn.Linear(4, 1)
    with record(model) as recording:
        loss = model(torch.randn(8, 4)).mean()
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        model(torch.randn(8, 4)).mean().backward()
    (found,) = (f for f in find(recording) if f.severity == "error")
    assert (found.rule, found.steps) == ("backward-twice", (1,))
    assert [graph.failure is None for graph in recording.graphs] == [True, False, True]


SAID = (
    "Expected to have finished reduction in the prior iteration before starting a new one. You can "
    "enable unused parameter detection by passing a keyword argument, and by \nmaking sure all "
    "outputs participate in calculating loss."
)


@pytest.mark.parametrize(
    ("message", "quoted", "advice"),
    [
        (SAID, "before starting a new one.", "A parameter was not used by the loss"),
        ("no data\nhere", "RuntimeError: no data; it got", ""),
        (
            "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv",
            "waiting 2000ms for recv",
            "Another rank did not reach this call",
        ),
    ],
)
def test_a_quotation_ends_with_its_sentence_and_a_rank_in_vain_is_told_of_the_others(
    message: str, quoted: str, advice: str
) -> None:
    operand = Operand("x", TensorMeta((2,), "float32", "cpu"))
    failure = Failure("RuntimeError", message, "all_reduce", "train.py:9", operands=(operand,))
    [found] = [f for f in find(Graph((), failure=failure)) if f.rule == "exception"]
    assert quoted.rstrip(".") in found.message
    assert "and by" not in found.message
    assert found.advice.startswith(advice)


class Router(nn.Module):
    """A block whose forward changes a buffer that decides its next computation."""

    def __init__(self, repaired: bool) -> None:
        super().__init__()
        self.inner, self.repaired = nn.Linear(3, 3), repaired
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("bias", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        rows = 2 if self.bias == 0 else 1
        if not self.repaired:
            self.bias += 1  # changed
        return self.norm(self.inner(x))[:rows].exp()


def routed(repaired: bool) -> None:
    block = Router(repaired)
    out = checkpoint(block, torch.randn(4, 3), use_reentrant=False)  # checkpointed
    assert isinstance(out, Tensor)
    out.sum().backward()


def test_a_segment_that_does_something_else_in_its_second_run_is_told_with_what_changed() -> None:
    found = only("exception", failing(lambda: routed(False), "different metadata"))
    assert found.where == line(routed, "checkpointed")
    assert "float32[1, 3] when it was recomputed, and float32[2, 3] in the forward" in found.message
    assert f"in place at {line(Router.forward, 'changed')} (add_)" in found.message
    assert found.advice.endswith("bias outside of the checkpointed code, after the step.")
    with record() as recording:
        routed(True)
    assert [each for each in find(recording) if each.severity != "info"] == []


def test_a_parameter_that_ddp_sees_ready_twice_is_named_with_the_checkpoint() -> None:
    meta = TensorMeta((3,), "float32", "cpu")
    node = Node(0, "CheckpointFunctionBackward", (meta,), where="net.py:9")
    message = "Expected to mark a variable ready only once. Parameter at index 1 has been marked"
    failure = Failure("RuntimeError", message, "backward", "train.py:3")
    parameters = tuple(Parameter(name, meta, name != "b") for name in ("a", "b", "c"))
    graph = Graph((node,), parameters=parameters, failure=failure)
    [found] = [each for each in find(graph) if each.rule == "exception"]
    assert found.where == "net.py:9"
    assert "got the gradient of c twice" in found.message
    assert found.advice == "Pass use_reentrant=False to checkpoint at net.py:9."
