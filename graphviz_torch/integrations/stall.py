"""Ranks that wait for each other: said while they wait, so that no end of the program loses it.

Each rank counts its collectives. A thread looks twice a second whether the count has moved. Where
it has not, the thread tells the launcher's store where this rank is, once; where it moves again, it
takes that back. So a training that goes on tells nothing. Where nothing has moved for some seconds,
a rank reads where the others are, and the first that finds a difference says it.

A rank that C++ holds runs this thread nevertheless: PyTorch gives the interpreter free while it
waits. No signal is handled: what was said before a signal stays said.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from time import monotonic, sleep

from ..distributed import CollectiveCounter
from ..graph.units import count_text
from .positions import stall_text
from .ranks import Ranks

SECONDS = 10.0  # without a collective until others are asked
_TICK = 0.5
_TURNS = 20  # ranks ask one after the other, so that one reads all and the others need not


class StallWatch:
    """Counts this rank's collectives from now on, until `close()`.

    Args:
        ranks: reach the others.
        say: takes a sentence for the user.
    """

    def __init__(self, ranks: Ranks, say: Callable[[str], object]) -> None:
        self._ranks, self._say = ranks, say
        self._counter = CollectiveCounter()
        self._moves, self._since, self._due = -1, 0.0, 0.0  # the count, since when, until when
        self._published = False  # where this rank is, since it stands still
        self._announcements = 0  # before that
        self._over = Event()
        self._thread = Thread(target=self._look, name="graphviz-torch", daemon=True)
        self._counter.__enter__()
        self._thread.start()

    def close(self, error: BaseException | None = None) -> None:
        """Count no more: the script has ended. After an error in a collective, say who waits.

        Args:
            error: that ended it.
        """
        self._counter.__exit__()
        self._over.set()
        self._thread.join(2 * _TICK)  # it may wait for the store
        with suppress(Exception):
            at = self._counter.position()
            if at.state == "raised":
                if not self._published:
                    self._announcements = self._ranks.announcements()
                self._ranks.publish(at)
                self._await()
                self._announce("")
            else:
                name = "" if error is None else type(error).__name__
                self._ranks.publish(replace(at, state="ended", error=name))

    def _look(self) -> None:
        with suppress(Exception):  # the launcher has ended, and its store
            while not self._over.wait(_TICK):
                self._compare(monotonic())

    def _compare(self, now: float) -> None:
        """Compare this rank with where it was before, and at last with the others."""
        if self._counter.moves != self._moves:
            self._moves, self._since = self._counter.moves, now
            self._due = SECONDS + min(self._ranks.rank, _TURNS) * _TICK
            if self._published:
                self._ranks.publish(None)
                self._published = False
        elif not self._published:
            self._announcements = self._ranks.announcements()
            self._ranks.publish(self._counter.position())
            self._published = True
        elif now - self._since >= self._due:
            self._due *= 2
            self._announce(f"for {count_text(round(now - self._since), 'second')} ")

    def _announce(self, since: str) -> None:
        """Say who waits for whom, if no rank has said it since this one stands still."""
        if self._ranks.announcements() > self._announcements:
            return
        text = stall_text(self._ranks.positions())
        if text and self._ranks.announcements(1) == self._announcements + 1:
            self._say(f"{since}{text}")

    def _await(self) -> None:
        """Wait until each rank has said where it is, if it stands still; not long."""
        end = monotonic() + 4 * _TICK
        while monotonic() < end:
            positions = self._ranks.positions()
            if len(positions) == self._ranks.size and None not in positions.values():
                break
            sleep(_TICK / 5)
