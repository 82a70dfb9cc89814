"""Test checkpoints: loaded values, entries that do not fit, refused files, comparisons."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from graphviz_torch import load, simulate_accelerator, trace
from graphviz_torch.checkpoint import (
    CheckpointDiff,
    graph_path_for,
    load_checkpoint,
    save_checkpoint,
)
from graphviz_torch.compare import compare_models


def mlp(width: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, width),
        torch.nn.BatchNorm1d(width),
        torch.nn.Dropout(),
        torch.nn.Linear(width, 2),
    )


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(3),
        [torch.ones(2), torch.zeros(1, dtype=torch.bfloat16)],
        {"x": torch.ones(2), "epoch": 3, "name": "run", "nested": {"y": (1.5, None)}},
    ],
    ids=["tensor", "list", "dict"],
)
def test_what_is_saved_comes_back_equal(value: Any, tmp_path: Path) -> None:
    path = save_checkpoint(value, tmp_path / "value.pt")
    assert str(load_checkpoint(path)) == str(value)
    assert str(torch.load(path, weights_only=True)) == str(value)  # PyTorch's own file
    assert os.listdir(tmp_path) == ["value.pt"]


def test_modules_and_optimizers_come_back_by_name_with_a_graph_beside(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    out = model(torch.randn(5, 4)).sum()
    graph = trace(out, names=model)
    out.backward()
    optimizer.step()
    path = save_checkpoint(
        {"model": model, "optimizer": optimizer, "epoch": 7}, tmp_path / "run.pt", graph=graph
    )
    other = mlp()
    second = torch.optim.Adam(other.parameters())
    found: list[CheckpointDiff] = []
    value = load_checkpoint(path, {"model": other, "optimizer": second}, report=found.append)
    assert value["epoch"] == 7
    assert found == [CheckpointDiff()]
    assert str(found[0]) == "the file fits the module"
    assert compare_models(model, other, torch.randn(5, 4))
    state = optimizer.state[model[0].weight]["exp_avg"]
    assert torch.equal(second.state[other[0].weight]["exp_avg"], state)
    assert load(graph_path_for(path)) == graph


def test_a_checkpoint_crosses_devices_and_the_file_holds_the_cpu(tmp_path: Path) -> None:
    with simulate_accelerator(2) as devices:
        model = mlp().to(devices[0])
        path = save_checkpoint(model, tmp_path / "m.pt")
        assert {t.device.type for t in load_checkpoint(path).values()} == {"cpu"}
        there = load_checkpoint(path, map_location="sim:1")
        assert {t.device for t in there.values()} == {devices[1]}
        other = mlp().to(devices[1])
        found: list[CheckpointDiff] = []
        load_checkpoint(path, other, report=found.append)
        assert found[0].fits
        assert len(found[0].devices) == len(model.state_dict())
        assert "on another device, will be copied: 0.weight is f32[3, 4] cpu in the file" in str(
            found[0]
        )
        assert compare_models(model, other, torch.randn(5, 4))


def test_what_does_not_fit_is_reported_before_anything_is_changed(tmp_path: Path) -> None:
    model = mlp(width=5)
    state = model.state_dict()
    del state["3.bias"]
    state["extra"] = torch.ones(1)
    state["0.bias"] = torch.zeros(3, dtype=torch.float64)
    path = save_checkpoint(state, tmp_path / "m.pt")
    other = mlp(width=3)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    found: list[CheckpointDiff] = []
    with pytest.raises(ValueError, match="does not fit, and nothing was changed") as error:
        load_checkpoint(path, other, report=found.append)
    assert found[0].missing == ("3.bias",)
    assert found[0].unexpected == ("extra",)
    assert "0.weight" in [name for name, _, _ in found[0].shapes]
    assert [name for name, _, _ in found[0].dtypes] == ["0.bias"]
    assert "of another shape: 0.weight is f32[5, 4] cpu in the file, f32[3, 4] cpu" in str(
        error.value
    )
    assert all(torch.equal(before[name], t) for name, t in other.state_dict().items())
    load_checkpoint(path, other, strict=False)  # what fits
    assert other[0].bias.tolist() == [0, 0, 0]
    assert torch.equal(other[3].bias, before["3.bias"])


def test_an_optimizer_that_does_not_fit_keeps_the_model_from_changing(tmp_path: Path) -> None:
    model = mlp()
    path = save_checkpoint(
        {"model": model, "optimizer": torch.optim.SGD(model.parameters())}, tmp_path / "m.pt"
    )
    other = mlp()
    before = other[0].weight.clone()
    few = torch.optim.SGD([other[0].weight])
    with pytest.raises(ValueError, match=r"optimizer has parameter groups of sizes \[1\], but"):
        load_checkpoint(path, {"model": other, "optimizer": few})
    assert torch.equal(other[0].weight, before)
    with pytest.raises(TypeError, match="into\\['n'\\] is an int: pass modules and optimizers"):
        load_checkpoint(path, {"n": 3})


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("write", ["torch", "pickle"])
def test_a_pickle_that_wants_to_run_code_is_refused_by_name_and_runs_nothing(
    write: str, tmp_path: Path
) -> None:
    mark, path = tmp_path / "was-run", tmp_path / "hostile.pt"
    value = {"weight": torch.ones(2) if write == "torch" else 1, "evil": Hostile(mark)}
    if write == "torch":
        torch.save(value, path)
    else:
        path.write_bytes(pickle.dumps(value))
    with pytest.raises(ValueError, match=r"was refused|not a PyTorch checkpoint") as error:
        load_checkpoint(path)
    assert not mark.exists()
    if write == "torch":
        assert "would load posix.system" in str(error.value)
        assert "Nothing was run" in str(error.value)
    pickle.loads(pickle.dumps(value["evil"]))
    assert mark.exists()  # it would have


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\x00" * 100, b"PK\x03\x04broken"],
    ids=["empty", "text", "zeros", "half a zip"],
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_that_is_no_checkpoint_is_named_and_refused(
    content: bytes, suffix: str, tmp_path: Path
) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"file\{suffix} is no"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / f"none{suffix}")


def test_what_could_not_be_loaded_again_is_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"options\.where is a PosixPath"):
        save_checkpoint({"options": {"where": tmp_path}}, tmp_path / "m.pt")
    assert os.listdir(tmp_path) == []


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = save_checkpoint([1], tmp_path / "m.pt")

    def fail(state: Any, file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint([2], path)
    assert load_checkpoint(path) == [1]
    assert os.listdir(tmp_path) == ["m.pt"]


def test_a_safetensors_file_keeps_ties_views_and_devices(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    state = {**model.state_dict(), "t": model["a"].weight.detach().t()}
    path = save_checkpoint(state, tmp_path / "m.safetensors")
    assert "b.weight" not in safetensors.load_file(path)  # written once
    value = load_checkpoint(path)
    assert set(value) == set(state)
    assert all(torch.equal(value[name], state[name]) for name in state)
    with pytest.raises(TypeError, match="'epoch' is an int"):
        save_checkpoint({"epoch": 1}, path)
    with simulate_accelerator() as [device]:
        load_checkpoint(path, torch.nn.ModuleDict(model).to(device), strict=False)


def test_a_safetensors_file_holds_every_dtype_and_layout_that_the_package_knows(
    tmp_path: Path,
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = {
        name: torch.tensor([[0, 1, 3], [2, 1, 0]]).to(dtype)
        for name, dtype in safetensors._TYPES.items()
        if dtype.itemsize
    }
    numbers = torch.randn(3, 2, dtype=torch.complex64)
    state |= {"conj": numbers.conj(), "negative": numbers.conj().imag, "columns": numbers.t()}
    state |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "none": torch.zeros(0)}
    value = safetensors.load_file(save_checkpoint(state, tmp_path / "m.safetensors"))
    assert {*value} == {*state}
    for name, tensor in state.items():
        assert (value[name].dtype, value[name].shape) == (tensor.dtype, tensor.shape)
        assert str(value[name].tolist()) == str(tensor.tolist())
    for bad in (torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2).cdouble()):
        with pytest.raises(
            TypeError, match=r"'x' is torch.*which a \.safetensors file cannot contain"
        ):
            save_checkpoint({"x": bad}, tmp_path / "m.safetensors")


# verify


def pair() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    model, other = mlp(), mlp()
    other.load_state_dict(model.state_dict())
    return model, other


def test_the_same_module_is_the_same_also_with_dropout_and_changes_nothing() -> None:
    model, other = pair()
    model[0].weight.grad = torch.ones(3, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(5, 4)
    random = torch.get_rng_state()
    found = compare_models(model, other, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert found
    assert bool(found)
    assert str(found) == f"same output and same gradients, at all {len(found.graph.nodes)} nodes"
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert model[0].weight.grad.tolist() == [[1] * 4] * 3


def test_a_changed_weight_is_where_they_first_differ_and_by_how_much() -> None:
    model, other = pair()
    with torch.no_grad():
        other[3].bias[1] += 0.25
    found = compare_models(model, other, torch.randn(5, 4))
    assert found.first is not None
    assert (found.first.what, found.first.largest) == ("value", pytest.approx(0.25))
    assert found.graph.nodes[found.first.node].label == "3.bias"
    assert found.outputs == pytest.approx(0.25)
    assert "first at node" in str(found)
    before = [d for d in found.differences if d.node < found.first.node and d.what == "value"]
    assert before == []


def test_another_computation_is_named_at_its_node() -> None:
    torch.manual_seed(0)
    a = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    b = torch.nn.Sequential(a[0], torch.nn.Tanh())
    found = compare_models(a, b, torch.randn(3, 2))
    assert found.first is not None
    assert found.first.what == "operation"
    assert "relu: the other module computes TanhBackward0" in str(found.first)


def test_a_gradient_that_differs_where_values_agree_is_found() -> None:
    class Product(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.weight * x
            y.register_hook(lambda gradient: gradient * self.scale)
            return y.exp()

    right, wrong = Product(2, 1, bias=False), Product(2, 1, bias=False)
    right.scale, wrong.scale = 1, 3
    wrong.load_state_dict(right.state_dict())
    found = compare_models(right, wrong, torch.ones(2))
    assert found.outputs == 0
    assert [name for name, _ in found.gradients] == ["weight"]
    assert found.first is not None
    assert found.first.what == "gradient"
    assert found.graph.nodes[found.first.node].name == "MulBackward0"


def test_a_small_difference_is_the_same_within_a_tolerance() -> None:
    model, other = pair()
    other.double()
    x = torch.randn(5, 4)
    model.double()
    with torch.no_grad():
        other[0].weight *= 1 + 1e-9
    assert not compare_models(model, other, x.double())
    assert compare_models(model, other, x.double(), tolerance=1e-6)


def test_values_of_every_node_are_those_that_retain_grad_would_show() -> None:
    from graphviz_torch.checkpoint.verify import _run

    torch.manual_seed(0)
    kept: dict[str, torch.Tensor] = {}

    class Steps(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = super().forward(x)
            b = a.relu()
            c = torch.softmax(b, 1)
            kept.update(AddmmBackward0=a.clone(), ReluBackward0=b.clone(), SoftmaxBackward0=c)
            return c.sum()

    run = _run(Steps(3, 2), torch.randn(4, 3))
    names = {node.name: node.id for node in run.graph.nodes}
    for name, value in kept.items():
        assert torch.equal(run.values[names[name]], value), name
