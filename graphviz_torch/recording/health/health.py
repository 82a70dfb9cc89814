"""Check every step of a training run, within a small fraction of the step's time.

Before an optimizer steps, the norms of all gradients are read. If that takes too long, the
parameters are divided into parts, and each step reads the norms of one part. For a small model,
every second or fourth step reads all norms instead. One gradient of the first module is read at
every step, because backward computes it last, and NaN and Inf of other gradients propagate to it.

Every few steps, some values of one weight are compared before and after the step, and the memory in
use is read. On CUDA the norms of a step are read at the next step, so that the program does not
wait for the device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import Module

from ...graph.immutable import NamedTuple
from ...internals.functions import TensorBase
from ...internals.hooks.engine import EngineCalled, EngineReturned
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.memory import with_memory
from ...internals.tensors.reductions import Norms, is_finite, quick_norms
from ..optimizer_log import OptimizerLog
from .checks import HealthChecks, RetainedGraphMarks, WatchReport, line_of
from .optimizer_checks import ModelParameters, OptimizerPast
from .weights import Averages, FrozenGroup, FrozenWeights

_COST_SHARE = 0.03  # fraction of a step's time that the checks may take
_MIN_COST = 6e-5  # seconds per step that the checks may always take
_MAX_COST_RATIO = 4.0  # upper bound for the ratio of spent to allowed time
_MEAN_WEIGHT = 1 / 4  # weight of a new value in running means
_ADJUST_EVERY = 4  # steps between adjustments of the number of norms that a step reads
_MAX_PARTS, _MIN_PART = 64, 8  # largest number of parts, smallest number of parameters in a part
_MAX_INTERVAL = 4  # largest number of steps from one check of a small model to the next
_SAMPLE_EVERY = 16  # steps between samples of a weight
_MEMORY_EVERY = 32  # steps between readings of the memory in use
_SAMPLE_SIZE = 4096  # number of compared values of a weight
_AVERAGES_EVERY = 256  # steps between checks of averages of the weights
_LOOK_UP_EVERY = 100  # steps between readings of an optimizer's parameter list
_RECREATED = 5  # optimizers are reported if this many consecutive steps each use a new one


class _WeightSample(NamedTuple):
    """Some values of a weight before a step."""

    parameter: int  # index of the weight
    tensor: Tensor  # view of the first values of the weight
    before: Tensor  # copy of `tensor` before the step
    has_gradient: bool


class Health:
    """The health checks of one training run, which are applied at every step.

    Args:
        model: the trained model.
        on_report: called with each report.
    """

    def __init__(self, model: Module, on_report: Callable[[WatchReport], object]) -> None:
        self._on_report = on_report
        self._parameters = ModelParameters(model)
        self._checks = HealthChecks(self._parameters.names)
        self._graphs, self._frozen = RetainedGraphMarks(), FrozenWeights()
        self._averages = Averages(model)
        self._pasts = OptimizerLog(OptimizerPast)
        self._stepped: set[int] = set()  # id() of the optimizers that stepped in this step
        self._last: OptimizerPast | None = None  # the optimizer that stepped last
        self._recreated = 0  # number of consecutive steps that each used a new optimizer
        self._sample: _WeightSample | None = None
        self._waiting: list[Callable[[], None]] = []  # reads from CUDA postponed to the next step
        self._parts = 1  # number of parts into which the parameters are divided
        # Step and time of the last `_adjust_parts`.
        self._adjusted, self._ended = -1, perf_counter()
        self._cost = 0.0  # seconds that checks took since the last `_adjust_parts`
        self._mean = 0.0  # running mean of the ratio of spent to allowed time
        self.seconds = 0.0  # running mean of a step's duration
        self.step = -1  # number of the last step, from 0 on
        self._computes = False  # True during an optimizer step whose closure may run backward

    @property
    def current(self) -> int:
        """Return the number of the step to which the running backward belongs."""
        return self.step if self._computes else self.step + 1

    def on_backward_start(self, event: EngineCalled) -> None:
        """Check whether gradients were cleared, and mark the graph, before a backward runs."""
        began = perf_counter()
        with unseen_calls():
            if event.accumulates:
                for past in self._pasts:
                    past.on_backward_start()
            self._graphs.mark(self.current, event.outputs)
        self._cost += perf_counter() - began

    def on_backward_end(self, event: EngineReturned) -> None:
        """Record for which optimizers a backward computed gradients."""
        began = perf_counter()
        with unseen_calls():
            for past in self._pasts:
                past.on_backward_end()
        self._cost += perf_counter() - began

    def tell(self, report: WatchReport) -> None:
        """Pass on the report of another check, unless it is a consequence of an earlier one."""
        self._filter_and_report([report])

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Check gradients and learning rates before an optimizer steps."""
        began = perf_counter()
        with unseen_calls():
            past = self._history_of(event)
            if past.own:
                self._begin(past, event)
                self._report(past, event)
            if self._parameters.waits:
                pasts = list(self._pasts)
                self._filter_and_report(self._parameters.reports(self.step, pasts, event.frame))
        if past.own:
            try:
                self._look(past)
            except RuntimeError:  # the device failed, or PyTorch cannot compute a tensor's norm
                self._sample = None
        self._cost += perf_counter() - began

    def on_optimizer_step_end(self, event: Stepped) -> bool:
        """Check the sampled weight and the memory in use after an optimizer's step.

        Returns:
            True if the optimizer updates parameters of the model.
        """
        began, self._computes = perf_counter(), False
        past = self._pasts.on_optimizer_step_end(event)
        if past is None or not past.own:
            return False
        if self._sample is not None:
            with suppress(RuntimeError):
                self._compare(past, self._sample)
            self._sample = None
        if past.computes and past.uses(self.step, self._parameters.tensors):
            self._filter_and_report(past.report_uncleared(self.step, None))
        if self.step % _MEMORY_EVERY == 0:
            self._filter_and_report(self._checks.memory(self.step, _memory()))
        self._cost += perf_counter() - began
        if self.step - self._adjusted >= _ADJUST_EVERY:
            self._adjust_parts()
        return True

    def _history_of(self, event: Stepping) -> OptimizerPast:
        """Return the history of the optimizer that is about to step.

        If parameters may have been replaced, the list of the optimizer's parameters is updated.
        """
        past, optimizer = self._pasts.on_optimizer_step_start(event), event.optimizer
        if not self._stepped or id(optimizer) in self._stepped:
            self._parameters.look(self.step + 1)
        known = past.looked_up == self._parameters.version and not self._parameters.waits
        if not known or self.step % _LOOK_UP_EVERY == 0:
            if not known:
                self._checks.forget_weights()  # a new parameter may rightly start at zero
            past.looked_up = self._parameters.version
            past.held = set(map(id, parameters_of(optimizer)))
            tensors = self._parameters.tensors
            past.own = [i for i, (_, p) in enumerate(tensors) if id(p) in past.held]
            past.guard = _representative(past.own, self._parameters.names)
        return past

    def _begin(self, past: OptimizerPast, event: Stepping) -> None:
        """Begin a training step if this optimizer step is the first one of a training step.

        Args:
            past: the history of the optimizer.
            event: the optimizer step.
        """
        last, self._last = self._last, past
        again = not self._stepped or id(event.optimizer) in self._stepped
        if last is not None and past is not last and past.steps == 1:  # the optimizer is new
            shared = last.own[:1] == past.own[:1]
            again = again or (shared and last.backward_since)
            self._recreated = (
                self._recreated + 1 if shared and last.steps == 1 and last.keeps_state else 0
            )
        elif past is last:
            self._recreated = 0
        if again:
            self._stepped.clear()
            self.step += 1
        self._stepped.add(id(event.optimizer))

    def _report(self, past: OptimizerPast, event: Stepping) -> None:
        """Run those checks that do not read all gradients, before an optimizer steps.

        Args:
            past: the history of the optimizer.
            event: the optimizer step.
        """
        step, frame = self.step, event.frame
        self._filter_and_report(past.check_rates(step, event.optimizer.param_groups, frame))
        self._computes = past.computes
        if not past.computes and past.uses(step, self._parameters.tensors):
            self._filter_and_report(past.report_uncleared(step, frame))
        if self._graphs.due(step):
            self._filter_and_report(self._graphs.report(step, frame))
        if self._recreated == _RECREATED:
            text = f"{past.kind}{line_of(frame)} is re-created for each step, from step "
            text += f"{step - _RECREATED} on, and loses its state."
            self._filter_and_report([WatchReport(step, "recreated-optimizer", text)])
        if step % _AVERAGES_EVERY == 0:
            self._filter_and_report(self._averages.look(step, frame))

    def _look(self, past: OptimizerPast) -> None:
        own = past.own
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for read in waiting:
                read()
        parts = self._parts
        if len(own) >= _MIN_PART * parts:
            part = own[self.step % parts :: parts]
        else:
            part = [] if self.step % min(parts, _MAX_INTERVAL) else own
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
                self._filter_and_report(self._checks.gradients(self.step, norms))
        else:  # some gradients cannot be read quickly, or are not finite
            if quick is not None:
                part = own  # all norms are read, so that all non-finite gradients are reported
            gradients = self._gradients(part)
            absent: dict[int, float | None] = {i: None for i in part if i not in gradients}
            norms = absent
            self._read(
                partial(self._judge, self.step, absent, Norms(gradients)), gradients.values()
            )
        self._sample_weight(own, norms)

    def _sample_weight(self, own: list[int], norms: Mapping[int, float | None]) -> None:
        """Sample one weight before the step.

        If `FrozenWeights` has a suspect, it chooses the weight. Otherwise the weights are sampled
        in turn, at every `_SAMPLE_EVERY`-th step.

        Args:
            own: indices of the optimizer's parameters in the model.
            norms: norm of the gradient, by index of the parameter.
        """
        wanted = self._frozen.next_weight(own)
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
        """Call a function that reads tensors now, or at the next step if they are on CUDA.

        Args:
            read: the function.
            tensors: the tensors that the function reads.
        """
        if _on_cuda(tensors):
            self._waiting.append(read)
        else:
            read()

    def _judge(self, step: int, absent: Mapping[int, float | None], norms: Norms) -> None:
        there = {i: each.norm for i, each in norms.fetch().items()}
        self._filter_and_report(self._checks.gradients(step, {**absent, **there}))

    def _take(self, i: int, norms: Mapping[int, float | None]) -> None:
        """Sample the weight with index `i`, if its values can be compared.

        Args:
            i: index of the weight in the model.
            norms: norm of the gradient, by index of the parameter.
        """
        with unseen_calls(), torch.no_grad():
            tensor = self._parameters.tensors[i][1]
            if (
                TensorBase.dim(tensor) > 1
                and TensorBase.is_contiguous(tensor)
                and with_memory([tensor])
            ):
                values = TensorBase.view(TensorBase.detach(tensor), -1)
                values = torch.narrow(values, 0, 0, min(_SAMPLE_SIZE, values.shape[0]))
                has_gradient = bool(norms[i]) if i in norms else tensor.grad is not None
                self._sample = _WeightSample(i, values, torch.clone(values), has_gradient)
            else:
                self._report_frozen(self._frozen.skip(i))

    def _compare(self, past: OptimizerPast, sample: _WeightSample) -> None:
        judged = sample.has_gradient and not past.has_decayed
        weigh = partial(self._check_sample, self.step, sample.parameter, past.own, judged)
        with unseen_calls(), torch.no_grad():
            pair = [sample.before, sample.tensor - sample.before]
        quick = quick_norms(pair)
        if quick is not None and math.isfinite(math.hypot(*quick)):
            weigh(quick)
        else:
            norms = Norms(dict(enumerate(pair)))
            self._read(lambda: weigh([each.norm for each in norms.fetch().values()]), pair)

    def _check_sample(
        self, step: int, i: int, own: Sequence[int], judged: bool, norms: Sequence[float]
    ) -> None:
        if len(norms) == 2:
            weight, change = norms
            self._filter_and_report(self._checks.update(step, i, weight, change))
            still = change == 0 and weight > 0
            self._report_frozen(self._frozen.sample(step, i, own, still=still, judged=judged))

    def _report_frozen(self, found: Iterable[FrozenGroup]) -> None:
        for each in found:
            parameters, since, everything = each
            self._filter_and_report(
                self._checks.unchanged_weights(self.step, parameters, since, all_of_them=everything)
            )

    def _filter_and_report(self, reports: Iterable[WatchReport]) -> None:
        for report in reports:
            if report.rule != "no-gradient" or not self._any_nonzero(report.parameters):
                for each in self._checks.without_effects(report):
                    self._on_report(each)

    def _any_nonzero(self, names: tuple[str, ...]) -> bool:
        """Return True if a gradient of these parameters has a non-zero element.

        The norm of such a gradient may still be 0, because small squares underflow.
        """
        gradients = (p.grad for name, p in self._parameters.tensors if name in names)
        with unseen_calls(), torch.no_grad():
            return any(g is not None and bool(torch.any(g)) for g in gradients)

    def _adjust_parts(self) -> None:
        """Read fewer gradients per step if the checks take too long, and more if they are cheap."""
        now, steps = perf_counter(), self.step - self._adjusted
        took, cost = (now - self._ended) / steps, self._cost / steps
        self.seconds += (min(took, 2 * self.seconds + _MIN_COST) - self.seconds) * _MEAN_WEIGHT
        share = cost / max(_MIN_COST, _COST_SHARE * took)
        self._adjusted, self._ended, self._cost = self.step, now, 0.0
        self._mean += (min(share, _MAX_COST_RATIO) - self._mean) * _MEAN_WEIGHT
        few = (
            self._parts >= _MAX_INTERVAL
            and len(self._parameters.names) < 2 * _MIN_PART * self._parts
        )
        if self._mean > 1 and self._parts < _MAX_PARTS and not few:
            self._parts, self._mean = 2 * self._parts, self._mean / 2
        elif self._mean < 1 / 4 and self._parts > 1:
            self._parts, self._mean = self._parts // 2, 2 * self._mean


def _representative(own: list[int], names: Sequence[str]) -> int:
    """Return the index of the parameter whose gradient is read at every step.

    This is the bias of the first module, or else the first parameter. The bias's gradient is the
    sum of the gradients at the module's output, so NaN and Inf propagate to it. It is smaller than
    the weight's gradient.
    """
    first, *others = own or [-1]
    module, _, last = names[first].rpartition(".") if own else ("", "", "")
    bias = f"{module}.bias" if module else "bias"
    found = last == "weight" and others and names[others[0]] == bias
    return others[0] if found else first


def _on_cuda(tensors: Iterable[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


def _memory() -> int:
    """Return the bytes in use on all CUDA devices, or those of the process if CUDA is not used.

    The result is 0 if they are unknown.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
