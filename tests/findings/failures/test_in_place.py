"""Findings on a backward that failed for a change in place: the node, and the line to blame.

Each program marks its lines; what PyTorch raises is the first witness, the marks the second.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from graphviz_torch import Finding, find, record, simulate_accelerator
from tests.support.failing import CHANGED, failing, leaf, line
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def told(program: Callable[[], Any], **options: Any) -> Finding:
    """The finding on a program whose marks are `uses`, `changes` and `backward`."""
    graph = failing(program, CHANGED, **options)
    found = only("changed-in-place", graph)
    assert found.where == line(program, "changes")
    assert f"backward at {line(program, 'backward')} failed" in found.message
    assert f" at {line(program, 'uses')} needs " in found.message
    assert not [finding for finding in find(graph) if finding.rule == "failed"]
    return found


class Twice(Function):
    """Twice its input squared, with what it needs kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * gradient * x


# Ways to change a tensor `h` in place; what it is called; how the advice begins.
def augmented(h: Tensor) -> None:
    h += 1


def item(h: Tensor) -> None:
    h[0] = 1


def view(h: Tensor) -> None:
    h[:, 0].mul_(2)


def detached(h: Tensor) -> None:
    h.detach().zero_()


def unwatched(h: Tensor) -> None:
    with torch.no_grad():
        h.sub_(1)


def out(h: Tensor) -> None:
    with torch.no_grad():
        torch.add(h, 1, out=h)


def functional(h: Tensor) -> None:
    F.relu(h, inplace=True)


def module(h: Tensor) -> None:
    nn.LeakyReLU(0.1, inplace=True)(h)


def filled(h: Tensor) -> None:
    h.masked_fill_(h > 0, 0)


def initialised(h: Tensor) -> None:
    nn.init.zeros_(h)


def power(h: Tensor) -> None:
    h **= 2


WAYS = {
    augmented: ("add_", "Make a new tensor"),
    item: ("setitem", "Change a copy"),
    view: ("mul_", "Make a new tensor"),
    detached: ("zero_", "Make a new tensor"),
    unwatched: ("sub_", "Make a new tensor"),
    out: ("add(out=)", "Leave the out= away"),
    functional: ("relu(inplace=)", "Use inplace=False"),
    module: ("leaky_relu(inplace=)", "Use inplace=False"),
    filled: ("masked_fill_", "Change a copy"),
    initialised: ("zero_", "Make a new tensor"),
    power: ("pow_", "Make a new tensor"),
}


