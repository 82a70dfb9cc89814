"""A forward runs again, and beside each operator the same one on what is changed.

One run of the user's code makes both: where an operand differs in the changed run, its operator is
run twice, on the first values and on the others, and the two results are compared at once. Nothing
is stored but the other values of tensors that are alive. So the path through the code is that of
the first run. Where it depends on data that differ, this is told, and no more is compared.

Random operators draw the same numbers for both. With `other_seed` others for the changed run; then
nothing else differs, and what follows from the numbers is not run.

`numpy`, `tolist` and `data_ptr` take values out of PyTorch. A run that calls one of them on values
that differ depends on data: nobody follows what comes back.

Private: `_should_skip_dynamo`, which else loads the compiler (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..frames import Place, leave_programs
from ..hooks.dispatch import sequence_number
from ..hooks.modes import unseen_calls
from ..tensors.pytree import flatten, map_tensors, tensors
from .call import Call, PythonDraws, copied
from .modules import RunningModules, places
from .operators import Kind, kind_of, wide_dtypes, with_the_same_numbers, written_by
from .shadows import DOUBLE, Shadows, has_storage
from .streams import Streams
from .world import World

_MOST = 100_000  # operators that are compared
_LEAVES = {"numpy", "tolist", "data_ptr", "__array__", "__dlpack__"}


class Compared(NamedTuple):
    """An operator whose result may differ."""

    number: int  # in the order of the run
    name: str  # "aten::_softmax"
    first: Tensor  # its result in the first run
    other: Tensor  # and in the changed one
    makers: frozenset[int]  # operators that made the operands that differ; -1: they came in
    operands: tuple[Tensor, ...]  # those that do not differ
    is_view: bool
    is_random: bool
    module: str  # path of the module that runs
    classes: str  # its class and those around it: "Net/Block/BatchNorm1d"
    # Asked while it is told: the innermost line outside of PyTorch and the standard library, that
    # of the user's own, and the functions of torch.nn.functional that are running.
    lines: Callable[[], tuple[Place | None, Place | None, tuple[str, ...]]]
    node: int  # how many nodes the run had made before this operator's own; -1: none


class Run(NamedTuple):
    """What came of a run."""

    output: Any  # of the module
    shadows: Shadows
    nodes: int  # that its forward made
    error: BaseException | None  # what it raised
    depends: Place | None  # the first line whose path depends on what differs
    dependent: bool  # is there one
    leaves: str  # the function that takes them out of PyTorch there: "numpy"; or ""
    at: int  # the number of the operator there; of the last one where there is none
    unsupported: int  # operators that refused the changed operands
    draws_in_python: bool  # did `random` or numpy draw numbers


def run(
    call: Call,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]],
    compare: Callable[[Compared], bool],
    *,
    training: Callable[[Module], bool] | None = None,
    double: bool = False,
    other_seed: int | None = None,
    views: bool = False,
) -> Run:
    """Run a module's forward again, beside one in which something is changed.

    Args:
        call: the module, its arguments, and how it was called.
        change: given copies of the arguments, other values of some of their tensors, by `id()`.
        compare: is told of each operator whose operands differ; does its result?
        training: the mode of each module meanwhile; None: as it is.
        double: the changed run computes in float64.
        other_seed: the changed run draws from this seed.
        views: `compare` is told of views, too.
    """
    return copy_context().run(_run, call, change, compare, training, double, other_seed, views)


def _run(
    call: Call,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]],
    compare: Callable[[Compared], bool],
    training: Callable[[Module], bool] | None,
    double: bool,
    other_seed: int | None,
    views: bool,
) -> Run:
    leave_programs()
    world = World(call.module, call.args, call.kwargs)
    output, error = None, None
    with world.as_before():
        args, kwargs = copied(call.args), copied(call.kwargs)
        for tensor in tensors(args, kwargs):
            world.own(tensor)
        mode = SideBySide(world, call.module, compare, double, other_seed, views)
        given = {id(t): t for t in tensors(args, kwargs)}
        with torch.no_grad():
            for key, value in change(args, kwargs).items():
                mode.shadows.put(given[key], value)
            call.put()
        if training is not None:
            for module in call.module.modules():
                module.training = training(module)
        draws, started = PythonDraws(), sequence_number()
        mode.start = started
        try:
            with call.context(), torch.enable_grad(), mode.modules, mode, _Leaving(mode):
                output = call.module(*args, **kwargs)
        except Exception as raised:
            error = raised
        nodes = sequence_number() - started
        drew = bool(draws)
    return Run(
        output,
        mode.shadows,
        nodes,
        world.refused or error,
        mode.depends,
        mode.dependent,
        mode.leaves,
        mode.at,
        mode.unsupported,
        drew,
    )


class SideBySide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator, and again on what differs."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(
        self,
        world: World,
        module: Module,
        compare: Callable[[Compared], bool],
        double: bool,
        other_seed: int | None,
        views: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadows = Shadows(double=double)
        self.depends: Place | None = None
        self.dependent = False
        self.leaves = ""
        self.is_inside = False  # does an operator run
        self.at = 0
        self.unsupported = 0
        self.start = 0
        self.modules = RunningModules(module)
        self._world = world
        self._compare = compare
        self._double, self._views = double, views
        self._other = Streams(other_seed) if other_seed is not None else None
        self._last = -1  # number of the last node that there was before an operator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # it runs its operators on local tensors, which come here
        self.is_inside = True
        try:
            return self._twice(func, args, kwargs or {})
        finally:
            self.is_inside = False

    def _twice(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator, and again on what differs."""
        kind = kind_of(func)
        number = sequence_number() - 1  # autograd makes a node just before its operator runs
        node = number - self.start if number >= self.start and number != self._last else -1
        self._last = number
        shadows, operands = self.shadows, tensors(*args, *kwargs.values())
        is_plain_view = kind.is_view and all(map(has_storage, operands))
        if is_plain_view and not self._views:  # its shadow is the one of what it views
            return func(*args, **kwargs)
        written = written_by(kind, func, args, kwargs)
        for tensor in written:
            self._world.protect(tensor)
        differ = shadows.makers(operands) if len(shadows) else {}
        draws = kind.is_random and self._other is not None
        doubled = self._double and any(t.dtype in DOUBLE for t in operands)
        rests = self.dependent or self.at >= _MOST or not (differ or draws or doubled)
        if rests or kind.is_unset:
            result = func(*args, **kwargs)
            self._made(func, result, kind)
            return result
        self.at += 1
        for tensor in written:
            shadows.part(tensor)
        if is_plain_view:
            result = func(*args, **kwargs)
            others: Any = map_tensors(shadows.of, result)
        else:
            # Before the first one runs, which may change its operands.
            taken = map_tensors(self._taken, args), map_tensors(self._taken, kwargs)
            if self._double:
                taken = wide_dtypes(*taken)
            streams = Streams.of(args, kwargs, operands) if kind.is_random else None
            result = func(*args, **kwargs)
            others = self._other_result(func, kind, taken, streams, result)
        self._made(func, result, kind)
        if self._double and kind.is_random:
            for tensor in written:
                self.shadows.put(tensor, self.shadows.widened(tensor))
        with unseen_calls():
            self._tell(kind, result, others, operands, differ, written, node)
        if self._other is not None:
            self.shadows.forget()
        return result

    def _taken(self, tensor: Tensor) -> Tensor:
        shadow = self.shadows.of(tensor)
        return self.shadows.widened(tensor) if shadow is None else shadow

    def _other_result(
        self, func: Any, kind: Kind, taken: Any, streams: Streams | None, result: Any
    ) -> Any:
        """What the operator gives in the changed run."""
        args, kwargs = taken
        if self._double and kind.is_random:
            return with_the_same_numbers(func, args, result)
        after = None
        try:
            if streams is not None:
                after = streams.again()
                if self._other is not None:
                    streams = self._other
                streams.put()
            return func(*args, **kwargs)
        except Exception:
            if not self._double:
                raise
            self.unsupported += 1
            return map_tensors(self.shadows.widened, result)
        finally:
            if after is not None:
                if self._other is not None:
                    self._other = self._other.again()
                after.put()

    def _made(self, func: Any, result: Any, kind: Kind) -> None:
        if not kind.is_view and not kind.writes:
            for tensor in tensors(result):
                self._world.own(tensor)

    def _tell(
        self,
        kind: Kind,
        result: Any,
        others: Any,
        operands: list[Tensor],
        differ: dict[int, int],
        written: list[Tensor],
        node: int,
    ) -> None:
        first, other = _results(result), _results(others)
        if not first and not _plainly_equal(result, others):
            self._depends()
        if len(first) != len(other) or any(
            a.shape != b.shape for a, b in zip(first, other, strict=False)
        ):
            if first and not kind.is_view:
                self._depends()
            return
        lines = partial(places, sys._getframe(2), _run.__code__)
        makers = frozenset(differ.values())
        rest = tuple(t for t in operands if id(t) not in differ)
        path, classes = self.modules.now()
        for tensor, changed in zip(first, other, strict=True):
            if tensor.is_meta or (self._double and tensor.dtype not in DOUBLE):
                continue
            if kind.has_workspace and tensor.dtype is torch.uint8:
                continue
            differs = self._compare(
                Compared(
                    self.at,
                    kind.name,
                    tensor,
                    changed,
                    makers,
                    rest,
                    kind.is_view,
                    kind.is_random,
                    path,
                    classes,
                    lines,
                    node,
                )
            )
            if kind.is_view and has_storage(tensor):
                continue
            if any(tensor is each for each in written):
                self.shadows.wrote(tensor, self.at)
            elif differs or not has_storage(tensor):
                # A view that has a shadow of its own is what made the tensor that it views.
                self.shadows.put(
                    tensor, changed, max(makers, default=self.at) if kind.is_view else self.at
                )

    def leave(self, name: str, tensor: Tensor) -> None:
        """A function takes the values of a tensor out of PyTorch. Do they differ?"""
        differs = self.shadows.of(tensor) is not None
        if not self.dependent and (differs or (self._double and tensor.dtype in DOUBLE)):
            self.dependent, self.leaves = True, name
            self.depends = places(sys._getframe(2), _run.__code__)[1]

    def _depends(self) -> None:
        """From here on the path through the code may be another one."""
        if not self.dependent:
            self.dependent = True
            self.depends = places(sys._getframe(3), _run.__code__)[1]


class _Leaving(TorchFunctionMode):
    """Tells where a function takes values that differ out of PyTorch."""

    def __init__(self, mode: SideBySide) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LEAVES and not self._mode.is_inside and isinstance(args[0], Tensor):
            self._mode.leave(name, args[0])
        return func(*args, **(kwargs or {}))


def _results(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):  # as of most operators
        return [value]
    return [tensor for _, tensor in flatten(value, ask=False)]


def _plainly_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or a != a
    except Exception:
        return True
