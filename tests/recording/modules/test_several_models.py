"""Test that models are named after variables if the calling code has several."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record


def net(*sizes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(*sizes), nn.Tanh())


def modules(graph: Graph) -> set[str]:
    return {node.module for node in graph.nodes if node.leaf == "parameter"}


def names(graph: Graph) -> list[str]:
    return [parameter.name for parameter in graph.parameters]


def test_both_players_of_a_gan_go_by_their_variables() -> None:
    generator, critic = net(2, 3), net(3, 1)
    with record() as recording:
        critic(generator(torch.ones(1, 2))).sum().backward()
    assert modules(recording.graph) == {"generator.0", "critic.0"}
    expected = [
        f"{model}.0.{name}" for model in ("generator", "critic") for name in ("weight", "bias")
    ]
    assert names(recording.graph) == expected
    labels = {node.label for node in recording.graph.nodes if node.leaf == "parameter"}
    assert labels == set(expected)


class Plain:
    """An object whose attributes are models, which its methods call."""

    def __init__(self) -> None:
        self.encoder, self.decoder = net(4, 2), net(2, 4)

    def encode(self, x: Tensor) -> Tensor:
        return self.encoder(x)

    def step(self, x: Tensor) -> Tensor:
        return self.decoder(self.encode(x)).sum()


def test_models_that_a_class_holds_go_by_its_attributes() -> None:
    with record() as recording:
        Plain().step(torch.ones(1, 4)).backward()
    assert modules(recording.graph) == {"encoder.0", "decoder.0"}
    assert names(recording.graph)[0] == "encoder.0.weight"


class Whole(nn.Module):
    """A module whose own forward is not the way to its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = net(2, 2), net(2, 1)

    def training_step(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).sum()


def test_parts_that_a_method_calls_have_the_names_that_the_module_gives_them() -> None:
    model = Whole()
    with record() as recording:
        model.training_step(torch.ones(1, 2)).backward()
    assert names(recording.graph) == [name for name, _ in model.named_parameters()]


def test_a_single_model_stays_the_root() -> None:
    model, criterion = net(2, 1), nn.MSELoss()
    alias, wrapper, last = model, nn.Sequential(model), model[0]
    with record() as recording:
        criterion(model(torch.ones(1, 2)), torch.zeros(1, 1)).backward()
    assert alias is wrapper[0]
    assert last is model[0]
    assert modules(recording.graph) == {"0"}
    assert names(recording.graph) == ["0.weight", "0.bias"]


def test_a_class_of_the_users_that_answers_for_every_attribute_is_left_alone() -> None:
    class Anything:
        __slots__ = ()

        def __getattr__(self, name: str) -> object:
            raise RuntimeError("nobody may ask")

        def step(self, model: nn.Module) -> Tensor:
            return model(torch.ones(1, 2)).sum()

    with record() as recording:
        Anything().step(net(2, 1)).backward()
    assert modules(recording.graph) == {"0"}


def test_a_notebooks_other_models_do_not_count_unless_the_cell_names_them() -> None:
    cell = "with record() as recording:\n    model(torch.ones(1, 2)).sum().backward()\n"
    stale = {"record": record, "torch": torch, "model": net(2, 1), "stale": net(2, 5)}
    exec(compile(cell, "cell", "exec"), stale)
    assert modules(stale["recording"].graph) == {"0"}  # type: ignore[attr-defined]
    exec(compile(cell + "stale\n", "cell", "exec"), stale)
    assert modules(stale["recording"].graph) == {"model.0"}  # type: ignore[attr-defined]


class Trainer:
    """An object with a list of models."""

    def __init__(self) -> None:
        self.nets = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def step(self, x: Tensor) -> Tensor:
        for net in self.nets:
            x = net(x)
        return x.sum()


def in_a_list() -> Tensor:
    heads = [nn.Linear(4, 1), nn.Linear(4, 2)]
    return sum(head(torch.ones(1, 4)).sum() for head in heads)  # type: ignore[return-value]


def in_a_module() -> Tensor:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 2), "decoder": nn.Linear(2, 4)})
    return model["decoder"](model["encoder"](torch.ones(1, 4))).sum()  # type: ignore[no-any-return]


def in_a_list_and_in_variables() -> Tensor:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    models = [generator, critic]
    loss: Tensor = critic(generator(torch.ones(1, 4))).sum()
    assert len(models) == 2
    return loss


def in_a_list_that_no_loop_goes_over() -> Tensor:
    model = nn.Linear(4, 4)
    old = [nn.Linear(4, 1), model]
    return model(torch.ones(1, len(old) * 2)).sum()  # type: ignore[no-any-return]


def nowhere() -> Tensor:
    x = torch.ones(1, 4)
    for width in (3, 2, 1):
        x = nn.Linear(x.shape[1], width)(x)
    return x.sum()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (in_a_list, {"heads.0": "Linear(4, 1)", "heads.1": "Linear(4, 2)"}),
        (
            lambda: Trainer().step(torch.ones(1, 4)),
            dict.fromkeys(("nets.0", "nets.1"), "Linear(4, 4)"),
        ),
        (in_a_module, {"model.encoder": "Linear(4, 2)", "model.decoder": "Linear(2, 4)"}),
        (in_a_list_and_in_variables, {"generator": "Linear(4, 4)", "critic": "Linear(4, 1)"}),
        (in_a_list_that_no_loop_goes_over, {"model": "Linear(4, 4)"}),
        (nowhere, {"": "Linear(4, 3)", "Linear": "Linear(3, 2)", "Linear_2": "Linear(2, 1)"}),
    ],
    ids=["list", "attribute", "module", "variables", "no loop", "nowhere"],
)
def test_no_two_models_share_a_name_and_a_list_names_its_own(
    run: Callable[[], Tensor], expected: dict[str, str]
) -> None:
    with record() as recording:
        run().backward()
    nodes = [node for node in recording.graph.nodes if node.title == "addmm"]
    found = {node.module: node.module_class.rpartition("/")[2] for node in nodes}
    assert found == expected
    assert len(set(names(recording.graph))) == 2 * len(expected)


def test_a_module_outside_the_model_never_has_the_name_of_one_inside() -> None:
    model = nn.Sequential()
    model.add_module("head", nn.Linear(4, 4))
    head = nn.Linear(4, 2)
    with record(model) as recording:
        head(model(torch.ones(1, 4))).sum().backward()
    found = {n.module: n.module_class for n in recording.graph.nodes if n.title == "addmm"}
    assert found == {"head": "Linear(4, 4)", "head_2": "Linear(4, 2)"}
