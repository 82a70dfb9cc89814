"""Test that a recording causes no compilation and no graph break.

Dynamo's own counts are compared with those of the same steps without a recording. The garbage
collector is disabled, because Dynamo compiles finalizers that run inside a region.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode

from graphviz_torch import record
from graphviz_torch.internals.hooks import modules, regions
from graphviz_torch.internals.hooks.modules import ModuleWatch
from tests.recording.test_compiled import INDUCTOR, Block, Net, nothing_compiled_stays  # noqa: F401

Step = Callable[[], object]


def trained(compiled: Callable[[Tensor], Tensor], batches: Iterator[int] | None = None) -> Step:
    def step() -> None:
        compiled(torch.randn(next(batches) if batches else 4, 8)).square().mean().backward()

    return step


def of_blocks() -> Step:
    model = Net()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return trained(model)


def in_place() -> Step:
    model = Net()
    model.compile(backend="aot_eager")
    return trained(model)


class Breaking(Net):
    """Reads a number into Python between two graphs, and calls what is not compiled."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        if x.sum().item() > 1e9:
            return x
        return self.head(apart(x))


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def apart(x: Tensor) -> Tensor:
    return x * 2


class InALoop(Net):
    """A model whose forward Dynamo skips, while it compiles the functions called there."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = doubled(block(x))
            if x.sum() > 1e9:
                break
        return self.head(x)


def doubled(x: Tensor) -> Tensor:
    return x * 2


class BesideAnLSTM(InALoop):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.lstm(x)[0]))


def hooked(model: Net) -> Step:
    """Return a model whose blocks each have a hook that changes the result."""
    for block in model.blocks:
        block.register_forward_hook(lambda _, given, output: output + 1)
    return trained(torch.compile(model, backend="aot_eager"))


def of_hooked_blocks_in_a_loop() -> Step:
    return hooked(InALoop())


def of_layers_beside_a_block() -> Step:
    layers, block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), Block()
    layers.compile(backend="aot_eager")
    layers[0].compile(backend="aot_eager")
    block.compile(backend="aot_eager")
    return trained(lambda x: block(layers(x)))


def of_an_optimizer() -> Step:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    update = torch.compile(optimizer.step, backend="aot_eager")
    forward_and_backward = trained(torch.compile(model, backend="aot_eager"))

    def step() -> None:
        optimizer.zero_grad()
        forward_and_backward()
        update()

    return step


def of_a_function() -> Step:
    w = torch.ones(8, requires_grad=True)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: Tensor) -> Tensor:
        return (x * w).relu()

    return trained(loss)


def under_a_mode() -> Step:
    class Passing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    step = trained(torch.compile(Net(), backend="aot_eager"))

    def inside() -> None:
        with Passing():
            step()

    return inside


def of_a_container() -> Step:
    model = torch.nn.Sequential(Block(), Block())
    model.compile(backend="aot_eager")
    return trained(model)


def of_many_sizes(dynamic: bool | None) -> Step:
    sizes = iter(range(3, 100))
    return trained(torch.compile(Net(), backend="aot_eager", dynamic=dynamic), sizes)


def without_gradients() -> Step:
    compiled = torch.compile(Net().eval(), backend="aot_eager", fullgraph=True)

    def step() -> None:
        with torch.no_grad():
            compiled(torch.randn(4, 8))

    return step


def of_hooked_layers() -> Step:
    return hooked(Net())


def of_blocks_that_warn() -> Step:
    model = Net()
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: warnings.warn("look", stacklevel=1))
        block.compile(backend="aot_eager")
    return trained(model)


def of_one_inside_another() -> Step:
    inside = torch.compile(Block(), backend="aot_eager")

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def call(x: Tensor) -> Tensor:
        return inside(x)  # type: ignore[no-any-return]

    class Outer(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks(call(x)))

    model = Outer()
    model.head.register_forward_hook(lambda _, given, output: output + 1)
    return trained(torch.compile(model, backend="aot_eager"))


def of_a_compiled_backward() -> Step:
    step = trained(torch.compile(Net(), backend="aot_eager"))
    compiler = partial(torch.compile, backend="eager", fullgraph=True)

    def compiled() -> None:
        with compiled_autograd._enable(compiler):  # type: ignore[no-untyped-call]
            step()

    return compiled


PROGRAMS: dict[str, Callable[[], Step]] = {
    "a model": lambda: trained(torch.compile(Net(), backend="aot_eager")),
    "a model, in place": in_place,
    "its blocks": of_blocks,
    "a container": of_a_container,
    "fullgraph": lambda: trained(torch.compile(Net(), backend="aot_eager", fullgraph=True)),
    "dynamic": lambda: of_many_sizes(True),
    "many sizes": lambda: of_many_sizes(None),
    "graph breaks": lambda: trained(torch.compile(Breaking(), backend="aot_eager")),
    "layers with hooks": of_hooked_layers,
    "a loop that is skipped": lambda: trained(torch.compile(InALoop(), backend="aot_eager")),
    "its blocks have hooks": of_hooked_blocks_in_a_loop,
    "beside an LSTM": lambda: trained(torch.compile(BesideAnLSTM(), backend="aot_eager")),
    "layers beside a block": of_layers_beside_a_block,
    "blocks that warn": of_blocks_that_warn,
    "one inside another": of_one_inside_another,
    "a function": of_a_function,
    "a function mode": under_a_mode,
    "no_grad": without_gradients,
    "a compiled backward": of_a_compiled_backward,
    "backend eager": lambda: trained(torch.compile(Net(), backend="eager")),
}


@contextmanager
def uncollected_garbage() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def compilations(begin: Callable[[], Step], recorded: str) -> list[dict[str, int]]:
    """Return for each step the numbers of compiled frames, graphs and graph breaks so far."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    step = begin()
    found = []
    with uncollected_garbage():
        for letter in recorded:
            with record() if letter == "r" else nullcontext():
                step()
            found.append(
                {
                    "frames": counters["frames"]["total"],
                    "graphs": counters["stats"]["unique_graphs"],
                    "breaks": sum(counters["graph_break"].values()),
                }
            )
    assert found[-1]["graphs"] > 0
    return found


