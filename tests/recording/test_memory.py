"""Compare the recorded saved tensors with those that saved_tensors_hooks sees."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphviz_torch import Graph, record
from graphviz_torch.internals.tensors.metadata import HAS_SAVED_TENSOR_DATA
from tests.support import models
from tests.support.programs import function

pytestmark = pytest.mark.skipif(
    not HAS_SAVED_TENSOR_DATA, reason="this torch does not tell what a node keeps"
)


def seen_by_hooks(run: Callable[[], Tensor]) -> int:
    """Return the bytes of all storages that autograd saves, each counted once."""
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no address comes back
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in storages.values())


def kept(graph: Graph) -> int:
    return sum(node.saved_bytes for node in graph.nodes)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (models.MLP, (3, 4)),
    "TiedMLP": (models.TiedMLP, (3, 4)),
    "ConvNet": (models.ConvNet, (2, 3, 8, 8)),
    "RNN": (lambda: models.UnrolledRNN(4), (2, 4)),
    "LSTM": (lambda: nn.LSTM(3, 4), (5, 2, 3)),
    "block": (models.TransformerBlock, (2, 5, 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_total_is_what_saved_tensors_hooks_see(name: str) -> None:
    make, shape = CASES[name]
    model, x = make(), torch.randn(shape)

    def run() -> Tensor:
        out = model(x)
        loss: Tensor = (out if isinstance(out, Tensor) else out[0]).pow(2).sum()
        return loss

    expected = seen_by_hooks(run)
    with record(model) as recording:
        run().backward()
    assert kept(recording.graph) == expected > 0


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x * 2.5,
    "int": lambda x: x / 3,
    "complex": lambda x: (x * 2j).abs(),
    "float64": lambda x: x * torch.tensor(2.5, dtype=torch.float64),
    "int64": lambda x: x * torch.tensor(3),
    "float32": lambda x: x * torch.tensor(2.5),
    "complex128": lambda x: (x * torch.tensor(2j, dtype=torch.complex128)).abs(),
    "bfloat16": lambda x: x.to(torch.bfloat16) * 2.5,
    "gelu": lambda x: torch.nn.functional.gelu(x * 2.5, approximate="tanh") * 0.5,
    "result": lambda x: (x.sum().double() * x.sum().double()).float() * 2.5,
}


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_counted_only_where_hooks_see_them(name: str, default: torch.dtype) -> None:
    x = torch.randn(4, requires_grad=True)

    def run() -> Tensor:
        return NUMBERS[name](x).sum()

    torch.set_default_dtype(default)
    try:
        expected = seen_by_hooks(run)
        with record() as recording:
            run().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert kept(recording.graph) == expected


def test_parameters_buffers_and_inputs_are_told_from_activations() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    x = torch.randn(3, 4)
    with record(model) as recording:
        model(x).pow(2).sum().backward()
    kinds = {
        (node.title, saved.name): saved.kind
        for node in recording.graph.nodes
        for saved in node.saved
    }
    assert kinds["native_batch_norm", "running_mean"] == "buffer"
    assert kinds["native_batch_norm", "weight"] == "parameter"
    assert kinds["native_batch_norm", "input"] == "activation"
    first = next(node for node in recording.graph.nodes if node.title == "addmm")
    assert [(saved.name, saved.kind) for saved in first.saved] == [("mat1", "input")]


def test_a_storage_that_two_nodes_keep_counts_at_the_first() -> None:
    x = torch.randn(8, requires_grad=True)
    with record() as recording:
        h = x.exp()
        (h * h.view(2, 4).reshape(8)).sum().backward()
    by_title = {node.title: node for node in recording.graph.nodes}
    exp, mul = by_title["exp"], by_title["mul"]
    assert exp.saved_bytes == 32
    assert mul.saved_bytes == 0
    assert {saved.shared_with for saved in mul.saved} == {exp.id}


def test_reading_what_is_kept_runs_no_hook_and_no_forward() -> None:
    calls: list[str] = []

    def region(x: Tensor) -> Tensor:
        calls.append("forward")
        return torch.tanh(x * 2)

    x = torch.randn(4, requires_grad=True)
    packed = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (calls.append("pack"), tensor.double())[1],
        lambda tensor: (calls.append("unpack"), tensor.float())[1],
    )
    with record() as recording:
        y = checkpoint(region, x, use_reentrant=False)
        with packed:
            z = (y * 3).exp()
        assert calls == ["forward", "pack"]
        z.sum().backward()
    assert calls == ["forward", "pack", "unpack", "forward"]
    by_title = {node.title: node for node in recording.graph.nodes}
    assert by_title["tanh"].saved_bytes == x.nbytes  # what the part begins with
    # Counted as it is kept: the hooks made it twice as big.
    assert by_title["exp"].saved_bytes == 4 * 8


def saving(*tensors: Tensor | None) -> Tensor:
    """Return the result of a custom Function that saves these tensors."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return x * 2

    return function(forward, lambda ctx, gradient: gradient * 2).apply(
        torch.ones(4, requires_grad=True)
    )


