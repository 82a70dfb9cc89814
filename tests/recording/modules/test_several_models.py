"""A variable names each model where the calling code holds several."""

from __future__ import annotations

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
    """Holds its models as attributes, and calls them in methods."""

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
