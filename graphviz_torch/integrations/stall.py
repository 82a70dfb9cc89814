"""Detect ranks that wait for each other, and print a message while they wait.

Each rank counts its collectives, and a thread checks twice a second whether the count has changed.
If it has not changed, the thread writes this rank's position to torchrun's store, and removes the
position when the count changes again. A rank that makes progress writes nothing.

After some seconds without progress, a rank reads the positions of all ranks. The first rank that
finds a difference prints a message.

The thread also runs while the main thread waits in C++, because PyTorch releases the GIL there. No
signal handler is needed: the message is printed while the ranks still wait.
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

STALL_SECONDS = 10.0  # after this time without progress, a rank reads the others' positions
_POLL_SECONDS = 0.5
# Rank n reads the positions n polls later than rank 0, but at most this many polls later. Therefore
# usually only one rank reads them.
_MAX_DELAYS = 20


class StallWatch:
    """A thread that detects, until `close()`, whether this rank and others wait for each other.

    Args:
        ranks: the connection to the other ranks.
        say: called with each message for the user.
    """

    def __init__(self, ranks: Ranks, say: Callable[[str], object]) -> None:
        self._ranks, self._say = ranks, say
        self._counter = CollectiveCounter()
        self._moves = -1  # number of collectives at the last poll
        self._since = 0.0  # time when this number last changed
        self._due = 0.0  # seconds without progress after which the others' positions are read
        self._published = False  # whether this rank's position is in the store
        # Number of messages that all ranks had printed when this rank stalled.
        self._announcements = 0
        self._over = Event()
        self._thread = Thread(target=self._poll, name="graphviz-torch", daemon=True)
        self._counter.__enter__()
        self._thread.start()

    def close(self, error: BaseException | None = None) -> None:
        """Stop watching at the end of the script. If a collective failed, print which ranks wait.

        Args:
            error: the exception that ended the script, or None.
        """
        self._counter.__exit__()
        self._over.set()
        self._thread.join(
            2 * _POLL_SECONDS
        )  # with a timeout: the thread may be waiting for the store
        with suppress(Exception):
            at = self._counter.position()
            if at.state == "raised":
                if not self._published:
                    self._announcements = self._ranks.announcements()
                self._ranks.publish(at)
                self._await_positions()
                self._announce("")
            else:
                name = "" if error is None else type(error).__name__
                self._ranks.publish(replace(at, state="ended", error=name))

    def _poll(self) -> None:
        with suppress(Exception):  # raised if torchrun, and its store, have ended
            while not self._over.wait(_POLL_SECONDS):
                self._check_progress(monotonic())

    def _check_progress(self, now: float) -> None:
        """Check whether the number of collectives has changed since the last call of this method.

        If it has not changed, this rank's position is published and, later, a message is printed.

        Args:
            now: the time in seconds, from `monotonic()`.
        """
        if self._counter.moves != self._moves:
            self._moves, self._since = self._counter.moves, now
            self._due = STALL_SECONDS + min(self._ranks.rank, _MAX_DELAYS) * _POLL_SECONDS
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
        """Print which ranks wait, unless another rank has printed this after this rank stalled.

        Args:
            since: how long this rank has made no progress, as text.
        """
        if self._ranks.announcements() > self._announcements:
            return
        text = stall_text(self._ranks.positions())
        if text and self._ranks.announcements(1) == self._announcements + 1:
            self._say(f"{since}{text}")

    def _await_positions(self) -> None:
        """Wait, for at most 2 seconds, until all stalled ranks have published their positions."""
        end = monotonic() + 4 * _POLL_SECONDS
        while monotonic() < end:
            positions = self._ranks.positions()
            if len(positions) == self._ranks.size and None not in positions.values():
                break
            sleep(_POLL_SECONDS / 5)
