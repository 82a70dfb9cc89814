"""Compare the recorded values of small results with what the program prints."""

from __future__ import annotations

import contextlib
import gc
import io
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphviz_torch import record, simulate_accelerator, to_text, trace
from graphviz_torch.graph import Node
from graphviz_torch.graph.json import load
from tests.support.models import worked_example


def flat(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.detach().reshape(-1).tolist())


def labelled(recording: Any) -> dict[str, Node]:
    return {node.label: node for node in recording.graph.nodes if node.label}


def test_the_worked_example_has_the_values_that_it_prints() -> None:
    with record() as recording:
        t = worked_example()
        t["y"].backward()
    nodes = recording.graph.nodes
    assert [node.values for node in nodes] == [(flat(one),) for one in t.values()]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print(f"{t['y'].item():.2f}", [round(each) for each in t["a"].tolist()])
    assert printed.getvalue().split(maxsplit=1) == [nodes[4].value_text, f"{nodes[1].value_text}\n"]
    assert "19.67" in to_text(recording)


def test_a_tensor_without_a_recording_has_its_own_value_and_those_of_leaves() -> None:
    t = worked_example()
    values = [node.values for node in trace(t["y"], names=t).nodes]
    assert values == [(flat(t["x"]),), (), (), (), (flat(t["y"]),)]


KINDS: dict[str, Tensor] = {
    "float64": torch.tensor([1 / 3, 2.0], dtype=torch.float64),
    "bfloat16": torch.tensor([1 / 3, 2.0], dtype=torch.bfloat16),
    "float16": torch.tensor([[1 / 3, 2.0]], dtype=torch.float16),
    "complex": torch.tensor([1 + 2j, complex(math.inf, -1)]),
    "conjugate": torch.tensor([[1 + 2j, 3 - 1j]]).conj(),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "expanded": torch.ones(1).expand(8),
    "empty": torch.ones(0, 3),
    "eight": torch.arange(8.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_any_kind_has_its_elements_in_the_order_of_rows(
    kind: str, tmp_path: Path
) -> None:
    x = KINDS[kind].clone().requires_grad_()
    with record() as recording:
        h = x * 1
        h.abs().sum().backward()
    node = labelled(recording)["h"]
    assert repr(node.values) == repr((flat(h),))  # 1, 1.0 and True are equal
    loaded = load(recording.graph.save(tmp_path / "step.json"))
    assert repr(loaded.nodes[node.id].values) == repr(node.values)


def test_a_result_of_nine_elements_is_left_out() -> None:
    x = torch.ones(9, requires_grad=True)
    with record() as recording:
        (x * 2).sum().backward()
    assert [node.values for node in recording.graph.nodes] == [(), (), ((18.0,),)]


def test_each_output_of_an_operation_has_its_own_value_or_none() -> None:
    x = torch.tensor([[3.0, 1.0], [2.0, 5.0]], requires_grad=True)
    with record() as recording:
        values, indices = x.max(1)
        first, rest = torch.split(torch.cat([values, x.new_ones(9)]), [2, 9])
        (first.sum() + rest.sum()).backward()
    node = next(node for node in recording.graph.nodes if node.operation == "max")
    assert node.values[0] == flat(values)
    assert indices.tolist() == [0, 1]
    split = next(node for node in recording.graph.nodes if "split" in node.operation)
    assert split.values == (flat(first), None)


def test_a_value_is_that_of_the_moment_when_it_was_made() -> None:
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        h = x * 3
        h += 1
        h.sum().backward()
        with torch.no_grad():
            x.fill_(100)
    assert [node.values[0] for node in recording.graph.nodes] == [(1, 1), (3, 3), (4, 4), (8,)]


def test_nan_and_infinity_are_marked_in_the_text() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with record() as recording:
        y = (x - 2).log().mean()
        y.backward()
    nodes = recording.graph.nodes
    assert math.isnan(nodes[2].values[0][0])
    assert nodes[2].values[0][1:] == (-math.inf, 0.0)
    assert "\N{HEAVY MULTIPLICATION X} NaN" in to_text(recording, wide=True)


def test_a_simulated_device_has_values_too() -> None:
    with simulate_accelerator() as (device,), record() as recording:
        x = torch.ones(3, requires_grad=True)
        y = (x.to(device) * 2).sum().cpu()
        y.backward()
    assert [node.values for node in recording.graph.nodes] == [
        ((1.0, 1.0, 1.0),),
        ((1.0, 1.0, 1.0),),
        ((2.0, 2.0, 2.0),),
        ((6.0,),),
        ((6.0,),),
    ]


def test_what_has_no_memory_is_left_out_without_a_word() -> None:
    x = torch.ones(2, requires_grad=True, device="meta")
    with record() as recording:
        (x * 2).sum().backward()
    assert not any(node.values for node in recording.graph.nodes)
    assert not any(node.note for node in recording.graph.nodes)


def test_vmap_and_sparse_results_are_left_out() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with record() as recording:
        torch.func.vmap(lambda row: (row * 2).sum())(x).sum().backward()
        (x[:, :2].to_sparse() * 2).to_dense().sum().backward()
    assert not any(
        "not recorded" in node.note for graph in recording.graphs for node in graph.nodes
    )


def test_no_tensor_is_kept_alive() -> None:
    with record() as recording:
        x = torch.ones(3, requires_grad=True)
        h = x * 2
        gone = weakref.ref(h)
        y = h.sum()
        del h
        y.backward()
        del y
        gc.collect()
        assert gone() is None
    assert recording.graph.nodes[1].values == ((2.0, 2.0, 2.0),)


class Seen(TorchFunctionMode):
    """A user's own mode, which lists the calls that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_users_sees_nothing_of_the_reading() -> None:
    x = torch.ones(3, requires_grad=True)

    def step() -> list[str]:
        with Seen() as seen:
            (x * 2).sum().backward()
        return seen.calls

    bare = step()
    with record() as recording:
        assert step() == bare
    assert [node.values for node in recording.graph.nodes][2] == ((6.0,),)


def test_a_loss_is_known_where_as_little_is_asked_as_can_be() -> None:
    model = nn.Linear(3, 2)
    with record(model, gradients="finite") as recording:
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
    graph = recording.graph
    assert graph.nodes[graph.outputs[0][0]].values == (flat(loss),)
