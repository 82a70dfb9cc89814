"""`simulate_accelerator`: devices for machines without a GPU, with real values and copies.

A tensor on a simulated device is a wrapper around a CPU tensor. Autograd sees the wrapper, whose
device is the simulated one, and every operator runs the CPU's kernel. Values and gradients are
therefore equal to those on the CPU. A copy between devices is a `ToCopyBackward0` node, and
operations on tensors of different devices fail as on a GPU.

In graphs, the devices are called "sim:0", "sim:1" and so on, or "sim cuda:0" if a program written
for CUDA uses them as "cuda:0". `devices.py` explains these names, and `patches.py` replaces
functions of `torch.cuda`.

Time, memory limits, streams and `torch.compile` are not simulated.

Some operators have special code for the CPU and CUDA, and run PyTorch's generic code on other
devices: `nn.LSTM` runs step by step, `nn.MultiheadAttention` computes attention without a fused
kernel, and `prod`, `mish` and `linalg.lstsq` have generic backwards. The results of these operators
are equal to those on the CPU up to rounding, all other results bit for bit.

Sparse and nested tensors stay on the CPU. Three operators fail because they take or return sparse
tensors: `sparse.mm` with a reduction, `sparse.sampled_addmm` and `to_sparse`.

In a recording, `tolist` is the operation "cpu". Three copies are not recorded: those of a whole
tensor that is printed or saved, and of a tensor that `torch.load` loads onto a simulated CUDA
device.

If CUDA is simulated, `torch.autocast("cuda")` casts as on a GPU; otherwise
`torch.autocast(device.type)` raises an error. Almost all calls of `torch.jit.trace` raise an error;
`torch.jit.script` works.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...internals.frames import WarningLines
from ...internals.hooks.dispatch import watch_devices
from ...internals.hooks.modes import FUNCTIONS, OPERATORS, Stack, enter_below, leave
from ...internals.hooks.watch import Installation
from .autocast import to_lower_precision
from .cuda import legacy_type
from .devices import (
    CPU,
    MAX_DEVICES,
    SimulatedBlock,
    cuda_block,
    is_place,
    place_of,
    register_block,
)
from .patches import PATCHES
from .tensor import SimulatedTensor, become, indices, run

_PINNED = "_simulated_pin"


@contextmanager
def simulate_accelerator(
    count: int = 1, *, name: Literal["sim", "cuda"] = "sim"
) -> Iterator[list[torch.device]]:
    """Yield simulated devices, for use in `.to(device)` on a machine without a GPU.

    The devices exist only in the thread that enters the `with` block. If another thread enters a
    block of its own, it gets the same devices. Blocks can be nested. After the block, tensors on
    the devices can still be used, but no tensor can be moved to the devices. A simulated device
    never reports a duration.

    Args:
        count: number of devices, 1 to 32.
        name: "sim" or "cuda". With "sim", a program uses the yielded devices, and graphs name them
            "sim:0" and so on. With "cuda", a program written for CUDA uses them as "cuda:0" and so
            on, `torch.cuda.is_available()` is True, and graphs name them "sim cuda:0".

    Raises:
        ValueError: if `count` or `name` is none of these values.
        RuntimeError: if `name` is "cuda" and the machine has a CUDA device.

    >>> with simulate_accelerator() as [device]:
    ...     x = torch.ones(2, requires_grad=True)
    ...     y = (x.to(device) * 3).sum()
    ...     y.backward()
    >>> print(y.grad_fn.next_functions[0][0].name(), x.grad)
    MulBackward0 tensor([3., 3.])

    >>> with simulate_accelerator(2, name="cuda"):  # doctest: +SKIP
    ...     print(torch.cuda.device_count(), torch.ones(2).cuda(1))
    2 tensor([1., 1.], device='cuda:1')
    """
    if not isinstance(count, int) or not 1 <= count <= MAX_DEVICES:
        raise ValueError(
            f"simulate_accelerator(count={count!r}): pass a number from 1 to {MAX_DEVICES}."
        )
    if name not in ("sim", "cuda"):
        raise ValueError(f'simulate_accelerator(name={name!r}): pass "sim" or "cuda".')
    if name == "cuda" and cuda_block() is None and torch.cuda.is_available():
        found = torch.cuda.device_count()
        raise RuntimeError(
            f"CUDA cannot be simulated on a machine with CUDA: this one has {found} CUDA "
            f"device{'s' * (found != 1)}. Run the program unchanged."
        )
    created, block = SimulatedBlock(name, count), object()
    blocks = _THREAD.simulation.blocks
    with register_block(created):
        watch_devices()
        try:
            PATCHES.add(created)
            blocks.add(block)
            created.mode = _THREAD.simulation.calls
            with WarningLines(*_OWN_FRAMES):
                yield list(created.devices)
        finally:
            blocks.discard(block)
            PATCHES.discard(created)


def simulating() -> bool:
    """Return True if this thread is inside a `simulate_accelerator()` block."""
    return bool(_THREAD.simulation.blocks.watchers)


def is_pinned(tensor: torch.Tensor) -> bool:
    """Return True if a CPU tensor was pinned inside a `simulate_accelerator()` block."""
    return getattr(tensor.untyped_storage(), _PINNED, False)


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    setattr(tensor.untyped_storage(), _PINNED, True)  # views share the storage
    return tensor


class _Simulation:
    """The torch modes that simulate devices in one thread while any of its blocks is open.

    These modes are below all other modes on PyTorch's stack. A mode of the user therefore sees the
    same calls and tensors, no matter if it was entered before or inside the block.
    """

    def __init__(self) -> None:
        self._modes: list[tuple[Any, Stack]] = []
        self.calls: Any = None  # the function mode
        self.blocks: Installation[object] = Installation(self._enter, self._leave)

    def _enter(self) -> None:
        if not self._modes:
            self.calls = _Construction()
            self._modes = [(_Placement(), OPERATORS), (self.calls, FUNCTIONS)]
            for mode, stack in self._modes:
                enter_below(mode, stack)

    def _leave(self) -> None:
        while self._modes:
            leave(*self._modes[-1])
            self._modes.pop()


class _ThreadState(threading.local):
    """The simulation of the current thread."""

    def __init__(self) -> None:
        self.simulation = _Simulation()


_THREAD = _ThreadState()


class _Placement(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which calls with `device=`, such as `torch.ones`, return simulated tensors.

    The mode also simulates pinned memory if the machine has no CUDA device.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # With a CUDA device, pinning is real.
        self.pins = cuda_block() is not None or not torch.cuda.is_available()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        place = place_of(device)  # `device` may be "cuda" in PyTorch's own Python code
        if is_place(place):
            return run(func, args, kwargs if place is device else {**kwargs, "device": place})
        if self.pins:
            if func is torch.ops.aten.is_pinned.default:
                return is_pinned(args[0])
            if func is torch.ops.aten._pin_memory.default and args[0].device == CPU:
                return _pin(args[0].clone())
            if kwargs.get("pin_memory"):
                return _pin(func(*args, **{**kwargs, "pin_memory": False}))
        # No mode is below this one, so the operator is run directly. PyTorch's dispatch to
        # SimulatedTensor would first import torch.distributed.tensor, which takes half a second
        # (PyTorch 2.13). Only a detach is dispatched, because a recording recognizes `Variable(x)`
        # by its detach.
        direct = func is not torch.ops.aten.detach.default
        if direct and types and all(kind is SimulatedTensor for kind in types):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


# PyTorch wraps the `__torch_dispatch__` of a mode, to exclude this method from compilation. The
# wrapper imports the compiler, which takes a second, but is needed only if the compiler has already
# been imported.
_excluded_from_compile = _Placement.__torch_dispatch__
_unwrapped = getattr(_excluded_from_compile, "__wrapped__", _excluded_from_compile)


def _dispatch(mode: _Placement, *given: Any) -> Any:
    return (_excluded_from_compile if "torch._dynamo" in sys.modules else _unwrapped)(mode, *given)


_Placement.__torch_dispatch__ = _dispatch  # type: ignore[assignment]


class _Construction(TorchFunctionMode):
    """A mode for calls that do not reach PyTorch's dispatcher, such as `torch.tensor(list)`."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if cuda_block() is not None:
            if func is torch.device:
                return (
                    func("cuda", *args) if args and type(args[0]) is int else func(*args, **kwargs)
                )
            func, args, kwargs = _with_places(func, args, kwargs)
        if func in _FROM_DATA:
            return _from_data(func, args, kwargs)
        if func is torch._has_compatible_shallow_copy_type:
            # nn.Module.to calls this function to decide whether to set `param.data` or to create a
            # new parameter.
            if len({isinstance(tensor, SimulatedTensor) for tensor in args}) == 2:
                return True
        elif func is scaled_dot_product_attention and isinstance(args[0], SimulatedTensor):
            return _attention(*args, **kwargs)
        elif func == _SET_DATA and isinstance(args[1], SimulatedTensor):
            return become(*args)
        elif func in _INDEXING and isinstance(args[0], SimulatedTensor):
            args = (args[0], indices(args[1]), *args[2:])
        elif func is torch.unravel_index and isinstance(args[0], SimulatedTensor):
            with self:  # `_unravel_index` creates tensors from Python data
                return torch.functional._unravel_index(*args, **kwargs).unbind(-1)
        return func(*args, **kwargs)


