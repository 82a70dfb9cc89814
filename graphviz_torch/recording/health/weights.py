"""Find weights that no longer change, and averages of the weights that do not follow the model.

The search for weights that no longer change samples weights, that is, it compares their values
before and after a step:

1. At intervals of several steps, one weight is sampled. If the step left the weight unchanged, this
   weight becomes the suspect.
2. The suspect is sampled at each step, and the search ends if the suspect changes.
3. If the suspect stays unchanged, all other weights are sampled, one per step. One report then
   contains all unchanged weights.

Candidates for averages are the training functions' variables with names such as "ema", "average",
"shadow" or "target". A program may freeze such a copy on purpose. A candidate with constant values
is therefore reported only if the program writes to it, or if its values stay equal for more steps
than any update schedule takes. A few values of one weight are compared.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import local_variables, user_frame, user_frames
from ...internals.functions import TensorBase
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import own_attributes
from .checks import WatchReport

_SURE_STEPS = 20  # number of steps in which the suspect is sampled before the other weights


class FrozenGroup(NamedTuple):
    """A group of weights that no optimizer step changes any more."""

    parameters: list[int]
    # The last step known to have changed one of the weights, and the first step known to have
    # changed none of them.
    since: tuple[int, int]
    all_of_them: bool  # True if the group contains all weights of the optimizer


class FrozenWeights:
    """The state of the search for weights that no longer change."""

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}  # weight -> last step known to have changed it
        self._suspect: int | None = None
        self._first = 0  # first step that left the suspect unchanged
        self._count = 0  # number of consecutive steps that left the suspect unchanged
        self._others: list[int] = []  # weights besides the suspect that were not sampled yet
        self._unchanged: list[int] = []  # weights found unchanged, beginning with the suspect
        self._looked_at = 0  # number of weights besides the suspect that can be sampled
        self._reported: set[int] = set()  # unchanged weights that were reported

    def next_weight(self, own: Sequence[int]) -> int | None:
        """Return the weight that the search has to sample at this step.

        The result is None if none of the optimizer's weights is a suspect.

        Args:
            own: indices of the optimizer's weights in the model.
        """
        if self._suspect is None or self._suspect not in own:
            return None
        return self._others[-1] if self._others else self._suspect

    def sample(
        self, step: int, parameter: int, own: Sequence[int], *, still: bool, judged: bool
    ) -> Iterator[FrozenGroup]:
        """Record whether a step left a weight unchanged.

        Args:
            step: number of the optimizer step.
            parameter: index of the sampled weight in the model.
            own: indices of all weights of the optimizer that stepped.
            still: True if the sampled values are unchanged.
            judged: True if the step should have changed the weight, because the weight has a
                gradient and the learning rate has not decayed.

        Yields:
            The unchanged weights, when the search ends.
        """
        if not still:
            self._changed[parameter] = step
            self._reported.discard(parameter)
        if self._suspect is None:
            if still and judged and parameter not in self._reported:
                self._suspect, self._first, self._count = parameter, step, 1
        elif parameter == self._suspect and not self._unchanged:
            self._count = self._count + 1 if still and judged else 0
            if not self._count:
                self._suspect = None
            elif self._count == _SURE_STEPS:
                self._others = [i for i in own if i != parameter]
                self._unchanged, self._looked_at = [parameter], len(self._others)
                if not self._others:
                    yield self._found()
        elif self._others and parameter == self._others[-1]:
            self._others.pop()
            if still and judged:
                self._unchanged.append(parameter)
            if not self._others:
                yield self._found()

    def skip(self, parameter: int) -> Iterator[FrozenGroup]:
        """Skip a weight that cannot be sampled; if the search ends, yield the unchanged weights."""
        if self._others and parameter == self._others[-1]:
            self._others.pop()
            self._looked_at -= 1
            if not self._others:
                yield self._found()

    def _found(self) -> FrozenGroup:
        still, suspect = self._unchanged, self._suspect
        everything = len(still) == self._looked_at + 1
        known = self._changed.values() if everything else [self._changed.get(i, -1) for i in still]
        last = max((step for step in known if step < self._first), default=-1)
        self._reported.update(still)
        self._suspect, self._unchanged = None, []
        return FrozenGroup(sorted(still), (last, self._first), everything and suspect is not None)


_NAMES = re.compile(r"(?:^|_)(ema|avg|averaged?|average_model|shadow|target)(?:$|_)|Average|EMA")
_MAX_FRAMES = 4  # maximum number of frames to search, from the optimizer's step outwards
_MAX_VALUES = 64  # maximum number of values of a weight to compare
_MIN_WRITES = 16  # a weight is reported after this number of in-place writes without effect
# An average, or a target network, is reported after this number of steps without a change.
_AVERAGE_STEPS, _TARGET_STEPS = 1000, 20_000
# Types of variables that are not candidates.
_OTHER_TYPES = frozenset(
    (ModuleType, type, FunctionType, BuiltinFunctionType, Tensor, int, str, float)
)


@mutable
class _Average:
    """A weight of a possible average of the model, and the model's weight of the same name."""

    name: str  # name of the variable that refers to the average
    ids: tuple[int, int]  # id() of the average's weight and of the model's weight
    step: int  # the step at which the weights were sampled
    version: int  # version of the average's weight
    values: Tensor  # values of the average's weight
    source_values: Tensor  # values of the model's weight


