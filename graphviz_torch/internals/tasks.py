"""Which programs are watched where something runs: a thread, and in asyncio a task, has its own.

A task has those of the task that made it.
"""

from __future__ import annotations

from contextvars import ContextVar

_programs: ContextVar[frozenset[object]] = ContextVar("graphviz_torch", default=frozenset())
programs = _programs.get  # keys of those that are watched here


def enter(program: object) -> None:
    """What runs here from now on, and in tasks that are made here, is this program."""
    _programs.set(programs() | {program})


def leave(program: object) -> None:
    """It is not any more."""
    _programs.set(programs() - {program})


def alone() -> None:
    """Nothing that runs from now on in this context, a copy, is watched."""
    _programs.set(frozenset())
