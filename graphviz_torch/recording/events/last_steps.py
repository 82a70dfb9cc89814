"""Find results of recurrent layers of which a program reads the last step, wrongly.

The last step of a padded sequence is padding. At the last step of the sequence, the reverse
direction of a bidirectional layer has read a single step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...findings.rules.meaning.last_steps import LastStep
from ...internals.functions import PAD_SEQUENCES, TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.probes import probe
from ...internals.tensors.weak import Ref
from ..listener import Listener
from ..program import Program

_LAYERS = functions_named("lstm gru rnn_tanh rnn_relu", torch)
_SELECTING = functions_named("__getitem__ select")
_ORDERING = functions_named("index_select")
_MAX_RESULTS = 64  # maximum number of results to remember


class _Sequences(NamedTuple):
    """A result of a recurrent layer, with an axis of steps."""

    result: Ref
    axis: int  # dimension of the steps
    function: str
    shorter: int  # number of sequences that end before the last step; 0 for unpadded sequences


class LastSteps(Listener):
    """Listener that reports the last step of padded or bidirectional sequences."""

    needs = ("every_call",)
    functions = frozenset((*_LAYERS, *_SELECTING, *_ORDERING, PAD_SEQUENCES))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._sequences: dict[int, _Sequences] = {}  # by id() of the result

    def on_call_end(self, event: Called) -> None:
        func, args = event.func, event.args
        if func in _LAYERS:
            # After has_biases: train, bidirectional and, except for a packed sequence, batch_first.
            flags = [arg for arg in args if isinstance(arg, bool)][1:]
            if len(flags) == 3 and flags[1]:
                self._remember(event.result[0], int(flags[2]), func.__name__, 0)
        elif func is PAD_SEQUENCES:
            padded, lengths = event.result
            shorter = probe(_count_shorter, lengths)
            if shorter is not None and shorter.values and shorter.values[0]:
                axis = 1 if args[2] else 0
                self._remember(padded, axis, "pad_packed_sequence", int(shorter.values[0]))
        elif args and (known := self._sequences.get(id(args[0]))) is not None:
            if known.result() is not args[0]:
                return
            if func in _ORDERING:  # as pad_packed_sequence does for sequences that were sorted
                self._remember(event.result, known.axis, known.function, known.shorter)
            elif _is_last(event, known):
                self._report(event, known)

    def _remember(self, result: Any, axis: int, function: str, shorter: int) -> None:
        if not isinstance(result, Tensor) or TensorBase.dim(result) != 3 or result.shape[axis] < 2:
            return
        self._sequences[id(result)] = _Sequences(Ref(result), axis, function, shorter)
        while len(self._sequences) > _MAX_RESULTS:
            del self._sequences[next(iter(self._sequences))]

    def _report(self, event: Called, known: _Sequences) -> None:
        fn = event.result.grad_fn
        if fn is not None:
            found = LastStep(function=known.function)
            place, numbers = self.program.place(event.frame), [int(fn._sequence_nr())]
            self.events.note(found, place, numbers, shorter=known.shorter)

    def close(self) -> None:
        self._sequences = {}


def _count_shorter(lengths: Tensor) -> Tensor:
    return torch.sum(torch.lt(lengths, torch.amax(lengths)))


def _is_last(event: Called, known: _Sequences) -> bool:
    """Return True if a call selects all features of the last step."""
    args = event.args
    if len(args) < 2:
        return False
    if event.func.__name__ == "select":
        index: Any = (slice(None),) * (args[1] % 3) + args[2:3] if type(args[1]) is int else ()
    else:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
    length = args[0].shape[known.axis]
    if len(index) <= known.axis or type(index[known.axis]) is not int:
        return False
    others = [part for i, part in enumerate(index) if i != known.axis]
    return index[known.axis] in (-1, length - 1) and others == [slice(None)] * len(others)
