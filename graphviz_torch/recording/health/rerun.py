"""Find the operation that made a loss or gradient NaN or Inf, before the optimizer steps.

If the loss is non-finite, the saved tensors of the graph show the first operation with a non-finite
result. If a gradient is non-finite, the model runs again in a recording, which finds the operation
and its source line. The model gets the arguments of its last call, and its results get the
gradients that they received. The second run has to precede the optimizer's step, because the step
makes the weights non-finite. If steps are too short to keep the gradients of the results, gradients
of 1 are used, and the report says so.

The arguments of a step's calls are kept until the step ends. After the second run, random states,
buffers and module attributes are restored. Text that the second run prints, and logs of a
`training_step`, are dropped. Other side effects of the forward are not undone, and hooks of the
model's modules run again.

The calls of the model are observed by replacing `__call__` of the model's class. A hook on the
module itself would be copied and saved together with the module, and global module hooks would slow
down the calls of all modules. A class is neither copied nor saved. Traced and compiled calls are
not observed. In a Lightning module, `training_step` is observed as well, because it contains
forward and loss. It is not observed with manual optimization, because such a step cannot be
repeated.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import partial, wraps
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Module

from ...findings.check import find
from ...graph.immutable import mutable
from ...graph.text import listing
from ...internals.exceptions import ignore_exceptions
from ...internals.frames import hide_frame
from ...internals.functions import TensorBase
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.engine import EngineCalled
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.modules import RaisedRecursionLimit
from ...internals.hooks.watch import Replacement, Row, Watch
from ...internals.replay.sandbox import Sandbox
from ...internals.tensors.memory import elements, has_memory
from ...internals.tensors.pytree import flatten, tensors
from ...tracing.tracer import collect_nodes
from ..events.nonfinite import take_snapshot
from ..recording import record
from .checks import line_of

_MAX_CALLS = 4  # number of calls that are kept for a second run
_MAX_NBYTES = 1 << 26  # a call with larger arguments is not run again
_RULES = ("nonfinite-value", "nonfinite-gradient")


@mutable(eq=False)
class _Call:
    """A call of the model that can be repeated."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[tuple[Tensor, int]]  # tensors among the arguments, with their versions
    random: dict[str, Tensor]  # states of the random generators, by device
    autocast: tuple[str, torch.dtype] | None
    first: int  # the call created nodes with first <= sequence number < last
    last: int = 0
    gradients: dict[int, Tensor] = field(default_factory=dict)  # index of a result -> its gradient
    handles: list[Any] = field(default_factory=list)  # hooks that collect these gradients

    def release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.gradients.clear()

    def has_same_arguments(self) -> bool:
        return all(tensor._version == version for tensor, version in self.versions)


