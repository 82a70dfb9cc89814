"""Detect a training run without progress: no step changes a parameter, or the loss is constant.

At the first backward a few parameters are sampled: for each one, the values of the elements with
the largest gradients are stored. At the next backward these values are compared. If any of them
changed, the check ends. If none changed, all parameters are sampled and compared. In the same way,
the first value of each loss is compared with its later values. Results on devices other than the
CPU are copied at the end of the step, so that the program does not wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...findings.rules.silence import ConstantLoss, StalledTraining
from ...graph import Graph
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.optimizers import optimized_parameters
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import may_be_read
from ...internals.tensors.references import Ref
from ..backward import Backward
from ..listener import BackwardBegan, BackwardEnded, Listener, Resumed
from ..live import leaves_of
from ..program import Program
from ..program.events import UserLine

_FEW_PARAMETERS, _MAX_PARAMETERS = 8, 512
_ELEMENTS, _SEARCHED = 8, 4096  # elements sampled per parameter, out of this many first elements
_MIN_STEPS, _MIN_BACKWARDS = 2, 3
_MAX_TRIES = 16  # the check ends after this number of backwards without a readable gradient
_MAX_LINES = 64  # number of lines whose losses are compared


class _LargestElements(NamedTuple):
    """A sample: the elements of a parameter that had the largest gradients."""

    parameter: Ref
    places: Tensor  # indices of the elements in the flattened parameter
    values: Tensor
    learns: Tensor  # mask of the elements with a non-zero gradient
    any_learns: Probe  # the mask's first value, which is for the largest gradient

    def has_changed(self, parameter: Tensor) -> Tensor:
        """Return a boolean tensor: whether any sampled element with a gradient has changed."""
        differ = torch.ne(_elements_at(parameter, self.places), self.values)
        return torch.any(torch.logical_and(differ, self.learns))


@mutable
class _LineLosses:
    """The losses for which one source line calls backward."""

    first: Tensor | None  # the first value; None if a later value differed
    value: float  # the first value, if it was on the CPU
    same: list[Probe]  # comparisons with `first` whose results are still on the device
    steps: set[tuple[int, int]]  # steps in which the loss was computed
    count: int = 1  # number of the line's losses so far


class Progress(Listener):
    """Listener that reports if no step changes a parameter, or if a loss is constant."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._moves = False  # True if a parameter changed, or changes cannot be observed
        self._samples: list[_LargestElements] = []
        self._of_all = False  # True if all parameters are sampled, False if only a few are
        self._changed: list[Probe] = []  # results of `has_changed` that are still on the device
        self._first_step, self._last_step = 0, 0  # steps at the first and at the last comparison
        self._tries = 0  # number of backwards without a readable gradient
        # Number of backwards without a change, and number of these at which all parameters were
        # compared.
        self._backwards, self._compared = 0, 0
        self._place: CodePosition | None = None
        self._losses: dict[CodePosition | None, _LineLosses] = {}

    def on_backward_start(self, event: BackwardBegan) -> None:
        call = event.live.call
        if not call.accumulates:
            return
        loss = self._losses.get(call.place)
        if loss is None or loss.first is not None:
            self._compare_loss(event, loss)
        if not self._moves and self._samples:
            self._compare(event.live.reached, call.step)

    def on_backward_end(self, event: BackwardEnded) -> None:
        call = event.live.call
        if self._moves or not call.accumulates:
            return
        self._place = call.place
        if event.error is not None:
            self._moves = True
        elif not self._samples or (self._backwards > 1 and not self._of_all):
            if not self._samples:
                self._first_step, self._backwards = call.step, 1
            self._last_step, self._of_all = call.step, self._backwards > 1
            with unobserved():
                leaves = [fn.variable for fn in leaves_of(event.live.own)]
                self._samples = list(_samples(leaves, few=not self._of_all))
            self._tries += not self._samples
            self._moves = self._tries > _MAX_TRIES

    def on_resume(self, event: Resumed) -> None:
        self._samples, self._losses = [], {}

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        changed, self._changed = self._changed, []
        self._moves = self._moves or any(map(any, fetch(changed)))
        if not all(map(all, fetch([each.any_learns for each in self._samples]))):
            self._samples = []  # a parameter whose gradients are all zero need not change
        for loss in self._losses.values():
            same, loss.same = loss.same, []
            if not all(map(all, fetch(same))):
                loss.first = None
        if self._moves:
            self._samples = []
        elif self._compared and backwards:
            self._note()
        for place, loss in self._losses.items():
            if loss.first is not None and len(loss.steps) >= _MIN_BACKWARDS:
                self.events.note(ConstantLoss(), place, value=loss.value, count=loss.count)

    def close(self) -> None:
        self._samples, self._losses, self._changed = [], {}, []

    def _note(self) -> None:
        steps = self._last_step - self._first_step
        if steps < _MIN_STEPS and (steps or self._backwards < _MIN_BACKWARDS):
            return
        parameters = [
            parameter for each in self._samples if (parameter := each.parameter()) is not None
        ]
        held = optimized_parameters(map(id, parameters))
        learns = any(id(parameter) in held for parameter in parameters)
        if not (steps or learns or self.program.step):
            return  # the program only computes gradients, and does not train
        event, written = StalledTraining(), None
        for parameter in parameters if steps else ():
            written = written or self.program.changes.last_write(parameter)
        self.events.note(
            event,
            self._place,
            backwards=self._backwards,
            steps=steps,
            written_by=written.operation if written else "",
            written_where=UserLine(written.place if written else None),
        )

    def _compare(self, reached: frozenset[int], step: int) -> None:
        """Compare the sampled values with the current values, before a backward.

        If the backward does not reach all sampled parameters, the samples are dropped instead.

        Args:
            reached: id() of the leaves that the backward reaches.
            step: number of optimizer steps so far.
        """
        pairs = [(each, each.parameter()) for each in self._samples]
        alive = [(each, p) for each, p in pairs if p is not None and id(p) in reached]
        if len(alive) < len(pairs):  # the program now trains other parameters
            self._samples, self._of_all = [], False
            return
        changed = [probe(each.has_changed, p) for each, p in alive]
        self._moves = any(one is None or any(one.values or ()) for one in changed)
        self._changed += [one for one in changed if one is not None and one.values is None]
        self._backwards += 1
        self._compared += self._of_all
        self._last_step = step

    def _compare_loss(self, event: BackwardBegan, known: _LineLosses | None) -> None:
        call, outputs = event.live.call, event.outputs
        step = (self.program.step, call.step)
        loss = outputs[0] if len(outputs) == 1 and isinstance(outputs[0], Tensor) else None
        with unobserved():
            if loss is None or not may_be_read(loss) or TensorBase.numel(loss) != 1:
                value = None
            elif known is None:
                value = torch.clone(TensorBase.detach(loss))
            else:
                value = loss
            if known is None or known.first is None:
                number = 0.0 if value is None or not value.is_cpu else TensorBase.item(value)
                self._losses[call.place] = _LineLosses(value, number, [], {step})
                while len(self._losses) > _MAX_LINES:
                    del self._losses[next(iter(self._losses))]
                return
            if value is None or value.device != known.first.device:
                known.first = None
                return
            known.count += 1
            known.steps.add(step)
            same = torch.eq(TensorBase.reshape(value, ()), TensorBase.reshape(known.first, ()))
            answer = Probe(same)
            if answer.values is None:
                known.same.append(answer)
            elif not all(answer.values):
                known.first = None


