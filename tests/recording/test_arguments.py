"""Test that plain arguments of calls become attributes of the nodes that the calls created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record, to_text
from graphviz_torch.export import to_dot
from graphviz_torch.render.labels import MINUS, TIMES
from tests.support.models import worked_example


def recorded(make: Any) -> Graph:
    with record() as recording:
        make().sum().backward()
    return recording.graph


def test_the_worked_example_reads_as_it_is_written() -> None:
    with record() as recording:
        worked_example()["y"].backward()
    drawn = to_dot(recording)
    places = [drawn.index(f"{said}<BR/>") for said in ("add 2", "pow 2", "add 3", "mean")]
    assert places == sorted(places)
    assert "exponent=2" in to_text(recording, wide=True)


X = torch.ones(2, 3, 8, 8, requires_grad=True)


@pytest.mark.parametrize(
    ("make", "attribute", "said"),
    [
        (lambda: X + 2, "other=2", "add 2"),
        (lambda: 2 - X, "other=2", "rsub 2"),
        (lambda: X * 1.5, "other=1.5", "mul 1.5"),
        (lambda: X**2, "exponent=2", "pow 2"),
        (lambda: torch.softmax(X, -1), "dim=-1", f"softmax dim {MINUS}1"),
        (lambda: nn.functional.dropout(X, 0.1), "p=0.1", "dropout 0.1"),
        (lambda: nn.functional.dropout(X, 0.1 + 0.2), f"p={0.1 + 0.2}", "dropout 0.3<"),
        (lambda: X.view(2, 3, 64), "shape=(2, 3, 64)", "view"),
        (lambda: X.roll(3, 0), "shifts=(3,)", "roll"),
        (lambda: X.clamp(max=5), "max=5", "clamp"),
        (
            lambda: nn.Conv2d(3, 4, 3, stride=2)(X),
            "kernel_size=(3, 3)",
            f"convolution 3{TIMES}3, stride 2<",
        ),
        (
            lambda: nn.Conv2d(3, 3, 3, dilation=2, groups=3)(X),
            "dilation=(2, 2)",
            f"convolution 3{TIMES}3, dilation 2, groups 3<",
        ),
    ],
)
def test_an_argument_is_an_attribute_and_the_telling_one_is_drawn(
    make: Any, attribute: str, said: str
) -> None:
    graph = recorded(make)
    assert attribute in [each for node in graph.nodes for each in node.attributes]
    assert said in to_dot(graph, detail="full")


def test_the_dropout_of_an_attention_is_called_so_and_its_scaling_is_not() -> None:
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    attention = nn.functional.scaled_dot_product_attention
    for p in (0.25, 0.0):
        graph = recorded(lambda p=p: attention(q, q, q, dropout_p=p))
        named = [node for node in graph.nodes if "p=0.25" in node.attributes]
        assert len(named) == (p > 0)
        for node in named:  # what it multiplies are probabilities
            [source] = {edge.source for edge in graph.edges if edge.target == node.id}
            assert "softmax" in graph.nodes[source].operation
        assert to_dot(graph, detail="full").count("dropout 0.25<") == len(named)


def test_what_autograd_tells_is_not_told_twice() -> None:
    for node in recorded(lambda: torch.softmax(X**2, 1)).nodes:
        names = [attribute.partition("=")[0] for attribute in node.attributes]
        assert len(set(names)) == len(names)


class Silent(int):
    """A number of the user's own, which nobody is to write out."""

    def __repr__(self) -> str:
        raise AssertionError("the user's code was called")

    __str__ = __format__ = __hash__ = __eq__ = __repr__  # type: ignore[assignment]


def test_nothing_of_the_users_own_and_nothing_long_is_kept() -> None:
    def make() -> Tensor:
        wide = torch.ones(*[1] * 12, requires_grad=True)
        return (X + Silent(2)).sum() + wide.permute(list(range(12))).sum()

    told = [each for node in recorded(make).nodes for each in node.attributes]
    assert not any(each.startswith("other=") for each in told)


def test_a_call_that_makes_several_nodes_tells_nothing() -> None:
    graph = recorded(lambda: nn.functional.cross_entropy(X[:, :, 0, 0], torch.tensor([0, 1])))
    assert not any("reduction='mean'" in text for n in graph.nodes for text in n.attributes)


READS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "x * old": (lambda x, old: x * old, "old f32[3]"),
    "old * x": (lambda x, old: old * x, "old f32[3]"),
    "old + x": (lambda x, old: torch.add(old, x), "old f32[3]"),
    "x - old": (lambda x, old: x - old, "old f32[3]"),
    "x / old": (lambda x, old: x.div(old), "old f32[3]"),
    "x.mul_(old)": (lambda x, old: x.clone().mul_(old), "old f32[3]"),
    "x - old[:1]": (lambda x, old: x - old[:1], "f32[1]"),
    "old - x": (lambda x, old: old - x, ""),  # it is not taken from x
    "x * x": (lambda x, old: x * x, ""),
    "x * 2": (lambda x, old: x * 2, ""),
}


@pytest.mark.parametrize("form", READS)
def test_what_a_sum_or_product_reads_that_needs_no_gradient_is_named(form: str) -> None:
    function, data = READS[form]
    x = torch.rand(3, requires_grad=True)
    with record() as recording:
        function(x, torch.rand(3)).sum().backward()
    every = [text for node in recording.graph.nodes for text in node.attributes]
    found = [text for text in every if text.startswith("data=")]
    assert found == ([f"data={data}"] if data else [])
