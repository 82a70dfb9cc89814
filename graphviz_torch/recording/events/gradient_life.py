"""Follow parameter gradients from backward until they are used, clipped or cleared.

These problems are reported: gradients that are cleared before any use; an optimizer step with the
gradients of two losses; and clipping that has no effect, that clips scaled gradients, or that
precedes the averaging of gradients over ranks. A read of `.grad` by the program counts as a use.
Reads by PyTorch's optimizers, clipping functions and GradScaler are recognized by their source
files.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from ...findings.rules.training import DiscardedGradients, MixedLosses
from ...graph.events import ClipMoment, GradientClearing, GradientClip
from ...internals.frames import (
    LIBRARY,
    OWN,
    TORCH,
    CodePosition,
    clipping_function,
    code_owner,
    user_frame,
)
from ...internals.functions import READ_GRAD, SET_GRAD, UNSCALE
from ...internals.hooks.calls import Called
from ...internals.hooks.collectives.watch import CollectiveIssued
from ...internals.hooks.optimizers import Stepped, Stepping
from ...internals.hooks.zero_grad import GradientsCleared, ZeroGradWatch
from ...internals.tensors.memory import storage_id
from ...internals.tensors.weak import Ref
from ..listener import BackwardEnded, Listener, Resumed, Watches
from ..program import Program
from ..program.events import UserLine

_CLIPPING = inspect.getfile(clip_grad)
_OPTIMIZER = inspect.getfile(Optimizer)
_CLEARING = (_OPTIMIZER, inspect.getfile(torch.nn.Module))


@dataclass(slots=True)
class _LineBackward:
    """The last backward that a source line called, and what became of its gradients."""

    reached: set[int]  # id() of the parameters that backward reached
    used: bool = False  # True if an optimizer step or the program used one of its gradients
    cleared: bool = False  # True if one of its gradients was cleared


class GradientLife(Listener):
    """Listener that observes backwards, steps and `.grad`, and reports misuse of gradients."""

    needs = ("every_call",)
    functions = frozenset((READ_GRAD, SET_GRAD, UNSCALE))
    watches: ClassVar[Watches] = {"on_gradients_cleared": ZeroGradWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._has_cleared = False  # True once unused gradients were cleared
        self._begin()

    def _begin(self) -> None:
        self._fresh: set[int] = set()  # id() of parameters with an unused gradient
        # True if any gradient was used since all gradients were last used or cleared.
        self._used = False
        self._stepped: set[int] = set()  # id() of parameters whose gradient a step used
        self._stepping = False  # True during an optimizer step, whose closure may run backward
        self._has_run = False  # True if any backward ran since the last step
        self._scaled = False  # True if the gradients are multiplied by the loss scale
        # The line that first cleared an unused gradient, and True if an optimizer cleared it.
        self._clearing: tuple[CodePosition | None, bool] | None = None
        self._clips: set[ClipMoment] = set()  # kinds of clipping since the last backward or step
        # id() of a parameter -> number of backwards in this training step before its gradient was
        # first clipped; parameters whose gradient was used or cleared since are left out.
        self._clip_times: dict[int, int] = {}
        self._clips_early = False  # True if the program clipped before the first backward
        self._clipped: set[int] = set()  # storage ids of gradients clipped since backward or step
        self._norm_clip: CodePosition | None = None  # the line that called clip_grad_norm_
        self._runs: dict[CodePosition | None, _LineBackward] = {}
        # Lines of backwards whose gradients were used at least once.
        self._lines_used: set[CodePosition | None] = set()
        # id() of a parameter with a gradient -> the parameter, and the lines whose backwards added
        # to the gradient.
        self._given: dict[int, tuple[Ref, tuple[CodePosition | None, ...]]] = {}
        # Line that called backward -> id() of the parameters that an optimizer has updated with
        # gradients of this backward.
        self._learnt: dict[CodePosition | None, set[int]] = {}
        # Parameters with gradients of two losses. The first loss ran backward, an optimizer updated
        # other parameters, then the second loss ran backward. id() of the parameter -> the lines of
        # both backwards, and True if the second backward also reached the updated parameters.
        self._mixed: dict[int, tuple[CodePosition | None, CodePosition | None, bool]] = {}

    def on_resume(self, event: Resumed) -> None:
        """Forget earlier gradients, because the program may have used them during the pause.

        This method is also called after the replay of a CUDA graph, because earlier backwards may
        have been the graph's warm-up.
        """
        self._begin()
        self.events.forget(GradientClearing, DiscardedGradients)

    def on_call_end(self, event: Called) -> None:
        func, args, _, result, frame, _, _ = event
        steps = self.program.steps
        if steps.running and steps.is_own_call(frame):
            return
        if func is UNSCALE:  # called by the program or by `scaler.step`
            self._on_unscale()
        elif func == READ_GRAD:
            self._read(args[0], result, frame)
        else:
            self._write(args[0], args[1], frame)

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        if self._fresh and not self.program.steps.is_own_call(event.frame):
            cleared = {id(p) for _, p in self.program.parameters() if p.grad is None}
            for key in self._fresh & cleared:
                self._clear(key, event.frame, by_optimizer=event.by_optimizer)

    def on_backward_end(self, event: BackwardEnded) -> None:
        backward, call = event.backward, event.backward.call
        if call.accumulates and not backward.failed:
            self._has_run = True
            reached = backward.reached & self.program.table.every()
            if self._stepped and reached != backward.reached:
                # `fully_shard` copies gradients of unsharded parameters to the shards, which the
                # graph does not contain. A shard has a new gradient that it has not used yet.
                shards = (p for _, p in self.program.parameters() if hasattr(p, "_local_tensor"))
                self._stepped.difference_update(map(id, shards))
            self._on_gradients(set(reached), call.loss_scale is not None, call.place)

    def _on_gradients(self, reached: set[int], scaled: bool, place: CodePosition | None) -> None:
        """Record which parameters' gradients a backward changed.

        Args:
            reached: id() of the parameters whose gradients backward computed.
            scaled: True if the loss was multiplied by a loss scale.
            place: the line that called backward.
        """
        before = len(self._fresh)
        self._check_discarded(place)
        if reached:
            self._runs[place] = _LineBackward(reached, used=self._stepping)
            if not self._stepping:  # a closure's gradients are used by the running step alone
                self._add(reached, place)
        self._fresh.update(reached)
        self._used = self._used or self._stepping
        if len(self._fresh) > before:
            self._stepped.difference_update(self._fresh)
        self._clearing = None
        self._scaled = scaled
        self._forget_clips()

    def on_collective(self, event: CollectiveIssued) -> None:
        """Report gradients that were clipped before a collective averages them over ranks."""
        if event.kind in ("all_reduce", "reduce_scatter", "reduce") and self.program.is_here():
            self._check_average(event.given)

    def _check_average(self, tensors: Iterable[Tensor]) -> None:
        if self._norm_clip is not None and not self._clipped.isdisjoint(map(storage_id, tensors)):
            clip = GradientClip(function="clip_grad_norm_", moment="before the average")
            self.events.note(clip, self._norm_clip)
            self._norm_clip = None  # the line is reported once, not for each parameter

    def _on_unscale(self) -> None:
        """Record that the GradScaler divided the gradients by the loss scale.

        This counts as a use of the gradients, since the scaler may skip the optimizer's step.
        """
        self._scaled = False
        self._mark_used()

    def on_optimizer_step_end(self, event: Stepped) -> None:
        self._stepping = False

    def on_optimizer_step_start(self, event: Stepping) -> None:
        used = self.program.steps.parameters(event.optimizer)
        if used is None:  # an optimizer with copies of the parameters may use any gradient
            used = set(self._fresh)
        self._used = self._used or not used.isdisjoint(self._fresh)
        for run in self._runs.values():
            run.used = run.used or not (run.cleared or used.isdisjoint(run.reached))
        self._stepping, self._has_run = True, False
        self._stepped |= used
        for key in used & self._clip_times.keys():
            del self._clip_times[key]
        self._check_mixed_losses(used, event)
        self._forget_clips()
        self._forget_stepped(used)

    def _add(self, reached: set[int], place: CodePosition | None) -> None:
        """Record that a backward added to the gradients of parameters.

        Args:
            reached: id() of these parameters.
            place: the source line that called backward.
        """
        given, learnt = self._given, self._learnt
        known = {id(tensor): tensor for _, tensor in self.program.parameters()}
        for key in reached & known.keys():
            parameter, lines = given.get(key, (None, ()))
            if parameter is None or parameter() is None:  # unknown, or the id() of a freed tensor
                given[key] = Ref(known[key]), (place,)
                self._mixed.pop(key, None)
                continue
            left = [line for line in lines if line in learnt]
            if left and place not in left:
                self._mixed[key] = left[0], place, not reached.isdisjoint(learnt[left[0]])
            if place not in lines:
                given[key] = parameter, (*lines, place)
        learnt.pop(place, None)

    def _check_mixed_losses(self, used: set[int], event: Stepping) -> None:
        """Report an optimizer that is about to step with gradients of two losses.

        Args:
            used: id() of the parameters whose gradients the step uses.
            event: the step that is about to run.
        """
        if mixed := sorted(used & self._mixed.keys()):
            first, second, through = self._mixed[mixed[0]]
            program = self.program
            self.events.note(
                MixedLosses(through=through),
                first,
                leaves=mixed,
                optimizer=program.optimizer_name(event.optimizer, user_frame(event.frame)),
                second=UserLine(second),
                stepped=UserLine(program.place(event.frame)),
            )
        for each in {place for key in used & self._given.keys() for place in self._given[key][1]}:
            self._learnt.setdefault(each, set()).update(used)
        for key in used & self._given.keys():
            self._forget_losses_of(key)
        if not self._given:
            self._learnt.clear()

    def _forget_losses_of(self, parameter: int) -> None:
        """Forget which losses added to the gradient of one parameter.

        Args:
            parameter: id() of the parameter.
        """
        self._given.pop(parameter, None)
        if self._mixed:
            self._mixed.pop(parameter, None)

    def _read(self, parameter: Tensor, gradient: Tensor | None, frame: FrameType) -> None:
        """Record whether a read of `parameter.grad` uses, clips or clears the gradient."""
        code, key = frame.f_code, id(parameter)
        if code.co_filename == _CLIPPING:
            self._clip(parameter, gradient, frame)
        elif key in self._fresh:
            if code.co_name == "zero_grad" and code.co_filename in _CLEARING:
                # `zero_grad` is about to set the gradient to None or zeros.
                self._clear(key, frame, by_optimizer=code.co_filename == _OPTIMIZER)
            elif code_owner(code.co_filename) == OWN:
                self._mark_used()
                self._forget_losses_of(key)  # the program may combine gradients of several losses
            elif code_owner(code.co_filename) == LIBRARY:
                self._forget_losses_of(key)  # the library may clear the gradient in place
        elif gradient is not None and code_owner(code.co_filename) == OWN and parameter.is_leaf:
            self._mark_used()  # the program reads a gradient of a tensor such as an input

    def _write(self, parameter: Tensor, value: Tensor | None, frame: FrameType) -> None:
        """Record whether an assignment to `parameter.grad` clears or uses the old gradient."""
        key = id(parameter)
        if key in self._fresh:
            if value is None and code_owner(frame.f_code.co_filename) != LIBRARY:
                self._clear(key, frame, by_optimizer=frame.f_code.co_filename == _OPTIMIZER)
            else:  # a library such as ZeRO uses a gradient before it sets the gradient to None
                self._mark_used()
                self._forget_losses_of(key)

    def _mark_used(self) -> None:
        self._used = True
        for run in self._runs.values():
            run.used = run.used or not run.cleared

    def _check_discarded(self, place: CodePosition | None) -> None:
        """Report a line that calls backward again after its last gradients were cleared unused.

        Args:
            place: the line that called the backward.
        """
        run = self._runs.get(place)
        if run is None or place is None:
            return
        if run.used:
            self._lines_used.add(place)
        elif run.cleared and not (place in self._lines_used or self._has_cleared):
            self.events.note(DiscardedGradients(), place)

    def _clear(self, parameter: int, frame: FrameType, *, by_optimizer: bool) -> None:
        if self._clearing is None:
            self._clearing = self.program.place(frame), by_optimizer
        for run in self._runs.values():
            if not run.cleared and parameter in run.reached:
                run.cleared = True
        self._forget_losses_of(parameter)
        self._fresh.discard(parameter)
        self._clip_times.pop(parameter, None)
        if not self._fresh:
            self._on_all_used()

    def _forget_stepped(self, parameters: set[int]) -> None:
        if not self._fresh:
            return
        self._fresh -= parameters
        if not self._fresh:
            self._on_all_used()

    def _on_all_used(self) -> None:
        """Report gradients that were all cleared before a step or a read used any of them.

        Called when every gradient has been used or cleared.
        """
        if not self._used and self._clearing is not None:
            place, by_optimizer = self._clearing
            clearing = GradientClearing(by_optimizer=by_optimizer)
            self.events.note(clearing, place, steps=self.program.steps.count)
            self._has_cleared = True
        self._used, self._clearing = False, None

    def _forget_clips(self) -> None:
        self._clips.clear()
        self._clipped.clear()
        self._norm_clip = None

    def _clip(self, parameter: Tensor, gradient: Tensor | None, frame: FrameType) -> None:
        key = id(parameter)
        moment: ClipMoment | None = None
        if _max_norm(frame) == math.inf:
            pass  # the call only computes the norm
        elif gradient is None:
            # Only clipping before backward is reported here. Gradients that were cleared after a
            # backward, and a backward that reaches no parameter, are reported elsewhere.

            if not (self._fresh or self._has_run) and (
                key not in self._stepped or self._clips_early
            ):
                moment, self._clips_early = "before backward", True
        elif key in self._stepped:
            moment = "after the step"
        elif key in self._fresh:  # the gradient comes from a recorded backward
            moment = "while scaled" if self._scaled else "in time"
            earlier = self._clip_times.setdefault(key, self.events.backwards)
            if moment == "in time" and self.events.backwards > earlier:
                moment = "each backward"
            self._clipped.add(storage_id(gradient))
        if moment is not None and moment not in self._clips:  # each kind is reported once
            self._clips.add(moment)
            clip = GradientClip(function=clipping_function(frame), moment=moment)
            place = self.program.place(frame)
            self.events.note(clip, place)
            if clip.function == "clip_grad_norm_":
                self._norm_clip = place


def _max_norm(frame: FrameType | None) -> float:
    """Return the `max_norm` that the running clip_grad_norm_ was called with; 0 if unknown."""
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        if "max_norm" in frame.f_locals:
            return float(frame.f_locals["max_norm"])
        frame = frame.f_back
    return 0.0
