"""Test queued gradients, which are checked for changes before they are read."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record
from graphviz_torch.graph import GradientStats
from graphviz_torch.internals.tensors.metadata import tensor_meta
from graphviz_torch.recording.gradients.statistics import Descriptions
from tests.support.programs import Operators


def stats(graph: Graph, name: str) -> GradientStats:
    (node,) = [node for node in graph.nodes if node.name == name]
    (found,) = node.grad_outputs
    assert found is not None
    return found


def test_a_gradient_from_inference_mode_is_described() -> None:
    x = torch.randn(30, requires_grad=True)
    with record() as recording:
        with torch.inference_mode():
            gradient = torch.ones(30)
        (x * 2).backward(gradient)
    assert stats(recording.graph, "MulBackward0").norm == pytest.approx(30**0.5)


def test_a_gradient_whose_memory_a_hook_frees_has_no_statistics() -> None:
    def free(_: Any, given: tuple[Tensor, ...]) -> None:
        given[0].untyped_storage().resize_(0)

    x = torch.randn(1000, requires_grad=True)
    with record() as recording:
        y = x + 0
        z = y * 1
        z.grad_fn.register_hook(free)
        z.backward(torch.ones(1000))
    assert recording.graph.nodes[2].grad_outputs in ((), (None,))


def test_leaves_take_their_gradients_without_a_copy_as_they_do_without_a_recording() -> None:
    def operators(recorded: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        with record(model, transfers=False) if recorded else torch.enable_grad():
            loss = model(torch.ones(2, 64)).sum()
            with Operators() as seen:
                loss.backward()
        return seen.calls

    bare = operators(recorded=False)
    assert bare.count(torch.ops.aten.mm.default) > 4
    assert Counter(operators(recorded=True)) == Counter(bare)


def test_a_gradient_that_is_the_negative_of_others_has_its_own_sign() -> None:
    x = torch.arange(1.0, 41.0).requires_grad_()
    with record() as recording:
        y = x * 1
        y.register_hook(torch._neg_view)
        (y + 0).backward(torch.arange(1.0, 41.0))
    means = [stats(recording.graph, f"{n}Backward0").mean for n in ("Add", "Mul")]
    assert means == [20.5, -20.5]


def test_a_small_view_of_a_large_memory_does_not_wait() -> None:
    descriptions = Descriptions()
    small = torch.ones(1 << 20)[:10]
    descriptions.see((0, 0), small, descriptions.kind(tensor_meta(small)))
    assert not any(batch.waiting for batch in descriptions._batches.values())
    assert descriptions.collect()[0, 0].norm == pytest.approx(10**0.5)


def test_a_gradient_that_a_final_callback_changes_is_described_as_it_arrived() -> None:
    def halve(parameter: Tensor) -> None:  # as DistributedDataParallel does
        assert parameter.grad is not None
        callback = partial(parameter.grad.div_, 2)
        torch.autograd.Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]

    x = torch.ones(300, requires_grad=True)
    x.register_post_accumulate_grad_hook(halve)
    with record() as recording:
        (x * 6).sum().backward()
    assert x.grad is not None
    assert x.grad[0] == 3
    assert stats(recording.graph, "AccumulateGrad").mean == 6


def test_what_is_told_of_a_gradient_with_nan_is_plain_python() -> None:
    x = torch.ones(40, requires_grad=True)
    with record() as recording:
        (x * 1).backward(torch.full((40,), float("nan")))
    found = stats(recording.graph, "MulBackward0")[:6]
    assert [type(value) for value in found] == [float, float, float, float, int, int]


def test_the_gradients_that_autograd_grad_returns_are_described_for_many_inputs() -> None:
    leaves = [torch.full((3,), float(n), requires_grad=True) for n in range(50)]
    with record() as recording:
        loss = torch.stack([leaf**2 for leaf in leaves]).sum()
        torch.autograd.grad(loss, leaves)
    found = [node.grad_outputs[0] for node in recording.graph.nodes if node.leaf]
    means = sorted(each.mean for each in found if each is not None)
    assert means == [2.0 * n for n in range(50)]


def test_a_number_that_two_nodes_have_names_no_line() -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        y, z = x.cos(), x.exp()
        z.grad_fn._set_sequence_nr(y.grad_fn._sequence_nr())  # as one of another thread may have
        (y + z).sum().backward()
    lines = {node.title: bool(node.where) for node in recording.graph.nodes if not node.leaf}
    assert lines == {"cos": False, "exp": False, "add": True, "sum": True}


def test_a_loop_variable_does_not_take_a_parameters_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    p: Tensor | None = None
    for p in model.parameters():
        assert p.requires_grad
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    labels = {node.label for node in recording.graph.nodes if node.leaf}
    assert labels == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_a_gradient_that_a_hook_changes_is_as_it_reached_its_node(before: bool, data: bool) -> None:
    def ten_times(gradient: Tensor | None) -> None:
        assert gradient is not None
        (gradient.data if data else gradient).mul_(10)

    x = torch.ones(5000, requires_grad=True)
    with record() as recording:
        y = x * 2
        if before:
            y.register_hook(ten_times)
        else:
            assert y.grad_fn is not None
            y.grad_fn.register_hook(lambda given, taken: ten_times(taken[0]))
        (y * 3).sum().backward()
    assert x.grad is not None
    assert x.grad[0] == (60 if before else 6)
    statistics = recording.graph.nodes[1].grad_outputs
    # What is changed afterwards is not known any more: as docs/compatibility.md says.
    assert [each and each.max_abs for each in statistics] == ([30] if before or data else [])
