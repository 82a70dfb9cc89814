"""Run a forward again and compare each operator with the same operator on changed values.

The user's code runs once and computes both the first run and the changed run. An operator whose
operands differ in the changed run is called twice, on the first and on the changed values, and the
two results are compared immediately. Only the changed values of live tensors are stored. The
control flow is that of the first run. If it depends on values that differ, this is reported, and
the comparison ends there.

Random operators draw the same numbers in both runs. With `other_seed`, they draw other numbers in
the changed run. These are then the only difference, and operators that use them are called once.

`numpy`, `tolist` and `data_ptr` take values out of PyTorch, where they cannot be followed. If one
of them is called on values that differ between the runs, the control flow is taken to depend on
these values.

`SideBySide` defines `_should_skip_dynamo` (private, 2.13). A mode without it loads the compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...graph.immutable import NamedTuple
from ..frames import CodePosition, leave_programs
from ..hooks.dispatch import sequence_number
from ..hooks.modes import unseen_calls
from ..tensors.pytree import flatten, map_tensors, tensors
from .call import ModuleCall, PythonDraws, copy_nested
from .modules import RunningModules, code_positions
from .operators import (
    OperatorProperties,
    operator_properties,
    wide_dtypes,
    with_the_same_numbers,
    written_by,
)
from .sandbox import GeneratorStates, Sandbox
from .shadows import DOUBLE, Shadows, has_storage

_MAX_OPERATORS = 100_000  # maximum number of operators to compare
_VALUE_READS = {"numpy", "tolist", "data_ptr", "__array__", "__dlpack__"}


class OperatorPair(NamedTuple):
    """An operator call with its results in the original and in the changed run."""

    number: int  # number of the operator, counted from 1 over the compared operators
    name: str  # such as "aten::_softmax"
    first: Tensor  # result in the first run
    other: Tensor  # result in the changed run
    makers: frozenset[int]  # numbers of the operators that made differing operands; -1: an input
    operands: tuple[Tensor, ...]  # operands that do not differ
    is_view: bool
    is_random: bool
    module: str  # path of the running module
    classes: str  # classes of the running modules, such as "Net/Block/BatchNorm1d"
    # Returns the innermost position outside of PyTorch and the standard library, the innermost
    # position in the user's own code, and the running functions of torch.nn.functional. It can only
    # be called within the callback.
    lines: Callable[[], tuple[CodePosition | None, CodePosition | None, tuple[str, ...]]]
    node: int  # index of its autograd node among the nodes of the run; -1 for none


class ComparisonRun(NamedTuple):
    """The result of `run_side_by_side`."""

    output: Any  # output of the module
    shadows: Shadows
    nodes: int  # number of autograd nodes that the forward created
    error: BaseException | None  # exception that the forward raised
    # The user's line at which the control flow first depends on values that differ, if known.
    depends: CodePosition | None
    dependent: bool  # True if the control flow depends on values that differ
    # Function that takes values out of PyTorch at `depends`, such as "numpy"; "" if none does.
    leaves: str
    at: int  # number of the operator at `depends`, or else of the last operator
    unsupported: int  # number of operators that raised on the changed operands
    draws_in_python: bool  # True if `random` or numpy drew numbers


def run_side_by_side(
    call: ModuleCall,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]],
    compare: Callable[[OperatorPair], bool],
    *,
    training: Callable[[Module], bool] | None = None,
    double: bool = False,
    other_seed: int | None = None,
    views: bool = False,
) -> ComparisonRun:
    """Run a module's forward again, side by side with a run in which something is changed.

    Args:
        call: the module, its arguments, and the state in which it was called.
        change: called with copies of the arguments; returns changed values of tensors, by id() of
            the copy.
        compare: called with each operator whose operands differ; returns True if the operator's
            results differ.
        training: returns the training mode of a module during the run; None to keep the modes.
        double: True to compute the changed run in float64.
        other_seed: seed of the changed run's random numbers; None to draw the same numbers.
        views: True to call `compare` for views as well.
    """
    return copy_context().run(
        _run_both_versions, call, change, compare, training, double, other_seed, views
    )


def _run_both_versions(
    call: ModuleCall,
    change: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Tensor]],
    compare: Callable[[OperatorPair], bool],
    training: Callable[[Module], bool] | None,
    double: bool,
    other_seed: int | None,
    views: bool,
) -> ComparisonRun:
    leave_programs()
    sandbox = Sandbox(call.module, call.args, call.kwargs)
    output, error = None, None
    with sandbox.restore_on_exit():
        args, kwargs = copy_nested(call.args), copy_nested(call.kwargs)
        for tensor in tensors(args, kwargs):
            sandbox.mark_created(tensor)
        mode = SideBySide(sandbox, call.module, compare, double, other_seed, views)
        given = {id(t): t for t in tensors(args, kwargs)}
        with torch.no_grad():
            for key, value in change(args, kwargs).items():
                mode.shadows.set(given[key], value)
            call.restore()
        if training is not None:
            for module in call.module.modules():
                module.training = training(module)
        draws, started = PythonDraws(), sequence_number()
        mode.start = started
        try:
            with call.context(), torch.enable_grad(), mode.modules, mode, _ValueReads(mode):
                output = call.module(*args, **kwargs)
        except Exception as raised:
            error = raised
        nodes = sequence_number() - started
        drew = bool(draws)
    return ComparisonRun(
        output,
        mode.shadows,
        nodes,
        sandbox.refused or error,
        mode.depends,
        mode.dependent,
        mode.leaves,
        mode.at,
        mode.unsupported,
        drew,
    )


class SideBySide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that runs each operator again on the values that differ."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(
        self,
        sandbox: Sandbox,
        module: Module,
        compare: Callable[[OperatorPair], bool],
        double: bool,
        other_seed: int | None,
        views: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadows = Shadows(double=double)
        self.depends: CodePosition | None = None
        self.dependent = False
        self.leaves = ""
        self.is_inside = False  # True while an operator runs
        self.at = 0
        self.unsupported = 0
        self.start = 0
        self.modules = RunningModules(module)
        self._sandbox = sandbox
        self._compare = compare
        self._double, self._views = double, views
        self._other = GeneratorStates(other_seed) if other_seed is not None else None
        self._last = -1  # sequence number of the last node before the current operator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # DTensor then dispatches operators on its local tensors
        self.is_inside = True
        try:
            return self._run_both(func, args, kwargs or {})
        finally:
            self.is_inside = False

    def _run_both(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and run it again on the changed values if any of its operands differ."""
        kind = operator_properties(func)
        number = sequence_number() - 1  # autograd creates the node just before its operator runs
        node = number - self.start if number >= self.start and number != self._last else -1
        self._last = number
        shadows, operands = self.shadows, tensors(*args, *kwargs.values())
        is_plain_view = kind.is_view and all(map(has_storage, operands))
        if is_plain_view and not self._views:  # a view shares the shadow of its base
            return func(*args, **kwargs)
        written = written_by(kind, func, args, kwargs)
        for tensor in written:
            self._sandbox.protect(tensor)
        differ = shadows.makers(operands) if len(shadows) else {}
        draws = kind.is_random and self._other is not None
        doubled = self._double and any(t.dtype in DOUBLE for t in operands)
        rests = self.dependent or self.at >= _MAX_OPERATORS or not (differ or draws or doubled)
        if rests or kind.is_unset:
            result = func(*args, **kwargs)
            self._mark_results(func, result, kind)
            return result
        self.at += 1
        for tensor in written:
            shadows.part(tensor)
        if is_plain_view:
            result = func(*args, **kwargs)
            others: Any = map_tensors(shadows.get, result)
        else:
            # Looked up before the operator runs, because the operator may mutate its operands.
            taken = (
                map_tensors(self._changed_operand, args),
                map_tensors(self._changed_operand, kwargs),
            )
            if self._double:
                taken = wide_dtypes(*taken)
            streams = GeneratorStates.save(args, kwargs, operands) if kind.is_random else None
            result = func(*args, **kwargs)
            others = self._other_result(func, kind, taken, streams, result)
        self._mark_results(func, result, kind)
        if self._double and kind.is_random:
            for tensor in written:
                self.shadows.set(tensor, self.shadows.widen(tensor))
        with unseen_calls():
            self._report(kind, result, others, operands, differ, written, node)
        if self._other is not None:
            self.shadows.forget()
        return result

    def _changed_operand(self, tensor: Tensor) -> Tensor:
        shadow = self.shadows.get(tensor)
        return self.shadows.widen(tensor) if shadow is None else shadow

    def _other_result(
        self,
        func: Any,
        kind: OperatorProperties,
        taken: Any,
        streams: GeneratorStates | None,
        result: Any,
    ) -> Any:
        """Return the result of an operator when it runs on the changed run's values.

        Args:
            func: the operator.
            kind: properties of the operator.
            taken: (args, kwargs) in the changed run.
            streams: states of the random generators before the first run of the operator; None
                if it draws no random numbers.
            result: the operator's result in the first run.
        """
        args, kwargs = taken
        if self._double and kind.is_random:
            return with_the_same_numbers(func, args, result)
        after = None
        try:
            if streams is not None:
                after = streams.current()
                if self._other is not None:
                    streams = self._other
                streams.restore()
            return func(*args, **kwargs)
        except Exception:
            if not self._double:
                raise
            self.unsupported += 1
            return map_tensors(self.shadows.widen, result)
        finally:
            if after is not None:
                if self._other is not None:
                    self._other = self._other.current()
                after.restore()

    def _mark_results(self, func: Any, result: Any, kind: OperatorProperties) -> None:
        if not kind.is_view and not kind.writes:
            for tensor in tensors(result):
                self._sandbox.mark_created(tensor)

    def _report(
        self,
        kind: OperatorProperties,
        result: Any,
        others: Any,
        operands: list[Tensor],
        differ: dict[int, int],
        written: list[Tensor],
        node: int,
    ) -> None:
        first, other = _results(result), _results(others)
        if not first and not _plainly_equal(result, others):
            self._note_dependence()
        if len(first) != len(other) or any(
            a.shape != b.shape for a, b in zip(first, other, strict=False)
        ):
            if first and not kind.is_view:
                self._note_dependence()
            return
        lines = partial(code_positions, sys._getframe(2), _run_both_versions.__code__)
        makers = frozenset(differ.values())
        rest = tuple(t for t in operands if id(t) not in differ)
        path, classes = self.modules.current()
        for tensor, changed in zip(first, other, strict=True):
            if tensor.is_meta or (self._double and tensor.dtype not in DOUBLE):
                continue
            if kind.has_workspace and tensor.dtype is torch.uint8:
                continue
            differs = self._compare(
                OperatorPair(
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
                # A view that has a shadow of its own gets the number of its base's operator.
                self.shadows.set(
                    tensor, changed, max(makers, default=self.at) if kind.is_view else self.at
                )

    def record_value_read(self, name: str, tensor: Tensor) -> None:
        """Record that the program reads a tensor whose values differ between the two runs."""
        differs = self.shadows.get(tensor) is not None
        if not self.dependent and (differs or (self._double and tensor.dtype in DOUBLE)):
            self.dependent, self.leaves = True, name
            self.depends = code_positions(sys._getframe(2), _run_both_versions.__code__)[1]

    def _note_dependence(self) -> None:
        """Record that the control flow of the changed run may differ from here on."""
        if not self.dependent:
            self.dependent = True
            self.depends = code_positions(sys._getframe(3), _run_both_versions.__code__)[1]


class _ValueReads(TorchFunctionMode):
    """Function mode that reports calls which take values out of PyTorch, such as `numpy`."""

    def __init__(self, mode: SideBySide) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _VALUE_READS and not self._mode.is_inside and isinstance(args[0], Tensor):
            self._mode.record_value_read(name, args[0])
        return func(*args, **(kwargs or {}))


def _results(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):  # the common case
        return [value]
    return [tensor for _, tensor in flatten(value, ask=False)]


def _plainly_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or a != a
    except Exception:
        return True
