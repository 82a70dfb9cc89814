"""Find weights that steps do not change, and weights whose rows stay equal.

At each step a few elements of some weights are compared before and after the step. These weights
are a few of those that are 16-bit or not contiguous, and one other weight, which changes from step
to step. In a 16-bit weight, all elements with a non-zero gradient are compared. In other weights,
only those are compared whose gradient times learning rate is large enough to change the element.
Weights with a master copy or a rounding remainder in the optimizer's state are left out. The rows
of a weight are compared after the first step, and after later steps as long as they are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...findings.rules.meaning.weights import SymmetricRows, UnchangedParameters
from ...graph import Graph
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.optimizers import Stepped, Stepping
from ...internals.probes import unobserved
from ...internals.tensors.memory import PLAIN, has_memory, may_be_read
from ...internals.tensors.reductions import have_equal_first_rows
from ...internals.tensors.references import Ref
from ..backward import Backward
from ..listener import Listener
from ..optimizer_log import OptimizerRecord
from ..program import Program

_MAX_ELEMENTS = 64  # number of elements of a weight that are compared
_SUSPECTS_PER_STEP = 2  # number of 16-bit or non-contiguous weights that are compared at a step
_STEPS_PER_SUSPECT = 4  # number of consecutive steps that compare the same suspect weights
_MIN_ELEMENTS = 16  # a weight of which fewer elements were compared is not reported
_UNCHANGED_SHARE = 0.9  # a weight is reported if this fraction of compared elements is unchanged
# Rows of weights, and of gradients, are equal if they differ by at most this fraction of the
# largest value.
_ROUNDED, _GRADIENT_ROUNDED = 1e-6, 1e-4
_MAX_WEIGHTS = 64
# Names in an optimizer's state that suggest a more precise copy of the weight or a rounding
# remainder.
_WIDER = re.compile("master|param|comp|kahan|shift|error|resid|copy")


class _ElementSample(NamedTuple):
    """A few elements of a weight before a step."""

    parameter: Tensor
    view: Tensor  # view of the sampled elements
    before: Tensor  # copy of `view` before the step
    learns: Tensor  # mask of the elements that the step should change


@mutable
class _Count:
    """The results of comparing one weight before and after steps, still on its device."""

    parameter: Ref
    event: UnchangedParameters
    place: CodePosition | None
    rate: float
    steps: int = 0
    elements: Tensor | None = None  # [number of compared elements, number of unchanged elements]

    def fetch(self) -> tuple[int, int]:
        """Return the number of compared elements, and of those that no step changed."""
        looked_at, still = (0, 0) if self.elements is None else TensorBase.tolist(self.elements)
        return looked_at, still


class Updates(Listener):
    """Listener that reports weights that steps leave unchanged, or whose rows stay equal."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Optimizer -> indices of its 16-bit and non-contiguous parameters.
        self._suspects: WeakKeyDictionary[OptimizerRecord, list[int]] = WeakKeyDictionary()
        self._samples: list[_ElementSample] = []
        self._counts: dict[int, _Count] = {}  # by id() of a parameter
        self._rows: set[str] | None = None  # names of weights whose rows were equal so far
        self._stepped = False

    def on_optimizer_step_start(self, event: Stepping) -> None:
        optimizer = event.optimizer
        self._samples = []
        with unobserved():
            pairs = list(self._chosen(optimizer))
            if not pairs:
                return
            place = self.program.place(event.frame)
            for parameter, rate in pairs:
                sample = _sample(parameter, rate)
                if sample is None or _keeps_more(optimizer.state.get(parameter)):
                    continue
                self._samples.append(sample)
                known = self._counts.get(id(parameter))
                if known is None or known.parameter() is not parameter:
                    dtype = str(parameter.dtype).removeprefix("torch.")
                    still = UnchangedParameters(
                        dtype=dtype, contiguous=TensorBase.is_contiguous(parameter)
                    )
                    self._counts[id(parameter)] = _Count(Ref(parameter), still, place, rate)

    def on_optimizer_step_end(self, event: Stepped) -> None:
        self._stepped = True
        samples, self._samples = self._samples, []
        with unobserved():
            for parameter, view, before, learns in samples:
                known = self._counts[id(parameter)]
                known.steps += 1
                still = torch.logical_and(torch.eq(view, before), learns)
                counts = torch.stack((torch.sum(learns), torch.sum(still)))
                earlier = known.elements
                known.elements = counts if earlier is None else torch.add(earlier, counts)

    def on_step_end(self, event: None) -> None:
        self._stepped = False
        while len(self._counts) > 4 * _MAX_WEIGHTS:
            del self._counts[next(iter(self._counts))]

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        with unobserved():
            groups: dict[tuple[UnchangedParameters, CodePosition | None], list[int]] = {}
            elements = {key: known.fetch() for key, known in self._counts.items()}
            for key, (looked_at, still) in elements.items():
                if looked_at >= _MIN_ELEMENTS and still >= _UNCHANGED_SHARE * looked_at:
                    known = self._counts[key]
                    groups.setdefault((known.event, known.place), []).append(key)
            for (event, place), keys in groups.items():
                rows = [self._counts[key] for key in keys]
                all_of_them = sum(elements[key][0] for key in keys)
                self.events.note(
                    event,
                    place,
                    leaves=keys,
                    rate=max(row.rate for row in rows),
                    steps=max(row.steps for row in rows),
                    share=sum(elements[key][1] for key in keys) / all_of_them,
                )
            if self._stepped:
                self._check_rows()

    def close(self) -> None:
        self._samples = []

    def _chosen(self, optimizer: Optimizer) -> Iterator[tuple[Tensor, float]]:
        """Yield the parameters to sample before this optimizer step, with their learning rates."""
        record = self.program.steps.log.get(optimizer)
        if record is None:
            return
        step, groups = record.steps - 1, optimizer.param_groups
        count = sum([len(group["params"]) for group in groups])
        if record not in self._suspects:
            every = (p for group in groups for p in group["params"])
            self._suspects[record] = [i for i, p in enumerate(every) if _is_suspect(p)]
        suspects = self._suspects[record]
        first = step // _STEPS_PER_SUSPECT * _SUSPECTS_PER_STEP
        chosen = {
            suspects[(first + i) % len(suspects)] for i in range(_SUSPECTS_PER_STEP) if suspects
        }
        if count:
            chosen.add(step % count)
        start = 0
        for group, rate in zip(groups, record.rates, strict=True):
            own = group["params"]
            for i in sorted(chosen):
                if start <= i < start + len(own) and rate is not None and rate > 0:
                    yield own[i - start], rate
            start += len(own)

    def _check_rows(self) -> None:
        """Report weights whose rows all have equal values and equal gradients."""
        known = self._rows
        if known is not None and not known:
            return
        listed = self.program.table.listed_parameters()
        weights = {n: t for n, t in listed if (known is None or n in known) and _has_rows(t)}
        self._rows = set(islice(_with_equal_first_rows(weights), _MAX_WEIGHTS))
        found = [weights[name] for name in self._rows]
        keys = [
            id(t) for t in found if _has_equal_rows(t, _ROUNDED) and _has_equal_gradient_rows(t)
        ]
        if keys:
            self.events.note(SymmetricRows(), leaves=keys)


