"""Run programs for CUDA on simulated devices, and check that all patches are undone."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import find, load, record, simulate_accelerator, trace
from graphviz_torch.devices import available_devices
from graphviz_torch.devices.simulated.patches import table
from graphviz_torch.integrations.command.main import main

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="CUDA is simulated where there is none"
)


@pytest.fixture
def cuda() -> Iterator[None]:
    with simulate_accelerator(2, name="cuda"):
        yield


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


FACTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "is_available": (lambda: torch.cuda.is_available(), True),
    "is_initialized": (lambda: torch.cuda.is_initialized(), True),
    "device_count": (lambda: torch.cuda.device_count(), 2),
    "current_device": (lambda: torch.cuda.current_device(), 0),
    "get_device_name": (lambda: torch.cuda.get_device_name(1), "simulated"),
    "get_device_capability": (lambda: torch.cuda.get_device_capability(), (0, 0)),
    "properties": (lambda: torch.cuda.get_device_properties("cuda:1").name, "simulated"),
    "bf16": (lambda: torch.cuda.is_bf16_supported(), True),
    "init": (lambda: torch.cuda.init(), None),
    "synchronize": (lambda: torch.cuda.synchronize(1), None),
    "empty_cache": (lambda: torch.cuda.empty_cache(), None),
    "manual_seed_all": (lambda: torch.cuda.manual_seed_all(3), None),
    "accelerator": (lambda: torch.accelerator.current_accelerator(), torch.device("cuda")),
    "accelerators": (lambda: torch.accelerator.device_count(), 2),
    "nvtx": (lambda: torch.cuda.nvtx.range_push("step"), None),
    "peers": (lambda: torch.cuda.can_device_access_peer(0, 1), True),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_program_finds_two_devices(cuda: None, name: str) -> None:
    call, expected = FACTS[name]
    assert call() == expected


ARRIVALS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "to a device": (lambda x: x.to(torch.device("cuda")), "cuda:0"),
    "to a device with an index": (lambda x: x.to(torch.device("cuda", 1)), "cuda:1"),
    "to a name": (lambda x: x.to("cuda:1"), "cuda:1"),
    "to an index": (lambda x: x.to(1), "cuda:1"),
    "to by keyword": (lambda x: x.to(device="cuda", non_blocking=True), "cuda:0"),
    "to with a dtype": (lambda x: x.to("cuda", torch.float32), "cuda:0"),
    "to where another is": (lambda x: x.to(torch.ones(1, device="cuda:1")), "cuda:1"),
    "cuda": (lambda x: x.cuda(), "cuda:0"),
    "cuda with an index": (lambda x: x.cuda(1), "cuda:1"),
    "cuda with a device": (lambda x: x.cuda(torch.device("cuda:1")), "cuda:1"),
    "cuda without waiting": (lambda x: x.cuda(non_blocking=True), "cuda:0"),
    "a device of an index": (lambda x: x.to(torch.device(1)), "cuda:1"),
    "pinned": (lambda x: x.pin_memory().to("cuda", non_blocking=True), "cuda:0"),
    "a legacy type": (lambda x: x.type(torch.cuda.FloatTensor), "cuda:0"),
    "a legacy type's name": (lambda x: x.type("torch.cuda.FloatTensor"), "cuda:0"),
    "copy_": (lambda x: torch.zeros(3, device="cuda:1").copy_(x), "cuda:1"),
    "tensor": (lambda x: torch.tensor([0.0, 1.0, 2.0], device="cuda:1"), "cuda:1"),
    "as_tensor": (lambda x: torch.as_tensor(x, device="cuda"), "cuda:0"),
    "arange": (lambda x: torch.arange(3.0, device=1), "cuda:1"),
    "like": (lambda x: torch.zeros_like(x, device="cuda") + x.cuda(), "cuda:0"),
    "new": (lambda x: x.cuda(1).new_tensor([0.0, 1.0, 2.0]), "cuda:1"),
    "a parameter": (lambda x: nn.Parameter(x.cuda()).data, "cuda:0"),
    "from the other one": (lambda x: x.cuda(0).cuda(1), "cuda:1"),
    "numpy": (lambda x: torch.from_numpy(x.numpy()).cuda(), "cuda:0"),
    "a legacy constructor": (lambda x: torch.cuda.FloatTensor([0, 1, 2]), "cuda:0"),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_values_arrive_where_they_are_sent(cuda: None, name: str) -> None:
    send, device = ARRIVALS[name]
    there = send(torch.arange(3.0))
    assert (str(there.device), there.is_cuda, there.get_device()) == (device, True, int(device[-1]))
    assert there.device == torch.device(device)
    assert f"device='{device}'" in repr(there)
    assert not there.is_cpu
    assert there.cpu().tolist() == [0, 1, 2]
    assert not there.cpu().is_cuda


def test_what_is_there_already_is_the_same_object(cuda: None) -> None:
    z = torch.ones(2, device="cuda:1")
    assert z.cuda(1) is z
    assert z.to("cuda:1") is z
    assert z.cuda(0) is not z


def test_the_current_device_is_what_cuda_means(cuda: None) -> None:
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert torch.ones(1).cuda().get_device() == 1
    assert torch.ones(1, device="cuda").get_device() == 0
    torch.cuda.set_device("cuda:1")
    assert torch.ones(1, device="cuda").get_device() == 1
    with torch.cuda.device_of(torch.ones(1, device="cuda:0")):
        assert torch.cuda.current_device() == 0


def test_a_default_device_is_where_factories_make_tensors(cuda: None) -> None:
    with torch.device("cuda:1"):
        layer = nn.Linear(2, 2)
        made = [layer.weight, torch.tensor([1.0]), torch.zeros(1), torch.randn(2)]
        assert torch.get_default_device() == torch.device("cuda:1")
        assert torch.zeros(1, device="cpu").device.type == "cpu"
    assert {str(tensor.device) for tensor in made} == {"cuda:1"}
    torch.set_default_device("cuda")
    try:
        assert str(torch.tensor([1.0, 2.0]).sum().device) == "cuda:0"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "move",
    [lambda m: m.cuda(), lambda m: m.to("cuda"), lambda m: m.to(0), lambda m: m.to(device=0)],
    ids=["cuda", "name", "index", "keyword"],
)
def test_a_module_moves_in_place_and_computes_what_it_computes_on_the_cpu(
    cuda: None, move: Callable[[nn.Module], nn.Module]
) -> None:
    model, there = mlp(), mlp()
    weight = there[0].weight
    assert move(there) is there
    assert there[0].weight is weight
    assert {str(p.device) for p in there.parameters()} == {"cuda:0"}
    x = torch.randn(5, 3)
    model(x).square().sum().backward()
    there(x.cuda()).square().sum().backward()
    for one, other in zip(model.parameters(), there.parameters(), strict=True):
        assert str(other.grad.device) == "cuda:0"
        assert torch.equal(one.grad, other.grad.cpu())
    assert not next(there.cpu().parameters()).is_cuda


def test_devices_that_mix_fail_with_the_sentence_of_pytorch(cuda: None) -> None:
    sentence = "Expected all tensors to be on the same device, but found at least two devices, "
    one = torch.ones(2, device="cuda:0")
    for other, names in ((torch.ones(2), "cuda:0 and cpu!"), (one.cuda(1), "cuda:0 and cuda:1!")):
        with pytest.raises(RuntimeError, match=sentence + names):
            one + other
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        one.numpy()
    with pytest.raises(RuntimeError, match=r"invalid device ordinal: cuda:2\. Simulated"):
        one.to("cuda:2")


@pytest.mark.parametrize("backward", [True, False], ids=["backward", "forward"])
def test_data_parallel_divides_thirty_rows_and_nothing_is_reported_of_its_replicas(
    cuda: None, backward: bool
) -> None:
    rows: list[tuple[int, str]] = []
    model, alone = mlp(), mlp()
    model[0].register_forward_hook(
        lambda module, args, out: rows.append((len(args[0]), str(args[0].device)))
    )
    parallel = nn.DataParallel(model).cuda()
    with record() as recording:
        for _ in range(4):
            x = torch.randn(30, 3)
            out = parallel(x.cuda())
        if backward:
            out.sum().backward()
    assert rows[:2] == [(15, "cuda:0"), (15, "cuda:1")]
    # Each half is computed alone: the last bits of a product depend on the number of its rows.
    assert torch.equal(out.cpu(), torch.cat([alone(half) for half in x.chunk(2)]))
    if backward:
        alone(x).sum().backward()
        for one, other in zip(alone.parameters(), model.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad.cpu())
    assert "repeated-copy" not in {found.rule for found in find(recording)}


def test_a_graph_says_that_the_device_is_simulated(cuda: None) -> None:
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        (x.cuda(1) * 2).sum().backward()
    assert [(t.kind, t.source, t.target) for t in recording.graph.transfers] == [
        ("HtoD", "cpu", "sim cuda:1"),
        ("DtoH", "sim cuda:1", "cpu"),
    ]
    assert {node.device for node in recording.graph.nodes} == {"cpu", "sim cuda:1"}


def test_advice_names_the_device_as_the_program_does(cuda: None) -> None:
    def mixed() -> None:
        x = torch.ones(2, device="cuda", requires_grad=True) * 2
        y = torch.ones(2)
        x * y

    with pytest.raises(RuntimeError), record() as recording:
        mixed()
    [found] = [found for found in find(recording) if found.rule == "mixed-devices"]
    assert "sim cuda:0" in found.message
    assert 'y = y.to("cuda:0")' in found.advice


def test_a_recurrent_layer_moves_to_cuda_without_a_warning_about_cudnn(cuda: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, _ = nn.LSTM(3, 4).cuda()(torch.ones(2, 1, 3, device="cuda"))
    assert output.is_cuda


def test_mixed_precision_trains_as_without_it_to_the_digits_of_float16(cuda: None) -> None:
    def train(device: str, scaled: bool) -> list[torch.Tensor]:
        model = mlp().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        assert scaler.is_enabled() is scaled
        x = torch.linspace(-1, 1, 12).view(4, 3).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=scaled):
                assert torch.is_autocast_enabled("cuda") is scaled
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact, mixed = train("cpu", False), train("cuda", True)
    rounding = 8 * torch.finfo(torch.float16).eps  # of three steps, each with a few operators
    torch.testing.assert_close(mixed, exact, rtol=rounding, atol=rounding)
    assert not all(torch.equal(one, other) for one, other in zip(mixed, exact, strict=True))


def test_adam_steps_as_on_the_cpu(cuda: None) -> None:
    model, there = mlp(), mlp().cuda()
    for each, device in ((model, "cpu"), (there, "cuda")):
        optimizer = torch.optim.Adam(each.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            each(torch.ones(4, 3, device=device)).sum().backward()
            optimizer.step()
    for one, other in zip(model.parameters(), there.parameters(), strict=True):
        assert torch.equal(one, other.cpu())


def test_each_device_is_listed_once(cuda: None) -> None:
    assert list(map(str, available_devices())) == ["cpu", "cuda:0", "cuda:1"]


PROGRAM = """\
import torch
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
x = torch.arange(1.0, 4.0, requires_grad=True)
y = ((x.to(device) + 2) ** 2 + 3).mean()
y.backward()
print(y.device, [round(each, 4) for each in x.grad.tolist()])
"""


def test_run_simulates_cuda_for_a_script_and_reports_that_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script := tmp_path / "train.py").write_text(PROGRAM)
    assert main(["run", "--simulate", "1", "-o", str(tmp_path / "g.json"), str(script)]) == 0
    out, said = capsys.readouterr()
    assert out == "cuda:0 [2.0, 2.6667, 3.3333]\n"
    assert "1 step recorded on 1 simulated CUDA device" in said
    there, back = "1 cpu -> sim cuda:0 in forward (12 B)", "1 sim cuda:0 -> cpu in backward (12 B)"
    assert f"copies: {there}, {back}" in said.splitlines()
    [step] = load(tmp_path / "g.json").steps
    assert [(t.kind, t.nbytes) for t in step.graph.transfers] == [("HtoD", 12), ("DtoH", 12)]
    assert not torch.cuda.is_available()
    assert main(["run", "--simulate", "99", str(script)]) == 2
    assert "pass a number from 1 to 32" in capsys.readouterr().err


def test_a_copy_in_a_legacy_variable_is_used(cuda: None) -> None:
    weight = torch.ones(3, requires_grad=True, device="cuda")
    with record() as recording:
        loss = torch.zeros((), device="cuda")
        for _ in range(3):
            data = torch.autograd.Variable(torch.ones(3).cuda())
            loss = loss + (weight * data).sum()
        loss.backward()
    assert [copy.used for copy in recording.graph.transfers] == [True] * 3


def test_the_help_of_a_missing_device_names_the_simulation() -> None:
    with pytest.raises((AssertionError, RuntimeError)), record() as recording:
        (torch.ones(2, requires_grad=True) * 2).cuda()
    assert any("--simulate" in found.advice for found in find(recording))


def test_memory_is_counted_until_it_is_freed(cuda: None) -> None:
    before, other = torch.cuda.memory_allocated(), torch.cuda.memory_allocated(1)
    torch.cuda.reset_peak_memory_stats()
    x = torch.ones(250, device="cuda")
    view = x[10:]
    assert torch.cuda.memory_allocated() - before == 1000
    assert torch.cuda.memory_allocated(1) == other
    del x
    assert torch.cuda.memory_allocated() - before == 1000  # the view has it
    del view
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 1000
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] - before == 1000
    free, total = torch.cuda.mem_get_info()
    assert total - free == before


def test_streams_do_nothing_and_an_event_has_no_time_and_says_so_once(cuda: None) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        x = torch.ones(2, device="cuda") * 2
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(torch.cuda.current_stream())
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    end.record(stream)
    end.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert all(math.isnan(begin.elapsed_time(end)) for _ in range(2))
    assert len(told) <= 1  # another test may have been told already
    assert x.tolist() == [2, 2]


def test_random_numbers_are_those_of_a_run_on_the_cpu(cuda: None) -> None:
    torch.manual_seed(1)
    expected = torch.randn(3), torch.nn.functional.dropout(torch.ones(8))
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(7)
    found = torch.randn(3, device="cuda"), torch.nn.functional.dropout(torch.ones(8).cuda())
    assert all(torch.equal(one, other.cpu()) for one, other in zip(expected, found, strict=True))
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    drawn = torch.randn(2, device="cuda", generator=generator)
    assert torch.equal(drawn.cpu(), torch.randn(2, generator=torch.Generator().manual_seed(3)))


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


LOCATIONS: dict[str, tuple[Any, str]] = {
    "as it was": (None, "cuda:1"),
    "a name": ("cuda:0", "cuda:0"),
    "without an index": ("cuda", "cuda:0"),
    "a device": (torch.device("cuda:0"), "cuda:0"),
    "the CPU": ("cpu", "cpu"),
    "a table": ({"cuda:1": "cuda:0"}, "cuda:0"),
    "a table to the CPU": ({"cuda:1": "cpu"}, "cpu"),
    "a function": (lambda storage, location: storage, "cpu"),
    "a function with a device": (lambda storage, location: storage.cuda(0), "cuda:0"),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", LOCATIONS)
def test_a_file_is_loaded_where_map_location_says(
    cuda: None, name: str, weights_only: bool
) -> None:
    location, device = LOCATIONS[name]
    model = mlp().cuda(1)
    state = torch.load(saved(model.state_dict()), location, weights_only=weights_only)
    assert {str(tensor.device) for tensor in state.values()} == {device}
    other = mlp().to(device)
    nn.init.zeros_(other[0].weight)
    other.load_state_dict(state)
    assert torch.equal(other[0].weight.cpu(), model[0].weight.cpu())


def test_a_saved_module_and_a_parameter_come_back_as_they_were(cuda: None) -> None:
    model = torch.load(saved(mlp().cuda(1)), weights_only=False)
    assert {str(p.device) for p in model.parameters()} == {"cuda:1"}
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())
    assert model(torch.ones(1, 3, device="cuda:1")).shape == (1, 2)


def test_outside_a_file_of_a_simulated_device_is_one_of_a_device_that_is_not_there() -> None:
    with simulate_accelerator(name="cuda"):
        file = saved(torch.ones(2).cuda())
    with pytest.raises(RuntimeError, match="map_location"):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [1, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_pins_its_batches(cuda: None, workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), 2, pin_memory=True, num_workers=workers)
    weight = torch.ones(2, device="cuda", requires_grad=True)
    with record() as recording:
        for (batch,) in loader:
            assert batch.is_pinned()
            (batch.cuda(non_blocking=True) * weight).sum().backward()
    assert {(t.pinned, t.non_blocking) for t in recording.graph.transfers} == {(True, True)}


class Scaled(torch.autograd.Function):
    """A custom Function that creates tensors on the device of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + torch.ones(2, device=gradient.device) + torch.ones(2, device="cuda")


