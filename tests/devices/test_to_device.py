"""Test that `to_device` moves everything, keeps shared memory, and names what it cannot move."""

from __future__ import annotations

import argparse
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import simulate_accelerator, to_device
from graphviz_torch.devices import Moves, available_devices, move_locals

Pair = namedtuple("Pair", "left right")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    image: torch.Tensor
    label: int


@pytest.fixture
def there() -> Any:
    """Return a device that is not the CPU, and real if the machine has one."""
    if torch.cuda.is_available():
        yield torch.device("cuda", 0)
    else:
        with simulate_accelerator() as [device]:
            yield device


def moves(tree: Any, device: torch.device, **options: Any) -> tuple[Any, Moves]:
    reports: list[Moves] = []
    moved = to_device(tree, device, report=reports.append, **options)
    return moved, reports[0]


@pytest.mark.parametrize(
    "tree",
    [
        torch.ones(2),
        [torch.ones(2), {"a": (torch.ones(1), 3)}],
        Pair(torch.ones(1), "x"),
        OrderedDict(b=torch.ones(1), a=torch.ones(2)),
        defaultdict(list, a=torch.ones(1)),
        deque([torch.ones(1)], maxlen=3),
        {torch.ones(1)},
        frozenset([torch.ones(1)]),
        Batch(torch.ones(3), 4),
        types.SimpleNamespace(x=torch.ones(1)),
        argparse.Namespace(x=torch.ones(1), n=3),
        torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_every_kind_of_structure_comes_back_as_its_kind_with_its_tensors_moved(
    tree: Any, there: torch.device
) -> None:
    moved = to_device(tree, there)
    assert isinstance(moved, torch.Tensor) or type(moved) is type(tree)
    assert to_device(moved, there) is moved  # nothing left to move
    back = to_device(moved, "cpu")
    assert str(back) == str(tree)


def test_names_views_and_ties_share_memory_afterwards_and_are_copied_once(
    there: torch.device,
) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    tree = {"x": x, "again": x, "row": x[1], "t": x.t(), "bits": x.view(torch.int32), "n": [x[2]]}
    moved, report = moves(tree, there)
    assert moved["x"] is moved["again"]
    moved["row"].fill_(-1)
    assert moved["t"][:, 1].tolist() == [-1.0] * 4
    assert moved["x"].tolist()[1] == [-1.0] * 4
    assert moved["bits"][0, 1].item() == np.float32(1).view(np.int32)
    assert moved["n"][0].tolist() == [8, 9, 10, 11]
    assert moved["t"].stride() == x.t().stride()
    assert report.nbytes == 48
    assert [m.shares for m in report.moved] == ["", "x", "x", "x", "x"]
    back = to_device(moved, "cpu")
    back["x"].zero_()
    assert back["row"].tolist() == [0.0] * 4


def test_a_lone_view_of_a_large_memory_moves_only_what_it_shows(there: torch.device) -> None:
    assert moves(torch.zeros(1000, 10)[3], there)[1].nbytes == 40
    assert moves(torch.zeros(1).expand(100, 100), there)[1].nbytes == 4


def test_memory_laid_out_with_gaps_and_repetitions_arrives_as_it_was(there: torch.device) -> None:
    memory = torch.arange(20.0)
    odd = {
        "gaps": memory.as_strided((2, 2), (7, 3), 1),
        "both": memory.as_strided((2, 2), (0, 3), 2),
        "permuted": memory[:12].reshape(3, 4).t(),
        "late": memory[13:],
    }
    moved = to_device(odd, there)
    for name, tensor in odd.items():
        assert moved[name].tolist() == tensor.tolist(), name
        assert moved[name].stride() == tensor.stride(), name
    moved["permuted"].zero_()
    assert moved["both"].sum() == 0


def test_a_module_its_ties_its_optimizer_and_views_of_its_weights_stay_together(
    there: torch.device,
) -> None:
    torch.manual_seed(0)
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    b.weight = a.weight
    optimizer = torch.optim.Adam([*a.parameters(), b.bias])
    a(torch.ones(2)).sum().backward()
    optimizer.step()
    identity = [id(p) for p in (a.weight, a.bias, b.bias)]
    view, weight = a.weight.detach()[0], a.weight
    moved, report = moves([a, b, optimizer, view, weight], there)
    assert moved[:3] == [a, b, optimizer]
    assert moved[4] is weight is b.weight
    assert identity == [id(p) for p in (a.weight, a.bias, b.bias)]
    assert a.weight.device == a.weight.grad.device == there
    with torch.no_grad():
        a.weight.fill_(7)
    assert moved[3].tolist() == [7, 7]
    state = optimizer.state[a.weight]
    assert state["exp_avg"].device == there
    assert state["step"].device == CPU  # as load_state_dict leaves it
    names = [move.name for move in report.moved]
    assert names[:3] == ["0.weight", "3", "0.bias"]
    assert "2.state.0.exp_avg" in names
    a(torch.ones(2, device=there)).sum().backward()
    optimizer.step()


def test_an_optimizer_of_bare_tensors_takes_them_along(there: torch.device) -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0, momentum=0.9)
    w.sum().backward()
    optimizer.step()
    out = to_device({"w": w, "optimizer": optimizer}, there)
    assert out["w"] is w is optimizer.param_groups[0]["params"][0]
    w.grad = None
    (w * 2).sum().backward()
    optimizer.step()
    assert w.tolist() == pytest.approx([1 - 1 - 2.9] * 3)


def test_a_leaf_is_a_leaf_there_and_what_the_graph_made_stays_in_the_graph(
    there: torch.device,
) -> None:
    leaf = torch.ones(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2))
    leaf.grad = torch.full((3,), 5.0)
    made = leaf * 2
    part = made[0]
    out = to_device({"leaf": leaf, "p": parameter, "made": made, "part": part}, there)
    assert out["leaf"].is_leaf
    assert out["leaf"].requires_grad
    assert out["leaf"].grad.tolist() == [5, 5, 5]
    assert isinstance(out["p"], torch.nn.Parameter)
    assert out["part"]._base is out["made"]
    (out["made"].sum() + out["part"]).backward()
    assert leaf.grad.tolist() == [5 + 4, 5 + 2, 5 + 2]