def _is_suspect(parameter: Tensor) -> bool:
    """Return True if a weight is 16-bit or not contiguous, so that a step may not change it."""
    if not has_memory(parameter):
        return False
    odd = parameter.dtype.itemsize == 2 or not TensorBase.is_contiguous(parameter)
    return odd and TensorBase.dim(parameter) > 0


def _keeps_more(state: Any) -> bool:
    return isinstance(state, dict) and any(_WIDER.search(str(key)) for key in state)


def _sample(parameter: Tensor, rate: float) -> _ElementSample | None:
    """Return a sample of a weight's elements, evenly spaced in memory; None if impossible.

    Args:
        parameter: the weight.
        rate: the learning rate.
    """
    gradient = parameter.grad
    if gradient is None or not (may_be_read(parameter) and may_be_read(gradient)):
        return None
    if not parameter.dtype.is_floating_point:
        return None
    stride, shape = TensorBase.stride(parameter), parameter.shape
    count = TensorBase.numel(parameter)
    span = sum([(size - 1) * step for size, step in zip(shape, stride, strict=True)])
    if not count or TensorBase.stride(gradient) != stride or span + 1 != count:
        return None
    number = min(count, _MAX_ELEMENTS)

    def some(tensor: Tensor) -> Tensor:
        start = TensorBase.storage_offset(tensor)
        return torch.as_strided(TensorBase.detach(tensor), (number,), (count // number,), start)

    view, slope = some(parameter), some(gradient)
    learns = torch.ne(slope, 0)
    if parameter.dtype.itemsize > 2:  # leave out updates that are lost in rounding
        least = torch.mul(torch.abs(view), 4 * torch.finfo(view.dtype).eps)
        learns = torch.gt(torch.mul(torch.abs(slope), rate), least)
    return _ElementSample(parameter, view, torch.clone(view), learns)


def _has_rows(tensor: Tensor) -> bool:
    return (
        type(tensor) in PLAIN
        and tensor.requires_grad
        and TensorBase.dim(tensor) > 1
        and tensor.shape[0] > 1
        and tensor.dtype.is_floating_point
        and may_be_read(tensor)
    )


def _with_equal_first_rows(weights: dict[str, Tensor]) -> Iterator[str]:
    """Yield the names of weights whose first two rows are equal."""
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, tensor in weights.items():
        groups.setdefault((tensor.device, tensor.dtype), []).append(name)
    for names in groups.values():
        same = have_equal_first_rows([TensorBase.detach(weights[name]) for name in names], _ROUNDED)
        yield from (name for name, alike in zip(names, same, strict=True) if alike)


def _has_equal_rows(tensor: Tensor, within: float) -> bool:
    """Return True if all rows of a tensor are equal within a tolerance, and the tensor is not zero.

    Args:
        tensor: the tensor.
        within: largest difference, as a fraction of the largest absolute value.
    """
    values = TensorBase.detach(tensor)
    largest = TensorBase.item(torch.amax(torch.abs(values)))
    apart = torch.sub(values, torch.narrow(values, 0, 0, 1))
    furthest = TensorBase.item(torch.amax(torch.abs(apart)))
    return 0 < largest < math.inf and furthest <= within * largest


def _has_equal_gradient_rows(tensor: Tensor) -> bool:
    gradient = tensor.grad
    if gradient is None or not has_memory(gradient):
        return False
    return _has_equal_rows(gradient, _GRADIENT_ROUNDED)
