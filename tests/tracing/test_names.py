"""Test that tensors have the names of the caller's variables."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record, trace
from graphviz_torch.internals.frames import local_variables
from graphviz_torch.tracing.names import caller_names
from tests.support import models


def labels(graph: Graph) -> list[str]:
    return [node.label for node in graph.nodes]


def leaf(size: int = 2) -> Tensor:
    return torch.ones(size, requires_grad=True)


def test_the_callers_variables_name_tensors_by_the_first_one_that_is_not_private() -> None:
    first = leaf()
    second = first
    _a = first * 2
    y = _a.sum()
    z = y
    assert labels(trace(z)) == ["first", "", "y"]
    assert second is first


def test_a_parameter_keeps_its_name_in_a_loop_and_beside_a_part_of_its_model() -> None:
    model = models.MLP()
    part = model.fc1
    for p in model.parameters():
        assert p.requires_grad
    found = labels(trace(model(torch.ones(1, 4))))
    assert {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"} <= set(found)
    assert "p" not in found
    assert part is model.fc1


def test_a_module_is_read_only_if_a_leaf_may_be_its_parameter() -> None:
    class Counted(dict[str, Any]):
        reads = 0

        def items(self) -> Any:
            Counted.reads += 1
            return super().items()

    model, x = nn.Linear(2, 1), leaf()
    model.__dict__["_parameters"] = Counted(model._parameters)
    assert labels(trace((x * 2).sum())) == ["x", "", ""]
    assert Counted.reads == 0
    assert {"weight", "bias", "x"} <= {*labels(trace(model(x)))}
    assert Counted.reads > 0
    holder = nn.Module()
    holder.register_buffer("mask", leaf())
    [node] = [node for node in trace(holder.mask * 2).nodes if node.leaf]
    assert (node.label, node.leaf) == ("mask", "buffer")


def test_an_argument_and_a_closures_variable_have_their_names() -> None:
    outer = leaf()

    def inner(argument: Tensor) -> Graph:
        y = outer * argument
        return trace(y)

    assert labels(inner(leaf())) == ["outer", "argument", "y"]


def test_what_self_holds_is_named_by_its_attribute() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.scale = leaf()
            self.model = nn.Linear(2, 2)

        def run(self) -> Graph:
            return trace(self.model(self.scale))

    assert set(labels(Trainer().run())) == {"bias", "self.scale", "weight", ""}


def test_tensors_in_the_callers_containers_are_named_by_their_place() -> None:
    weights = [leaf(), leaf()]
    state = {"bias": leaf()}
    y = weights[0] * weights[1] + state["bias"]
    assert labels(trace(y)) == ["weights[0]", "weights[1]", "", "state.bias", "y"]


@dataclass
class Output:
    loss: Tensor
    hidden: list[Tensor]


def test_keys_and_fields_of_the_outputs_name_what_has_no_other_name() -> None:
    def make() -> dict[str, Any]:
        x = leaf()
        return {"out": Output(x * 2, [x * 3]), "last": x * 4}

    assert labels(trace(make())) == ["", "out.loss", "out.hidden[0]", "last"]
    assert labels(trace([leaf() * 2])) == ["", ""]  # a position is no name
    loss = leaf() * 2
    assert labels(trace({"total": loss})) == ["", "loss"]  # the variable was there first


def test_names_in_a_dict_override_the_variables() -> None:
    x = leaf()
    y = x * 2
    assert labels(trace(y, names={"input": x})) == ["input", ""]
    assert labels(trace({"out": y}, names={"input": x})) == ["input", "out"]
    assert labels(trace({"out": y}, names={})) == ["", ""]
    hostile = 'a"b\\c\n<b>&\x00☃'
    assert labels(trace(y, names={hostile: x})) == [hostile, ""]
    model = nn.Linear(2, 2)
    found = labels(trace(model(x), names={"net": model}))
    assert [label for label in found if label] == ["net.bias", "net.weight"]


def test_an_empty_module_is_not_taken_for_no_names() -> None:
    x = leaf()
    assert caller_names(nn.Sequential(), {"x": x}) == [("x", x)]


def test_modules_that_share_names_are_told_apart_by_their_variables() -> None:
    encoder, decoder, norm = models.MLP(), models.MLP(4, 2, 4), nn.LayerNorm(2)
    y = norm(encoder(decoder(torch.ones(1, 4))))
    found = {label for label in labels(trace(y)) if label}
    assert {"encoder.fc1.weight", "decoder.fc1.weight", "weight"} <= found
    assert not any(name.startswith("norm.") for name in found)


def test_several_named_outputs_of_one_node_are_all_shown() -> None:
    x = leaf(4)
    second, first = reversed(x.split(2))
    assert labels(trace(first * second)) == ["x", "first, second", ""]


def test_the_kinds_of_leaves_are_told() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(2))
    model.register_buffer("scale", leaf())
    x = leaf()
    kinds = {n.label: n.leaf for n in trace(model.weight * model.scale * x).nodes if n.leaf}
    assert kinds == {"weight": "parameter", "scale": "buffer", "x": "tensor"}


@pytest.mark.parametrize("names", [3, "x", [leaf()]])
def test_names_of_another_type_are_refused(names: Any) -> None:
    with pytest.raises(TypeError, match=f"names is an? {type(names).__name__}; pass a dict"):
        trace(leaf() * 2, names=names)


class Evil:
    """A value that must not be asked for anything."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("asked for its class")