def test_a_custom_function_keeps_what_it_saved() -> None:
    with record() as recording:
        saving(torch.ones(4), None, torch.ones(4)).sum().backward()
    node = next(node for node in recording.graph.nodes if node.name == "CustomBackward")
    assert [(saved.kind, saved.nbytes) for saved in node.saved] == [("activation", 16)] * 2


def test_the_class_of_a_custom_function_is_not_kept() -> None:
    def run() -> weakref.ref[Tensor]:
        scale = torch.ones(4)
        scaled = function(lambda ctx, x: x * scale, lambda ctx, gradient: gradient * scale)
        with record():
            scaled.apply(torch.ones(4, requires_grad=True)).sum().backward()
        return weakref.ref(scale)

    scale = run()
    gc.collect()
    assert scale() is None


def test_sparse_tensors_count_with_their_indices_and_values() -> None:
    weight = torch.randn(3, 2, requires_grad=True)
    matrix = torch.eye(3).to_sparse()
    with record() as recording:
        torch.sparse.mm(matrix, weight).sum().backward()
    node = next(node for node in recording.graph.nodes if "sparse" in node.title)
    sparse = next(saved for saved in node.saved if saved.tensor.shape == (3, 3))
    assert sparse.nbytes == 3 * 4 + 2 * 3 * 8


FLOAT, INDEX = 4, 8  # bytes
PLACES = torch.tensor([0, 1, 2, 2, 3]), torch.tensor([0, 1, 2])
BLOCKS = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
COMPRESSED = {
    "csr": (lambda: torch.sparse_csr_tensor(*PLACES, torch.ones(3)), 3 * FLOAT + 8 * INDEX),
    "csc": (lambda: torch.sparse_csc_tensor(*PLACES, torch.ones(3)), 3 * FLOAT + 8 * INDEX),
    "bsr": (lambda: torch.sparse_bsr_tensor(*BLOCKS, torch.ones(2, 2, 2)), 8 * FLOAT + 5 * INDEX),
    "bsc": (lambda: torch.sparse_bsc_tensor(*BLOCKS, torch.ones(2, 2, 2)), 8 * FLOAT + 5 * INDEX),
}


@pytest.mark.parametrize("layout", COMPRESSED)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_compressed_tensors_count_with_their_indices(layout: str) -> None:
    make, expected = COMPRESSED[layout]
    matrix = make()
    with record() as recording:
        saving(matrix).sum().backward()
    assert kept(recording.graph) == expected


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors_count_with_their_offsets_and_lengths() -> None:
    values = torch.randn(8, 3, requires_grad=True)
    offsets, lengths = torch.tensor([0, 3, 8]), torch.tensor([2, 5])
    with record() as recording:
        jagged = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
        jagged.sin().values().sum().backward()
    sin = next(node for node in recording.graph.nodes if node.title == "sin")
    assert sin.saved_bytes == 8 * 3 * FLOAT + 3 * INDEX + 2 * INDEX


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs MKL-DNN")
def test_a_tensor_in_a_layout_that_has_no_storage_ends_no_backward() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with record() as recording:
        nn.functional.gelu(x.to_mkldnn()).to_dense().sum().backward()
    assert x.grad is not None
    assert [node.saved_bytes for node in recording.graph.nodes if node.title == "gelu"] == [0]


def test_without_memory_nothing_is_read() -> None:
    x = torch.randn(4, requires_grad=True)
    with record(memory=False) as recording:
        x.exp().sum().backward()
    assert kept(recording.graph) == 0


def test_data_is_told_from_what_one_part_gives_another() -> None:
    encoder, head, x = nn.Linear(4, 8), nn.Linear(8, 1), torch.ones(16, 4)
    with record() as recording:
        for _ in range(2):
            head(encoder(x).relu()).square().sum().backward()
    for graph in recording.graphs:
        saved = {n.title: [(s.kind, s.nbytes) for s in n.saved] for n in graph.nodes}
        assert saved["relu"] == [("activation", 4 * 16 * 8)]
        assert [s for s in saved["addmm"] if s[0] == "input"] == []  # of the head, the last addmm
        first = next(node for node in graph.nodes if node.title == "addmm")
        assert [(s.kind, s.nbytes) for s in first.saved if s.kind == "input"] == [("input", 256)]
