"""Where in the program each copy between devices was made."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ...internals.frames import user_frame
from ...internals.hooks.dispatch import Call
from ...internals.hooks.engine import running_node
from ...internals.tensors.pytree import tensors
from ..live import LiveBackward
from ..program import Program
from ..tracking import Tracker, name_of
from .transfers import CopyRecord, Transfers


class Copies:
    """The copies of a recording, each with its line, its module and its node.

    Args:
        program: what names lines, modules and tensors.
        tracker: is told of the copies, to know whether they are used.
    """

    def __init__(self, program: Program, tracker: Tracker) -> None:
        self.made: list[tuple[Tensor, CopyRecord]] = []  # by the call that is running
        self._program = program
        self._tracker = tracker
        self._transfers = Transfers()

    @property
    def records(self) -> list[CopyRecord]:
        """All of them, in order."""
        return self._transfers.records

    def see(self, call: Call, func: Any, live: LiveBackward | None, backwards: int) -> None:
        """An operator was dispatched that may have copied.

        Args:
            call: the operator.
            func: what the user called; None inside a backward.
            live: the backward that runs.
            backwards: how many have begun.
        """
        fn = running_node()
        ours = {} if live is None else live.ids
        program = self._program
        if not program.is_here() and fn not in ours:
            return  # another recording's; the engine's threads for devices work for this one
        for record, source, made in self._transfers.see(call):
            frame = user_frame(sys._getframe(1))
            # The engine's threads have no frames of the user's.
            place = program.place(frame) or (None if live is None else live.place)
            moment = program.origins.moments + backwards
            record.locate(place, program.module, program.in_forward, moment)
            if fn is not None:
                record.attach_to_run(backwards, ours.get(fn))
            else:
                record.attach_to_call(name_of(func), program.label(source, frame))
                if made is not None:
                    self.made.append((made, record))

    def follow(self, result: Any) -> None:
        """Follow the copies that the call made, as far as it returned them."""
        returned = {id(tensor) for tensor in tensors(result)}
        for made, record in self.made:
            if id(made) in returned:
                self._tracker.add(made, record)
        self.made = []