X = torch.ones(1)
OURS = [
    *(regions._wrap_region_start(print), regions._wrap_region_end(print)),
    *(regions._wrap_uncompiled_call(print), modules._notify_before, modules._notify_after),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_recorded_step_compiles_what_a_bare_one_does(program: str) -> None:
    begin = PROGRAMS[program]
    for function in OURS:  # whether dynamo has looked at our functions before makes no difference
        torch._C._dynamo.eval_frame.reset_code(function.__code__)
    *bare, _, _, after = compilations(begin, "bbbbbrrb")
    assert after == bare[-1]  # compiled before
    assert compilations(begin, "rbrbr") == bare  # compiled while it was recorded


def test_a_hook_of_ours_that_calls_what_is_not_compiled_leaves_a_region_unwatched() -> None:
    def begin() -> Step:
        step, watch = of_blocks(), ModuleWatch(lambda _: apart(X), lambda _: apart(X))

        def watched() -> None:
            with watch if modules._INSTALLATION.watchers else nullcontext():
                step()

        return watched

    _, bare, _, recorded = compilations(begin, "bbrr")
    assert recorded == bare


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_what_the_collector_calls_in_a_region_is_not_compiled_while_it_is_recorded() -> None:
    called: list[int] = []

    def begin() -> Step:
        numbers = iter(range(100))

        def leave_and_collect(*_: object) -> None:
            garbage, number = Cycle(), next(numbers)
            weakref.finalize(garbage, called.append, number)
            kept = WeakKeyDictionary({garbage: number})
            del garbage
            gc.collect()
            assert not kept

        skip_code(leave_and_collect.__code__)
        model = Net()
        model.blocks[0].register_forward_pre_hook(leave_and_collect)
        model.blocks[0].compile(backend="aot_eager")
        return trained(model)

    recorded = compilations(begin, "rrr")
    assert called == [0, 1, 2]
    bare = compilations(begin, "bbb")
    assert recorded[0]["frames"] < bare[0]["frames"]  # which has those of `finalize`
    assert recorded[-1] == recorded[0]


@pytest.mark.parametrize("backend", [INDUCTOR])
def test_inductor_compiles_nothing_more(backend: str) -> None:
    def begin() -> Step:
        return trained(torch.compile(Net(), backend=backend))

    _, bare, _, _, after = compilations(begin, "bbrrb")
    assert after == bare


def test_of_a_compiled_step_of_an_optimizer_no_graph_is_compiled_more() -> None:
    _, _, _, bare, _, _, after = compilations(of_an_optimizer, "bbbbrrb")
    assert after["graphs"] == bare["graphs"]


def test_what_was_watched_is_watched_again_after_a_region_and_where_it_is_not_compiled() -> None:
    step = trained(torch.compile(Breaking(), backend="aot_eager"))
    step()
    with record() as recording:
        step()
    lines = {node.operation: node.where.partition(":")[0] for node in recording.graph.nodes}
    assert lines["pow"] == lines["mean"] == "test_recompiles.py"  # after the region
    assert lines["mul"] == "test_recompiles.py"  # inside it, of what is not compiled


def test_a_region_is_shown_inside_and_compiled_once_where_a_recording_loads_dynamo() -> None:
    program = """
import sys, torch
from graphviz_torch import record
model = torch.nn.Linear(2, 1)
for i in range(2):
    with record(model) as recording:
        assert i or "torch._dynamo" not in sys.modules
        if i == 0:
            f = torch.compile(model, backend="aot_eager")
        f(torch.ones(1, 2)).sum().backward()
    print(*[node.title for node in recording.graph.nodes if not node.leaf])
f(torch.ones(1, 2))
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"], [type(one).__module__ for one in sys.meta_path])
"""
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    first, second, counted = shown.splitlines()
    assert first == second == "t addmm compiled sum"
    assert counted.startswith("1 ")
    assert "graphviz_torch" not in counted