def test_no_value_of_the_callers_is_asked_for_anything() -> None:
    evil, x = Evil(), leaf()
    assert labels(trace(x * 2)) == ["x", ""]
    assert type(evil) is Evil


class Lazy(OrderedDict[str, Any]):
    """A registry that raises if its lazy entries are loaded."""

    def _fails(self, *_: Any) -> Any:
        raise ValueError("could not load")

    items = keys = values = __iter__ = __len__ = __getitem__ = __reversed__ = _fails


class LazyList(list[Any]):
    """A list that raises if its lazy items are loaded."""

    __iter__ = __len__ = __getitem__ = Lazy._fails


@dataclass
class LazyFields:
    """A dataclass that computes the fields that were never set."""

    late: Any = field(init=False)
    here: Tensor

    __getattr__ = Lazy._fails


class Unwritable:
    """A key without a text."""

    __str__ = __repr__ = Lazy._fails


def test_what_the_callers_containers_would_run_or_raise_is_left_alone() -> None:
    from graphviz_torch import record

    registry, several = Lazy(), LazyList()
    x = leaf()
    fields, keyed = LazyFields(leaf()), {Unwritable(): leaf()}
    after = [leaf()]
    y = x * fields.here * after[0]
    assert labels(trace(y)) == ["x", "fields.here", "", "after[0]", "y"]
    with record() as recording:
        (x * fields.here * after[0]).sum().backward()
    assert labels(recording.graph) == ["x", "fields.here", "", "after[0]", "", ""]
    assert x.grad is not None
    assert [type(value) for value in (registry, several, keyed)] == [Lazy, LazyList, dict]


def test_a_subclass_of_a_container_names_what_lies_in_it() -> None:
    class Batch(dict[str, Tensor]):
        """Loads nothing, and is not asked either."""

    class Pair(NamedTuple):
        left: Tensor
        right: Tensor

    batch, pair, found = Batch(y=leaf()), Pair(leaf(), leaf()), torch.sort(leaf())
    y = batch["y"] * pair.right * found[0]
    shown = [label for label in labels(trace(y)) if label]
    assert shown == ["batch.y", "pair.right", "found[0]", "y"]


def test_a_subclass_that_is_traced_says_itself_what_it_holds() -> None:
    def outputs() -> dict[str, Any]:
        computed = {"loss": leaf() * 2}

        class Computed(dict[str, Tensor]):
            def items(self) -> Any:
                return computed.items()

        return {"out": Computed()}

    assert labels(trace(outputs())) == ["", "out.loss"]


def test_a_module_that_was_never_initialised_names_nothing() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            """Forgets its base class."""

        def __eq__(self, other: object) -> bool:  # and so has no hash
            raise ValueError("not to be compared")

    broken, model = Broken(), nn.Linear(2, 2)
    y = model(leaf())
    assert {"weight", "bias"} <= set(labels(trace(y)))
    assert type(broken) is Broken


class Guarded:
    """An object that raises if an attribute is read."""

    def __init__(self) -> None:
        self.scale = leaf()

    def __getattribute__(self, name: str) -> Any:
        raise ValueError("could not load")

    def run(self) -> Graph:
        return trace(leaf() * 2)