def test_hooks_and_functions_of_a_users_find_cuda_inside_backward(cuda: None) -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    y = Scaled.apply(x)
    y.register_hook(lambda gradient: gradient + torch.tensor([1.0, 1.0]).cuda())
    y.sum().backward()
    assert x.grad.tolist() == [4, 4]
    block = torch.utils.checkpoint.checkpoint(
        lambda x: x * torch.full((2,), 3.0, device="cuda"), x, use_reentrant=False
    )
    assert torch.autograd.grad(block.sum(), x)[0].tolist() == [3, 3]


def test_everything_is_as_it_was_after_the_block() -> None:
    def now() -> list[Any]:
        return [vars(owner).get(name) for owner, name, _ in table()]

    before = now()
    with simulate_accelerator(2, name="cuda"), simulate_accelerator(1, name="cuda"):
        assert torch.cuda.device_count() == 1
        assert now() != before
        x = torch.ones(2).cuda()
    assert all(one is other for one, other in zip(before, now(), strict=True))
    assert not torch.cuda.is_available()
    assert trace(x.requires_grad_() * 2, names={}).nodes[-1].device == "sim cuda:0"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")


def test_only_functions_of_builds_for_cuda_are_missing_in_pytorch() -> None:
    missing = [(owner, name) for owner, name, _ in table() if not hasattr(owner, name)]
    assert {owner for owner, _ in missing} <= {torch._C}
    assert {name.split("_")[1] for _, name in missing} <= {"scatter", "broadcast", "gather"}


def test_it_is_refused_where_cuda_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with (
        pytest.raises(RuntimeError, match="this one has 4 CUDA devices"),
        simulate_accelerator(name="cuda"),
    ):
        pass


@pytest.mark.parametrize("name", ["mps", "", "CUDA"])
def test_another_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=f"name={name!r}"), simulate_accelerator(name=name):
        pass
