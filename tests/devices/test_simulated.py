"""Compare the simulated accelerator with the CPU: equal values, own devices, no leftovers."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from graphviz_torch import record, simulate_accelerator, trace
from graphviz_torch.devices.simulated.accelerator import is_pinned, simulating
from tests.support.programs import Functions, in_threads


class Log(TorchDispatchMode):
    """A log of operators, the devices of their tensors, and the devices of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[str], str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        devices = [str(a.device) for a in args if isinstance(a, torch.Tensor)]
        result = str(out.device) if isinstance(out, torch.Tensor) else type(out).__name__
        self.calls.append((func._schema.name[6:], devices, result))
        return out


def run_copies(device: torch.device) -> torch.Tensor:
    moved = torch.ones(2).to(device)
    moved.cpu()
    moved.sum().item()
    torch.zeros(2).copy_(moved)
    torch.tensor([1.0], device=device)
    moved.tolist()
    return moved


EXPECTED = [
    ("_to_copy", ["cpu"], "meta:64"),
    ("_to_copy", ["meta:64"], "cpu"),
    ("_local_scalar_dense", ["meta:64"], "float"),
    ("copy_", ["cpu", "meta:64"], "cpu"),
    ("_to_copy", ["cpu"], "meta:64"),
    ("_to_copy", ["meta:64"], "cpu"),
]


def copies(log: Log) -> list[tuple[str, list[str], str]]:
    crossing = ("_to_copy", "copy_", "_local_scalar_dense")
    return [call for call in log.calls if call[0] in crossing]


def test_a_mode_entered_inside_or_before_sees_every_copy_with_both_devices() -> None:
    with simulate_accelerator() as [device], Log() as inside:
        run_copies(device)
    with Log() as before, simulate_accelerator() as [device]:
        run_copies(device)
    assert copies(inside) == copies(before) == EXPECTED


def test_a_function_mode_sees_the_same_calls_in_either_order() -> None:
    with Functions() as before, simulate_accelerator() as [device]:
        run_copies(device)
    with simulate_accelerator() as [device], Functions() as inside:
        run_copies(device)
    made = [call for call in before.calls if call is not torch.device]  # the device itself
    assert made == inside.calls
    assert torch.tensor in made


@pytest.mark.parametrize("first", [True, False])
def test_a_default_device_set_before_or_inside_works_and_leaves_nothing(first: bool) -> None:
    if first:
        torch.set_default_device("cpu")
    try:
        with simulate_accelerator() as [device]:
            torch.set_default_device(device)
            assert torch.tensor([2.0]).device == torch.ones(1).device == device
            assert (torch.tensor([2.0]) * torch.ones(1)).tolist() == [2.0]
            torch.set_default_device("cpu")
    finally:
        torch.set_default_device(None)


def test_what_a_simulated_operator_does_inside_is_hidden_from_modes() -> None:
    with Log() as log, simulate_accelerator() as [device]:
        a = torch.ones(2, device=device)
        log.calls.clear()
        repr(a + a)
    assert log.calls == [("add", ["meta:64", "meta:64"], "meta:64")]


def test_the_worked_example_has_autograds_gradients_and_the_copies_in_its_graph() -> None:
    with simulate_accelerator() as [device]:
        x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
        y = ((x.to(device) + 2) ** 2 + 3).mean().cpu()
        y.backward()
    assert torch.allclose(x.grad, 2 * (x.detach() + 2) / 3)
    graph = trace(y, names={})
    assert [(node.name, node.device) for node in graph.nodes] == [
        ("AccumulateGrad", "cpu"),
        ("ToCopyBackward0", "sim:0"),
        ("AddBackward0", "sim:0"),
        ("PowBackward0", "sim:0"),
        ("AddBackward0", "sim:0"),
        ("MeanBackward0", "sim:0"),
        ("ToCopyBackward0", "cpu"),
    ]


