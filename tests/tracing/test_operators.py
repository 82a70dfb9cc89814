"""Test each operator that PyTorch lists as differentiable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from graphviz_torch import Graph, trace
from graphviz_torch.internals.tensors.pytree import flatten
from graphviz_torch.tracing import iter_grad_fns
from tests.support.autograd_reference import counted, meta
from tests.support.operators import operators as operators

SAMPLES = 4
DTYPES = (torch.float32, torch.complex64, torch.bfloat16, torch.float64)


def differentiable(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in flatten(value) if tensor.requires_grad]


def results(operators: list[Any]) -> Iterator[tuple[str, list[Tensor]]]:
    """The outputs of the first samples of every operator that supports autograd."""
    for op in operators:
        if not op.supports_autograd:
            continue
        dtypes = op.supported_dtypes("cpu")
        dtype = next((d for d in DTYPES if d in dtypes), None)
        if dtype is None:
            continue  # it does not run on the CPU
        samples = op.sample_inputs("cpu", dtype, requires_grad=True)
        for _, sample in zip(range(SAMPLES), samples, strict=False):
            value = op(sample.input, *sample.args, **sample.kwargs)
            tensors = differentiable([value] if isinstance(value, Tensor) else list(value))
            if tensors:
                yield op.name, tensors


def undefined(tensor: Tensor) -> list[tuple[str, int]]:
    """The undefined outputs behind a tensor: those whose dtype follows the default dtype."""
    fns = iter_grad_fns(tensor)
    before = [[entry.dtype for entry in fn._input_metadata] for fn in fns]
    torch.set_default_dtype(torch.float64)
    try:
        after = [[entry.dtype for entry in fn._input_metadata] for fn in fns]
    finally:
        torch.set_default_dtype(torch.float32)
    return [
        (i, nr)
        for i, (old, new) in enumerate(zip(before, after, strict=True))
        for nr in range(len(old))
        if old[nr] != new[nr]
    ]


def nones(graph: Graph) -> list[tuple[int, int]]:
    return [(n.id, nr) for n in graph.nodes for nr, m in enumerate(n.outputs) if m is None]


@pytest.mark.filterwarnings("ignore")
def test_every_operator_of_pytorchs_own_list_is_traced_exactly(operators: list[Any]) -> None:
    outputs = 0
    kinds: Counter[str] = Counter()
    for name, tensors in results(operators):
        for tensor in tensors:
            graph = trace(tensor, names={})
            assert (len(graph.nodes), len(graph.edges)) == counted(tensor), name
            ((node, output_nr),) = graph.outputs
            if not tensor.is_nested:
                assert graph.nodes[node].outputs[output_nr] == meta(tensor), name
            # Each of the siblings is read as what it is, whether or not the graph uses it.
            for other in tensors:
                if other.grad_fn is tensor.grad_fn:
                    assert graph.nodes[node].outputs[other.output_nr] == meta(other), name
            assert nones(graph) == undefined(tensor), name
            outputs += 1
            kinds.update(node.name for node in graph.nodes)
    assert outputs > 2000
    assert len(kinds) > 300


@pytest.mark.filterwarnings("ignore")
def test_what_double_backward_leaves_undefined_is_none(operators: list[Any]) -> None:
    seen: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for name, tensors in results(operators):
        for tensor in tensors[:1]:
            leaves = [
                fn.variable for fn in iter_grad_fns(tensor) if type(fn).__name__ == "AccumulateGrad"
            ]
            total = tensor.abs().sum()
            try:
                gradients = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
            except RuntimeError:
                continue  # not differentiable twice
            for gradient in gradients:
                if gradient is not None and gradient.requires_grad:
                    graph = trace(gradient, names={})
                    expected = undefined(gradient)
                    seen[name] += len(expected)
                    if nones(graph) != expected:
                        wrong[name] += 1
    assert not wrong
    assert seen["native_layer_norm"] > 0
