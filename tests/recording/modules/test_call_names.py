"""Compare the names of recorded calls with those in the program's source."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import record


def test_nodes_of_one_call_have_its_name_and_a_second_call_has_a_number() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with record() as recording:
        (F.normalize(x).sum() + F.normalize(x).sum()).backward()
    found = [node.call for node in recording.graph.nodes if not node.leaf]
    first = [call for call in found if call == "normalize#1"]
    assert len(first) == found.count("normalize#2") > 1
    assert [call for call in found if "normalize" not in call] == ["sum", "sum", "add"]


def test_attention_is_one_call_whatever_the_operators_below_it() -> None:
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    with record() as recording:
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).sum().backward()
    made = {node.call for node in recording.graph.nodes if not node.leaf}
    assert made == {"scaled_dot_product_attention#1", "sum"}


def overlap(p: Tensor, target: Tensor) -> Tensor:
    return (p * target).sum()


def dice(p: Tensor, target: Tensor) -> Tensor:
    return 1 - 2 * overlap(p, target) / (p.sum() + target.sum())


def train(model: nn.Module, x: Tensor) -> None:
    out = model(x)
    loss = dice(out.sigmoid(), x) + dice(out, x)
    loss.backward()


def test_functions_of_the_program_outside_of_modules_come_first() -> None:
    model = nn.Linear(3, 3)
    with record(model) as recording:
        train(model, torch.rand(2, 3))  # calls the model and backward: it is not named
    found = [node.call for node in recording.graph.nodes if not node.leaf]
    assert [call for call in found if "/" not in call] == ["linear#1", "linear#1", "sigmoid", "add"]
    named = [call for call in found if "/" in call]
    assert named[:2] == ["dice/overlap/mul", "dice/overlap/sum"]
    assert {call.partition("/")[0] for call in named} == {"dice", "dice#2"}


def test_an_attribute_that_computes_has_its_own_name() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with record() as recording:
        (x.T @ x).sum().backward()
    assert [n.call for n in recording.graph.nodes if not n.leaf] == ["T", "matmul", "sum"]