class Averages:
    """The averages and target networks in the variables around a model's optimizer steps.

    Args:
        model: the trained model.
    """

    def __init__(self, model: Module) -> None:
        self._model = weakref.ref(model)
        self._known: dict[str, _Average] = {}
        self._reported: set[str] = set()

    def look(self, step: int, frame: FrameType) -> Iterator[WatchReport]:
        """Yield a report for each average or target network that does not follow the model.

        Args:
            step: number of the step.
            frame: the frame that calls the optimizer's step.
        """
        model = self._model()
        if model is None:
            return
        own: dict[str, Tensor] = dict(model.named_parameters())
        for name, weights in _candidates(frame, model):
            if name not in self._reported:
                yield from self._compare(step, name, weights, own)

    def _compare(
        self, step: int, name: str, weights: dict[str, Tensor], own: dict[str, Tensor]
    ) -> Iterator[WatchReport]:
        key, weight, source = next(_pairs(weights, own), ("", None, None))
        if weight is None or source is None:
            return
        known = self._known.get(name)
        values, source_values = _values(weight), _values(source)
        ids = id(weight), id(source)
        if known is None or ids != known.ids or not torch.equal(values, known.values):
            version = weight._version
            self._known[name] = _Average(name, ids, step, version, values, source_values)
            return
        if torch.equal(source_values, known.source_values):
            return  # the model's weight has not changed, either
        written = weight._version - known.version >= _MIN_WRITES
        most = _TARGET_STEPS if "target" in name.lower() else _AVERAGE_STEPS
        if written or step - known.step >= most:
            self._reported.add(name)
            text = f"{name} has had the same weights since step {known.step}"
            text += ", although the program writes to it" if written else ""
            text += f". The steps up to {step} changed {key} of the model."
            yield WatchReport(step, "stale-average", text)


def _candidates(frame: FrameType, model: Module) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the names and weights of variables named like an average or a target network.

    Args:
        frame: the frame that calls the optimizer's step.
        model: the trained model, which is left out.
    """
    for outer in user_frames(user_frame(frame))[:_MAX_FRAMES]:
        for name, value in local_variables(outer, _OTHER_TYPES).items():
            parts = [(name, value)]
            if value is not model and type(value).__module__.partition(".")[0] != "torch":
                parts += [(f"{name}.{key}", part) for key, part in own_attributes(value).items()]
            for called, part in parts:
                kind = type(part).__name__
                if part is not model and any(map(_NAMES.search, (*called.split("."), kind))):
                    yield called, _weights(part)


def _weights(value: Any) -> dict[str, Tensor]:
    if issubclass(type(value), Module):
        inner = getattr(value, "module", value)
        count = getattr(value, "n_averaged", None)  # 0 before an AveragedModel's first update
        late = isinstance(count, Tensor) and count.is_cpu and not TensorBase.item(count)
        return {} if late or not isinstance(inner, Module) else dict(inner.named_parameters())
    if issubclass(type(value), dict):
        return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, Tensor)}
    return {}


def _pairs(
    weights: dict[str, Tensor], own: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the CPU weights that equal a weight of the model in name, shape and dtype.

    Args:
        weights: weights of a candidate, by name.
        own: weights of the model, by name.

    Yields:
        The name, the candidate's weight, and the model's weight.
    """
    for name, weight in weights.items():
        other = own.get(name)
        if other is not None and other is not weight and other.requires_grad:
            alike = weight.shape == other.shape and weight.dtype is other.dtype
            if alike and all(has_memory(t) and t.is_cpu for t in (weight, other)):
                yield name, weight, other


def _values(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        values = TensorBase.reshape(TensorBase.detach(tensor), -1)
        return torch.clone(torch.narrow(values, 0, 0, min(_MAX_VALUES, values.shape[0])))
