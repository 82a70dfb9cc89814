"""What has to be said of a recording as a whole: how it ran, and what of it could not be read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Answer = TypeVar("Answer")
_MISSED = 10  # reasons
_TEXT = 200  # characters of one
_EAGER = 'run as written, with no compiled code (compiled="eager"): the numbers are eager\'s'


class Remarks:
    """The remarks of a recording, each once."""

    def __init__(self) -> None:
        self.missed: dict[str, None] = {}  # what could not be read of this step
        self._eager = False

    @property
    def lines(self) -> tuple[str, ...]:
        """They, what holds for every step first."""
        return (*((_EAGER,) if self._eager else ()), *self.missed)

    def ran_eager(self) -> None:
        """Say that the program runs without its compiled code."""
        self._eager = True

    def leave_out(self, what: str) -> None:
        """Say that something is not recorded, in words that follow "not recorded:"."""
        self.missed[f"not recorded: {what}"] = None

    def miss(self, error: Exception) -> None:
        """Something of the program could not be read: it is not recorded, and runs on."""
        if len(self.missed) < _MISSED:
            with suppress(Exception):  # an error of the user's may refuse to be written
                text = next(iter(str(error).splitlines()), "")[:_TEXT]
                self.leave_out(f"{type(error).__name__}: {text}")

    def attempt(self, read: Callable[..., Answer], *args: Any) -> Answer | None:
        """The answer of a reading of ours; None if it fails, which is noted and ends nothing."""
        try:
            return read(*args)
        except Exception as error:
            self.miss(error)
            return None
