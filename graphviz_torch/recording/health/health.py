"""Looks at every step of a training, and spends no more than a small part of the step on it.

Before an optimizer steps, the norms of its gradients are read: all of them at once. Where that
takes too long, a part of them is read in each step, in turn; of few parameters all in every second
or fourth step. One of the first module is read in each step: it comes last in backward, so that
what is not finite reaches it. Now and then a few values of one weight are compared before and
after the step, and the memory in use is read. On CUDA the norms of a step are read when the next
one has been computed, so that nothing waits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ...internals.functions import TensorBase
from ...internals.hooks.engine import EngineCalled, EngineReturned
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.memory import with_memory
from ...internals.tensors.norms import Norms, is_finite, quick_norms
from .averages import Averages
from .checks import Signs, WatchReport, line_of
from .frozen_weights import Still, Stillness
from .model_parameters import ModelParameters
from .optimizer_past import OptimizerPast
from .retained_graphs import LivingGraphs

_SHARE = 0.03  # of a step, for all of this
_LEAST = 6e-5  # seconds that may be spent in any case
_MOST_SHARE, _WEIGHT = 4.0, 1 / 4  # of some steps, and of these in the mean of the last
_RATION_EVERY = 4  # steps
_MOST_PARTS, _PART = 64, 8  # parts, and parameters in one
_FEW = 4  # steps from one look to the next at parameters that make no parts
_SAMPLE_EVERY = 16  # steps
_MEMORY_EVERY = 32
_SAMPLE = 4096  # values of a weight
_AVERAGES_EVERY = 256
_RENEW = 100  # steps after which the parameters of an optimizer are looked up again
_OPTIMIZERS = 64  # that are remembered
_RENEWED = 5  # that were made for one step each, in a row


class _Sample(NamedTuple):
    """A part of a weight before a step."""

    parameter: int
    tensor: Tensor
    before: Tensor
    has_gradient: bool


class Health:
    """Checks the numbers of a training, step by step.

    Args:
        model: whose parameters.
        tell: takes what went wrong.
    """

    def __init__(self, model: Module, tell: Callable[[WatchReport], object]) -> None:
        self._tell = tell
        self._parameters = ModelParameters(model)
        self._signs = Signs(self._parameters.names)
        self._graphs, self._stillness = LivingGraphs(), Stillness()
        self._averages = Averages(model)
        self._pasts: dict[int, OptimizerPast] = {}  # by id() of an optimizer
        self._stepped: set[int] = set()  # optimizers, in this step
        self._last: OptimizerPast | None = None  # that stepped
        self._renewed = 0  # steps in a row that an optimizer made anew takes
        self._sample: _Sample | None = None
        self._waiting: list[Callable[[], None]] = []  # readings of a device, for the next step
        self._parts = 1  # that the parameters are looked at in
        self._rationed, self._ended = -1, perf_counter()  # a step, and when it ended
        self._cost = 0.0  # seconds, of the steps since then
        self._mean = 0.0  # of what was spent in the last steps, in shares of what may be
        self.seconds = 0.0  # that the last steps took
        self.step = -1
        self._computes = False  # does a step run that calls for its own backward

    @property
    def current(self) -> int:
        """Return the step that a backward belongs to now."""
        return self.step if self._computes else self.step + 1

    def on_backward_start(self, event: EngineCalled) -> None:
        """Handle the beginning of a backward."""
        began = perf_counter()
        with unseen_calls():
            if event.accumulates:
                for past in self._pasts.values():
                    past.backward_began()
            self._graphs.backward_began(self.current, event.outputs)
        self._cost += perf_counter() - began

    def on_backward_end(self, event: EngineReturned) -> None:
        """Handle the end of a backward."""
        began = perf_counter()
        with unseen_calls():
            for past in self._pasts.values():
                past.backward_ended()
        self._cost += perf_counter() - began

    def tell(self, report: WatchReport) -> None:
        """Report another check's finding, if it does not follow from an earlier one."""
        self._pass([report])

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Handle the beginning of an optimizer step."""
        began = perf_counter()
        with unseen_calls():
            past = self._past_of(event)
            if past.own:
                self._begin(past, event)
                self._report(past, event)
            if self._parameters.waits:
                pasts = list(self._pasts.values())
                self._pass(self._parameters.reports(self.step, pasts, event.frame))
        if past.own:
            try:
                self._look(past)
            except RuntimeError:  # a device that has failed, or what has no norm
                self._sample = None
        self._cost += perf_counter() - began

    def on_optimizer_step_end(self, event: Stepped) -> bool:
        """Handle the end of an optimizer step; return True if it is the model's optimizer."""
        began, self._computes = perf_counter(), False
        past = self._pasts.get(id(event.optimizer))
        if past is None or past.ref() is not event.optimizer or not past.own:
            return False
        past.keeps = past.keeps or bool(event.optimizer.state)
        if self._sample is not None:
            with suppress(RuntimeError):
                self._compare(past, self._sample)
            self._sample = None
        if past.closure and past.uses(self.step, self._parameters.tensors):
            self._pass(past.uncleared(self.step, None))
        if self.step % _MEMORY_EVERY == 0:
            self._pass(self._signs.memory(self.step, _memory()))
        self._cost += perf_counter() - began
        if self.step - self._rationed >= _RATION_EVERY:
            self._ration()
        return True

    def _past_of(self, event: Stepping) -> OptimizerPast:
        """Return the history of an optimizer, with the model's parameters that it holds now."""
        key, optimizer = id(event.optimizer), event.optimizer
        past = self._pasts.get(key)
        if past is None or past.ref() is not optimizer:
            self._pasts = {k: p for k, p in self._pasts.items() if p.ref() is not None}
            while len(self._pasts) >= _OPTIMIZERS:
                del self._pasts[next(iter(self._pasts))]
            past = self._pasts[key] = OptimizerPast(optimizer, self.step)
        if not self._stepped or key in self._stepped:
            self._parameters.look(self.step + 1)
        known = past.looked_up == self._parameters.version and not self._parameters.waits
        if not known or self.step % _RENEW == 0:
            if not known:
                self._signs.forget_weights()  # one may be a new head, which begins at zero
            past.looked_up = self._parameters.version
            past.held = set(map(id, parameters_of(optimizer)))
            tensors = self._parameters.tensors
            past.own = [i for i, (_, p) in enumerate(tensors) if id(p) in past.held]
            past.guard = _guard(past.own, self._parameters.names)
        return past

    def _begin(self, past: OptimizerPast, event: Stepping) -> None:
        """Begin a training step if this optimizer step is its first."""
        last, self._last = self._last, past
        again = not self._stepped or id(event.optimizer) in self._stepped
        if last is not None and past is not last and not past.steps:  # made anew
            shared = last.own[:1] == past.own[:1]
            again = again or (shared and last.backward_since)
            self._renewed = self._renewed + 1 if shared and last.steps == 1 and last.keeps else 0
        elif past is last:
            self._renewed = 0
        if again:
            self._stepped.clear()
            self.step += 1
        self._stepped.add(id(event.optimizer))

    def _report(self, past: OptimizerPast, event: Stepping) -> None:
        """Report the findings of an optimizer step before it runs."""
        step, frame = self.step, event.frame
        if past.has_other_rates(event.optimizer.param_groups):
            self._pass(past.rates(step, event.optimizer.param_groups, frame))
        past.closure = self._computes = bool(event.args) and any(map(callable, event.args))
        if not past.closure and past.uses(step, self._parameters.tensors):
            self._pass(past.uncleared(step, frame))
        if self._graphs.due(step):
            self._pass(self._graphs.stepping(step, frame))
        if self._renewed == _RENEWED:
            text = f"{past.name}{line_of(frame)} is made anew for each step, from step "
            text += f"{step - _RENEWED} on: what it keeps of its steps is lost."
            self._pass([WatchReport(step, "recreated-optimizer", text)])
        if step % _AVERAGES_EVERY == 0:
            self._pass(self._averages.look(step, frame))

    def _look(self, past: OptimizerPast) -> None:
        own = past.own
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for read in waiting:
                read()
        parts = self._parts
        if len(own) >= _PART * parts:
            part = own[self.step % parts :: parts]
        else:
            part = [] if self.step % min(parts, _FEW) else own
        if not part:
            gradient = self._parameters.tensors[past.guard][1].grad
            if gradient is not None and is_finite(gradient):
                self._sample_weight(own, {})
                return
        gradients = self._gradients(part if part[:1] == own[:1] else [own[0], *part])
        quick = quick_norms([*gradients.values()])
        if quick is not None and math.isfinite(math.hypot(*quick)):
            known = dict(zip(gradients, quick, strict=True))
            norms = {i: known.get(i) for i in part}
            if part:
                self._pass(self._signs.gradients(self.step, norms))
        else:  # what has a gradient that cannot be read is as if it were not looked at
            if quick is not None:
                part = own  # which ones are not finite
            gradients = self._gradients(part)
            absent: dict[int, float | None] = {i: None for i in part if i not in gradients}
            norms = absent
            self._read(
                partial(self._judge, self.step, absent, Norms(gradients)), gradients.values()
            )
        self._sample_weight(own, norms)

    def _sample_weight(self, own: list[int], norms: Mapping[int, float | None]) -> None:
        """Sample one weight, from time to time."""
        wanted = self._stillness.wanted(own)
        if wanted is not None or self.step % _SAMPLE_EVERY == 0:
            if wanted is None:
                turn = self.step // _SAMPLE_EVERY
                wide = [i for i in own if TensorBase.dim(self._parameters.tensors[i][1]) > 1] or own
                wanted = wide[turn % len(wide)]
            self._take(wanted, norms)

    def _gradients(self, parameters: list[int]) -> dict[int, Tensor]:
        found = self._parameters.tensors
        with unseen_calls():
            return {i: g for i in parameters if (g := found[i][1].grad) is not None}

    def _read(self, read: Callable[[], None], tensors: Iterable[Tensor]) -> None:
        """Read tensors now, or before the next step if a device would have to be waited for."""
        if _on_cuda(tensors):
            self._waiting.append(read)
        else:
            read()

    def _judge(self, step: int, absent: Mapping[int, float | None], norms: Norms) -> None:
        there = {i: each.norm for i, each in norms.fetch().items()}
        self._pass(self._signs.gradients(step, {**absent, **there}))

    def _take(self, i: int, norms: Mapping[int, float | None]) -> None:
        """Sample one weight."""
        with unseen_calls(), torch.no_grad():
            tensor = self._parameters.tensors[i][1]
            if (
                TensorBase.dim(tensor) > 1
                and TensorBase.is_contiguous(tensor)
                and with_memory([tensor])
            ):
                values = TensorBase.view(TensorBase.detach(tensor), -1)[:_SAMPLE]
                has_gradient = bool(norms[i]) if i in norms else tensor.grad is not None
                self._sample = _Sample(i, values, torch.clone(values), has_gradient)
            else:
                self._tell_still(self._stillness.skip(i))

    def _compare(self, past: OptimizerPast, sample: _Sample) -> None:
        judged = sample.has_gradient and not past.decayed
        weigh = partial(self._weigh, self.step, sample.parameter, past.own, judged)
        with unseen_calls(), torch.no_grad():
            pair = [sample.before, sample.tensor - sample.before]
        quick = quick_norms(pair)
        if quick is not None and math.isfinite(math.hypot(*quick)):
            weigh(quick)
        else:
            norms = Norms(dict(enumerate(pair)))
            self._read(lambda: weigh([each.norm for each in norms.fetch().values()]), pair)

    def _weigh(
        self, step: int, i: int, own: Sequence[int], judged: bool, norms: Sequence[float]
    ) -> None:
        if len(norms) == 2:
            weight, change = norms
            self._pass(self._signs.update(step, i, weight, change))
            still = change == 0 and weight > 0
            self._tell_still(self._stillness.sample(step, i, own, still=still, judged=judged))

    def _tell_still(self, found: Iterable[Still]) -> None:
        for each in found:
            parameters, since, everything = each
            self._pass(self._signs.still(self.step, parameters, since, all_of_them=everything))

    def _pass(self, reports: Iterable[WatchReport]) -> None:
        for report in reports:
            if report.rule != "no-gradient" or not self._any(report.parameters):
                for each in self._signs.judge(report):
                    self._tell(each)

    def _any(self, names: tuple[str, ...]) -> bool:
        """Return True if one of them has a gradient, though its norm is too small to be told
        from zero.
        """
        gradients = (p.grad for name, p in self._parameters.tensors if name in names)
        with unseen_calls(), torch.no_grad():
            return any(g is not None and bool(torch.any(g)) for g in gradients)

    def _ration(self) -> None:
        """Read fewer parameters in each step if reading takes too long."""
        now, steps = perf_counter(), self.step - self._rationed
        took, cost = (now - self._ended) / steps, self._cost / steps
        self.seconds += (min(took, 2 * self.seconds + _LEAST) - self.seconds) * _WEIGHT
        share = cost / max(_LEAST, _SHARE * took)
        self._rationed, self._ended, self._cost = self.step, now, 0.0
        self._mean += (min(share, _MOST_SHARE) - self._mean) * _WEIGHT
        few = self._parts >= _FEW and len(self._parameters.names) < 2 * _PART * self._parts
        if self._mean > 1 and self._parts < _MOST_PARTS and not few:
            self._parts, self._mean = 2 * self._parts, self._mean / 2
        elif self._mean < 1 / 4 and self._parts > 1:
            self._parts, self._mean = self._parts // 2, 2 * self._mean


def _guard(own: list[int], names: Sequence[str]) -> int:
    """Return the parameter whose gradient represents all: the first module's bias, if it has
    one.

    It is summed from the same values as the weight's gradient, and is smaller.
    """
    first, *others = own or [-1]
    module, _, last = names[first].rpartition(".") if own else ("", "", "")
    bias = f"{module}.bias" if module else "bias"
    found = last == "weight" and others and names[others[0]] == bias
    return others[0] if found else first


def _on_cuda(tensors: Iterable[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


def _memory() -> int:
    """Return the bytes in use: on CUDA devices, else by the process; 0 if unknown."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
