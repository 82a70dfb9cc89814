"""Compare recorded checkpoints with saved_tensors_hooks and FlopCounterMode."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint as checkpoints
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from graphviz_torch import find, load, record, summary
from graphviz_torch.graph import Training
from graphviz_torch.graph.units import bytes_text
from graphviz_torch.internals.hooks.checkpoints import contents_of
from graphviz_torch.internals.tensors.metadata import HAS_SAVED_TENSOR_DATA
from tests.recording.test_memory import kept, seen_by_hooks
from tests.support.processes.forks import forked
from tests.support.programs import function

pytestmark = pytest.mark.skipif(
    not HAS_SAVED_TENSOR_DATA, reason="this torch does not tell what a node keeps"
)

checkpoint: Any = partial(checkpoints.checkpoint, use_reentrant=False)
FIRST, SECOND, THIRD = (nn.Linear(8, 8) for _ in range(3))
FROZEN = nn.Linear(8, 8).requires_grad_(False)
DATA = torch.randn(16, 8)
DOUBLE = function(
    lambda ctx, x: (ctx.save_for_backward(x), x * 2)[1],
    lambda ctx, gradient: gradient * 2 * bool(ctx.saved_tensors),
)


def start() -> Tensor:
    """A result whose node keeps it."""
    return (DATA * torch.ones(8, requires_grad=True)).exp()


def block(x: Tensor) -> Tensor:
    y: Tensor = SECOND(torch.tanh(FIRST(x)))
    return y


def around(x: Tensor) -> Tensor:
    y: Tensor = THIRD(checkpoint(block, x.sin()).cos())
    return y


def inside_last(x: Tensor) -> Tensor:
    y: Tensor = checkpoint(block, THIRD(x).tanh())
    return y


def several(x: Tensor, times: Tensor, other: Tensor) -> Tensor:
    y: Tensor = FIRST(x) * times + SECOND(other)
    return y


def convolved(x: Tensor) -> Tensor:
    weight = torch.ones(16, 16, 3, requires_grad=True)
    once = functional.conv1d(x[None], weight, padding=1).tanh()
    return functional.conv1d(once, weight, padding=1)[0]


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "one": lambda x: checkpoint(block, x),
    "without the random state": lambda x: checkpoint(block, x, preserve_rng_state=False),
    "several inputs": lambda x: checkpoint(several, x, DATA.cos(), x.exp()),
    "an input without a gradient": lambda x: checkpoint(block, DATA.cos()) + x,
    "an input that is data": lambda x: checkpoint(block, DATA) + x,
    "an input kept outside": lambda x: checkpoint(block, x) * x,
    "an input that is a view": lambda x: checkpoint(block, x.view(2, 8, 8)).view(16, 8),
    "an input that is a parameter": lambda x: checkpoint(torch.matmul, x, FIRST.weight),
    "one after another": lambda x: checkpoint(block, checkpoint(around, x)),
    "one in another": lambda x: checkpoint(around, x),
    "one at the end of another": lambda x: checkpoint(inside_last, x),
    "one in one in another": lambda x: checkpoint(lambda y: THIRD(checkpoint(around, y).cos()), x),
    "a result saved last": lambda x: checkpoint(lambda y: FIRST(y).tanh(), x),
    "a custom function last": lambda x: checkpoint(lambda y: DOUBLE.apply(FIRST(y)), x),
    "a dropout last": lambda x: checkpoint(lambda y: functional.dropout(FIRST(y)), x),
    "frozen weights": lambda x: checkpoint(lambda y: FROZEN(y).tanh(), x),
    "convolutions": lambda x: checkpoint(convolved, x),
    "to its end": lambda x: checkpoint(block, x, early_stop=False),
    "one at the end of another, to its end": lambda x: checkpoint(inside_last, x, early_stop=False),
    "a residual": lambda x: x + checkpoint(block, x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_total_is_what_hooks_see_and_the_flops_are_what_pytorch_counts(name: str) -> None:
    def forward() -> Tensor:
        return PROGRAMS[name](start()).square().sum()

    with FlopCounterMode(display=False) as ahead:
        loss = forward()
    with FlopCounterMode(display=False) as back:
        loss.backward()
    with record() as recording:
        forward().backward()
    total = summary(recording).total
    assert kept(recording.graph) == total.saved_bytes == seen_by_hooks(forward)
    counted = ahead.get_total_flops(), back.get_total_flops()
    assert (total.flops_forward, total.flops_backward) == counted


def test_a_reentrant_checkpoint_keeps_as_much_and_its_flops_are_said_not_to_be_known() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward() -> Tensor:
        out: Tensor = checkpoints.checkpoint(model, start(), use_reentrant=True)
        return out.square().sum()

    with record(model) as recording:
        forward().backward()
    found = summary(recording)
    assert found.total.saved_bytes == seen_by_hooks(forward)
    assert found.modules
    assert all(row.flops_unknown for row in (*found.modules, found.total))
    lines = str(found).splitlines()
    assert all("\N{GREATER-THAN OR EQUAL TO}0 " in line for line in lines if "Linear" in line)


def test_what_is_given_by_keyword_and_in_a_list_is_kept_too() -> None:
    mask, more = torch.ones(16, 8), torch.ones(8)

    def masked(x: Tensor, *, mask: Tensor, more: list[Tensor]) -> Tensor:
        return block(x) * mask + more[0]

    with record() as recording:
        checkpoint(masked, start(), mask=mask, more=[more]).sum().backward()
    nodes = recording.graph.nodes
    [exp] = [node for node in nodes if node.title == "exp"]
    [given] = [node.saved for node in nodes if node.saved and "checkpointed" in node.note]
    assert [saved.shared_with for saved in given] == [exp.id, None, None]
    assert {saved.nbytes for saved in given[1:]} == {mask.nbytes, more.nbytes}


class Arguments(torch.autograd.Function):
    """The object in which PyTorch 2.11 keeps the arguments of a checkpointed segment."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return torch.empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        args = [None if isinstance(each, Tensor) else each for each in inputs]
        ctx.get_args = lambda: args
        ctx.save_for_backward(*(each for each in inputs if isinstance(each, Tensor)))


