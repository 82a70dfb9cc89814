"""The seam of operators: a few, as PyTorch dispatches them, at no cost to all the others.

A `TorchDispatchMode` takes every operator of forward and backward through Python and doubles a step
that is small. Here only the watched operators take that way: a dispatch key that no device uses any
more is switched on for the thread, every operator falls through it, and the watched ones have a
kernel there. It lies above autograd and above all modes, so it sees the caller's own tensors
whatever is entered before or after, in the engine's threads too.

A watch of copies has no kernel where there is only the CPU, for nothing can be copied to
another: one that is called hundreds of times a step from inside others would cost a quarter of a
small step.

What stays after the last watch: that every operator falls through the key, registered once. The key
itself is switched off for the thread, and the kernels of the watched operators are taken away.
Where the last watch of a thread is left by another thread, which cannot reach the switch, or inside
a watched operator, whose guard would turn it back, the key stays on and passes everything until
the thread leaves its next watch.

Private: `torch._C._dispatch_tls_*` switch a key for one thread (2.13). `AutocastIPU` is the key:
its backend is gone from PyTorch, so nothing else registers there. Switched on it counts as autocast
for `torch._C._is_any_autocast_enabled`, which RNNs and the compiler ask (2.13): ours, which stands
there meanwhile, asks without the key. Higher-order operators have a list of keys that they fall
through, in `torch._ops` (2.13).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._guards import TracingContext
from torch.library import Library, fallthrough_kernel

from ..tensors.metadata import DEVICE_LABELS
from .watch import Installation

_NAME = "AutocastIPU"
_KEY = getattr(torch._C.DispatchKey, _NAME)
_libraries: dict[str, Library] = {}  # by operator

# Private (2.13).
sequence_number: Callable[[], int] = (
    torch._C._autograd._get_sequence_nr
)  # of this thread's next node


class Dispatched(NamedTuple):
    """An operator was dispatched: what went in, what came out."""

    operator: str  # "aten::_to_copy"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    start: int  # this thread's sequence number before and after: nodes made have start <= n < end
    end: int


def watch_devices() -> None:
    """A device beside the CPU has appeared: the open watches are to see what goes there."""
    _KERNELS.refresh()


def unseen() -> Any:
    """A context in which no operator is watched."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY))


def switch_back() -> None:
    """From here on this thread's operators are not watched, and its key is as without us."""
    _here.key.suspend()


def switch_on() -> None:
    """They are watched again, if anybody watches."""
    _here.key.refresh()


class OperatorWatch:
    """A context that tells of each watched operator of this thread.

    An operator that runs inside another one is told too, unless this watch is to be told of the
    outer one: each watch is told what it would be told alone. Exceptions pass unseen.

    Args:
        operators: their names ("aten::copy_"), and a test of arguments and result: is it told.
        dispatched: takes the event.
        everywhere: also where there is only the CPU.
    """

    def __init__(
        self,
        operators: Mapping[str, Callable[[Any, Any], bool]],
        dispatched: Callable[[Dispatched], object],
        *,
        everywhere: bool = False,
    ) -> None:
        self.operators = operators
        self.dispatched = dispatched
        self.everywhere = everywhere
        self._key, self._state = _here.key, _here.state

    def __enter__(self) -> OperatorWatch:
        _fall_through()
        self._key, self._state = _here.key, _here.state
        try:
            _KERNELS.add(self)
            self._key.add(self)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._key.discard(self)
            if not self._key.watchers:
                self._state.forget()
        finally:
            _KERNELS.discard(self)
            # An interrupt may have come just when one of its operators had run.
            _here.inside = tuple([watch for watch in _here.inside if watch is not self])


def _is_any_autocast_enabled() -> bool:
    with unseen():
        return _THEIRS()


_THEIRS: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _ask(asked: Callable[[], bool], before: Callable[[], bool]) -> None:
    """Let PyTorch ask this, where it asks the one before."""
    if torch._C._is_any_autocast_enabled is before:
        torch._C._is_any_autocast_enabled = asked


def _install_kernels() -> None:
    _ask(_is_any_autocast_enabled, _THEIRS)
    devices = DEVICE_LABELS or torch.accelerator.is_available() or "torch_xla" in sys.modules
    watches = [watch for watch in _KERNELS.watchers if devices or watch.everywhere]
    for name in {name: None for watch in watches for name in watch.operators}:
        if name not in _libraries:
            namespace, _, operator = name.partition("::")
            # First: an interrupt may come between the two.
            library = _libraries[name] = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            library.impl(  # type: ignore[no-untyped-call]
                operator, _kernel(name), _NAME, with_keyset=True
            )


