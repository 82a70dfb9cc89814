"""Follow parameter gradients from backward until they are used, clipped or cleared.

These problems are found: gradients that are cleared before any use; an optimizer step with the
gradients of two losses; gradients of several losses that are read as a sum; and clipping that has
no effect, that clips scaled gradients, or that precedes the averaging of gradients over ranks. A
read of `.grad` by the program counts as a use.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...findings.rules.gradient_reads import SummedGradientsRead
from ...findings.rules.training import DiscardedGradients, MixedLosses
from ...graph.events import ClipMoment, GradientClearing, GradientClip
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ..program.events import UserLine
from ..program.log import Found, Query
from ..program.rows import (
    AverageRow,
    BackwardRow,
    ClearRow,
    ClipRow,
    GradientReadRow,
    GraphRow,
    ResumeRow,
    StepEndRow,
    StepRow,
    UnscaleRow,
)

_MAX_CLEARINGS = 8  # number of clearings of a step before which reads are remembered


class ClearedGradients(Query):
    """Find gradients that were cleared before any use."""

    def __init__(self) -> None:
        self._has_cleared = False  # True once unused gradients were cleared
        self._begin()

    def _begin(self) -> None:
        self._fresh: set[int] = set()  # parameters with an unused gradient
        # True if any gradient was used since all gradients were last used or cleared.
        self._used = False
        self._stepping = False  # True during an optimizer step, whose closure may run backward
        self._clearing: ClearRow | None = None  # the row that first cleared an unused gradient
        self._runs: dict[CodePosition | None, _LineBackward] = {}
        # Lines of backwards whose gradients were used at least once.
        self._lines_used: set[CodePosition | None] = set()

    def on_backward(self, row: BackwardRow) -> Iterator[Found]:
        yield from self._check_discarded(row.place)
        if row.reached:
            self._runs[row.place] = _LineBackward(row.reached, used=self._stepping)
        self._fresh |= row.reached
        self._used = self._used or self._stepping
        self._clearing = None

    def on_step(self, row: StepRow) -> Iterator[Found]:
        # An optimizer with copies of the parameters may use any gradient.
        used = set(self._fresh) if row.used_parameters is None else row.used_parameters
        self._used = self._used or not used.isdisjoint(self._fresh)
        for run in self._runs.values():
            run.used = run.used or not used.isdisjoint(run.left)
        self._stepping = True
        yield from self._finish(used)

    def on_step_end(self, row: StepEndRow) -> None:
        self._stepping = False

    def on_clear(self, row: ClearRow) -> Iterator[Found]:
        self._clearing = self._clearing or row
        for run in self._runs.values():
            run.cleared = run.cleared or not row.parameters.isdisjoint(run.left)
            run.left -= row.parameters
        yield from self._finish(row.parameters)

    def on_gradient_read(self, row: GradientReadRow) -> None:
        if row.is_use:
            self._mark_used()

    def on_unscale(self, row: UnscaleRow) -> None:
        self._mark_used()

    def _mark_used(self) -> None:
        self._used = True
        for run in self._runs.values():
            run.used = run.used or bool(run.left)

    def on_resume(self, row: ResumeRow) -> None:
        self._begin()

    def _check_discarded(self, place: CodePosition | None) -> Iterator[Found]:
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
            yield Found(DiscardedGradients(), place)

    def _finish(self, parameters: set[int] | frozenset[int]) -> Iterator[Found]:
        """Forget gradients that were used or cleared.

        If no unused gradient is left, and all were cleared before a step or a read used any of
        them, that is reported.
        """
        if self._fresh:
            self._fresh -= parameters
            if not self._fresh:
                if not self._used and self._clearing is not None:
                    clearing = GradientClearing(by_optimizer=self._clearing.by_optimizer)
                    steps = self._clearing.steps
                    yield Found(clearing, self._clearing.place, latest={"steps": steps})
                    self._has_cleared = True
                self._used, self._clearing = False, None


@mutable
class _LineBackward:
    """The last backward that a source line called, and what became of its gradients."""

    left: frozenset[int]  # the parameters that backward reached, without those cleared since
    used: bool = False  # True if an optimizer step or the program used one of its gradients
    cleared: bool = False  # True if one of its gradients was cleared


_Lines = tuple[CodePosition | None, CodePosition | None, bool]


def _source_order(lines: _Lines) -> list[tuple[str, int, int]]:
    """Return a key that sorts pairs of lines by file and position, the same in every run."""
    return [
        ("", 0, 0) if place is None else (place[0].co_filename, place[0].co_firstlineno, place[1])
        for place in lines[:2]
    ]


class MixedGradients(Query):
    """Find optimizer steps with the gradients of two losses.

    The first loss ran backward, an optimizer updated other parameters, then the second loss ran
    backward.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._stepping = False  # True during an optimizer step, whose closure may run backward
        # Parameter with a gradient -> the lines whose backwards added to the gradient.
        self._given: dict[int, tuple[CodePosition | None, ...]] = {}
        # Line that called backward -> the parameters that an optimizer has updated with gradients
        # of this backward.
        self._learnt: dict[CodePosition | None, set[int]] = {}
        # Parameter with gradients of two losses -> the lines of both backwards, and True if the
        # second backward also reached the updated parameters.
        self._mixed: dict[int, _Lines] = {}

    def on_step_end(self, row: StepEndRow) -> None:
        self._stepping = False

    def on_clear(self, row: ClearRow) -> None:
        self._forget(row.parameters)

    def on_gradient_read(self, row: GradientReadRow) -> None:
        self._forget({row.parameter})  # the program may combine gradients of several losses

    def on_resume(self, row: ResumeRow) -> None:
        self._begin()

    def on_backward(self, row: BackwardRow) -> None:
        if not row.reached or self._stepping:
            return  # a closure's gradients are used by the running step alone
        given, learnt, place = self._given, self._learnt, row.place
        self._forget(row.new)
        for key in row.reached:
            lines = given.get(key, ())
            if not lines:
                given[key] = (place,)
                continue
            left = [line for line in lines if line in learnt]
            if left and place not in left:
                self._mixed[key] = left[0], place, not row.reached.isdisjoint(learnt[left[0]])
            if place not in lines:
                given[key] = (*lines, place)
        learnt.pop(place, None)

    def on_step(self, row: StepRow) -> Iterator[Found]:
        self._stepping = True
        used = (
            self._given.keys()
            if row.used_parameters is None
            else row.used_parameters & self._given.keys()
        )
        if mixed := used & self._mixed.keys():
            first, second, through = min((self._mixed[key] for key in mixed), key=_source_order)
            lines = {"second": UserLine(second), "stepped": UserLine(row.place)}
            latest = {"optimizer": row.name, **lines}
            yield Found(MixedLosses(through=through), first, leaves=mixed, latest=latest)
        for line in {line for key in used for line in self._given[key]}:
            self._learnt.setdefault(line, set()).update(
                used if row.used_parameters is None else row.used_parameters
            )
        self._forget(set(used))
        if not self._given:
            self._learnt.clear()

    def _forget(self, parameters: set[int] | frozenset[int]) -> None:
        """Forget which losses added to the gradients of parameters."""
        forgotten = parameters & self._given.keys()
        for key in forgotten:
            del self._given[key]
        for key in forgotten & self._mixed.keys():
            del self._mixed[key]