def test_a_part_of_an_older_pytorch_tells_what_it_keeps() -> None:
    x, mask = torch.ones(3), torch.ones(5)
    kept_in = Arguments.apply(torch.empty(0, requires_grad=True), {"mask": mask}, x, 2)
    frame = SimpleNamespace(input_saver=kept_in, recompute_fn=lambda: None)
    held = [each for each in tree_leaves(contents_of(frame)) if each is not None]
    assert [each.shape if isinstance(each, Tensor) else each for each in held] == [
        x.shape,
        mask.shape,
        2,
    ]


def test_it_is_counted_at_the_first_node_of_its_part_and_in_every_sum() -> None:
    parts = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)]
    blocks, model = nn.Sequential(*parts), nn.Module()
    model.b = blocks
    x = torch.ones(1024, 64)

    def forward() -> Tensor:
        out = x
        for one in blocks:
            out = checkpoint(one, out)
        return out.square().sum()

    with record(model) as recording:
        forward().backward()
    expected = seen_by_hooks(forward)
    assert expected == 9 * x.nbytes
    found = {row.module: row.saved_bytes for row in summary(recording).modules}
    assert [found[f"b.{i}"] for i in range(8)] == [x.nbytes] * 8
    assert [found[f"b.{i}.0"] for i in range(8)] == [x.nbytes] * 8
    [total] = [line for line in str(summary(recording)).splitlines() if line.startswith("total")]
    assert bytes_text(expected) in total
    [most] = [found for found in find(recording) if found.rule == "most-memory"]
    assert f"{bytes_text(expected - x.nbytes)} of activations" in most.message  # x is an input
    assert most.advice == ""  # all of it is under a checkpoint


def test_only_what_ran_again_is_said_to_run_again() -> None:
    ran: list[str] = []
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for name, part in model.named_children():
        part.register_forward_hook(lambda *_, name=name: ran.append(name))
    with record(model) as recording:
        loss = checkpoint(model, start()).sum()
        ran.clear()
        loss.backward()
    nodes = [node for node in recording.graph.nodes if node.note]
    assert {node.module for node in nodes} == set("01234")
    assert [node.module for node in nodes if "ran again" in node.note] == ran == list("0123")
    assert [node.reruns for node in nodes] == [1, 1, 1, 1, 0]


def test_without_a_backward_the_whole_part_is_said_to_run_again() -> None:
    with record() as recording:
        loss = checkpoint(block, start()).sum()
    notes = {node.note for node in recording.graph.nodes if node.note}
    assert notes == {"checkpointed: backward runs the forward of this segment again"}
    assert summary(recording).total.flops_unknown == 2  # what backward takes is not known
    assert loss.requires_grad


def test_each_backward_of_one_graph_counts_what_it_runs_again() -> None:
    def program() -> None:
        loss = checkpoint(block, start()).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    with FlopCounterMode(display=False) as counter:
        program()
    with record() as recording:
        program()
    first, second = (summary(graph).total for graph in recording.graphs)
    assert first.flops_backward == second.flops_backward
    assert first.flops_forward + 2 * first.flops_backward == counter.get_total_flops()


def test_what_began_before_the_recording_is_said_not_to_be_counted() -> None:
    loss = checkpoint(block, start()).square().sum()
    with record() as recording:
        loss.backward()
    assert any("before the recording" in node.note for node in recording.graph.nodes)
    assert summary(recording).total.flops_unknown == 2


def test_what_a_policy_keeps_is_counted() -> None:
    def policy(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saves = operator is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.MUST_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    with record() as recording:
        x = start()
        out = checkpoint(block, x, context_fn=contexts)
        out.sum().backward()
    # The result of `start`, what its first node keeps, and the results of two products.
    assert kept(recording.graph) == DATA.nbytes + x.nbytes + 2 * out.nbytes
    assert summary(recording).total.flops_unknown == 2
    assert not any("ran again" in node.note for node in recording.graph.nodes)


def test_no_tensor_is_alive_longer() -> None:
    def alive() -> list[bool]:
        found: list[bool] = []
        x = start().sin()
        reference = weakref.ref(x)
        loss = checkpoint(block, x).sum()
        made_by: Any = x.grad_fn
        made_by.register_hook(lambda *_: found.append(reference() is not None))
        del x
        loss.backward()
        return found

    expected = alive()
    with record():
        assert alive() == expected == [False]


SCRIPT = """\
import torch
from torch.utils.checkpoint import checkpoint
block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    h = torch.ones(16, 8, requires_grad=True).cos()
    checkpoint(block, h, use_reentrant=False).square().sum().backward()
    optimizer.step()
"""


def test_each_step_of_a_run_tells_it_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = forked("-m", "graphviz_torch", "run", "-o", "run.json.gz", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    training = load(tmp_path / "run.json.gz")
    assert isinstance(training, Training)
    forward, product = 2 * 16 * 8 * 8 * 2, 2 * 16 * 8 * 8
    for step in training.steps:
        total = summary(step.graph).total
        assert total.saved_bytes == 3 * 16 * 8 * 4  # what cos keeps, h, and what is squared
        assert (total.flops_forward, total.flops_backward) == (forward, 2 * forward + product)
