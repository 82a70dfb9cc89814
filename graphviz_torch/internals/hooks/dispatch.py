"""Watch a few operators as PyTorch dispatches them, at no cost to the others.

A `TorchDispatchMode` routes every operator of forward and backward through Python, which doubles
the time of a small step. Here only the watched operators run Python code. A dispatch key that no
device uses any more is enabled for the thread. The watched operators have a kernel for this key,
and all other operators fall through it. The key is above autograd and above all modes. The kernel
therefore sees the caller's own tensors, whichever modes are entered before or after, and also in
the engine's threads.

In a process with only a CPU, nothing can be copied between devices, so a watch on copies installs
no kernels. This saves time, because other operators call the copy operators hundreds of times in a
step: their kernels would take a quarter of a small step.

After the last watch closes, the fallthrough registration of the key remains. The key itself is
disabled for the thread, and the kernels are removed. If another thread closes the last watch, or if
it is closed inside a watched operator (whose guard would restore the key), the key stays enabled
without effect until the thread closes its next watch.

Uses private API (2.13): `torch._C._dispatch_tls_*` enable a key for one thread. The key is
`AutocastIPU`, whose backend was removed from PyTorch, so nothing else registers kernels for it. As
an autocast key it makes `torch._C._is_any_autocast_enabled` return True, which RNNs and the
compiler check; we replace that function by one that ignores the key. Higher-order operators have
their own list of fallthrough keys, in `torch._ops`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._guards import TracingContext
from torch.library import Library, fallthrough_kernel

from ...graph.immutable import NamedTuple
from ..tensors.metadata import DEVICE_LABELS
from .watch import Installation

_NAME = "AutocastIPU"
_KEY = getattr(torch._C.DispatchKey, _NAME)
_libraries: dict[str, Library] = {}  # by name of the operator

# The sequence number of this thread's next node; private (2.13).
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class Dispatched(NamedTuple):
    """A watched operator that has run, with its arguments and its result."""

    operator: str  # "aten::_to_copy"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    start: int  # the operator created the nodes with start <= sequence number < end
    end: int


def watch_devices() -> None:
    """Install the kernels of open `OperatorWatch`es, once another device than the CPU exists."""
    _KERNELS.refresh()


def unseen() -> Any:
    """Return a context manager in which `OperatorWatch`es report no operator."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY))


def disable_in_thread() -> None:
    """Stop watching operators in this thread, and restore the state of the dispatch key."""
    _thread_state.key.suspend()


def enable_in_thread() -> None:
    """Resume watching operators in this thread, if a watch is open."""
    _thread_state.key.refresh()


class OperatorWatch:
    """Context manager that reports each watched operator of this thread.

    An operator that runs inside another one is reported, unless this watch reports the outer one.
    Other watches do not change what a watch reports. An operator that raises is not reported.

    Args:
        operators: names of operators ("aten::copy_"), each with a predicate on (arguments, result)
            that selects the calls to report.
        on_dispatch: called with each event.
        everywhere: also install the kernels if the process has only a CPU.
    """

    def __init__(
        self,
        operators: Mapping[str, Callable[[Any, Any], bool]],
        on_dispatch: Callable[[Dispatched], object],
        *,
        everywhere: bool = False,
    ) -> None:
        self.operators = operators
        self.on_dispatch = on_dispatch
        self.everywhere = everywhere
        self._key, self._state = _thread_state.key, _thread_state.state

    def __enter__(self) -> OperatorWatch:
        with _REGISTERING:  # without the lock, two threads could register the fallthrough
            _fall_through()
        self._key, self._state = _thread_state.key, _thread_state.state
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
            # An interrupt just after an operator may have left this watch in the tuple.
            _thread_state.inside = tuple(
                [watch for watch in _thread_state.inside if watch is not self]
            )


def _is_any_autocast_enabled() -> bool:
    with unseen():
        return _ORIGINAL_CHECK()


_ORIGINAL_CHECK: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _replace_autocast_check(asked: Callable[[], bool], before: Callable[[], bool]) -> None:
    """Replace PyTorch's check whether autocast is on, unless other code has replaced it.

    Args:
        asked: the new check.
        before: the check that is replaced, if it is the current one.
    """
    if torch._C._is_any_autocast_enabled is before:
        torch._C._is_any_autocast_enabled = asked


