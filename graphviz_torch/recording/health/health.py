"""Looks at every step of a training, and spends no more than a small part of the step on it.

Before an optimizer steps, the norms of its gradients are read: all of them at once. Where that
takes too long, a part of them is read in each step, in turn; of few parameters all in every second
or fourth step. The first parameter's is read in each step: it comes last in backward, so that a
loss that is not finite reaches it. Now and then a few values of one weight are compared before and
after the step, and the memory in use is read. On CUDA the norms of a step are read when the next
one has been computed, so that nothing waits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.memory import with_memory
from ...internals.tensors.norms import Norms, quick_norms
from .signs import Signs, WatchReport

_SHARE = 0.04  # of a step, for all of this
_LEAST = 1e-4  # seconds that may be spent in any case
_MOST_SHARE, _WEIGHT = 4.0, 1 / 16  # of one step, and of each in the mean of the last
_MOST_PARTS, _PART = 64, 8  # parts, and parameters in one
_FEW = 4  # steps from one look to the next at parameters that make no parts
_SAMPLE_EVERY = 16  # steps
_MEMORY_EVERY = 32
_SAMPLE = 4096  # values of a weight
_RENEW = 100  # steps after which parameters are looked up again


class _Sample(NamedTuple):
    """A part of a weight before a step."""

    parameter: int
    tensor: Tensor
    before: Tensor
    gradient: float | None


class Health:
    """What the numbers of a training tell, step by step.

    Args:
        model: whose parameters.
        tell: takes what went wrong.
    """

    def __init__(self, model: Module, tell: Callable[[WatchReport], object]) -> None:
        self._model, self._tell = model, tell
        self._parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._signs = Signs([name for name, _ in self._parameters])
        self._own: dict[int, list[int]] = {}  # by id() of an optimizer: its parameters
        self._stepped: set[int] = set()  # optimizers, in this step
        self._sample: _Sample | None = None
        self._waiting: list[Callable[[], None]] = []  # readings of a device, for the next step
        self._parts = 1  # that the parameters are looked at in
        self._ended = perf_counter()  # the last step
        self._cost = 0.0  # seconds, of this step so far
        self._mean = 0.0  # of what was spent in the last steps, in shares of what may be
        self.step = -1

    def stepping(self, event: Stepping) -> None:
        """An optimizer is about to step."""
        began = perf_counter()
        own = self._parameters_in(event.optimizer)
        if own:
            if not self._stepped or id(event.optimizer) in self._stepped:
                self._stepped.clear()
                self.step += 1
            self._stepped.add(id(event.optimizer))
            with suppress(RuntimeError):  # a device that has failed, or what has no norm
                self._look(own)
        self._cost += perf_counter() - began

    def stepped(self, event: Stepped) -> bool:
        """It has stepped; is it one of the model's?"""
        began = perf_counter()
        if not self._own.get(id(event.optimizer)):
            return False
        with suppress(RuntimeError):
            self._compare()
            if self.step % _MEMORY_EVERY == 0:
                self._pass(self._signs.memory(self.step, _memory()))
        self._cost += perf_counter() - began
        self._ration()
        return True

    def _parameters_in(self, optimizer: Optimizer) -> list[int]:
        """The model's parameters that an optimizer has."""
        key = id(optimizer)
        if key not in self._own or self.step % _RENEW == 0:
            held = set(map(id, parameters_of(optimizer)))
            now = dict(self._model.named_parameters())
            self._parameters = [(name, now.get(name, p)) for name, p in self._parameters]
            self._own[key] = [i for i, (_, p) in enumerate(self._parameters) if id(p) in held]
        return self._own[key]

    def _look(self, own: list[int]) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for read in waiting:
                read()
        parts = self._parts
        if len(own) >= _PART * parts:
            part = own[self.step % parts :: parts]
        else:
            part = [] if self.step % min(parts, _FEW) else own
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
        if self.step % _SAMPLE_EVERY == 0:
            self._take(own, norms)

    def _gradients(self, parameters: list[int]) -> dict[int, Tensor]:
        found = self._parameters
        with unseen_calls():
            return {i: g for i in parameters if (g := found[i][1].grad) is not None}

    def _read(self, read: Callable[[], None], tensors: Iterable[Tensor]) -> None:
        """Read now, or before the next step, where a device would have to be waited for."""
        if _on_cuda(tensors):
            self._waiting.append(read)
        else:
            read()

    def _judge(self, step: int, absent: Mapping[int, float | None], norms: Norms) -> None:
        there = {i: each.norm for i, each in norms.fetch().items()}
        self._pass(self._signs.gradients(step, {**absent, **there}))

    def _take(self, own: list[int], norms: Mapping[int, float | None]) -> None:
        """Take a sample of one weight, in turn."""
        i = own[self.step // _SAMPLE_EVERY % len(own)]
        with unseen_calls(), torch.no_grad():
            tensor = self._parameters[i][1]
            if tensor.dim() > 1 and tensor.is_contiguous() and with_memory([tensor]):
                values = tensor.detach().view(-1)[:_SAMPLE]
                self._sample = _Sample(i, values, values.clone(), norms.get(i))

    def _compare(self) -> None:
        sample, self._sample = self._sample, None
        if sample is not None:
            with unseen_calls(), torch.no_grad():
                pair = Norms({0: sample.before, 1: sample.tensor - sample.before})
            self._read(partial(self._weigh, self.step, sample, pair), (sample.before,))

    def _weigh(self, step: int, sample: _Sample, norms: Norms) -> None:
        found = norms.fetch()
        if len(found) == 2:
            weight, change = found[0].norm, found[1].norm
            told = self._signs.update(step, sample.parameter, weight, change, sample.gradient)
            self._pass(told)

    def _pass(self, reports: Iterable[WatchReport]) -> None:
        for report in reports:
            if report.kind != "no-gradient" or not self._any(report.parameters):
                self._tell(report)

    def _any(self, names: tuple[str, ...]) -> bool:
        """Has one of them a gradient, though its norm is too small to be told from zero."""
        gradients = (p.grad for name, p in self._parameters if name in names)
        with unseen_calls(), torch.no_grad():
            return any(g is not None and bool(g.any()) for g in gradients)

    def _ration(self) -> None:
        """Look at fewer parameters in each step, where it takes too long."""
        now = perf_counter()
        share = self._cost / max(_LEAST, _SHARE * (now - self._ended))
        self._ended, self._cost = now, 0.0
        self._mean += (min(share, _MOST_SHARE) - self._mean) * _WEIGHT
        few = self._parts >= _FEW and len(self._parameters) < 2 * _PART * self._parts
        if self._mean > 1 and self._parts < _MOST_PARTS and not few:
            self._parts, self._mean = 2 * self._parts, self._mean / 2
        elif self._mean < 1 / 4 and self._parts > 1:
            self._parts, self._mean = self._parts // 2, 2 * self._mean


def _on_cuda(tensors: Iterable[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


def _memory() -> int:
    """Bytes in use: of the devices where CUDA runs, else of the process; 0 where nobody tells."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
