"""Test operations of each kind: their nodes are read as autograd stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from graphviz_torch import trace
from graphviz_torch.graph import TensorMeta
from tests.support import models
from tests.support.autograd_reference import check, meta, named
from tests.support.programs import in_threads


def split(x: Tensor) -> list[Tensor]:
    return list(x.split(2))


@pytest.mark.parametrize(
    "several",
    [
        split,
        lambda x: x.unbind(1),
        lambda x: torch.linalg.svd(x),
        lambda x: torch.var_mean(x),
        lambda x: x.sort().values.topk(2),
        lambda x: nn.LSTM(3, 2)(x)[0].unbind(0),
        lambda x: torch.linalg.slogdet(x @ x.T + torch.eye(4)),
    ],
    ids=["split", "unbind", "svd", "var_mean", "topk", "lstm", "slogdet"],
)
def test_each_output_of_an_operation_with_several_has_its_own_metadata(
    several: Callable[[Tensor], Any],
) -> None:
    x = torch.rand(4, 3, requires_grad=True)
    tensors = [t for t in several(x) if t.requires_grad]
    check(trace(tensors), *tensors)
    for tensor in tensors:  # also where the others are not used
        graph = trace(tensor)
        check(graph, tensor)
        for other in tensors:
            if other.grad_fn is tensor.grad_fn:
                assert graph.nodes[-1].outputs[other.output_nr] == meta(other)


def test_a_change_in_place_through_a_view_is_read_as_autograd_rewrote_it() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    base = x * 1
    row = base[0]
    row.mul_(2)
    base[:, 1] = 5.0
    graph = trace(base)
    check(graph, base)
    assert [node.name for node in graph.nodes].count("CopySlices") == 2
    check(trace(row), row)


class Affine(torch.autograd.Function):
    """Returns a tensor, an index, a number and a scalar; takes a number and a text too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, how: str) -> Any:
        # Names of node attributes, which a careless reader would take for autograd's.
        ctx.name, ctx.variable, ctx.label = "shadow", x, how
        ctx.scale = scale
        index = torch.arange(3)
        ctx.mark_non_differentiable(index)
        return x * scale, index, 7, x.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.scale, None, None


def test_a_custom_function_is_read_right_whatever_it_keeps() -> None:
    x = torch.ones(3, requires_grad=True)
    y, _, _, total = Affine.apply(x, 2.0, "text")
    graph = trace(y)
    check(graph, y)
    node = graph.nodes[-1]
    assert (node.name, node.operation, node.leaf) == ("AffineBackward", "Affine", "")
    # The index is not differentiable and 7 is no tensor; nothing uses the sum, which cannot be
    # told from these. If something does, it is there.
    assert node.outputs == (meta(y), None, None, None)
    both = trace([y, total])
    check(both, y, total)
    assert both.nodes[-1].outputs == (meta(y), None, None, meta(total))


