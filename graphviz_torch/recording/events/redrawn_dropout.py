"""Detect dropout that draws another mask when backward runs the forward again.

A checkpoint has to restore the random state of the first forward before it runs the forward again.
The state was not restored if the random generator still has the state from the start of backward,
or from the end of another repeated forward. Only the CPU's generator is read.
"""

from __future__ import annotations

from typing import Any

import torch

from ...findings.rules.custom_functions import RedrawnDropout
from ...internals.frames import user_frame
from ...internals.functions import DROPOUT, TensorBase
from ...internals.hooks.checkpoints import calling_position, redrawing_segment
from ...internals.hooks.engine import running_node
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.probes import run_unobserved
from ...internals.tensors.memory import may_be_read
from ..listener import BackwardBegan, BackwardEnded, Listener
from ..program import Program


class RedrawnDropouts(Listener):
    """Listener that reports a module whose dropout draws another mask when it runs again."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Hash of the generator's state at the start of backward, and after each module that ran
        # again -> sequence number of the node that ran the module; None for the start.
        self._states: dict[int, int | None] = {}

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._states = {_random_state(): None}

    def on_backward_end(self, event: BackwardEnded) -> None:
        self._states = {}

    def on_outermost_start(self, event: ModuleBegan) -> None:
        node: Any = running_node()
        if node is None:
            return
        number = int(node._sequence_nr())
        # A node may run several modules after it has restored the state.
        if self._states.get(_random_state(), number) == number:
            return
        dropout = next(filter(_draws, event.module.modules()), None)
        if dropout is None:
            return
        path = dict(self.program.table.modules()).get(dropout, "")
        drawn = RedrawnDropout(module=path, checkpoint=_checkpoints(node, event))
        segment = redrawing_segment(event.frame)
        if segment is not None:
            self.events.note(drawn, calling_position(segment))
        else:
            place = None if drawn.checkpoint else self.program.place(user_frame(event.frame))
            self.events.note(drawn, place, [number])

    def on_outermost_end(self, event: ModuleEnded) -> None:
        node: Any = running_node()
        if node is not None:
            self._states.setdefault(_random_state(), int(node._sequence_nr()))


def _checkpoints(node: Any, event: ModuleBegan) -> bool:
    """Return True if torch.utils.checkpoint runs the module again, False if another node does."""
    reentrant = getattr(node, "preserve_rng_state", True) is False
    return reentrant or redrawing_segment(event.frame) is not None


def _draws(module: torch.nn.Module) -> bool:
    """Return True for a dropout that drops values of CPU tensors."""
    return isinstance(module, DROPOUT) and module.training and bool(getattr(module, "p", 0))


def _random_state() -> int:
    """Return a hash of the state of the CPU's random generator."""
    return run_unobserved(_hash_of_state)


def _hash_of_state() -> int:
    state = torch.default_generator.get_state()
    return hash(bytes(TensorBase.numpy(state))) if may_be_read(state) else 0
