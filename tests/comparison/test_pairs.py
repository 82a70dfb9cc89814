"""Test that each change between a pair of models is reported, and nothing else."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, diff, simulate_accelerator, trace
from graphviz_torch.graph import Node


class Residual(nn.Module):
    """x + down(activation(up(norm(x)))); the branch may be detached."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU, *, detached: bool = False) -> None:
        super().__init__()
        self.detached = detached
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)
        self.activation = activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.down(self.activation(self.up(self.norm(x))))
        return x + (branch.detach() if self.detached else branch)


class Gate(nn.Module):
    """sigmoid(second(tanh(first(x))))."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.second(torch.tanh(self.first(x))))


class Apply(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def by_name(**parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


def two_layers(*between: nn.Module, width: int = 4, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width, bias=bias), *between, nn.Linear(width, 2))


def frozen(model: nn.Module, *names: str) -> nn.Module:
    """Freeze the parameters of these modules, or of these names, and return the model."""
    for name, parameter in model.named_parameters():
        if name.startswith(names):
            parameter.requires_grad_(False)
    return model


def relu() -> nn.Module:
    return nn.ReLU()


class Pair(NamedTuple):
    """A change, and how a person who compares both graphs would describe it."""

    before: Callable[[], nn.Module]
    after: Callable[[], nn.Module]
    removed: str = ""  # names of nodes, each as often as it is removed
    added: str = ""
    changed: str = ""  # what differs, of how many nodes: "shape:7"
    edges: tuple[int, int] = (0, 0)  # removed, added
    renamed: str = ""  # modules before and after, where the graphs have names: "a:encoder"


BIAS_AND_WEIGHT = "AccumulateGrad AccumulateGrad"
LINEAR = f"{BIAS_AND_WEIGHT} t addmm"

PAIRS: dict[str, Pair] = {
    "nothing": Pair(lambda: two_layers(relu()), lambda: two_layers(relu())),
    "modules renamed": Pair(
        lambda: by_name(a=Residual(), b=Gate(), c=nn.Linear(4, 2)),
        lambda: by_name(encoder=Residual(), gate=Gate(), head=nn.Linear(4, 2)),
        renamed="a:encoder b:gate c:head",
    ),
    "a layer inserted": Pair(
        lambda: two_layers(relu()),
        lambda: two_layers(relu(), nn.Linear(4, 4), relu()),
        added=f"{LINEAR} relu",
        edges=(1, 6),  # relu -> addmm; 4 inside, one in, one out
    ),
    "a layer inserted and all after it renumbered": Pair(
        lambda: nn.Sequential(nn.Linear(4, 4), Residual(), Gate()),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Residual(), Gate()),
        added="tanh",
        edges=(2, 3),  # the residual reads its input twice
    ),
    "a layer taken out": Pair(
        lambda: two_layers(relu(), nn.Linear(4, 4), relu()),
        lambda: two_layers(relu()),
        removed=f"{LINEAR} relu",
        edges=(6, 1),
    ),
    "a norm inserted": Pair(
        lambda: two_layers(relu()),
        lambda: two_layers(nn.LayerNorm(4), relu()),
        added=f"{BIAS_AND_WEIGHT} native_layer_norm",
        edges=(1, 4),
    ),
    "a block more among equal ones": Pair(
        lambda: nn.Sequential(*(Gate() for _ in range(3))),
        lambda: nn.Sequential(*(Gate() for _ in range(4))),
        added=f"{LINEAR} {LINEAR} tanh sigmoid",
        edges=(1, 11),  # 9 inside, one in, one out
    ),
    "a layer widened": Pair(
        lambda: two_layers(relu()),
        lambda: two_layers(relu(), width=8),
        changed="shape:7",  # weight, its transpose, bias, addmm, relu; then weight, its transpose
    ),
    "two blocks swapped, with their names": Pair(
        lambda: by_name(a=Residual(), b=Gate()),
        lambda: by_name(b=Gate(), a=Residual()),
        edges=(2, 3),  # only the first block's input has no edge, and the residual reads it twice
    ),
    "two blocks swapped, numbered by place": Pair(
        lambda: nn.Sequential(Residual(), Gate()),
        lambda: nn.Sequential(Gate(), Residual()),
        edges=(2, 3),
    ),
    "norm and activation swapped": Pair(
        lambda: two_layers(nn.LayerNorm(4), relu()),
        lambda: two_layers(relu(), nn.LayerNorm(4)),
        edges=(3, 3),
    ),
    "another activation": Pair(
        lambda: nn.Sequential(Residual(), Residual(), Residual()),
        lambda: nn.Sequential(Residual(), Residual(nn.GELU), Residual()),
        removed="relu",
        added="gelu",
        edges=(2, 2),
    ),
    "softmax over another dimension": Pair(
        lambda: two_layers(nn.Softmax(1)), lambda: two_layers(nn.Softmax(0)), changed="attribute:1"
    ),
    "another power": Pair(
        lambda: two_layers(Apply(lambda x: x**2)),
        lambda: two_layers(Apply(lambda x: x**3)),
        changed="attribute:1",
    ),
    "a bias taken away": Pair(
        lambda: two_layers(relu()),
        lambda: two_layers(relu(), bias=False),
        removed="AccumulateGrad addmm",  # PyTorch calls another operation
        added="mm",
        edges=(3, 2),
    ),
    "the first layer frozen": Pair(
        lambda: two_layers(relu()),
        lambda: frozen(two_layers(relu()), "0"),
        removed=f"{LINEAR} relu",
        edges=(5, 0),
    ),
    "the head frozen": Pair(
        lambda: two_layers(relu()),
        lambda: frozen(two_layers(relu()), "2"),
        removed=f"{BIAS_AND_WEIGHT} t",
        edges=(3, 0),
    ),
    "one bias frozen": Pair(
        lambda: two_layers(relu()),
        lambda: frozen(two_layers(relu()), "0.bias"),
        removed="AccumulateGrad",
        edges=(1, 0),
    ),
    "a norm frozen": Pair(
        lambda: nn.Sequential(nn.Linear(4, 4), Residual(), Residual()),
        lambda: frozen(nn.Sequential(nn.Linear(4, 4), Residual(), Residual()), "1.norm"),
        removed=BIAS_AND_WEIGHT,
        edges=(2, 0),
    ),
    "a detach between two layers": Pair(
        lambda: two_layers(relu()),
        lambda: two_layers(relu(), Apply(torch.Tensor.detach)),
        removed=f"{LINEAR} relu",
        edges=(5, 0),
    ),
    "a residual's branch detached": Pair(
        lambda: nn.Sequential(nn.Linear(4, 4), Residual(), Gate()),
        lambda: nn.Sequential(nn.Linear(4, 4), Residual(detached=True), Gate()),
        removed=f"{BIAS_AND_WEIGHT} native_layer_norm {LINEAR} relu {LINEAR}",
        edges=(13, 0),
    ),
    "double precision": Pair(
        lambda: two_layers(relu()),
        lambda: nn.Sequential(Apply(torch.Tensor.double), *two_layers(relu()).double()),
        changed="dtype:10",
    ),
}


def graph(model: nn.Module, named: bool) -> Graph:
    return trace(model(torch.ones(3, 4)).sum(), names=model if named else {})


def names(graph: Graph, ids: tuple[int, ...]) -> Counter[str]:
    return Counter(graph.nodes[i].title for i in ids)


def check(a: Graph, b: Graph, pair: Pair) -> None:
    difference = diff(a, b)
    assert names(a, difference.removed) == Counter(pair.removed.split())
    assert names(b, difference.added) == Counter(pair.added.split())
    what = Counter(change.what for change in difference.changed)
    assert [f"{name}:{count}" for name, count in what.items()] == pair.changed.split()
    edges = len(difference.removed_edges), len(difference.added_edges)
    assert edges == pair.edges
    assert [":".join(names) for names in difference.renamed] == pair.renamed.split()
    for i, j in difference.pairs:
        assert kind(a.nodes[i]) == kind(b.nodes[j])


def kind(node: Node) -> tuple[str, str, str]:
    """Return what two matched nodes have in common: operation, role, weight or bias."""
    part = node.label.rpartition(".")[2] if node.leaf == "parameter" else ""
    return node.name, node.leaf, part


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("change", PAIRS)
def test_every_change_is_named_and_nothing_else(change: str, named: bool) -> None:
    pair = PAIRS[change]
    a, b = graph(pair.before(), named), graph(pair.after(), named)
    check(a, b, pair if named else pair._replace(renamed=""))


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize(
    ("moved", "pair"),
    [
        ("all", Pair(nn.Module, nn.Module, changed="device:10")),
        (
            "head",
            # The copy is in the middle; head's weight, its transpose, bias, addmm, and the sum.
            Pair(nn.Module, nn.Module, added="to_copy", changed="device:5", edges=(1, 2)),
        ),
    ],
    ids=["all", "head"],
)
def test_another_device_is_said_of_each_node_on_it(moved: str, pair: Pair, named: bool) -> None:
    before, after = two_layers(relu()), two_layers(relu())
    with simulate_accelerator() as [device]:
        if moved == "head":
            after[2].to(device)
            after.insert(2, Apply(lambda x: x.to(device)))
            a, b = graph(before, named), graph(after, named)
        else:
            a = graph(before, named)
            out = after.to(device)(torch.ones(3, 4, device=device)).sum()
            b = trace(out, names=after if named else {})
    check(a, b, pair)
