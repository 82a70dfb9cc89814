"""Test an interrupt at each line that a recording runs: it is raised, and no hook stays."""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from linecache import getline
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from graphviz_torch import record
from graphviz_torch.graph.gc import with_gc_disabled
from graphviz_torch.internals.hooks import dispatch, watch
from graphviz_torch.recording.recording import Recording
from tests.support.interrupts import QUIET, Interrupt, Signal, interrupt, interrupted
from tests.support.observable import changes, observable

PACKAGE = record.__code__.co_filename.removesuffix("recording/recording.py")
# While these run, a block is not yet entered or already being left.
EDGES = {Recording.__enter__.__code__, Recording.__exit__.__code__, record.__code__}


def program() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with record(model):
        loss = model(torch.ones(2, 3)).square().mean()
        loss.detach()
        loss.backward()


def stop_after_a_time_limit(*_: object) -> None:
    raise TimeoutError


@pytest.fixture
def time_limit() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, stop_after_a_time_limit)
    yield
    signal.signal(signal.SIGTERM, before)


SIGNAL = partial(signal.raise_signal, signal.SIGTERM)


@pytest.mark.usefixtures("time_limit")
@pytest.mark.parametrize(
    ("raising", "kind"), [(interrupt, KeyboardInterrupt), (SIGNAL, TimeoutError)]
)
def test_an_interrupt_at_any_line_arrives_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, raising: Callable[[], None], kind: type[BaseException]
) -> None:
    arrived: list[Any] = []
    # Python itself swallows what is raised while an object is being freed.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: arrived.append(None))
    program()  # what stays after the first recording is there
    interrupted(program, whole := Interrupt(-1, PACKAGE, EDGES))
    lines = -1 - whole.left
    assert lines > 500
    before = observable()
    for at in range(1, lines, lines // 40):
        arrived.clear()
        raised = interrupted(program, one := Interrupt(at, PACKAGE, EDGES, raising), kind)
        # What is known already takes fewer lines.
        assert len(arrived) + raised == (one.left <= 0), at
        assert changes(before, observable()) == {}, at


def empty() -> None:
    with record():
        pass


def test_an_interrupt_while_a_block_is_entered_or_left_leaves_nothing() -> None:
    empty()
    interrupted(empty, whole := Interrupt(-1, PACKAGE))
    lines = -1 - whole.left
    assert lines > 100
    before = observable()
    for at in range(1, lines, lines // 60):
        interrupted(empty, Interrupt(at, PACKAGE))
        assert changes(before, observable()) == {}, at


def lost(program: Callable[[], None], folder: str, most: int) -> int:
    """At how many places, `most` are tried, a signal leaves gradients or the collector off.

    Counted are those at which one of them is off.
    """

    def off() -> bool:
        return not (torch.is_grad_enabled() and gc.isenabled())

    program()
    interrupted(program, whole := Signal(folder, off))
    passes, found = whole.passes, 0
    assert passes
    for at in passes[:: max(1, len(passes) // most)]:
        interrupted(program, Signal(folder, off, at=at))
        found += off()
        torch.set_grad_enabled(True)
        gc.enable()
    return found


def keys_and_modes() -> tuple[Any, ...]:
    """Return this thread's dispatch keys, and its modes except the gradient mode."""
    keys = [
        (name, asked(key))
        for name, key in vars(torch._C.DispatchKey).items()
        if isinstance(key, torch._C.DispatchKey)
        for asked in (
            torch._C._dispatch_tls_is_dispatch_key_included,
            torch._C._dispatch_tls_is_dispatch_key_excluded,
        )
    ]
    return (
        keys,
        list(_get_current_function_mode_stack()),
        list(_get_current_dispatch_mode_stack()),
        gc.isenabled(),
        torch.is_autocast_cache_enabled(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
    )


def training() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record(model):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


def inside_another() -> None:
    with record():
        program()


def checkpointed() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with record():
        checkpoint(nn.Linear(3, 4), x, use_reentrant=False).sum().backward()


# Functions of the hooks that change nothing.
READING = ("listener_methods", "<genexpr>", "<listcomp>")
# A signal before the first line of `__exit__` leaves a `with` of any kind open.
LEAVES = {Recording.__exit__.__code__}
# What switches the key of a thread, and its modes: there every place is tried, elsewhere some.
SWITCHES = tuple(f"{PACKAGE}internals/hooks/{name}.py" for name in ("dispatch", "watch"))


@pytest.mark.parametrize("program", [empty, training, inside_another, checkpointed])
@pytest.mark.parametrize("folder", [SWITCHES, PACKAGE], ids=["switches", "package"])
def test_a_signal_wherever_python_lets_one_in_leaves_all_keys_and_modes(
    program: Callable[[], None],
    folder: str | tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    program()
    interrupted(program, whole := Signal(folder, lambda: True, LEAVES))
    chosen = random.Random(0).sample(whole.passes, len(whole.passes))
    if folder == SWITCHES:  # each place once, at any of the times that the program passes it
        chosen = [*{(at.code, at.offset): at for at in chosen}.values()]
    else:
        chosen = chosen[:100]
    assert len(chosen) >= 100
    gc.collect()  # what other tests have interrupted is freed now, not in between
    keys, *modes = keys_and_modes()
    for at in chosen:
        interrupted(program, Signal(folder, lambda: True, LEAVES, at))
        torch.set_grad_enabled(True)  # as the next test says, `no_grad` may leave them off
        now, *others = keys_and_modes()
        assert {*now} ^ {*keys} == set(), at
        assert others == modes, at


class Empty(TorchFunctionMode):
    """A mode of another library, which does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def without_gradients(mode: AbstractContextManager[Any]) -> None:
    with mode, torch.no_grad():
        pass


def test_a_signal_at_no_grad_leaves_gradients_off_where_any_mode_does_and_nowhere_else() -> None:
    bare = lost(lambda: without_gradients(Empty()), __file__, 100)
    assert lost(lambda: without_gradients(record()), PACKAGE, 100) <= bare == 2


def test_a_signal_while_a_graph_is_built_leaves_the_collector_on() -> None:
    assert lost(lambda: with_gc_disabled(Empty)() and None, PACKAGE, 100) == 0


def test_a_thread_that_puts_the_collector_on_as_another_begins_leaves_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enabled = gc.isenabled

    def off_then_on_again() -> bool:  # another thread has built something, and is done here
        gc.enable()
        return False

    monkeypatch.setattr(gc, "isenabled", off_then_on_again)
    with_gc_disabled(Empty)()
    assert enabled()


def test_a_signal_in_a_backward_leaves_gradients_and_the_collector_on() -> None:
    leaves = [torch.ones(2, 3, requires_grad=True)]
    leaves.append(torch.eye(2).to_sparse().requires_grad_())

    def program() -> None:
        with record():
            sum(leaf.sum() for leaf in leaves).backward()  # type: ignore[union-attr]

    assert lost(program, PACKAGE, 150) == 0


def test_an_interrupt_while_copies_begin_or_cease_to_be_seen_leaves_them_to_the_next(
    sim: torch.device,
) -> None:
    lines: list[tuple[str, int]] = []
    files = (dispatch.__file__, watch.__file__)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        # Nine of ten lines would be those that look for listeners, which change nothing.
        if code.co_filename not in files or code.co_name in READING:
            return None
        line = getline(code.co_filename, frame.f_lineno).split()
        if event == "line" and line[0] not in QUIET:
            lines.append((code.co_filename, frame.f_lineno))
            if len(lines) == at:
                raise KeyboardInterrupt
        return trace

    def interrupt_empty() -> None:
        lines.clear()
        sys.settrace(trace)
        with suppress(KeyboardInterrupt):
            empty()
        sys.settrace(None)

    empty()
    at = 0
    interrupt_empty()
    passes: dict[tuple[str, int], list[int]] = {}
    for number, line in enumerate(lines, 1):
        passes.setdefault(line, []).append(number)
    assert len(passes) > 40
    chance = random.Random(0)
    for numbers in passes.values():  # the first and the last time, and up to two between
        for at in {numbers[0], numbers[-1], *chance.sample(numbers, min(2, len(numbers)))}:
            interrupt_empty()
            with record() as recording:
                torch.ones(2, requires_grad=True).to(sim).sum().backward()
            assert [copy.kind for copy in recording.graph.transfers] == ["HtoD", "DtoH"], at


def test_an_interrupt_while_a_copy_is_watched_leaves_no_watch_behind(sim: torch.device) -> None:
    def copy() -> None:
        with record():
            torch.ones(2).to(sim)

    copy()
    interrupted(copy, whole := Interrupt(-1, dispatch.__file__))
    lines = -1 - whole.left
    for at in range(1, lines + 1):
        interrupted(copy, Interrupt(at, dispatch.__file__))
        assert dispatch._thread_state.inside == (), at
    assert lines > 20