def train(device: torch.device | str, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(4 * 36, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    values = []
    for _ in range(steps):
        x = torch.randn(5, 1, 8, 8, device=device)
        y = torch.randint(10, (5,), device=device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values += [loss.detach().cpu()]
    return values + [p.detach().cpu() for p in model.parameters()]


def test_training_on_it_is_bit_equal_to_training_on_the_cpu() -> None:
    with simulate_accelerator() as [device]:
        simulated = train(device)
    for a, b in zip(simulated, train("cpu"), strict=True):
        assert torch.equal(a, b)


def test_backward_runs_across_two_devices_and_the_cpu() -> None:
    def run(first: Any, second: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        a, b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        a.to(first), b.to(second)
        x = torch.randn(2, 3)
        b(a(x.to(first)).relu().to(second)).sum().cpu().backward()
        return [p.grad.cpu() for m in (a, b) for p in m.parameters()]

    with simulate_accelerator(2) as devices:
        simulated = run(*devices)
    assert all(torch.equal(a, b) for a, b in zip(simulated, run("cpu", "cpu"), strict=True))


def test_devices_that_mix_fail_with_pytorchs_words_and_their_names() -> None:
    words = "Expected all tensors to be on the same device, but found at least two devices, "
    with simulate_accelerator(2) as (a, b):
        x = torch.ones(2, device=a)
        mixes: list[tuple[Any, str]] = [
            (lambda: x + torch.ones(2), "sim:0 and cpu!"),
            (lambda: torch.ones(2, device=b) @ x, "sim:1 and sim:0!"),
            (lambda: torch.ones(2).add_(x), "sim:0 and cpu!"),
            (lambda: torch.nn.Linear(2, 2)(x), "sim:0 and cpu!"),
            (lambda: x + torch.ones(2, device="meta"), "sim:0 and meta!"),
            (lambda: torch.ones(3)[torch.tensor([0], device=a)], ""),
        ]
        for mix, devices in mixes:
            with pytest.raises(RuntimeError, match=words + devices):
                mix()


def test_a_number_on_the_cpu_mixes_with_anything_as_on_a_gpu() -> None:
    with simulate_accelerator() as [device]:
        x = torch.ones(2, device=device)
        assert (x * torch.tensor(3.0) + 1).tolist() == [4.0, 4.0]
        assert x[torch.tensor([0])].tolist() == [1.0]
        x[torch.tensor([1])] = torch.tensor(5.0)
        assert x.tolist() == [1.0, 5.0]
        with pytest.raises(RuntimeError, match="at least two devices"):
            torch.tensor(1.0).add_(x.sum())


def test_values_are_read_as_on_a_gpu() -> None:
    with simulate_accelerator() as [device]:
        x = torch.tensor([[1.5, 2.0]], device=device)
        assert x.tolist() == [[1.5, 2.0]]
        assert x[0, 1].item() == float(x[0, 1]) == 2.0
        assert int(x[0, 1]) == 2
        assert bool((x > 0).all())
        assert f"{x[0, 0]:.2f}" == "1.50"
        assert [v.item() for v in x[0]] == [1.5, 2.0]
        assert not x.is_meta
        for read in (x.numpy, lambda: np.asarray(x)):
            with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
                read()
        assert x.numpy(force=True).tolist() == [[1.5, 2.0]]


PRINTED = {
    "torch.ones(2, device=d)": "tensor([1., 1.], device='sim:1')",
    "torch.ones(1, device=d).double()": "tensor([1.], device='sim:1', dtype=torch.float64)",
    "torch.ones(1, device=d, requires_grad=True)": (
        "tensor([1.], device='sim:1', requires_grad=True)"
    ),
    "torch.ones(1, device=d, requires_grad=True) * 2": (
        "tensor([2.], device='sim:1', grad_fn=<MulBackward0>)"
    ),
    "torch.empty(0, 2, device=d).int()": (
        "tensor([], device='sim:1', size=(0, 2), dtype=torch.int32)"
    ),
    "torch.nn.Parameter(torch.ones(1, device=d))": (
        "Parameter containing:\ntensor([1.], device='sim:1', requires_grad=True)"
    ),
}


@pytest.mark.parametrize("made", PRINTED)
def test_it_prints_as_a_tensor_on_a_gpu_prints(made: str) -> None:
    with simulate_accelerator(2) as devices:
        tensor = eval(made, {"torch": torch, "d": devices[1]})
        assert repr(tensor) == str(tensor) == PRINTED[made]


def test_python_data_becomes_a_tensor_with_values() -> None:
    with simulate_accelerator() as [device]:
        assert torch.tensor([1, 2], device=device).tolist() == [1, 2]
        assert torch.as_tensor(np.arange(2), device=device).tolist() == [0, 1]
        assert torch.asarray([3.0], device=device).tolist() == [3.0]
        assert torch.ones(1).to(device).new_tensor([4]).tolist() == [4.0]
        assert torch.ones(1, device=device).new_full((2,), 7.0).tolist() == [7.0, 7.0]
        leaf = torch.tensor([2.0], device=device, requires_grad=True)
        assert leaf.is_leaf
        torch.set_default_device(device)
        try:
            assert (torch.tensor([1.0]) + torch.ones(1)).device == device
        finally:
            torch.set_default_device(None)


def test_the_seed_gives_the_numbers_that_it_gives_on_the_cpu() -> None:
    with simulate_accelerator() as [device]:
        torch.manual_seed(3)
        simulated = [torch.randn(3, device=device), torch.rand(2).to(device)]
    torch.manual_seed(3)
    for a, b in zip(simulated, [torch.randn(3), torch.rand(2)], strict=True):
        assert torch.equal(a.cpu(), b)


def test_a_module_keeps_its_parameters_identity_ties_and_gradients_there_and_back() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    weight = model["a"].weight
    seen = weakref.ref(weight)
    weight.mark = "mine"
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    values, gradient = weight.detach().clone(), torch.full((2, 2), 3.0)
    weight.grad = gradient.clone()
    with simulate_accelerator() as [device]:
        for target in (device, torch.device("cpu"), device):
            model.to(target)
            assert model["a"].weight is model["b"].weight is weight is seen()
            assert weight.device == weight.grad.device == target
            assert isinstance(weight, torch.nn.Parameter)
            assert weight.mark == "mine"
            assert torch.equal(weight.cpu(), values)
            assert torch.equal(weight.grad.cpu(), gradient)
        model.to(torch.float64)
        assert weight.dtype == weight.grad.dtype == torch.float64
        optimizer.step()
        assert torch.equal(weight.cpu(), values.double() - gradient)


def test_moving_a_module_between_forward_and_backward_fails_as_on_a_gpu() -> None:
    model = torch.nn.Linear(2, 2)
    loss = model(torch.ones(2)).sum()
    with simulate_accelerator() as [device]:
        model.to(device)
        with pytest.raises(RuntimeError, match="moved to another device between"):
            loss.backward()


def test_views_and_in_place_changes_reach_each_other() -> None:
    with simulate_accelerator() as [device]:
        base = torch.zeros(2, 3, device=device)
        view = base[0]
        view += 1
        base.t()[2] = 5
        assert base.tolist() == [[1, 1, 5], [0, 0, 5]]
        assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
        base.unsqueeze_(0).transpose_(1, 2)
        assert base.shape == (1, 3, 2)
        assert base.stride() == torch.zeros(2, 3).unsqueeze_(0).transpose_(1, 2).stride()
        out = torch.empty(0, device=device)
        torch.add(base, 1, out=out)
        assert out.shape == base.shape
        base.data = torch.full((2,), 9.0, device=device)
        assert base.tolist() == [9, 9]


def test_a_file_saved_there_opens_anywhere() -> None:
    file = io.BytesIO()
    with simulate_accelerator() as [device]:
        model = torch.nn.Linear(2, 2).to(device)
        torch.save({"model": model.state_dict(), "x": torch.ones(2, device=device)}, file)
        file.seek(0)
        restored = torch.load(file, weights_only=True)
        assert restored["x"].device.type == "cpu"
        other = torch.nn.Linear(2, 2).to(device)
        other.load_state_dict(restored["model"])
        assert torch.equal(other.weight, model.weight)


def test_deep_copies_are_apart_and_keep_ties() -> None:
    with simulate_accelerator() as [device]:
        a = torch.nn.Linear(2, 2).to(device)
        a.weight.grad = torch.ones(2, 2, device=device)
        pair = copy.deepcopy([a, a, a.weight])
        assert pair[0] is pair[1]
        assert pair[0].weight is pair[2]
        assert pair[2].grad.tolist() == [[1, 1], [1, 1]]
        with torch.no_grad():
            pair[2].zero_()
        assert a.weight.abs().sum() > 0
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(a.weight * 2)


def test_pinning_is_a_flag_that_views_share_and_that_ends_with_the_block() -> None:
    with simulate_accelerator():
        pinned = torch.ones(4).pin_memory()
        tensors = [torch.ones(4), pinned, pinned[1:], torch.zeros(2, pin_memory=True)]
        assert [tensor.is_pinned() for tensor in tensors] == [False, True, True, True]
        assert is_pinned(pinned) or torch.cuda.is_available()  # there it is no flag
    if not torch.cuda.is_available():
        assert not pinned.is_pinned()


def test_non_blocking_copies_and_other_dtypes_arrive() -> None:
    with simulate_accelerator() as [device]:
        x = torch.arange(3).to(device, torch.float16, non_blocking=True)
        assert (x.dtype, x.tolist()) == (torch.float16, [0.0, 1.0, 2.0])
        assert torch.view_as_real(
            torch.ones(1, dtype=torch.complex64, device=device).conj().resolve_conj()
        ).tolist() == [[1, 0]]


def test_the_process_is_as_it_was_also_after_an_exception() -> None:
    class Stop(BaseException):
        pass

    with pytest.raises(Stop), simulate_accelerator(), simulate_accelerator(2):
        raise Stop
    assert not simulating()
    assert torch.ones(2, device="meta").is_meta


def test_a_mode_that_ends_before_the_simulation_leaves_it_in_place() -> None:
    log = Log()
    log.__enter__()
    simulation = simulate_accelerator()
    [device] = simulation.__enter__()
    log.__exit__(None, None, None)
    assert torch.ones(1, device=device).item() == 1
    simulation.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == []


def test_true_meta_tensors_stay_what_they_are() -> None:
    with simulate_accelerator():
        for device in ("meta", "meta:1"):
            x = torch.ones(2, device=device, requires_grad=True)
            assert x.is_meta
            assert trace(x * 2, names={}).nodes[0].device.startswith("meta")


def test_a_graph_traced_after_the_block_still_knows_the_device() -> None:
    with simulate_accelerator(2) as devices:
        y = torch.ones(2, device=devices[1], requires_grad=True) * 2
    assert trace(y, names={}).nodes[-1].device == "sim:1"
    y.sum().backward()


def test_a_tensor_brought_there_after_the_block_is_named_for_what_it_is() -> None:
    with simulate_accelerator() as [device]:
        x = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match="moved outside simulate_accelerator"):
        x + torch.ones(2).to(device)


def test_two_threads_simulate_apart_and_a_thread_without_it_does_not() -> None:
    def inside() -> float:
        with simulate_accelerator(2) as devices:
            return torch.ones(2).to(devices[1]).sum().item()

    with simulate_accelerator() as [device]:
        assert in_threads(inside, simulating) == [2.0, False]
        assert torch.ones(1).to(device).item() == 1


@pytest.mark.parametrize("count", [0, 33, 1.5, "2"])
def test_a_wrong_count_is_refused_with_the_count(count: Any) -> None:
    with pytest.raises(ValueError, match=f"count={count!r}"), simulate_accelerator(count):
        pass


def test_packed_sequences_keep_their_batch_sizes_on_the_cpu() -> None:
    with simulate_accelerator() as [device]:
        rnn = torch.nn.LSTM(2, 3).to(device)
        rows = [torch.ones(3, 2, device=device), torch.ones(1, 2, device=device)]
        out, _ = rnn(torch.nn.utils.rnn.pack_sequence(rows))
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(out)
    assert (padded.device, padded.shape, lengths.tolist()) == (device, (3, 2, 3), [3, 1])


def test_a_shallow_copy_stays_on_the_device_and_shares_memory() -> None:
    with simulate_accelerator() as [device]:
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        other = copy.copy(weight)
        with torch.no_grad():
            other.zero_()
    assert isinstance(other, torch.nn.Parameter)
    assert weight.tolist() == [0, 0]


def test_a_lazy_module_is_refused_with_what_to_do_first() -> None:
    with (
        simulate_accelerator() as [device],
        pytest.raises(NotImplementedError, match="call it once"),
    ):
        torch.nn.LazyLinear(2).to(device)


def warn(device: Any) -> None:
    """Cause warnings in Python code and in C++, in operators and in other functions."""
    w = torch.ones(2, requires_grad=True)
    loss = (w.to(device) * 2).sum()
    float(loss)
    torch.tensor(loss.detach())
    torch.ones(2, 3, 4, device=device).T  # noqa: B018
    loss.grad  # noqa: B018
    torch.nn.functional.mse_loss(torch.ones(2, device=device), torch.ones(2, 1, device=device))
    torch.ones(3, device=device, dtype=torch.complex64).float()


@pytest.fixture
def always_warning() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("always_warning")
@pytest.mark.parametrize("order", ["simulated", "simulated in recorded", "recorded in simulated"])
def test_a_warning_names_the_users_line(order: str) -> None:
    def lines(*blocks: AbstractContextManager[Any]) -> list[tuple[str, int, str]]:
        with ExitStack() as stack, warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            devices = [stack.enter_context(block) for block in blocks]
            warn(next((at[0] for at in devices if isinstance(at, list)), "cpu"))
        return [(each.filename, each.lineno, str(each.message)) for each in given]

    bare = lines()
    assert len(bare) >= 6
    assert {name for name, *_ in bare} == {__file__}
    blocks = {"simulated": simulate_accelerator, "recorded": record}
    assert lines(*(blocks[name]() for name in reversed(order.split(" in ")))) == bare  # type: ignore[operator]


def test_a_simulated_device_loads_neither_the_compiler_nor_distributed_tensors() -> None:
    program = """
import sys
import torch
from graphviz_torch import simulate_accelerator

with simulate_accelerator() as [device]:
    x = torch.ones(3, requires_grad=True)
    (x.to(device) * torch.tensor([1.0, 2.0, 3.0], device=device)).sum().backward()
print({"torch._dynamo", "torch.distributed.tensor"} & sys.modules.keys())
import torch._dynamo
with simulate_accelerator() as [device]:
    print(torch.ones(3, device=device).device == device)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "True"]