def test_an_output_that_autograd_left_undefined_is_none() -> None:
    weight = torch.randn(2, 3, 3, 3, requires_grad=True)
    y = nn.functional.conv2d(torch.randn(1, 3, 8, 8), weight)
    (gradient,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
    node = trace(gradient).nodes[-1]
    assert node.name == "ConvolutionBackwardBackward0"
    # The gradients of the image and of a bias were not asked for.
    assert node.outputs == (None, meta(weight), None)


def test_an_unused_true_scalar_of_a_forward_operation_is_kept() -> None:
    x = torch.ones(3, requires_grad=True)
    first, second, _ = x.unbind()
    assert named(trace(first * second), "UnbindBackward0").outputs == (meta(first),) * 3


def test_double_and_triple_backward_are_read() -> None:
    x = torch.rand(3, requires_grad=True)
    gradient = x.sin().exp()
    sizes = []
    for _ in range(3):
        (gradient,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
        check(trace(gradient), gradient)
        sizes.append(len(trace(gradient).nodes))
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_read_without_running_them_again(reentrant: bool) -> None:
    runs = 0

    def part(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return x.sin().cos()

    x = torch.rand(3, requires_grad=True)
    y = checkpoint(part, x, use_reentrant=reentrant).sum()
    graph = trace(y)
    assert runs == 1
    check(graph, y)
    if reentrant:
        assert "runs this part's forward again" in named(graph, "CheckpointFunctionBackward").note
    y.backward()
    assert runs == 2
    assert trace(y) == graph


def test_no_saved_tensor_is_unpacked() -> None:
    unpacked = []
    x = torch.rand(3, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: unpacked.append(t) or t):
        y = (x.exp() * x.sin()).sum()
    check(trace(y), y)
    assert not unpacked
    y.backward()
    assert unpacked


def test_a_freed_graph_is_read_as_before() -> None:
    model = models.ConvNet()
    y = model(torch.ones(1, 3, 4, 4)).sum()
    before = trace(y)
    y.backward()
    assert trace(y) == before
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x.to(torch.complex64) * 1j).exp().real,
        lambda x: torch.view_as_complex(x[:, :2].contiguous()),
        lambda x: torch.sparse.mm(x.to_sparse(), torch.ones(3, 2)),
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr().to_dense(),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
        lambda x: x.double().half().bfloat16(),
        lambda x: torch.func.vmap(torch.sin)(x),
        lambda x: torch.func.vmap(torch.func.grad(lambda row: row.exp().sum()))(x),
        lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
        lambda x: torch.func.jacrev(torch.sin)(x[0]),
        lambda x: torch.empty(0, 3) @ x.T,
        lambda x: torch.where(x > 0, x, 0).sum((0, 1)),
    ],
    ids=[
        *("complex", "view_as_complex", "sparse mm", "to_sparse", "csr", "fake quantised"),
        *("casts", "vmap", "vmap of grad", "jvp", "jacrev", "empty", "where"),
    ],
)
def test_unusual_tensors_are_read(make: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4, 3, requires_grad=True)
    y = make(x)
    check(trace(y), y)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_ragged_sizes_are_minus_one_as_far_as_autograd_knows_them() -> None:
    rows = [torch.rand(2, 3), torch.rand(4, 3)]
    jagged, strided = (
        trace(torch.nested.nested_tensor(rows, layout=layout, requires_grad=True) * 2).nodes[-1]
        for layout in (torch.jagged, torch.strided)
    )
    assert (jagged.outputs[0].shape, jagged.outputs[0].nbytes) == ((2, -1, 3), None)
    assert strided.outputs == (TensorMeta((-1,), "float32", "cpu"),)


def test_autocast_shows_the_casts_and_their_dtypes() -> None:
    model = models.MLP()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.ones(2, 4))
    graph = trace(y)
    check(graph, y)
    assert graph.nodes[-1].outputs[0].dtype == "bfloat16"
    assert sum(node.operation == "to_copy" for node in graph.nodes) >= 4


def test_a_compiled_region_is_one_node_that_says_so() -> None:
    model = torch.compile(models.MLP(), backend="aot_eager")
    x = torch.ones(2, 4, requires_grad=True)
    y = model(x * 2).sum()
    graph = trace(y, names={})
    check(graph, y)
    region = named(graph, "CompiledFunctionBackward")
    assert (region.operation, region.note) == ("compiled", "torch.compile region")
    assert region.outputs == (TensorMeta((2, 2), "float32", "cpu"),)
    assert sum(edge.target == region.id for edge in graph.edges) == 5  # x and four parameters
    torch.compiler.reset()


def test_tensor_hooks_stay_and_are_not_run() -> None:
    x = torch.rand(3, requires_grad=True)
    a = x * 2
    seen: list[Tensor] = []
    a.register_hook(seen.append)
    y = a.sum()
    check(trace(y), y)
    assert not seen
    y.backward()
    assert len(seen) == 1


def test_a_graph_that_threads_built_together_is_read() -> None:
    x = torch.rand(3, requires_grad=True)

    def work() -> Tensor:
        part = x
        for _ in range(20):
            part = part.sin()
        return part

    y = torch.stack(in_threads(*[work] * 4)).sum()
    check(trace(y), y)