def _remove_kernels() -> None:
    _ask(_THEIRS, _is_any_autocast_enabled)
    while _libraries:
        name = next(reversed(_libraries))
        _libraries[name]._destroy()  # type: ignore[no-untyped-call]
        del _libraries[name]


_KERNELS: Installation[OperatorWatch] = Installation(_install_kernels, _remove_kernels)


class _Key:
    """The key of one thread: on while somebody watches, but for where it is switched back.

    A backward gives its thread the keys of its begin back, so what the key is now tells nothing.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._before: tuple[bool, bool] | None = None  # included, excluded, until somebody watches

    def switch_on(self) -> None:
        if self._before is None:
            self._before = _state()
        if _state() != (True, False) and _state() != (True, True):  # inside a watched operator
            torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    def switch_back(self) -> None:
        """Not from another thread, nor inside a watched operator, whose guard would undo it."""
        if self._before is None or self._thread != threading.get_ident():
            return
        if _state() != (True, True):  # inside a watched operator both are
            # In this order, so that a Ctrl-C between any two of these lines looks like no operator.
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, self._before[0])
            torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, self._before[1])

    def forget(self) -> None:
        """Nobody watches any more."""
        if self._thread == threading.get_ident() and _state() == self._before:
            self._before = None


class _Here(threading.local):
    """What belongs to the thread that asks."""

    def __init__(self) -> None:
        self.state = state = _Key()
        self.key: Installation[OperatorWatch] = Installation(state.switch_on, state.switch_back)
        self.inside: tuple[OperatorWatch, ...] = ()  # whose operator is running


def _state() -> tuple[bool, bool]:
    """Is the key included, and is it excluded, in this thread."""
    return (
        torch._C._dispatch_tls_is_dispatch_key_included(_KEY),
        torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY),
    )


_here = _Here()


@cache
def _fall_through() -> Library:
    """Lets every operator pass the key. It stays: it takes 4 ms to register, and does nothing."""
    everything = Library("_", "IMPL")  # type: ignore[no-untyped-call]
    everything.fallback(fallthrough_kernel, _NAME)  # type: ignore[no-untyped-call]
    # `torch.cond` and its like ask a list in Python, those to come when they are made.
    higher_order: Any = torch._ops
    higher_order._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)
    for operator in tuple(higher_order._higher_order_ops.values()):
        operator.fallthrough(_KEY)
    return everything


def _kernel(watched: str) -> Callable[..., Any]:
    namespace, _, rest = watched.partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    this = torch._C.DispatchKeySet(_KEY)
    below = torch._C._dispatch_keyset_full_after(_KEY)
    exclude = torch._C._ExcludeDispatchKeyGuard
    name = operator._schema.name
    run = operator._op  # private: what the operator's __call__ calls (2.13)

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        # Most calls come from inside kernels, and are over before the first comparison.
        if args and type(args[0]) in _NUMBERS:
            with exclude(this):
                return _of_number(name, run, args, kwargs)
        inside, watchers = _here.inside, _KERNELS.watchers
        told = [w for w in watchers if watched in w.operators and w not in inside]
        start = sequence_number()
        try:
            now = _here.inside = (*inside, *told)
            if set(watchers).difference(now):  # who may watch what runs inside
                result = operator.redispatch(keys & below, *args, **kwargs)
            else:
                with exclude(this):
                    result = run(*args, **kwargs)
        finally:
            _here.inside = inside
        with exclude(this):
            for watch in told:
                if watch.operators[watched](args, result) and TracingContext.try_get() is None:
                    end = sequence_number()
                    watch.dispatched(Dispatched(name, args, kwargs, result, start, end))
        return result

    return kernel


_NUMBERS = frozenset((int, float, bool, complex))


def _of_number(name: str, run: Any, args: Any, kwargs: Any) -> Any:
    # A number that PyTorch made a tensor of, and Python a number again: it is inside a kernel,
    # where no mode sees it.
    if name == "aten::_local_scalar_dense":
        return args[0]
    if not torch._C._len_torch_dispatch_stack():
        return run(*args, **kwargs)
    with torch._C._DisableTorchDispatch():
        return run(*args, **kwargs)