def test_a_self_that_gives_nothing_away_costs_no_more_than_its_names() -> None:
    assert labels(Guarded.run(Guarded())) == ["", ""]


def test_a_frame_keeps_nothing_of_what_was_read() -> None:
    import sys
    import weakref

    x = leaf()
    assert local_variables(sys._getframe())["x"] is x
    seen = weakref.ref(x)
    del x
    assert seen() is None


# ----------------------------------------------------------------- modules, from parameters' names


def modules(graph: Graph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if not node.leaf:
            found.setdefault(node.module, []).append(node.operation)
    return found


def test_a_node_that_uses_one_modules_parameters_is_in_that_module() -> None:
    model = models.ConvNet()
    graph = trace(model(torch.ones(2, 3, 4, 4)))
    assert modules(graph) == {
        "conv": ["convolution"],
        "norm": ["native_batch_norm"],
        "": ["relu", "mean"],
        "head": ["t", "addmm"],
    }
    owners = {node.label: node.module for node in graph.nodes if node.leaf}
    assert owners["conv.weight"] == "conv"
    assert all(node.scope == "" for node in graph.nodes)


def test_a_module_that_is_called_twice_is_recognised_by_two_of_its_parameters() -> None:
    model = models.TiedMLP()
    found = modules(trace(model(torch.ones(1, 4))))
    assert found == {"fc": ["t", "addmm", "t", "addmm"], "": ["relu"]}


@pytest.mark.parametrize("tied", [True, False])
def test_a_weight_that_two_modules_use_tells_no_module(tied: bool) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    embed, head = model.values()
    if tied:
        head.weight = embed.weight
    x = embed(torch.arange(5))
    y = head(x) if tied else nn.functional.linear(x, embed.weight)
    graph = trace(y, names=model)
    assert {node.module for node in graph.nodes} == {""}
    assert graph.nodes[0].label == "embed.weight"


def test_without_a_module_no_module_is_guessed() -> None:
    state = {"w": nn.Parameter(torch.ones(2)), "fc.w": nn.Parameter(torch.ones(2))}
    y = state["w"] * 2 + state["fc.w"]
    assert {node.module for node in trace(y, names=state).nodes} == {""}


def test_the_inferred_modules_are_those_that_a_recording_sees() -> None:
    from graphviz_torch import record

    model = models.Transformer()
    with record(model) as recording:
        y = model(models.tokens())
        inferred = trace(y, names=model)
        y.sum().backward()
    seen = {node.module for node in inferred.nodes if node.module and not node.leaf}
    assert {"embed", "head", "layers.0.norm1", "layers.1.mlp.2"} <= seen
    recorded = recording.graph.nodes
    for node in inferred.nodes:
        if node.module and not node.leaf and "attn" not in node.module:
            assert recorded[node.id].name == node.name
            assert recorded[node.id].module == node.module


shared_by_functions = torch.ones(2, requires_grad=True)


def test_a_function_or_a_text_that_reads_a_global_has_its_name() -> None:
    doubled = shared_by_functions * 2
    assert labels(trace(doubled)) == ["shared_by_functions", "doubled"]
    own: dict[str, Any] = {}
    exec("graph = trace(weight * 2)", {"trace": trace, "weight": leaf()}, own)
    assert labels(own["graph"]) == ["weight", ""]


@pytest.mark.parametrize("turn", [lambda x: {x: "x"}, lambda x: {"x": 3}])
def test_a_dict_with_nothing_to_name_is_refused(turn: Callable[[Tensor], dict[Any, Any]]) -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="names has no tensor and no module among its 1 values"):
        trace(x * 2, names=turn(x))


def shown(t: Tensor) -> Graph:
    return trace(t)


def doubled(t: Tensor) -> Graph:
    u = t * 2
    return shown(u)


def test_a_function_that_gets_a_tensor_finds_or_leaves_it_the_name_of_its_callers() -> None:
    def train(t: Tensor) -> None:
        t.backward()

    x = leaf()
    with record() as recording:
        y = (x * 2).sum()
        train(y)
    assert labels(recording.graph) == labels(shown(y)) == ["x", "", "y"]
    assert labels(doubled(y)) == ["x", "", "y", "u"]