def _install_kernels() -> None:
    _replace_autocast_check(_is_any_autocast_enabled, _ORIGINAL_CHECK)
    devices = DEVICE_LABELS or torch.accelerator.is_available() or "torch_xla" in sys.modules
    watches = [watch for watch in _KERNELS.watchers if devices or watch.everywhere]
    for name in {name: None for watch in watches for name in watch.operators}:
        if name not in _libraries:
            namespace, _, operator = name.partition("::")
            # The library is stored before a kernel is added, so that an interrupt leaves no kernel.
            library = _libraries[name] = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            library.impl(  # type: ignore[no-untyped-call]
                operator, _kernel(name), _NAME, with_keyset=True
            )


def _remove_kernels() -> None:
    _replace_autocast_check(_ORIGINAL_CHECK, _is_any_autocast_enabled)
    while _libraries:
        name = next(reversed(_libraries))
        _libraries[name]._destroy()  # type: ignore[no-untyped-call]
        del _libraries[name]


_KERNELS: Installation[OperatorWatch] = Installation(_install_kernels, _remove_kernels)


class _Key:
    """The dispatch key of one thread, enabled while the thread has an open watch.

    A backward restores the keys that its thread had at its start, so the current state of the key
    does not show whether a watch is open.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        # Whether the dispatch key was included, and excluded, before the first watch opened.
        self._before: tuple[bool, bool] | None = None

    def enable_in_thread(self) -> None:
        if self._before is None:
            self._before = _state()
        if _state() != (True, False) and _state() != (True, True):  # not inside a watched operator
            torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    def disable_in_thread(self) -> None:
        """Restore the state that the key had before the first watch opened.

        This does nothing in another thread. It also does nothing inside a watched operator, because
        the operator's guard would undo it.
        """
        if self._before is None or self._thread != threading.get_ident():
            return
        if _state() != (True, True):  # both are True inside a watched operator
            # In this order, because after an interrupt between the two lines, the state must not be
            # (True, True), as it is inside an operator.
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, self._before[0])
            torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, self._before[1])

    def forget(self) -> None:
        """Forget the state that the key had earlier, once no `OperatorWatch` is open."""
        if self._thread == threading.get_ident() and _state() == self._before:
            self._before = None


class _DispatchState(threading.local):
    """A thread's dispatch key and the operator watches whose operator is running."""

    def __init__(self) -> None:
        self.state = state = _Key()
        self.key: Installation[OperatorWatch] = Installation(
            state.enable_in_thread, state.disable_in_thread
        )
        self.inside: tuple[OperatorWatch, ...] = ()  # watches whose operator is running


def _state() -> tuple[bool, bool]:
    """Return (is included, is excluded): the state of the dispatch key in this thread."""
    return (
        torch._C._dispatch_tls_is_dispatch_key_included(_KEY),
        torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY),
    )


_thread_state = _DispatchState()
_REGISTERING = threading.Lock()


@cache
def _fall_through() -> Library:
    """Register a fallback: operators without a kernel for our dispatch key ignore the key.

    This is done once per process, in 4 ms.
    """
    everything = Library("_", "IMPL")  # type: ignore[no-untyped-call]
    everything.fallback(fallthrough_kernel, _NAME)  # type: ignore[no-untyped-call]
    # Higher-order operators such as `torch.cond` read this list when they are created.
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
    run = operator._op  # private: called by the operator's __call__ (2.13)

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        # Most calls have a number as first argument. They come from inside other kernels.
        if args and type(args[0]) in _NUMBERS:
            with exclude(this):
                return _run_on_number(name, run, args, kwargs)
        inside, watchers = _thread_state.inside, _KERNELS.watchers
        notified = [w for w in watchers if watched in w.operators and w not in inside]
        start = sequence_number()
        try:
            now = _thread_state.inside = (*inside, *notified)
            # Another watch may report operators that run inside this operator.
            if set(watchers).difference(now):
                result = operator.redispatch(keys & below, *args, **kwargs)
            else:
                with exclude(this):
                    result = run(*args, **kwargs)
        finally:
            _thread_state.inside = inside
        with exclude(this):
            for watch in notified:
                if watch.operators[watched](args, result) and TracingContext.try_get() is None:
                    end = sequence_number()
                    watch.on_dispatch(Dispatched(name, args, kwargs, result, start, end))
        return result

    return kernel


_NUMBERS = frozenset((int, float, bool, complex))


def _run_on_number(name: str, run: Any, args: Any, kwargs: Any) -> Any:
    # A kernel wraps a Python number in a tensor and reads it back; modes do not see such a read.
    if name == "aten::_local_scalar_dense":
        return args[0]
    if not torch._C._len_torch_dispatch_stack():
        return run(*args, **kwargs)
    with torch._C._DisableTorchDispatch():
        return run(*args, **kwargs)
