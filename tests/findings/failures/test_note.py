"""Test the note that a recording adds to an exception."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from graphviz_torch import record
from graphviz_torch.findings import check
from graphviz_torch.recording import failures
from tests.support.failing import leaf, line

pytestmark = [
    pytest.mark.usefixtures("the_same_numbers"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions carry notes since 3.11"),
]


def raised(program: Callable[[], Any], **options: Any) -> BaseException:
    """Return the exception that ends a recorded program."""
    with pytest.raises(BaseException) as caught, record(**options):  # noqa: PT011
        program()
    return caught.value


def shapes() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(4, 1))
    model(torch.ones(2, 4))  # told


def shapes_after_an_error_of_another_line() -> None:
    (leaf() * 0).log().sum().backward()
    torch.ones(2) @ torch.ones(3)  # told


def change_in_place() -> None:
    h = leaf().exp()
    h += 1  # told
    h.sum().backward()


def cut() -> None:
    y = nn.Linear(4, 3)(torch.ones(2, 4)).argmax(1).float()  # told
    y.sum().backward()


def one_row() -> None:
    nn.BatchNorm1d(4)(torch.ones(1, 4))  # told


def unscaled_twice() -> None:
    optimizer, scaler = torch.optim.SGD([leaf()], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(optimizer.param_groups[0]["params"][0].sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)  # told


def steps_past_the_end() -> None:
    optimizer = torch.optim.SGD([leaf()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
    optimizer.step()
    for _ in range(3):
        scheduler.step()  # told


NOTES = {  # what the note on a program says in its first line, and in that of what to try
    shapes: ("2.weight (f32[1, 4] cpu)", "  try: The last dimension of the input "),
    shapes_after_an_error_of_another_line: ("matmul", "  try: Check the shapes"),
    change_in_place: ("changed it in place", "h = h + ... instead of h += ..."),
    cut: ("weight and bias got no gradient", "  try: "),
    one_row: (
        "Expected more than 1 value per channel",
        "  try: A batch of one sample has no variance",
    ),
    unscaled_twice: ("unscale_() has already been called", "  try: Call unscale_() once"),
    steps_past_the_end: ("Tried to step 3 times", "  try: total_steps counts the calls"),
}


@pytest.mark.parametrize("program", NOTES, ids=lambda program: program.__name__)
def test_an_error_is_told_with_its_cause_its_line_and_what_to_try(
    program: Callable[[], None],
) -> None:
    said, advice = NOTES[program]
    (text,) = raised(program).__notes__
    cause, where, *tried = text.split("\n")
    assert cause.startswith("graphviz_torch: ")
    assert said in cause
    assert where == f"  line: {line(program, 'told')}"
    assert [advice in each for each in tried] == [True] * bool(advice)


def test_a_note_that_would_only_repeat_the_message_is_not_written() -> None:
    assert not hasattr(raised(lambda: {}["a"]), "__notes__")


def test_notes_may_be_turned_off() -> None:
    assert not hasattr(raised(lambda: torch.ones(2) @ torch.ones(3), notes=False), "__notes__")


def test_the_exception_itself_passes_as_it_was_raised() -> None:
    class Special(ValueError):
        """An exception whose text has two lines, as in a hostile program."""

    error = Special("out of memory\n" * 1000)

    def program() -> None:
        leaf().exp()
        raise error

    assert raised(program) is error
    assert error.args == ("out of memory\n" * 1000,)
    (text,) = error.__notes__
    assert len(text.split("\n")) <= 3
    assert len(text) < 1500


def test_an_exception_that_leaves_two_recordings_gets_one_note() -> None:
    def program() -> None:
        with record():
            leaf().exp() @ torch.ones(7)

    assert len(raised(program).__notes__) == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_program_that_is_ended_on_purpose_gets_no_note(stop: type[BaseException]) -> None:
    def program() -> None:
        leaf().exp()
        raise stop

    assert not hasattr(raised(program), "__notes__")


def test_a_diagnosis_that_fails_never_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: object) -> str:
        raise RuntimeError("of the diagnosis")

    monkeypatch.setattr(check, "diagnosis", fail)
    error = raised(lambda: torch.ones(2) @ torch.ones(3))
    assert "of the diagnosis" not in str(error)
    assert not hasattr(error, "__notes__")


def test_where_exceptions_carry_no_notes_it_is_written_to_stderr_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def program() -> None:
        with record():
            leaf().exp() @ torch.ones(7)

    monkeypatch.setattr(failures.sys, "version_info", (3, 10))
    raised(program)
    monkeypatch.undo()
    assert capsys.readouterr().err.count("graphviz_torch: ") == 1


def test_the_note_keeps_nothing_alive() -> None:
    def run() -> tuple[weakref.ref[torch.Tensor], list[str]]:
        w = leaf()
        notes: list[str] = []
        with suppress(RuntimeError), record():
            try:
                with record():
                    w.exp() @ torch.ones(7)
            except RuntimeError as error:
                notes += error.__notes__
                raise
        return weakref.ref(w), notes

    gc.collect()
    gc.disable()
    try:
        tensor, notes = run()
        assert notes
        assert tensor() is None
    finally:
        gc.enable()