class SummedGradients(Query):
    """Find gradients of several losses that are read from `.grad` without being cleared.

    The losses are parts of another loss, through which a later backward of the step runs.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._last: BackwardRow | None = None  # the last backward, if its gradients were not read
        # The backwards whose gradients were read, since each clearing of gradients.
        self._read: list[list[BackwardRow]] = [[]]

    def on_backward(self, row: BackwardRow) -> None:
        self._last = row

    def on_gradient_read(self, row: GradientReadRow) -> None:
        if row.is_use and self._last is not None and row.parameter in self._last.reached:
            self._read[-1].append(self._last)
            self._last = None

    def on_clear(self, row: ClearRow) -> None:
        self._last = None
        self._read = [*self._read[-_MAX_CLEARINGS:], []]

    def on_graph(self, row: GraphRow) -> Iterator[Found]:
        ran = row.numbers_ran()
        for read in self._read:
            parts = [each for each in read if not ran.isdisjoint(each.roots)]
            if len(parts) > 1:
                yield Found(SummedGradientsRead(backwards=len(parts)), parts[-1].place)

    def on_step(self, row: StepRow) -> None:
        self._begin()

    def on_resume(self, row: ResumeRow) -> None:
        self._begin()


class Clips(Query):
    """Find when each clipping function is called: before or after backward, step, and average."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._fresh: set[int] = set()  # parameters with an unused gradient
        self._stepped: set[int] = set()  # parameters whose gradient a step used
        self._has_run = False  # True if any backward ran since the last step
        self._is_scaled = False  # True if the gradients are multiplied by the loss scale
        self._moments: set[ClipMoment] = set()  # found since the last backward or step
        # Parameter -> number of backwards in this training step before its gradient was first
        # clipped. Parameters whose gradient was used or cleared since are left out.
        self._backwards: dict[int, int] = {}
        self._clips_early = False  # True if the program clipped before the first backward
        self._clipped: set[int] = set()  # storage ids of gradients clipped since backward or step
        self._norm_clip: CodePosition | None = None  # the line that called clip_grad_norm_

    def on_step(self, row: StepRow) -> None:
        used = set(self._fresh) if row.used_parameters is None else row.used_parameters
        self._has_run = False
        self._stepped |= used
        self._fresh -= used
        self._backwards = {k: v for k, v in self._backwards.items() if k not in used}
        self._forget_clips()

    def on_clear(self, row: ClearRow) -> None:
        self._fresh -= row.parameters
        for key in row.parameters & self._backwards.keys():
            del self._backwards[key]

    def on_unscale(self, row: UnscaleRow) -> None:
        self._is_scaled = False

    def on_average(self, row: AverageRow) -> Iterator[Found]:
        if self._norm_clip and not self._clipped.isdisjoint(row.storages):
            early = GradientClip(function="clip_grad_norm_", moment="before the average")
            yield Found(early, self._norm_clip)
            self._norm_clip = None  # the line is reported once, not for each parameter

    def on_resume(self, row: ResumeRow) -> None:
        self._begin()

    def on_backward(self, row: BackwardRow) -> None:
        self._has_run, self._is_scaled = True, row.is_scaled
        self._stepped -= row.shards
        if not row.reached <= self._fresh:
            self._fresh |= row.reached
            self._stepped -= self._fresh
        self._forget_clips()

    def on_clip(self, row: ClipRow) -> Iterator[Found]:
        key = row.parameter
        moment: ClipMoment | None = None
        if row.storage is None:
            # Only clipping before backward is reported here. Gradients that were cleared after a
            # backward, and a backward that reaches no parameter, are reported elsewhere.
            known = key in self._stepped and not self._clips_early
            if not (self._fresh or self._has_run or known):
                moment, self._clips_early = "before backward", True
        elif key in self._stepped:
            moment = "after the step"
        elif key in self._fresh:  # the gradient comes from a recorded backward
            moment = "while scaled" if self._is_scaled else "in time"
            if moment == "in time" and row.backwards > self._backwards.get(key, row.backwards):
                moment = "each backward"
            self._backwards.setdefault(key, row.backwards)
            self._clipped.add(row.storage)
        if moment is not None and moment not in self._moments:  # each kind is reported once
            self._moments.add(moment)
            yield Found(GradientClip(function=row.function, moment=moment), row.place)
            if row.function == "clip_grad_norm_":
                self._norm_clip = row.place

    def _forget_clips(self) -> None:
        self._moments.clear()
        self._clipped.clear()
        self._norm_clip = None
