"""Test that programs have the same results inside a recording as without one."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_subclass import WrapperTensorWithCustomSizes

from graphviz_torch import find, record
from graphviz_torch.internals.tensors.metadata import HAS_SAVED_TENSOR_DATA
from graphviz_torch.recording import failure_cause as failing_node
from graphviz_torch.recording import memory
from graphviz_torch.recording.events import nonfinite
from graphviz_torch.recording.queries import saved_tensors
from tests.internals.tensors.test_accumulator import LEAVES, leaf_of

USES: dict[str, Callable[[Tensor], Any]] = {
    "detach": lambda leaf: leaf.detach(),
    "no_grad": torch.no_grad()(lambda leaf: leaf * 2),
    "data": lambda leaf: leaf.data,
    "backward": lambda leaf: (leaf * 2).sum().backward(),
}


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("use", USES)
def test_a_leaf_of_any_layout_is_used_as_outside(kind: str, use: str) -> None:
    def run() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return str(type(USES[use](leaf_of(kind))))
            except (RuntimeError, NotImplementedError) as error:  # what PyTorch does not have
                return str(error)

    bare = run()
    with record():
        assert run() == bare


def test_a_lazy_module_is_moved_copied_and_run() -> None:
    with record() as recording:
        model = nn.LazyLinear(2)
        copy.deepcopy(model).to(torch.float64)
        model(torch.ones(1, 3)).sum().backward()
    assert [p.name for p in recording.graph.parameters] == ["weight", "bias"]


@pytest.fixture
def swapped() -> Any:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapped")
def test_parameters_are_swapped_where_pytorch_is_told_to() -> None:
    with record() as recording:
        model = nn.Linear(2, 2)
        nn.init.ones_(model.weight)
        model.load_state_dict(nn.Linear(2, 2).state_dict())
        model.to(torch.float64)
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        model.to(torch.float32)
    assert recording.graph.parameters[0].tensor.dtype == "float64"


def test_results_are_swapped_and_the_name_of_weakref_is_put_back() -> None:
    import weakref

    weakrefs: Any = weakref
    a, b = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    with record():
        with record():
            (a * 2).detach().sum()
        cut = a.detach()
        torch.utils.swap_tensors(cut, b.detach())
        assert torch.equal(cut, torch.zeros(2))
        users = weakref.ref(cut)
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(cut, b.detach())
        assert users() is cut
    assert vars(torch.utils)["weakref"] is weakrefs


def test_a_subclass_that_answers_for_its_sizes_is_saved() -> None:
    x = nn.Parameter(WrapperTensorWithCustomSizes(torch.ones(2)))  # type: ignore[no-untyped-call]
    names = set(vars(x))
    with record():
        x.detach()
        torch.save(x, io.BytesIO())
    assert set(vars(x)) == names


def test_a_state_that_becomes_a_leaf_again_is_still_behind_its_cut() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    with record(model) as recording:
        h = model["encoder"](torch.ones(1, 2)).detach().requires_grad_()
        model["head"](h).sum().backward()
    (cut,) = recording.graph.cuts
    assert [recording.graph.nodes[i].title for i in cut.after] == ["addmm"]
    assert "cut-gradient" in {finding.rule for finding in find(recording.graph)}


def test_tensors_can_be_swapped_after_calls_whose_graphs_are_gone() -> None:
    model = nn.Linear(3, 3)
    weight = model.weight
    with record():
        model(torch.ones(1, 3))  # its graph is dropped, and what the recording holds of it
        with torch.no_grad():
            out = torch.mv(weight.t(), torch.ones(3))
        logged = (weight * 2).sum().detach()
        leaf = torch.zeros(2).requires_grad_()
        torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(3, 3)))
        torch.utils.swap_tensors(leaf, torch.ones(2).requires_grad_())
    assert not weight.any()
    assert leaf.all()
    assert (out.shape, logged.shape) == ((3,), ())


READ = [
    *("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad_fn", "grad"),
    *("output_nr", "_version", "_base", "_is_view", "is_nested", "is_cpu", "data", "data_ptr"),
    *("untyped_storage", "numel", "dim", "size", "stride", "element_size"),
]


def refusing(name: str) -> type[Tensor]:
    """Return a tensor class that raises if this attribute is read."""

    def refuse(self: Tensor, *args: Any) -> Any:
        raise RuntimeError(f"no {name} to be had")

    asked: Any = refuse if callable(getattr(Tensor, name)) else property(refuse)
    return type("Refusing", (Tensor,), {name: asked})


def end_of(program: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "result", str(program())
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", READ)
def test_a_tensor_that_cannot_be_read_ends_a_program_no_otherwise(name: str) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)
    x = torch.ones(2, 3).as_subclass(refusing(name))

    def program() -> list[float]:
        linear.zero_grad()
        y = linear(x)
        with torch.no_grad():
            y.exp()
        (y * y).add_(1).sum().backward()
        assert linear.weight.grad is not None
        return linear.weight.grad.as_subclass(Tensor).flatten().tolist()

    def recorded() -> list[float]:
        with record(notes=False):
            return program()

    assert end_of(recorded) == end_of(program)


def test_what_could_not_be_read_is_noted_with_its_reason() -> None:
    linear, x = nn.Linear(3, 3), torch.ones(2, 3).as_subclass(refusing("device"))
    with record() as recording:
        linear(x).sum().backward()
    if HAS_SAVED_TENSOR_DATA:  # it is refused where what the nodes keep is read
        assert recording.graph.nodes[-1].note == "not recorded: RuntimeError: no device to be had"
    x = torch.ones(2, requires_grad=True).as_subclass(refusing("output_nr"))
    with record() as recording:
        (x * x).sum().backward()
    with pytest.raises(ValueError, match="not recorded: RuntimeError: no output_nr to be had"):
        _ = recording.graph


def test_what_this_torch_does_not_tell_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for reader in (saved_tensors, memory, nonfinite, failing_node):
        monkeypatch.setattr(reader, "HAS_SAVED_TENSOR_DATA", False)  # as torch 2.8
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    with record() as recording:
        x.log().square().sum().backward()
    sentence = "not recorded: tensors saved for backward, which torch"
    assert [node.note[: len(sentence)] for node in recording.graph.nodes if node.note] == [sentence]
    assert not any(node.saved for node in recording.graph.nodes)
    assert [finding.rule for finding in find(recording)][:1] == ["nonfinite-value"]
    loss = x.exp().sum()
    with pytest.raises(RuntimeError, match="second time"), record() as failed:
        [loss.backward() for _ in range(2)]
    assert "backward-twice" in [finding.rule for finding in find(failed)]
