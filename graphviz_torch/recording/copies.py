"""Where in the program each copy between devices was made."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ..internals.hooks.dispatch import Call
from ..internals.hooks.engine import running_node
from ..internals.tensors.pytree import tensors
from .live import LiveBackward
from .program import Program
from .source_lines import user_frame
from .tracking import Following, name_of
from .transfers import Seen, Transfers


class Copies:
    """The copies of a recording, each with its line, its module and its node.

    Args:
        program: what names lines, modules and tensors.
        following: is told of the copies, to know whether they are used.
    """

    def __init__(self, program: Program, following: Following) -> None:
        self.made: list[tuple[Tensor, Seen]] = []  # by the call that is running
        self._program = program
        self._following = following
        self._transfers = Transfers()

    @property
    def seen(self) -> list[Seen]:
        """All of them, in order."""
        return self._transfers.seen

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
        for seen, source, made in self._transfers.see(call):
            frame = user_frame(sys._getframe(1))
            # The engine's threads have no frames of the user's.
            seen.place = program.place(frame) or (None if live is None else live.place)
            seen.module = program.module
            seen.in_forward = program.in_forward
            seen.moment = program.origins.moments + backwards
            if fn is not None:
                seen.run = backwards
                seen.node = ours.get(fn)
            else:
                seen.operation = name_of(func)
                seen.label = program.label(source, frame)
                if made is not None:
                    self.made.append((made, seen))

    def follow(self, result: Any) -> None:
        """Follow the copies that the call made, as far as it returned them."""
        returned = {id(tensor) for tensor in tensors(result)}
        for made, seen in self.made:
            if id(made) in returned:
                self._following.add(made, seen)
        self.made = []
