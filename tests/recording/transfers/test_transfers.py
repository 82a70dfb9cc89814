"""Test recorded copies on the simulated accelerator; on CUDA, compare them with the profiler."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record, simulate_accelerator, trace
from graphviz_torch.internals import frames
from graphviz_torch.internals.hooks.dispatch import _KERNELS, _KEY, Dispatched
from graphviz_torch.internals.hooks.modes import unseen_calls
from graphviz_torch.internals.tensors.metadata import DEVICE_LABELS
from graphviz_torch.recording.transfers.copies import StepCopies
from tests.support.programs import Functions

Row = tuple[str, str, str, int | None, str]


def rows(graph: Graph) -> list[Row]:
    return [(c.kind, c.source, c.target, c.nbytes, c.operation) for c in graph.transfers]


def recorded(run: Callable[[torch.device], object], count: int = 1) -> Graph:
    """The graph of a block that also has a backward, for a graph to hang the copies on."""
    with simulate_accelerator(count) as devices, record() as recording:
        run(*devices)
        torch.ones(1, requires_grad=True).sum().backward()
    return recording.graph


HtoD = ("HtoD", "cpu", "sim:0")
DtoH = ("DtoH", "sim:0", "cpu")

# One line a way to move a tensor; x is four floats on the CPU, d the same on the device.
WAYS: dict[str, tuple[Callable[[Tensor, Tensor, torch.device], object], list[Row]]] = {
    "to": (lambda x, d, dev: x.to(dev), [(*HtoD, 16, "to")]),
    "to with dtype": (lambda x, d, dev: x.to(dev, torch.float64), [(*HtoD, 32, "to")]),
    # Where a cast is made: copy_kernel_cuda in ATen/native/cuda/Copy.cu.
    "to with dtype, not blocking": (
        lambda x, d, dev: x.to(dev, torch.float64, non_blocking=True),
        [(*HtoD, 16, "to")],
    ),
    "back with dtype": (lambda x, d, dev: d.to("cpu", torch.float64), [(*DtoH, 16, "to")]),
    "back with dtype, not blocking": (
        lambda x, d, dev: d.to("cpu", torch.float64, non_blocking=True),
        [(*DtoH, 32, "to")],
    ),
    "cpu": (lambda x, d, dev: d.cpu(), [(*DtoH, 16, "cpu")]),
    "item": (lambda x, d, dev: d[0].item(), [(*DtoH, 4, "item")]),
    "float": (lambda x, d, dev: float(d[0]), [(*DtoH, 4, "float")]),
    "bool": (lambda x, d, dev: bool(d[0] > 0), [(*DtoH, 1, "bool")]),
    "tolist": (lambda x, d, dev: d.tolist(), [(*DtoH, 16, "cpu")]),
    "numpy": (lambda x, d, dev: d.numpy(force=True), [(*DtoH, 16, "cpu")]),
    "copy_ in": (lambda x, d, dev: d.copy_(x), [(*HtoD, 16, "copy_")]),
    "copy_ of one number": (lambda x, d, dev: d.copy_(x[0]), [(*HtoD, 16, "copy_")]),
    "copy_ across": (lambda x, d, dev: d.view(2, 2).t().copy_(x[:2]), [(*HtoD, 16, "copy_")]),
    "copy_ out": (lambda x, d, dev: x.copy_(d), [(*DtoH, 16, "copy_")]),
    "tensor": (lambda x, d, dev: torch.tensor([1.0, 2.0], device=dev), [(*HtoD, 8, "tensor")]),
    "index": (lambda x, d, dev: d[torch.tensor([0, 2])], [(*HtoD, 16, "getitem")]),
    # Indices go over as they are, a mask as the places where it is true: expandTensors in
    # ATen/native/IndexingUtils.h.
    "short index": (lambda x, d, dev: d[torch.tensor([0, 2]).int()], [(*HtoD, 8, "getitem")]),
    "two indices": (
        lambda x, d, dev: d.view(2, 2)[torch.tensor([[0], [1]]), torch.tensor([0, 1])],
        [(*HtoD, 16, "getitem"), (*HtoD, 16, "getitem")],
    ),
    "mask": (lambda x, d, dev: d[x > 0], [(*HtoD, 32, "getitem")]),
    "wide mask": (lambda x, d, dev: d.view(2, 2)[x.view(2, 2) > 0], [(*HtoD, 64, "getitem")]),
    "module": (
        lambda x, d, dev: nn.Linear(2, 3).to(dev),
        [(*HtoD, 24, "Module.to"), (*HtoD, 12, "Module.to")],
    ),
    # The result is as large as the values say: PyTorch reads that number and waits.
    "mask there": (lambda x, d, dev: d[d > 0], [(*DtoH, 4, "getitem")]),
    "two masks there": (
        lambda x, d, dev: d.view(2, 2)[d[:2] > 0, d[:2] > 0],
        [(*DtoH, 4, "getitem")] * 2,
    ),
    "values where a mask is true": (
        lambda x, d, dev: d.__setitem__(d > 0, d.clone()),
        [(*DtoH, 4, "setitem")],
    ),
    "masked_select": (lambda x, d, dev: d.masked_select(d > 0), [(*DtoH, 4, "masked_select")]),
    "nonzero": (lambda x, d, dev: d.nonzero(), [(*DtoH, 4, "nonzero")]),
    "where": (lambda x, d, dev: torch.where(d > 0), [(*DtoH, 4, "where")]),
    "unique": (lambda x, d, dev: d.unique(), [(*DtoH, 8, "unique")]),
    "unique rows": (lambda x, d, dev: d.view(2, 2).unique(dim=0), [(*DtoH, 8, "unique")]),
    "unique in a row": (
        lambda x, d, dev: d.unique_consecutive(),
        [(*DtoH, 8, "unique_consecutive")],
    ),
    "if": (lambda x, d, dev: bool(d.sum() > 0), [(*DtoH, 1, "bool")]),
    "none: a number where a mask is true": (lambda x, d, dev: d.__setitem__(d > 0, 3.0), []),
    "none: where with three": (lambda x, d, dev: torch.where(d > 0, d, 0), []),
    "none: same device": (lambda x, d, dev: d.to(dev), []),
    "none: dtype alone": (lambda x, d, dev: (d.double(), x.half()), []),
    "none: made there": (lambda x, d, dev: torch.zeros(3, device=dev), []),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_move_a_tensor_is_seen(way: str) -> None:
    run, expected = WAYS[way]
    with simulate_accelerator() as [device]:
        x = torch.ones(4)
        d = x.to(device)
        with record() as recording:
            run(x, d, device)
            torch.ones(1, requires_grad=True).sum().backward()
    assert rows(recording.graph) == expected


class Card(NamedTuple):
    """What is asked of an indexed tensor, as one on a GPU would answer."""

    device: torch.device = torch.device("cuda", 0)
    is_cuda: bool = True
    is_cpu: bool = False


ONE, PLACES = torch.tensor(3.0), torch.tensor([0, 2])
THERE = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bool, is_cpu=False)
PINNED, PAGEABLE = (True, True), (False, False)
# What _index_put_impl_ moves to a GPU: shape, dtype, and whether it is pinned and not waited for.
PUTS: dict[str, tuple[tuple[Any, ...], list[tuple[tuple[int, ...], str, tuple[bool, bool]]]]] = {
    "a number at places": (([PLACES], ONE), [((), "float32", PAGEABLE), ((2,), "int64", PAGEABLE)]),
    "a number where a mask is true": (
        ([torch.tensor([True, False, True])], ONE),
        [((), "float32", PAGEABLE), ((2, 1), "int64", PINNED)],
    ),
    # Indexing.cu, makeLinearIndex: indices are broadcast, and then moved one by one.
    "gradients at places": (
        ([PLACES.int().view(2, 1), torch.tensor([1, 3, 5])], torch.ones(2, 3, device="meta"), True),
        [((2, 3), "int64", PAGEABLE)] * 2,
    ),
    "gradients where a mask is true": (
        ([torch.eye(3) > 0], torch.ones(3, device="meta"), True),
        [((3,), "int64", PAGEABLE)] * 2,
    ),
    # TensorAdvancedIndexingUtils.h, canDispatchToMaskedFill: the number becomes an argument.
    "a number where the GPU's own mask is true": (([THERE], ONE), []),
}


@pytest.mark.parametrize("way", PUTS)
def test_what_is_put_on_a_gpu_by_index_goes_over_as_pytorch_moves_it(way: str) -> None:
    arguments, expected = PUTS[way]
    call = Dispatched("aten::_index_put_impl_", (Card(), *arguments), {}, None, 0, 0)
    seen = [seen for seen, _, _ in StepCopies().see(call)]
    assert [(s.tensor.shape, s.tensor.dtype, (s.pinned, s.non_blocking)) for s in seen] == expected
    assert all((s.kind, s.source, s.target) == ("HtoD", "cpu", "cuda:0") for s in seen)


IN_PARTS: dict[str, tuple[Callable[[Tensor], Tensor], list[int]]] = {
    "coo": (Tensor.to_sparse, [2 * 3 * 8, 3 * 4]),
    "csr": (Tensor.to_sparse_csr, [3 * 4, 4 * 8, 3 * 8]),
    "csc": (Tensor.to_sparse_csc, [3 * 4, 4 * 8, 3 * 8]),
    "jagged": (
        lambda eye: torch.nested.nested_tensor([eye, eye[:1]], layout=torch.jagged),
        [4 * 3 * 4, 3 * 8],
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse C")
@pytest.mark.parametrize("layout", IN_PARTS)
def test_what_is_made_of_several_tensors_goes_over_in_parts(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICE_LABELS, torch.device("meta"), "gpu")
    make, expected = IN_PARTS[layout]
    whole = make(torch.eye(3))
    call = Dispatched("aten::_to_copy", (whole,), {}, whole.to("meta"), 0, 0)
    noted = StepCopies().see(call)
    assert [seen.tensor.nbytes for seen, _, _ in noted] == expected
    assert len({seen.data for seen, _, _ in noted}) == len(expected)
    assert all(source is whole for _, source, _ in noted)


def test_the_order_in_which_recording_and_simulation_are_entered_does_not_matter() -> None:
    x = torch.ones(3, requires_grad=True)
    with simulate_accelerator() as [device], record() as inner:
        (x.to(device) * 2).sum().backward()
    with record() as outer, simulate_accelerator() as [device]:
        (x.to(device) * 2).sum().backward()
    assert rows(inner.graph) == rows(outer.graph)
    assert [copy.kind for copy in inner.graph.transfers] == ["HtoD", "DtoH"]


@pytest.mark.parametrize("there", [True, False], ids=["to the device", "to the cpu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_trace_foretells_the_bytes_of_a_gradient_that_is_cast_on_its_way(
    there: bool, dtype: torch.dtype
) -> None:
    with simulate_accelerator() as [device], record() as recording:
        x = torch.ones(4, requires_grad=True, device="cpu" if there else device)
        y = x.to(device if there else "cpu", dtype).sum()
        (foretold,) = trace(y).transfers
        y.backward()
    made = recording.graph.transfers[-1]
    assert (made.phase, made.kind) == ("backward", "DtoH" if there else "HtoD")
    # The CPU casts: what comes back is still of the device's dtype, what goes there is already.
    assert made.nbytes == 4 * (dtype.itemsize if there else torch.float32.itemsize)
    assert (foretold.kind, foretold.tensor) == (made.kind, made.tensor)


def test_a_copy_knows_its_module_its_line_and_its_name() -> None:
    class Mover(nn.Module):
        def forward(self, x: Tensor, device: torch.device) -> Tensor:
            return x.to(device)

    class Outer(nn.Sequential):
        def forward(self, x: Tensor, device: torch.device) -> Tensor:
            return self[0](x, device).sum().cpu()

    batch = torch.ones(3, requires_grad=True)
    model = Outer(Mover())
    with simulate_accelerator() as [device], record(model) as recording:
        scale = torch.ones(1).to(device)
        model(batch, device).backward()
        scale.item()
    into_device, first, back, *_, last = recording.graph.transfers
    assert (into_device.module, into_device.in_forward) == ("", False)
    assert (first.module, first.in_forward, first.label) == ("0", True, "x")
    assert (back.module, back.in_forward) == ("", True)
    assert first.where.startswith("test_transfers.py:")
    assert recording.graph.nodes[first.node or 0].where == first.where
    hidden = [copy.node for copy in recording.graph.transfers if copy.phase == "backward"]
    assert hidden == [back.node, first.node]
    assert (last.operation, last.node) == ("item", None)


def test_a_copy_between_two_accelerators_is_dtod() -> None:
    copies = recorded(lambda a, b: torch.ones(2).to(a).to(b), 2).transfers
    assert [(copy.kind, copy.target) for copy in copies] == [("HtoD", "sim:0"), ("DtoD", "sim:1")]


def test_a_copy_that_nothing_reads_is_not_used() -> None:
    def run(device: torch.device) -> None:
        x = torch.ones(2)
        x.to(device)  # moved and dropped
        y = x.to(device)
        y + 1
        del y
        x.to(device).shape  # noqa: B018  what it is, is not what it holds

    assert [copy.used for copy in recorded(run).transfers] == [False, True, False]


def test_a_copy_whose_memory_another_tensor_has_is_not_known_to_be_unused() -> None:
    kept: list[Tensor] = []

    def run(device: torch.device) -> None:
        copy = torch.ones(2).to(device)
        with unseen_calls():  # as nn.Parameter makes itself of a tensor
            kept.append(copy.view(-1))

    assert [copy.used for copy in recorded(run).transfers] == [None]
    assert kept


def test_a_copy_that_a_library_makes_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code: dict[str, Any] = {"__name__": "lightly.parts"}
    move = "def move(x, device): return x.to(device)"
    exec(compile(move, "/other/lightly/parts.py", "exec"), code)
    scaler: dict[str, Any] = {"__name__": "torch.amp.grad_scaler"}
    exec(compile("def read(x): return x.item()", f"{frames.TORCH}amp/none.py", "exec"), scaler)
    monkeypatch.setattr(frames, "_LIBRARIES", ("/other/",))
    frames.code_owner.cache_clear()

    def run(device: torch.device) -> None:
        there: Any = code["move"](torch.ones(()), device)
        scaler["read"](there)
        there.item()

    copies = recorded(run).transfers
    assert [copy.library for copy in copies] == ["lightly", "torch.amp.grad_scaler", ""]
    assert len({copy.where for copy in copies}) == 3  # each at the user's own line


def test_copies_of_the_same_data_share_a_number_until_it_is_changed() -> None:
    def run(device: torch.device) -> None:
        x = torch.ones(2)
        y = x.to(device)
        x.to(device)
        y.cpu()
        x.add_(1)
        x.to(device)

    numbers = [copy.data for copy in recorded(run).transfers]
    assert numbers[0] == numbers[1] == numbers[2]
    assert numbers[3] != numbers[0]


def test_pinned_and_non_blocking_are_noted() -> None:
    def run(device: torch.device) -> None:
        torch.ones(2).to(device)
        torch.ones(2).pin_memory().to(device, non_blocking=True)

    noted = [(copy.pinned, copy.non_blocking) for copy in recorded(run).transfers]
    assert noted == [(False, False), (True, True)]


BY_WAY: dict[str, tuple[Callable[[Tensor, torch.device], object], bool]] = {
    "as it is": (lambda x, dev: x.to(dev), True),
    "transposed": (lambda x, dev: x.t().to(dev), True),
    "cast after the copy": (lambda x, dev: x.to(dev, torch.float64, non_blocking=True), True),
    "cast before the copy": (lambda x, dev: x.to(dev, torch.float64), False),
    "a part with gaps": (lambda x, dev: x[:, 0].to(dev), False),
    "broadcast": (lambda x, dev: torch.zeros(4, 2, 3, device=dev).copy_(x), False),
    "laid out anew there": (lambda x, dev: torch.zeros(3, 2, device=dev).t().copy_(x), True),
    "back": (lambda x, dev: x.copy_(torch.zeros(2, 3, device=dev)), True),
    "back into gaps": (lambda x, dev: x[:, 0].copy_(torch.zeros(2, device=dev)), False),
    "back and cast": (lambda x, dev: x.copy_(torch.zeros(2, 3).double().to(dev)), False),
}


@pytest.mark.parametrize("way", BY_WAY)
def test_pinned_memory_is_of_use_only_to_what_goes_over_as_it_lies_there(way: str) -> None:
    # As in copy_kernel_cuda in ATen/native/cuda/Copy.cu, which copies by way of temporaries else.
    move, expected = BY_WAY[way]
    with simulate_accelerator() as [device], record() as recording:
        move(torch.ones(2, 3).pin_memory(), device)
        torch.ones(1, requires_grad=True).sum().backward()
    assert recording.graph.transfers[-1].pinned is expected


def test_statistics_of_gradients_on_a_device_are_no_transfer() -> None:
    x = torch.randn(100, requires_grad=True)
    with simulate_accelerator() as [device], record() as recording:
        (x.to(device) ** 2).sum().backward()
        assert recording.graph.nodes[2].grad_outputs[0].norm == 10.0
    assert [copy.phase for copy in recording.graph.transfers] == ["forward", "backward"]
    assert recording.graph.nodes[1].grad_outputs[0].tensor.device == "sim:0"


def test_saved_tensors_offloaded_to_the_cpu_are_seen_both_ways() -> None:
    with simulate_accelerator() as [device], record() as recording:
        x = torch.ones(4, device=device, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(Tensor.cpu, lambda t: t.to(device)):
            y = x * x
        y.sum().backward()
    graph = recording.graph
    seen = [(c.kind, c.phase) for c in graph.transfers]
    assert seen == [("DtoH", "forward")] * 2 + [("HtoD", "backward")] * 2
    assert {graph.nodes[c.node].title for c in graph.transfers if c.phase == "backward"} == {"mul"}


def test_what_trace_reads_ahead_is_there_when_backward_has_not_run() -> None:
    with simulate_accelerator() as [device], record() as recording:
        y = torch.ones(2, requires_grad=True).to(device) * 2
    seen = [(c.kind, c.phase) for c in recording.graph.transfers]
    assert seen == [("HtoD", "forward"), ("DtoH", "backward")]
    assert y.shape == (2,)


def test_the_watch_leaves_nothing_behind() -> None:
    def installed() -> tuple[Any, ...]:
        return (
            torch._C._dispatch_tls_is_dispatch_key_included(_KEY),
            torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY),
            torch._C._dispatch_has_kernel_for_dispatch_key("aten::_to_copy", "AutocastIPU"),
            list(_KERNELS.watchers),
        )

    before = installed()
    with pytest.raises(KeyboardInterrupt), record():
        raise KeyboardInterrupt
    with record(), record():
        assert installed() != before
    assert installed() == before


def test_a_mode_of_the_users_sees_what_it_sees_without_a_recording() -> None:
    def run() -> list[Any]:
        with Functions() as seen:
            x = torch.ones(3, requires_grad=True)
            (x.double() * 2).sum().backward()
        return seen.calls

    expected = run()
    with record():
        assert run() == expected