class NonfiniteRerun:
    """The latest calls of a model, which run again if a loss or gradient is non-finite.

    Args:
        model: the trained model.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._calls: list[_Call] = []
        self._open = False  # True during a recorded `training_step`
        self._ran = False  # True if a backward ran since the last kept call
        self._kind = next((p.device.type for p in model.parameters()), "cpu")
        self._autocasts = self._kind in ("cpu", "cuda")
        self.running = False
        self.holds_gradients = True  # False if steps are too short to keep gradients of results
        self.model_calls = ModelCalls(model, self._on_call_start, self._on_call_end)

    def release(self) -> None:
        """Drop the kept calls."""
        for call in self._calls:
            if call.handles:
                call.release()
        self._calls.clear()

    def loss(self, event: EngineCalled) -> tuple[bool, str] | None:
        """Check the loss when backward begins.

        A loss is not read if that would wait for a device.

        Returns:
            None if the loss is finite or was not read. Otherwise a pair: True for NaN or False for
            Inf, and the reason, which is "" if unknown.
        """
        self._ran = True
        with unseen_calls():
            values = [value for output in event.outputs for value in _number(output)]
        if all(map(math.isfinite, values)):
            return None
        text = ""
        with ignore_exceptions():
            text = self._first_operation(event)
        return any(map(math.isnan, values)), text

    def gradient(self) -> str:
        """Return why a gradient is NaN or Inf; "" if unknown. Call this before the step."""
        with ignore_exceptions():
            for call in self._calls:
                if text := self._nonfinite_argument(call) or self._rerun(call):
                    return text
        return ""

    def _first_operation(self, event: EngineCalled) -> str:
        """Return a sentence about the operation that made the loss NaN or Inf; "" if unknown.

        The operation is found in the graph's saved tensors. If it is inside the model, the model
        runs again to find the source line.
        """
        fns = [o.grad_fn for o in event.outputs if isinstance(o, Tensor) and o.grad_fn is not None]
        ids, _ = collect_nodes(fns)
        found = take_snapshot(ids, event.outputs, [])
        origin = None if found is None else found.origin()
        for call in self._calls:
            if text := self._nonfinite_argument(call):
                return text
            inside = origin is not None and call.first <= origin.number < call.last
            if inside and (text := self._rerun(call)):
                return text
        if origin is None:
            return ""
        reason = f": {origin.reason}" if origin.reason else ""
        where = "" if self._is_inside_model(origin.number) else " after the model"
        at = line_of(event.frame).removeprefix(" at ")
        made = f"{origin.operation}{where}, before backward at {at}, made the first NaN or Inf"
        return f"{made}{reason}."

    def _is_inside_model(self, number: int) -> bool:
        return not self._calls or any(c.first <= number < c.last for c in self._calls)

    def _nonfinite_argument(self, call: _Call) -> str:
        """Return a description of a non-finite argument of the model; "" if there is none."""
        name = "forward" if call.method == "__call__" else call.method
        signature = inspect.signature(getattr(self._model, name))
        given = signature.bind(*call.args, **call.kwargs).arguments
        with unseen_calls():
            named = flatten(dict(given))
        for name, tensor in named:
            for values in elements(tensor).tensors if tensor.dtype.is_floating_point else ():
                nan, inf = torch.isnan(values), torch.isposinf(values)
                counts = [int(TensorBase.item(torch.sum(each))) for each in (nan, inf)]
                said = [f"{n} {kind}" for n, kind in zip(counts, ("NaN", "Inf"), strict=True) if n]
                if said:
                    rows = (
                        torch.any(torch.flatten(nan | inf, 1), 1)
                        if TensorBase.dim(values) > 1
                        else nan | inf
                    )
                    places = map(str, TensorBase.tolist(torch.flatten(torch.nonzero(rows)))[:4])
                    where = f" in row {listing(places)}" if TensorBase.dim(values) else ""
                    what = f"{_name(name)} contains {' and '.join(said)}{where}"
                    return f"The model's input is not finite: {what}."
        return ""

    def _rerun(self, call: _Call) -> str:
        """Run a model call again in a recording, and return the first finding about NaN or Inf.

        The result is the finding's message; "" if there is none.
        """
        if not call.has_same_arguments():
            return ""
        self.running = True
        try:
            recording = record(self._model, notes=False, transfers=False)
            world = Sandbox(self._model)
            with world.restore_on_exit(), _call_context(call), torch.enable_grad(), recording:
                result = self._repeat_call(call, world)
                outputs = _outputs(result)
                known = [call.gradients.get(i) for i in range(len(outputs))]
                if not any(g is not None for g in known):
                    known = [torch.ones_like(output) for output in outputs]
                pairs = [(o, g) for o, g in zip(outputs, known, strict=True) if g is not None]
                wanted = [p for p in self._model.parameters() if p.requires_grad]
                torch.autograd.grad(
                    [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
                )
        finally:
            self.running = False
        found = [each for each in find(recording) if each.rule in _RULES]
        if found and found[0].rule == "nonfinite-gradient" and not call.gradients:
            return f"With gradients of 1 for the model's results, {found[0].message}"
        return found[0].message if found else ""

    def _repeat_call(self, call: _Call, world: Sandbox) -> Any:
        if call.method == "__call__":
            return self._model(*call.args, **call.kwargs)
        for module in self._model.modules():  # protects attributes such as the sums of metrics
            for value in vars(module).values():
                if isinstance(value, Tensor):
                    world.protect(value)
        silent = {name: _logs_nothing for name in ("log", "log_dict") if hasattr(self._model, name)}
        vars(self._model).update(silent)
        return getattr(self._model, call.method)(*call.args, **call.kwargs)

    def _on_call_start(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call | None:
        if self.running:
            return None
        try:
            if method != "__call__":
                self._open = False  # the last `training_step` may have raised
                if not _can_be_repeated(args, kwargs):
                    return None
            if self._open or not torch.is_grad_enabled():
                return None
            if self._ran or len(self._calls) >= _MAX_CALLS:
                self.release()
                self._ran = False
            call = self._make_call(method, args, kwargs)
        except Exception:  # a tensor cannot be read
            return None
        self._open = call is not None and method != "__call__"
        return call

    def _make_call(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call | None:
        with unseen_calls():
            plain = not kwargs and {*map(type, args)} == {Tensor}
            given = args if plain else tensors(args, kwargs)
            if sum([t.nbytes for t in given]) > _MAX_NBYTES:
                return None
            versions = [(t, t._version) for t in given if not TensorBase.is_inference(t)]
        states = {"cpu": torch.default_generator.get_state()}
        if self._kind == "cuda" and not torch.cuda.is_current_stream_capturing():
            states["cuda"] = torch.cuda.get_rng_state()
        autocast = None
        if self._autocasts and torch.is_autocast_enabled(self._kind):
            autocast = self._kind, torch.get_autocast_dtype(self._kind)
        return _Call(method, args, kwargs, versions, states, autocast, sequence_number())

    def _on_call_end(self, call: _Call | None, result: Any) -> None:
        if call is None:
            return
        self._open = self._open and call.method == "__call__"
        call.last = sequence_number()
        if not self.holds_gradients:
            self._calls.append(call)
            return
        with ignore_exceptions(), unseen_calls():
            outputs = _outputs(result)
            if sum([t.nbytes for t in outputs]) <= _MAX_NBYTES:
                for i, output in enumerate(outputs):
                    take = partial(_take, call.gradients, i, output.output_nr)
                    call.handles.append(output.grad_fn.register_prehook(take))
        self._calls.append(call)


def _can_be_repeated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a call of `training_step` with these arguments can run again.

    It cannot run again if there are other ranks, or if an argument is an iterator, from which it
    would read the next batch.
    """
    alone = not (dist.is_available() and dist.is_initialized())
    return alone and not any(isinstance(a, Iterator) for a in (*args, *kwargs.values()))