# Functions whose frames are skipped to find the line of user code that a warning names.
_OWN_FRAMES: tuple[Any, ...] = (
    _Construction.__torch_function__,
    _Placement.__torch_dispatch__,
    SimulatedTensor.__torch_dispatch__,
)
_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


_TO, _CUDA, _TYPE = torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.type


def _with_places(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the call after replacing CUDA devices with places (see `devices.py`)."""
    if func is _CUDA:
        names = ("device", "non_blocking", "memory_format")
        given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        device = given.pop("device", None)
        return _TO, (args[0], place_of("cuda" if device is None else device)), given
    if func is _TO and len(args) > 1:
        args = (args[0], place_of(args[1]), *args[2:])
    elif func is _TYPE:
        dtype = legacy_type(args[1] if len(args) > 1 else kwargs.get("dtype"))
        if dtype is not None:
            return _TO, (args[0], place_of("cuda"), dtype), {}
    elif func is torch._C._nn._parse_to:  # the program may read the device from the result
        return func, args, kwargs
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": place_of(kwargs["device"])}
    return func, args, kwargs


def _from_data(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    device = kwargs.get("device")
    if device is None and source is not None:
        device = source.device
    device = torch.get_default_device() if device is None else torch.device(device)
    device = place_of(device)
    if not is_place(device) or (source is not None and func is not torch.Tensor.new_tensor):
        return func(*args, **kwargs)
    gradient = kwargs.pop("requires_grad", False)
    if func is torch.Tensor.new_tensor:
        func, args = torch.tensor, args[1:]
        kwargs.setdefault("dtype", source.dtype if source is not None else None)
    made = func(*args, **{**kwargs, "device": CPU}).to(device)
    return made.requires_grad_() if gradient else made


def _attention(
    q: SimulatedTensor,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute attention with the CPU's fused kernel if it applies, else without a fused kernel.

    PyTorch chooses the kernel by device type before it dispatches the call, and would choose no
    fused kernel for a simulated device.
    """
    if cuda_block() is not None and torch.is_autocast_enabled("cuda"):
        q, k, v, attn_mask = to_lower_precision(q, k, v, attn_mask)
    parts = (k, v) if attn_mask is None else (k, v, attn_mask)
    if q.dim() == 4 and not enable_gqa and all(isinstance(t, SimulatedTensor) for t in parts):
        mask = attn_mask
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        # Private API of PyTorch 2.11 to 2.14: the choice of the kernel, and the kernel itself.
        host_mask = None if mask is None else mask.host
        choice = torch._fused_sdp_choice(
            q.host, k.host, v.host, host_mask, dropout_p, is_causal, scale=scale
        )
        if choice == SDPBackend.FLASH_ATTENTION.value:
            fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            return fused(q, k, v, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]
    return scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