@pytest.mark.parametrize("change", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_the_line_that_changed_what_backward_needs(
    change: Callable[[Tensor], None], device: str
) -> None:
    name, advice = WAYS[change]
    with simulate_accelerator() as [accelerator]:
        x = leaf().to(accelerator) if device == "sim" else leaf()

        def program() -> None:
            h = x.exp()  # keeps its result
            change(h)
            h.sum().backward()

        graph = failing(program, CHANGED)
    found = only("changed-in-place", graph)
    start = inspect.getsourcelines(change)[1]
    file, _, number = found.where.rpartition(":")
    assert file == "test_in_place.py"
    assert start < int(number) <= start + 2
    assert f" as it was, and {name} " in found.message
    assert f"at {found.where} " in found.message
    assert f"exp at {line(program, 'keeps its result')} needs " in found.message
    assert found.advice.startswith(advice)


def test_what_changed_a_tensor_is_marked_beside_what_needs_it_as_it_was() -> None:
    def program() -> None:
        h = leaf().exp()
        h.add_(1)
        h.sum().backward()

    graph = failing(program, CHANGED)
    marked = only("changed-in-place", graph).nodes
    assert {graph.nodes[node].name for node in marked} == {"ExpBackward0", "AddBackward0"}


def test_the_operand_of_another_operation() -> None:
    x = leaf()

    def program() -> None:
        h = x * 2
        y = h.sin()  # uses
        h *= 3  # changes
        (y + h).sum().backward()  # backward

    found = told(program)
    assert "needs a f32[3, 3] cpu as it was, and mul_" in found.message
    assert "h = h * ... instead of h *= ...." in found.advice


def test_two_changes_are_both_told_and_others_are_not() -> None:
    x = leaf()

    def program() -> None:
        h = x * 2
        h += 5  # before it was used
        other = x * 3
        y = h.cos()  # uses
        other += 1
        h += 1  # changes
        h += 2  # again
        (y * other).sum().backward()  # backward

    found = told(program)
    first, second = line(program, "changes"), line(program, "again")
    ends = f"and add_ at {first} (h += 1) and add_ at {second} (h += 2) changed"
    assert ends in found.message


def test_an_optimizers_step_between_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def program() -> None:
        loss = model(torch.ones(2, 3)).sum()
        other = loss * 2
        loss.backward(retain_graph=True)
        optimizer.step()  # changes
        other.backward()

    found = only("changed-in-place", failing(program, CHANGED, model=model))
    assert "needs 1.weight (f32[3, 1] cpu) as it was" in found.message
    assert f"the optimizer's step at {line(program, 'changes')} changed it" in found.message
    assert found.advice.startswith("Run backward before it")


def test_what_a_custom_function_keeps() -> None:
    x = leaf()

    def program() -> None:
        h = x * 2
        y = Twice.apply(h)  # uses
        h.zero_()  # changes
        y.sum().backward()  # backward

    assert "Twice at" in told(program).message


def test_an_input_that_needs_no_gradient() -> None:
    weight = leaf()

    def program() -> None:
        x = torch.ones(3, 3)
        y = x @ weight  # uses
        x.zero_()  # changes
        y.sum().backward()  # backward

    assert "needs a f32[3, 3] cpu as it was" in told(program).message


def test_without_statistics_and_memory_too() -> None:
    x = leaf()

    def program() -> None:
        y = x.exp()  # uses
        z = y.sin().exp()
        y += 1  # changes
        z.sum().backward()  # backward

    recording = record(gradients=False, transfers=False, memory=False)
    with pytest.raises(RuntimeError, match=CHANGED), recording:
        program()
    assert only("changed-in-place", recording.graph).where == line(program, "changes")


def test_a_change_through_data_is_none_that_pytorch_sees() -> None:
    x = leaf()
    with record() as recording:
        y = x.exp()
        y.data += 1
        y.sum().backward()
    assert recording.graph.failure is None
    assert not [f for f in find(recording.graph) if f.rule == "changed-in-place"]


def test_a_program_that_changes_in_place_and_works_has_no_finding() -> None:
    x = leaf()
    with record() as recording:
        h = x * 2
        h += 1
        h[0] = 3
        F.relu(h, inplace=True).sum().backward()
    assert not [f for f in find(recording.graph) if f.severity == "error"]


def test_nobodys_unpacking_is_called_to_find_the_node() -> None:
    unpacked: list[int] = []

    def unpack(packed: tuple[Tensor]) -> Tensor:
        unpacked.append(1)
        return packed[0]

    def program() -> None:
        x = leaf()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor,), unpack):
            y = x.exp().sin()
        z = y.exp()
        z += 1
        z.sum().backward()

    counts = []
    for _ in range(2):
        unpacked.clear()
        with pytest.raises(RuntimeError, match=CHANGED):
            program()
        counts.append(len(unpacked))
        graph = failing(program, CHANGED)
        counts.append(len(unpacked) - counts[-1])
    assert counts[0] == counts[1]
    assert only("changed-in-place", graph)


def test_a_step_is_blamed_only_if_it_came_after_what_backward_needs() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))

    def program() -> None:
        model(torch.ones(2, 3)).sum().backward()
        one.step()
        y = model(torch.ones(2, 3))
        loss = y.square().sum()
        y.sum().backward(retain_graph=True)
        other.step()  # changes
        loss.backward()

    found = only("changed-in-place", failing(program, CHANGED, model=model))
    assert found.where == line(program, "changes")
    assert "and the optimizer's step at" in found.message


