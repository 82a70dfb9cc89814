"""An interrupt at any line that a recording runs: it arrives, and nothing stays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from linecache import getline
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from graphviz_torch import record
from graphviz_torch.internals.hooks import dispatch, installation
from graphviz_torch.recording.recording import Recording
from tests.support.observable import changes, observable

PACKAGE = record.__code__.co_filename.removesuffix("recording/recording.py")
# While these run, a block is not yet entered or already being left.
EDGES = {Recording.__enter__.__code__, Recording.__exit__.__code__, record.__code__}

# Python looks for signals after calls and jumps: not before a `del`, nor at a `try`, which does
# nothing, nor where a `with` is left, whose line comes a second time then.
QUIET = ("with", "del", "try:")


class Interrupt:
    """A tracing function that raises KeyboardInterrupt at the nth line of ours that runs."""

    def __init__(self, at: int, edges: bool = False) -> None:
        self.left = at
        self.edges = edges  # also while a block is entered or left

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        line = getline(frame.f_code.co_filename, frame.f_lineno).split()
        quiet = line[0] in QUIET
        if event == "line" and not quiet and (self.edges or not self._at_an_edge(frame)):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def _at_an_edge(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code in EDGES:
                return True
            frame = frame.f_back
        return False


def program() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with record(model):
        loss = model(torch.ones(2, 3)).square().mean()
        loss.detach()
        loss.backward()


def interrupted(run: Callable[[], None], at: int, edges: bool = False) -> tuple[bool, int]:
    """Run it with an interrupt at the nth line: whether it arrived, and how many lines are left."""
    interrupt = Interrupt(at, edges)
    sys.settrace(interrupt)
    try:
        run()
    except KeyboardInterrupt:
        return True, interrupt.left
    finally:
        sys.settrace(None)
    return False, interrupt.left


def test_an_interrupt_at_any_line_arrives_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived: list[Any] = []
    # Python itself swallows what is raised while an object is being freed.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: arrived.append(None))
    program()  # what stays after the first recording is there
    lines = -1 - interrupted(program, -1)[1]
    assert lines > 500
    before = observable()
    for at in range(1, lines, lines // 40):
        arrived.clear()
        raised, left = interrupted(program, at)
        assert len(arrived) + raised == (left <= 0), at  # what is known already takes fewer lines
        assert changes(before, observable()) == {}, at


def empty() -> None:
    with record():
        pass


def test_an_interrupt_while_a_block_is_entered_or_left_leaves_nothing() -> None:
    empty()
    lines = -1 - interrupted(empty, -1, edges=True)[1]
    assert lines > 100
    before = observable()
    for at in range(1, lines, lines // 60):
        interrupted(empty, at, edges=True)
        assert changes(before, observable()) == {}, at


def test_an_interrupt_while_copies_begin_or_cease_to_be_seen_leaves_them_to_the_next(
    sim: torch.device,
) -> None:
    lines: list[int] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in (dispatch.__file__, installation.__file__):
            return None
        line = getline(frame.f_code.co_filename, frame.f_lineno).split()
        if event == "line" and line[0] not in QUIET:
            lines.append(frame.f_lineno)
            if len(lines) == at:
                raise KeyboardInterrupt
        return trace

    at, ended = 0, False
    while not ended:
        at += 1
        lines.clear()
        sys.settrace(trace)
        with suppress(KeyboardInterrupt):
            empty()
        sys.settrace(None)
        ended = len(lines) < at
        with record() as recording:
            torch.ones(2, requires_grad=True).to(sim).sum().backward()
        assert [copy.kind for copy in recording.graph.transfers] == ["HtoD", "DtoH"], at
    assert at > 40
