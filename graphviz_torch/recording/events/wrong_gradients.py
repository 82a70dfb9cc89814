"""Compare the backward of custom Functions with the derivative of their forward.

The first call of each Function of the program is checked. The calls into torch that its forward
makes are repeated on copies of its inputs, and autograd differentiates them. The forward itself,
which may have any side effect, does not run again. A Function that replaces a derivative on purpose
is not reported: an identity with another gradient, such as a gradient reversal, and a surrogate
gradient where the derivative is 0, such as a straight-through estimator.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...findings.rules.wrong_gradients import OverwrittenSavedTensor, WrongGradient
from ...graph.immutable import NamedTuple
from ...internals.frames import OWN
from ...internals.hooks.functions import FunctionCalled, FunctionWatch
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.nodes import Hooks
from ...internals.probes import Probe, fetch, probe, run_unobserved
from ...internals.repeated_calls import (
    ReplayedCalls,
    derivative,
    saved_tensor_hooks,
    variables_of,
)
from ...internals.tensors.memory import PLAIN, may_be_read
from ...internals.tensors.metadata import is_custom
from ...tracing.nodes import grad_fn_of
from ..listener import BackwardEnded, Listener, Watches
from ..program import Program
from ..program.code import find_method_call
from ..program.events import UserLine

_MAX_ELEMENTS = 1 << 20  # number of elements of the inputs, and of the saved tensors
_MAX_CLASSES = 256
_MAX_ERROR = {torch.float64: 0.02, torch.float32: 0.02}  # relative error of a gradient, by dtype
_MAX_ERROR_OF_HALF = 0.2
_MIN_DERIVATIVE = (
    1e-5  # a derivative below this fraction of the gradient is rounding, and counts as 0
)
_MAX_SKEW = 1e-5  # a matrix is symmetric up to this fraction of its largest element


class _Call(NamedTuple):
    """The first call of a Function, replayed with gradients on copies of its inputs."""

    function: Any
    names: list[str]  # names of the arguments that are tensors
    leaves: list[Tensor]
    results: list[Tensor]
    number: int  # sequence number of the node
    saved: list[Tensor]  # copies of the saved tensors
    gradients: list[tuple[list[Tensor | None], list[Tensor | None]]]  # of the results, and inputs


class WrongGradients(Listener):
    """Listener that reports a custom backward that is not the derivative of its forward."""

    needs = ("every_call", "with_gradients")
    watches: ClassVar[Watches] = {"on_function": FunctionWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._calls: list[_Call] = []
        self._hooks: list[Hooks] = []
        self._errors: list[tuple[_Call, list[tuple[str, Probe]], Probe | None]] = []

    def on_function(self, event: FunctionCalled) -> None:
        function, args = event.function, event.args
        if function in self._checked or len(self._checked) >= _MAX_CLASSES:
            return
        inputs = [each for each in args if isinstance(each, Tensor)]
        if not torch.is_grad_enabled() or not any(each.requires_grad for each in inputs):
            return
        self._checked.add(function)
        code = _code_of(function.backward)
        if code is None or self.program.stack.files[code.co_filename] != OWN:
            return
        plain = all(type(each) in PLAIN and may_be_read(each) for each in inputs)
        if not plain or len(set(map(id, inputs))) < len(inputs):
            return
        if sum(map(Tensor.numel, inputs)) > _MAX_ELEMENTS:
            return
        calls = ReplayedCalls(inputs, [*args, *variables_of(inspect.unwrap(function.forward))])
        event.modes.append(calls)
        event.ended.append(partial(self._on_result, function, args, calls))

    def _on_result(self, function: Any, args: Any, calls: ReplayedCalls, out: Any) -> None:
        with unseen_calls():
            self.program.remarks.attempt(self._end_call, function, args, calls, out)

    def _end_call(self, function: Any, args: Sequence[Any], calls: ReplayedCalls, out: Any) -> None:
        results = list(out) if isinstance(out, tuple) else [out]
        replayed = None
        if all(type(each) is Tensor and may_be_read(each) for each in results):
            replayed = calls.replay(results)
        node: Any = grad_fn_of(results[0]) if replayed is not None else None
        if replayed is None or node is None or not is_custom(type(node)):
            calls.stop()
            return
        leaves, copies = replayed
        if run_unobserved(_repeats_input, leaves, copies):
            return  # such as a gradient reversal: only the gradient is meant to change
        labels = self.program.table.names(x for x in args if isinstance(x, Tensor))
        names = _names_of(function, args)
        names = [own or name for own, name in zip(labels, names, strict=False)]
        call = _Call(
            function, names, leaves, copies, int(node._sequence_nr()), _saved_copies(node), []
        )
        hooks = Hooks()
        self._hooks.append(hooks)
        self._calls.append(call)
        attempt = self.program.remarks.attempt
        before = partial(attempt, self._check_saved, call, weakref.ref(node))
        after = partial(attempt, _keep_gradients, call)
        hooks.put([(node.register_prehook, lambda given: before()), (node.register_hook, after)])

    def _check_saved(self, call: _Call, node: Callable[[], Any]) -> None:
        """Compare the saved tensors with their copies, before backward reads them."""
        live = node()
        if call.saved and live is not None and not call.gradients:
            with unseen_calls():
                changed = probe(_differ, *call.saved, *live.saved_tensors)
            self._errors.append((call, [], changed))

    def on_backward_end(self, event: BackwardEnded) -> None:
        ran = [call for call in self._calls if call.gradients]
        self._calls = [call for call in self._calls if not call.gradients]
        for call in ran:
            given, found = call.gradients[0]
            right = derivative(call.leaves, call.results, given)
            errors = []
            rows = zip(call.names, call.leaves, found, right, strict=False)
            for name, leaf, own, other in rows:
                if own is not None and own.shape == leaf.shape:
                    other = torch.zeros_like(own) if other is None else other
                    error = probe(_error, own, other, leaf)
                    errors += [] if error is None else [(name, error)]
            self._errors.append((call, errors, None))

    def on_graphs_built(self, backwards: object, graphs: object) -> None:
        found, self._errors = self._errors, []
        overwritten = set()
        for call, errors, saved in found:
            if saved is not None and any(fetch([saved])[0]):
                overwritten.add(call.function)
                self._note_overwritten(call)
            rows = fetch([error for _, error in errors])
            wrong = [
                (row, name)
                for row, (name, _) in zip(rows, errors, strict=True)
                if row and row[0] > row[3]
            ]
            surrogate = any(row and row[4] for row in rows)  # of a quantizer, for example
            if wrong and not surrogate and call.function not in overwritten:
                self._note(call, max(wrong)[0], [name for _, name in wrong])

    def _note(self, call: _Call, row: list[float], names: list[str]) -> None:
        event = WrongGradient(function=call.function.__name__, arguments=tuple(names))
        code = _code_of(call.function.backward)
        place = None if code is None else (code, 0)
        error, given, expected, *_ = row
        self.events.note(
            event,
            None,
            [call.number],
            defined=UserLine(place),
            error=error,
            given=given,
            expected=expected,
        )

    def _note_overwritten(self, call: _Call) -> None:
        forward, backward = (
            _code_of(each) for each in (_saver(call.function), call.function.backward)
        )
        place = None if forward is None else find_method_call([forward], "save_for_backward")
        defined = UserLine(None if backward is None else (backward, 0))
        event = OverwrittenSavedTensor(function=call.function.__name__)
        self.events.note(event, place, [call.number], defined=defined)

    def on_step_end(self, event: None) -> None:
        self.close()

    def close(self) -> None:
        for hooks in self._hooks:
            hooks.remove()
        self._hooks, self._calls = [], []


def _keep_gradients(call: _Call, found: Sequence[Any], given: Sequence[Any]) -> None:
    """Copy the gradients that a backward received and returned."""
    if not call.gradients:
        call.gradients.append(run_unobserved(lambda: (_copies(given), _copies(found))))


def _copies(tensors: Sequence[Any]) -> list[Tensor | None]:
    return [each.detach().clone() if isinstance(each, Tensor) else None for each in tensors]


def _saved_copies(node: Any) -> list[Tensor]:
    """Return copies of the saved tensors; [] if a hook of the program would run."""
    if saved_tensor_hooks() is not None:
        return []
    saved = node.saved_tensors
    if any(each is None or type(each) not in PLAIN for each in saved):
        return []
    if sum(map(Tensor.numel, saved)) > _MAX_ELEMENTS:
        return []
    return run_unobserved(lambda: [each.detach().clone() for each in saved])


def _differ(*tensors: Tensor) -> Tensor:
    """Return whether any tensor of the first half differs from its counterpart in the second."""
    half = len(tensors) // 2
    pairs = zip(tensors[:half], tensors[half:], strict=True)
    return torch.stack([torch.any(torch.ne(a, b) & (a == a)) for a, b in pairs])


def _error(own: Tensor, right: Tensor, leaf: Tensor) -> Tensor:
    """Return the relative error, the worst value, the right one, the permitted error, and a flag.

    The flag is 1 if the gradient is a surrogate of a derivative that is 0 everywhere. Elements
    whose derivative is 0 are left out: a surrogate gradient is meant there. Only the symmetric part
    of the gradient is compared for a symmetric matrix, such as a covariance, since the program
    changes the matrix only in this direction.

    Args:
        own: the gradient that the backward of the Function returned.
        right: the derivative of the forward.
        leaf: the input.
    """
    if own.is_complex():  # real and imaginary parts are compared one by one
        own, right, leaf = (
            torch.view_as_real(x.resolve_conj()).flatten() for x in (own, right, leaf)
        )
    limit = _MAX_ERROR.get(own.dtype, _MAX_ERROR_OF_HALF)
    own, right = own.double(), right.double()
    if leaf.dim() > 1 and leaf.shape[-1] == leaf.shape[-2]:
        skew = (leaf - leaf.mT).abs().amax() > _MAX_SKEW * leaf.abs().amax()
        own = torch.where(skew, own, (own + own.mT) / 2)
        right = torch.where(skew, right, (right + right.mT) / 2)
    surrogate = right.norm() < _MIN_DERIVATIVE * own.norm()
    own, right = own.flatten(), right.flatten()
    difference = torch.where(right != 0, own - right, 0)
    size = torch.maximum(torch.linalg.norm(right), torch.linalg.norm(own * (right != 0)))
    error = torch.linalg.norm(difference) / size.clamp(min=1e-30)
    finite = torch.isfinite(error) & own.any() & ~surrogate
    worst = difference.abs().argmax()
    error = torch.where(finite, error, 0)
    permitted = torch.full_like(error, limit)
    return torch.stack([error, own[worst], right[worst], permitted, surrogate.to(error.dtype)])


def _repeats_input(leaves: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
    return any(
        leaf.shape == result.shape and torch.equal(leaf, result)
        for leaf in leaves
        if leaf.is_floating_point()
        for result in results
    )


def _names_of(function: Any, args: Sequence[Any]) -> list[str]:
    """Return the names of the arguments of forward that are tensors."""
    code = _code_of(function.forward)
    names = [] if code is None else list(code.co_varnames[: code.co_argcount])
    first = 0 if _saver(function) is not function.forward else 1  # `ctx`
    names = names[first:]
    texts = [*names, *(f"argument {i}" for i in range(len(names), len(args)))]
    return [name for name, each in zip(texts, args, strict=False) if isinstance(each, Tensor)]


def _saver(function: Any) -> Any:
    """Return the method of a Function that has the argument `ctx` to save tensors."""
    inherited = function.setup_context is torch.autograd.Function.setup_context
    return function.forward if inherited else function.setup_context


def _code_of(function: Any) -> CodeType | None:
    function = inspect.unwrap(function) if callable(function) else None
    return getattr(function, "__code__", None)