def _samples(leaves: Sequence[Tensor], *, few: bool) -> Iterator[_LargestElements]:
    """Yield a sample of the gradient of each chosen leaf whose gradient can be read.

    Args:
        leaves: the leaves to choose from.
        few: True to sample about eight leaves, evenly spaced. False to sample the leaves that
            optimizers update, or all leaves if there are none.
    """
    if few:  # optimizers are not searched for, which would be slow for a small training step
        leaves = leaves[:: max(1, len(leaves) // _FEW_PARAMETERS)]
    else:
        held = optimized_parameters(map(id, leaves))
        leaves = [leaf for leaf in leaves if id(leaf) in held] or leaves
    for leaf in leaves[:_MAX_PARAMETERS]:
        gradient = leaf.grad
        if gradient is None or not (may_be_read(leaf) and may_be_read(gradient)):
            continue
        plain = TensorBase.is_contiguous(leaf) and TensorBase.is_contiguous(gradient)
        if not plain or not TensorBase.numel(leaf) or torch.is_complex(leaf):
            continue
        searched = min(_SEARCHED, TensorBase.numel(gradient))
        slopes = torch.abs(torch.narrow(_flat(gradient), 0, 0, searched))
        largest = torch.topk(slopes, min(_ELEMENTS, slopes.shape[0]))
        if slopes.is_cpu and not TensorBase.item(torch.amax(largest.values)):
            continue
        values = _elements_at(leaf, largest.indices)
        # `not (gradient <= 0)` is also True for NaN, which changes the weight.
        learns = torch.logical_not(torch.le(largest.values, 0))
        yield _LargestElements(
            Ref(leaf), largest.indices, values, learns, Probe(torch.narrow(learns, 0, 0, 1))
        )


def _flat(tensor: Tensor) -> Tensor:
    return TensorBase.view(TensorBase.detach(tensor), -1)


def _elements_at(tensor: Tensor, places: Tensor) -> Tensor:
    return torch.index_select(_flat(tensor), 0, places)
