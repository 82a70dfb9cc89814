"""Count a rank's collectives by source line, to find where ranks diverge.

The counter works without a recording, and is cheap enough to stay on for a whole training run.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from threading import main_thread

from ...graph import CollectiveCalls, CollectiveKind, RankPosition, RankState
from ...graph.immutable import NamedTuple
from ...internals.exceptions import ignore_exceptions
from ...internals.frames import user_frame
from ...internals.hooks.collectives import (
    CollectiveAwaited,
    CollectiveStarted,
    CollectiveWatch,
    RankGroup,
)
from ..program.source_lines import short_names

_MAX_LINES = 1000  # collectives of further lines are counted together, without a line
_MAX_RECENT = 256  # latest collectives that are kept, because the program may still wait for them


class _Site(NamedTuple):
    """A source line that starts collectives of one kind in one process group."""

    kind: CollectiveKind
    group: str
    file: str
    line: int


class CollectiveCounter:
    """A context manager that counts the collectives of this process by line, in all threads.

    The counter keeps no tensor alive. Collectives of process groups that are created inside the
    block are counted as well.

    >>> with CollectiveCounter() as counter:
    ...     pass
    >>> counter.position()
    RankPosition(calls=(), last=None, state='outside', error='')
    """

    def __init__(self) -> None:
        self.moves = 0  # incremented when a collective or a wait begins or ends
        self._times: dict[_Site, int] = {}  # number of collectives started at each site
        self._groups: dict[str, RankGroup] = {}
        self._recent: OrderedDict[int, _Site] = OrderedDict()  # call number -> site
        self._last: _Site | None = None  # site of the collective started last
        self._at: _Site | None = None  # site of the collective that runs or is waited for
        self._state: RankState = "outside"
        self._watch = CollectiveWatch(
            on_start=self._on_start,
            on_return=self._on_return,
            on_wait_start=self._on_wait_start,
            on_wait_end=self._on_wait_end,
            on_raise=self._on_raise,
        )

    def __enter__(self) -> CollectiveCounter:
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()

    def position(self) -> RankPosition:
        """Return the counts so far, and the collective that this rank runs or ran last.

        Any thread may call this method.
        """
        at, state = self._at, self._state
        times = list(self._times.items())
        names = short_names({site.file for site, _ in times if site.file})
        calls = []
        for site, count in times:
            group = self._groups[site.group]
            name = group.description.removeprefix("mesh_")
            name = "" if name == group.description else name
            where = f"{names[site.file]}:{site.line}" if site.file else ""
            calls.append(CollectiveCalls(site.kind, name, group.ranks, where, count))
        last = next((i for i, (site, _) in enumerate(times) if site == at), None)
        return RankPosition(tuple(calls), last, state)

    def _on_start(self, event: CollectiveStarted) -> None:
        with ignore_exceptions():
            site = self._site(event)
            self._groups[event.group.name] = event.group
            self._times[site] = self._times.get(site, 0) + 1
            self._recent[event.call] = self._last = self._at = site
            if len(self._recent) > _MAX_RECENT:
                self._recent.popitem(last=False)
            self._move("inside")

    def _on_return(self, call: int) -> None:
        self._move("outside")

    def _on_wait_start(self, call: int | None) -> None:
        self._at = self._last if call is None else self._recent.get(call, self._last)
        self._move("inside")

    def _on_wait_end(self, event: CollectiveAwaited) -> None:
        self._at = self._last
        self._move("outside")

    def _on_raise(self, _: None) -> None:
        self._state = "raised"

    def _move(self, state: RankState) -> None:
        self._state = state
        self.moves += 1

    def _site(self, event: CollectiveStarted) -> _Site:
        frame = user_frame(sys._getframe(2))
        if frame is None:  # in a thread of the autograd engine, for which the main thread waits
            frame = user_frame(sys._current_frames().get(main_thread().ident or 0))
        kind, group = event.kind, event.group.name
        if frame is not None:
            site = _Site(kind, group, frame.f_code.co_filename, frame.f_lineno)
            if len(self._times) < _MAX_LINES or site in self._times:
                return site
        return _Site(kind, group, "", 0)