def test_what_cannot_move_stays_and_is_named_with_the_reason(there: torch.device) -> None:
    class Holder:
        def __init__(self) -> None:
            self.weights = [torch.ones(1)]

    tree = {
        "array": np.ones(2),
        "holder": Holder(),
        "lazy": (x for x in [torch.ones(1)]),
        "x": torch.ones(1),
        "text": "hello",
        "torch": torch,
    }
    moved, report = moves(tree, there)
    assert [name for name, _ in report.stayed] == ["array", "holder", "lazy"]
    reasons = dict(report.stayed)
    assert "torch.from_numpy" in reasons["array"]
    assert "class Holder; pass vars() of it for weights.0" in reasons["holder"]
    assert moved["holder"] is tree["holder"]
    assert "array stays: a NumPy array" in str(report)
    assert str(report).endswith("1 moved, 4 bytes")


def test_a_sparse_tensor_that_a_simulated_device_cannot_hold_is_reported() -> None:
    with simulate_accelerator() as [device]:
        sparse = torch.eye(2).to_sparse()
        moved, report = moves({"s": sparse, "x": torch.ones(1)}, device)
    assert moved["s"] is sparse
    assert report.stayed[0][0] == "s"
    assert "can only have dense tensors" in report.stayed[0][1]


def test_numbers_become_tensors_only_when_asked(there: torch.device) -> None:
    assert to_device({"n": 3}, there) == {"n": 3}
    out = to_device({"n": 3, "f": 1.5, "flag": True, "text": "x"}, there, numbers=True)
    assert [out[k].dtype for k in ("n", "f", "flag")] == [torch.int64, torch.float32, torch.bool]
    assert out["n"].device == there
    assert out["text"] == "x"


def test_a_dataloader_moves_each_batch_and_is_otherwise_itself(there: torch.device) -> None:
    loader = DataLoader(TensorDataset(torch.arange(5.0), torch.arange(5)), batch_size=2)
    wrapped = to_device(loader, there)
    batches = list(wrapped)
    assert [[t.device for t in batch] for batch in batches] == [[there, there]] * 3
    assert [batch[1].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert (len(wrapped), wrapped.batch_size) == (3, 2)
    assert next(iter(to_device(wrapped, "cpu")))[0].device == CPU


def test_a_structure_that_holds_itself_ends(there: torch.device) -> None:
    tree: list[Any] = [torch.ones(1)]
    tree.append(tree)
    assert to_device(tree, there)[0].device == there


@pytest.mark.parametrize(
    "move", ["globals().update(to_device(globals(), there))", "report = move_locals(there)"]
)
def test_a_modules_globals_move_and_dunders_and_python_modules_do_not(
    there: torch.device, move: str
) -> None:
    scope: dict[str, Any] = {"there": there}
    exec("import torch\nfrom graphviz_torch.devices import move_locals, to_device", scope)
    exec(f"x = torch.ones(2)\ny = x[0]\n{move}", scope)
    assert scope["x"].device == scope["y"].device == there
    assert scope["torch"] is torch
    assert "report" not in scope or scope["report"].nbytes == 8


def test_move_locals_rebinds_a_functions_own_variables(there: torch.device) -> None:
    x = torch.ones(2)
    pair = [x, x[1]]
    report = move_locals(there)
    assert x.device == there
    assert pair[0] is x
    assert pair[1].device == there
    assert report.nbytes == 8


def test_a_device_that_is_not_there_is_refused() -> None:
    with simulate_accelerator(2) as devices:
        assert available_devices()[-2:] == devices
    with pytest.raises(RuntimeError, match="use it inside `with simulate_accelerator"):
        to_device(torch.ones(1), devices[1])
    with pytest.raises(RuntimeError, match="sim:1 is a simulated device"):
        to_device(torch.ones(1), "sim:1")
    assert devices[0] not in available_devices()
    with pytest.raises(RuntimeError):
        to_device(torch.ones(1), "warp:1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_without_an_index_is_the_current_gpu() -> None:
    x = to_device(torch.ones(2), "cuda")
    assert to_device(x, "cuda") is x