def test_a_step_and_a_change_after_it_are_both_told_and_one_of_data_is_not() -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def program(clip: Callable[[], Any]) -> None:
        a = (leaf() @ weight).sum()
        b = a * 2
        a.backward(retain_graph=True)
        optimizer.step()  # step
        clip()
        b.backward()

    def clamp() -> None:
        with torch.no_grad():
            weight.clamp_(-1, 1)  # clamps

    step, clamps = line(program, "step"), line(clamp, "clamps")
    found = only("changed-in-place", failing(lambda: program(clamp), CHANGED))
    assert f"the optimizer's step at {step} and clamp_ at {clamps}" in found.message
    graph = failing(lambda: program(lambda: weight.data.clamp_(-1, 1)), CHANGED)
    assert (
        f"and the optimizer's step at {step} changed it" in only("changed-in-place", graph).message
    )


def test_a_users_own_optimizer_is_one_too() -> None:
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p -= 0.1 * p.grad
                    p *= 0.99

    weight = nn.Parameter(torch.randn(3, 3))
    optimizer = Plain([weight])

    def program() -> None:
        a = (leaf() @ weight).sum()
        b = a * 2
        a.backward(retain_graph=True)
        optimizer.step()  # changes
        b.backward()

    found = only("changed-in-place", failing(program, CHANGED))
    assert f"and the optimizer's step at {line(program, 'changes')} changed it" in found.message


@pytest.mark.parametrize(
    "read",
    [
        lambda h: torch.norm(h),
        lambda h: F.normalize(h),
        lambda h: F.dropout(h, training=False, inplace=True),
        lambda h: torch.add(h, 1, out=None),
    ],
)
def test_a_call_that_could_change_and_does_not_is_not_blamed(read: Any) -> None:
    x = leaf()

    def program() -> None:
        h = x * 2
        y = h.sin()  # uses
        h += 1  # changes
        read(h)
        (y + h).sum().backward()  # backward

    assert "and add_ at" in told(program).message


def test_what_was_not_seen_to_change_is_nobodys() -> None:
    x = leaf()

    @torch.jit.script
    def unseen(h: Tensor) -> None:
        h.mul_(2)

    def program() -> None:
        for _ in range(20):
            noise = torch.zeros(3, 3)
            noise += 1
        del noise
        h = x.exp()
        with torch.no_grad():
            unseen(h)
        h.sum().backward()  # backward

    found = only("changed-in-place", failing(program, CHANGED))
    assert "and something that was not seen changed it in place" in found.message
    assert found.where == line(program, "backward")


def test_an_embedding_that_norms_its_weight() -> None:
    table = nn.Embedding(4, 3, max_norm=0.1)

    def program() -> None:
        product = table.weight.sum() * 1 + table.weight.pow(2).sum()  # uses
        (product + table(torch.tensor([0, 1])).sum()).backward()

    found = only("changed-in-place", failing(program, CHANGED, model=table))
    assert "embedding(max_norm=)" in found.message


def test_a_state_that_is_kept_with_its_graph_and_changed_by_the_step() -> None:
    cell = nn.RNNCell(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)

    def program() -> None:
        h = torch.zeros(2, 3)
        for _ in range(3):
            h = cell(torch.ones(2, 3), h)
            optimizer.zero_grad()
            h.sum().backward(retain_graph=True)  # backward
            optimizer.step()  # changes

    found = only("changed-in-place", failing(program, CHANGED, model=cell))
    assert f"the optimizer's step at {line(program, 'changes')} changed it" in found.message
    assert f"; backward at {line(program, 'backward')} had run it before, and " in found.message
    assert found.advice.startswith("Cut h off between the steps, h = h.detach(). ")


def test_nothing_of_the_users_runs_to_find_the_node() -> None:
    asked: list[Any] = []

    class Strict(Tensor):
        armed = False

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if cls.armed:
                raise SystemExit(f"{func}")
            return super().__torch_function__(func, types, args, kwargs or {})

    x = leaf()
    strict = torch.ones(3, 3).as_subclass(Strict)
    y = Tensor.as_subclass(x * strict, Tensor).sum()
    strict.add_(1)

    def program() -> None:
        Strict.armed = True
        y.backward()

    with pytest.raises(RuntimeError, match=CHANGED):
        program()
    alone = len(asked)
    failing(program, CHANGED, gradients=False, memory=False)
    assert len(asked) == 2 * alone