def _logs_nothing(*_: Any, **__: Any) -> None:
    """Log nothing. In a second run, this function replaces the model's logging methods."""


def _take(
    gradients: dict[int, Tensor], i: int, output_nr: int, given: tuple[Tensor | None, ...]
) -> None:
    gradient = given[output_nr]
    if gradient is not None:
        gradients[i] = gradient


def _outputs(result: Any) -> list[Any]:
    found = [result] if isinstance(result, Tensor) else tensors(result)
    return [tensor for tensor in found if tensor.grad_fn is not None]


def _number(output: Any) -> list[float]:
    """Return the value of a loss in a list.

    Return [] if reading the value would wait for a device, or if the loss has no memory, as in
    `torch.func.vmap`.
    """
    if not isinstance(output, Tensor) or TensorBase.numel(output) != 1 or output.dtype.is_complex:
        return []
    parts = [output] if type(output) is Tensor else elements(output).tensors
    return [TensorBase.item(each) for each in parts if each.is_cpu and has_memory(each)]


def _name(path: str) -> str:
    """Return an argument's path without its first brackets, such as "x" for "['x']"."""
    return path.replace("['", "", 1).replace("']", "", 1)


@contextmanager
def _call_context(call: _Call) -> Iterator[None]:
    """Restore the random states and autocast of a call."""
    autocast = torch.autocast(call.autocast[0] if call.autocast else "cpu", enabled=False)
    if call.autocast is not None:
        autocast = torch.autocast(call.autocast[0], dtype=call.autocast[1])
    torch.default_generator.set_state(call.random["cpu"])
    if "cuda" in call.random:
        torch.cuda.set_rng_state(call.random["cuda"])
    with autocast:
        yield


# Callback before a call. It takes the method's name, args and kwargs, and returns any value.
Began = Callable[[str, tuple[Any, ...], dict[str, Any]], object]
# Callback after a call. It takes the value that `Began` returned, and the result of the call.
Ended = Callable[[Any, Any], None]


class ModelCalls(Watch):
    """An observer of one module's calls in the thread that calls `open`, until `close()`.

    Args:
        model: the module.
        began: called before each call.
        ended: called after each call that returned.
    """

    def __init__(self, model: torch.nn.Module, began: Began, ended: Ended) -> None:
        self.model, self.began, self.ended = model, began, ended

    def open(self) -> None:
        """Replace methods of the module's class, to observe calls from this thread."""
        if isinstance(self.model, torch.jit.ScriptModule):
            return
        kind = type(self.model)
        _RECURSION_LIMIT.open()
        self.installation = _CLASSES.setdefault(kind, Replacement(lambda: _rows(kind)))
        super().open()

    def close(self) -> None:
        """Stop observing. The class is restored if no other module of the class is observed."""
        kind = type(self.model)
        if kind in _CLASSES:
            _CLASSES[kind].discard(self)
            if not _CLASSES[kind].watchers:
                del _CLASSES[kind]
        if not _CLASSES:
            _RECURSION_LIMIT.close()


_CLASSES: dict[type, Replacement[ModelCalls]] = {}  # by class of the observed modules
# Observed calls need one more frame.
_RECURSION_LIMIT = RaisedRecursionLimit()


def _methods(model: Any) -> tuple[str, ...]:
    whole = getattr(model, "automatic_optimization", None) is True and hasattr(
        type(model), "training_step"
    )
    return ("__call__", "training_step") if whole else ("__call__",)


def _rows(kind: Any) -> Iterator[Row]:
    for name in {name for watch in _CLASSES[kind].watchers for name in _methods(watch.model)}:
        yield kind, name, partial(_wrap, kind, name, name not in vars(kind))


def _wrap(
    kind: Any, name: str, inherited: bool, original: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = getattr(super(kind, self), name) if inherited else partial(original, self)
        if is_compiling():
            return call(*args, **kwargs)
        for watch in _CLASSES[kind].watchers if kind in _CLASSES else ():
            if watch.model is self and watch.thread == get_ident():
                break
        else:
            return call(*args, **kwargs)
        given = watch.began(name, args, kwargs)
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        watch.ended(given, result)
        return result

    return method
