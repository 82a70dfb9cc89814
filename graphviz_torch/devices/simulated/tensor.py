"""`SimulatedTensor`: a tensor on a simulated device, whose values are in a CPU tensor."""

from __future__ import annotations

import copy
import re
from functools import cache
from numbers import Integral
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

# Private API of PyTorch 2.11 to 2.14, which hides a simulated tensor's operations from other modes.
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ...graph.immutable import NamedTuple
from .devices import CPU, count, error_name, is_place, program_device

LOCATION = "_simulated_location"  # attribute of a storage: its device in the file

AUTOCAST = "AutocastCUDA"  # the dispatch key that autocast.py implements
_AUTOCAST_KEYS = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, AUTOCAST))
_OWN_ATTRIBUTES = ("host", "place")
# Operators that accept tensors on different devices, as they do for GPUs.
_CROSS_DEVICE = {"copy_", "copy", "_to_copy", "_foreach_copy_", "_pack_padded_sequence"}
# Operators that raise an error for a 0-dim CPU tensor together with tensors on a device.
_SAME_DEVICE = {"cat", "stack"}
# Operators that accept indices on the CPU for a tensor on any device.
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class SimulatedTensor(torch.Tensor):
    """A tensor on a simulated device: a wrapper around a CPU tensor, without memory of its own."""

    host: torch.Tensor  # the CPU tensor with the values
    place: torch.device  # the device that PyTorch's C++ code sees

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: torch.Tensor, place: torch.device) -> SimulatedTensor:
        # Autograd of PyTorch 2.13 crashes when it reads the layout of a wrapper that is not
        # strided.
        if host.layout != torch.strided or host.is_nested:
            raise NotImplementedError(
                f"A simulated device can only have dense tensors, and this tensor is {host.layout}"
                f"{' and nested' if host.is_nested else ''}. Keep it on the CPU."
            )
        wrapper: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=place,
            _extra_dispatch_keys=_AUTOCAST_KEYS,
        )
        if host.is_conj():
            torch._C._set_conj(wrapper, True)
        if host.is_neg():
            torch._C._set_neg(wrapper, True)
        wrapper.host, wrapper.place = host, place
        count(host.untyped_storage(), place)
        return wrapper

    def __init__(self, host: torch.Tensor, place: torch.device) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {})

    # Without these overrides, PyTorch would return properties of the wrapper, which has no memory.

    @property
    def data(self) -> torch.Tensor:
        """A tensor with the same values outside of the graph, like `Tensor.data`."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if isinstance(value, SimulatedTensor) and value.place == self.place:
            torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
            self.host = value.host
        else:
            become(self, value)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the program uses."""
        return program_device(self.place)

    def get_device(self) -> int:
        """Return the index of the device."""
        return int(self.device.index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True if the device is a simulated CUDA device."""
        return self.device.type == "cuda"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """False, because the tensor has values."""
        return False

    def type(self, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the name of the legacy tensor type, or the tensor converted to another type."""
        if dtype is None:
            name = self.host.type()
            return name.replace("torch.", "torch.cuda.") if self.is_cuda else name
        return super().type(dtype, *args, **kwargs)

    def inner_tensors(self) -> list[torch.Tensor]:
        """Return the CPU tensor, whose memory `internals/tensors/memory.py` counts."""
        return [self.host]

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the CPU tensor's storage, which views share."""
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        """Return the address of the first value in CPU memory."""
        return self.host.data_ptr()

    def record_stream(self, stream: Any) -> None:
        """Return at once, because operators on a simulated device run in order."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(indices(index), value)

    def tolist(self) -> Any:
        """Return the values as Python numbers, copied to the CPU."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return a NumPy array if `force` is True; otherwise raise TypeError, as on a GPU."""
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        raise TypeError(
            f"can't convert {error_name(self.place)} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with _disable_current_modes():
            text = repr(self.host.detach())
        suffix = f", device='{error_name(self.place)}'"
        text = re.sub(
            r"((?:, (?:dtype|size)=[^,]*?(?:\([^)]*\)|\[[^]]*\])?)*\))$", suffix + r"\1", text
        )
        if self.grad_fn is not None:
            text = f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"
        elif self.requires_grad:
            text = f"{text[:-1]}, requires_grad=True)"
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    def __copy__(self) -> torch.Tensor:
        new = self.detach()
        attributes = {k: v for k, v in self.__dict__.items() if k not in _OWN_ATTRIBUTES}
        new.__dict__.update(attributes)
        return new.requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support deepcopy: "
                f"this one is the result of {type(self.grad_fn).__name__}. Detach it first."
            )
        new = SimulatedTensor(copy.deepcopy(self.host, memo), self.place)
        new.__dict__.update(
            {
                name: copy.deepcopy(v, memo)
                for name, v in self.__dict__.items()
                if name not in _OWN_ATTRIBUTES
            }
        )
        new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the CPU tensor and, for a simulated CUDA tensor, the device."""
        host: Any = self.host.detach()
        if self.is_cuda:
            setattr(host.untyped_storage(), LOCATION, str(self.device))
        if isinstance(self, torch.nn.Parameter):
            host = torch.nn.Parameter(host, self.requires_grad)
        else:
            host.requires_grad_(self.requires_grad)
        return host.__reduce_ex__(protocol)


def indices(index: Any) -> Any:
    """Turn lists in an index into CPU tensors, which torch would create on the device."""
    if isinstance(index, tuple):
        return tuple(map(indices, index))
    if isinstance(index, (list, range)):
        index = list(index)
        if all(isinstance(i, Integral) for i in tree_leaves(index)):
            return torch.tensor(index, dtype=None if index else torch.int64)
    return torch.from_numpy(index) if type(index).__name__ == "ndarray" else index


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator with CPU tensors instead of simulated tensors, and wrap the results.

    Args:
        func: the operator, an overload such as `torch.ops.aten.add.Tensor`.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        RuntimeError: if the tensors are on different devices.
    """
    name, mutable = _signature(func)
    operands = _Operands([], [])
    host_args = [operands.unwrap(arg) for arg in args]
    host_kwargs = {key: operands.unwrap(value) for key, value in kwargs.items()}
    foreach = name.startswith("_foreach_")
    if foreach and name not in _CROSS_DEVICE:
        for row in zip(*(arg for arg in args if isinstance(arg, (list, tuple))), strict=False):
            _Operands.from_arguments(row).check(name)
    elif name in _INDEXING:
        on_devices = [index for index in args[1] if index is not None and index.device != CPU]
        _Operands.from_arguments((args[0], on_devices, *args[2:])).check(name)
    elif name not in _CROSS_DEVICE:
        written = args[0] if mutable and name.endswith("_") else None
        operands.check(name, written)
    device = kwargs.get("device")
    if device is None:
        to = args[0] if name == "copy_" else operands.wrappers[0]
        device = _place(to)
    elif is_place(device):
        host_kwargs["device"] = CPU
        host_kwargs.pop("pin_memory", None)
    if name == "histc" and not host_args[0].is_floating_point():  # no CPU kernel for integers
        out = func(host_args[0].double(), *host_args[1:], **host_kwargs).to(host_args[0].dtype)
    else:
        out = func(*host_args, **host_kwargs)
    if mutable:
        for wrapper in operands.wrappers:
            _follow(wrapper)
    if name == "_pack_padded_sequence":  # batch sizes stay on the CPU
        return operands.wrap(out[0], device), out[1]
    if foreach and isinstance(out, (list, tuple)):
        return [operands.wrap(host, _place(like)) for host, like in zip(out, args[0], strict=True)]
    return operands.wrap(out, device)


def _place(tensor: torch.Tensor) -> torch.device:
    """Return the device of a tensor that PyTorch's C++ code sees."""
    return tensor.place if isinstance(tensor, SimulatedTensor) else tensor.device


@cache
def _signature(func: Any) -> tuple[str, bool]:
    """Return (operator's name without namespace, True if the operator writes to an argument)."""
    return func._schema.name.split("::")[1], func._schema.is_mutable


class _Operands(NamedTuple):
    """The tensors in an operator's arguments, simulated or not."""

    wrappers: list[SimulatedTensor]
    plain: list[torch.Tensor]

    @classmethod
    def from_arguments(cls, arguments: Any) -> _Operands:
        operands = cls([], [])
        operands.unwrap(arguments)
        return operands

    def unwrap(self, argument: Any) -> Any:
        """Replace simulated tensors in an argument, also in lists, with their CPU tensors."""
        if isinstance(argument, SimulatedTensor):
            self.wrappers.append(argument)
            return argument.host
        if isinstance(argument, torch.Tensor):
            self.plain.append(argument)
        elif type(argument) in (list, tuple):
            return type(argument)(map(self.unwrap, argument))
        return argument

    def wrap(self, out: Any, device: torch.device) -> Any:
        """Wrap CPU results as simulated tensors. A tensor changed in place keeps its wrapper."""
        if isinstance(out, torch.Tensor):
            for wrapper in self.wrappers:
                if wrapper.host is out:
                    return wrapper
            return SimulatedTensor(out, device) if is_place(device) else out
        if isinstance(out, (list, tuple)):
            return type(out)([self.wrap(part, device) for part in out])
        return out

    def check(self, name: str, written: Any = None) -> None:
        """Raise RuntimeError, as PyTorch does, if the tensors are on different devices.

        Args:
            name: the operator's name.
            written: the tensor that the operator changes in place, or None.
        """
        if not self.wrappers:
            return
        first = self.wrappers[0].place
        odd: torch.Tensor | None = next((t for t in self.wrappers if t.place != first), None)
        for other in self.plain if odd is None else ():
            if other.dim() or other.device != CPU or other is written or name in _SAME_DEVICE:
                odd = other
        if odd is None:
            return
        message = (
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{error_name(first)} and {error_name(odd.device)}! (when running aten::{name})"
        )
        if odd.device.type == "meta" and not isinstance(odd, SimulatedTensor):
            message += (
                " The second one is a meta tensor without values. Was it moved outside "
                "simulate_accelerator()? The simulation is active in one thread and one `with` "
                "block; enter simulate_accelerator() where the tensor is moved, too."
            )
        raise RuntimeError(message)


def _follow(wrapper: SimulatedTensor) -> None:
    """Update the wrapper's shape after `resize_`, `t_` or `out=` has changed its CPU tensor."""
    host = wrapper.host
    if wrapper.shape == host.shape and wrapper.stride() == host.stride():
        return
    # Private API of PyTorch 2.11 to 2.14, which changes the wrapper itself, without dispatch.
    with torch.utils._mode_utils.no_dispatch():
        storage = torch.Tensor.untyped_storage(wrapper)
        wrapper.set_(storage, host.storage_offset(), host.size(), host.stride())


def become(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Set the values and device of `tensor` to those of `value`, and keep the Python object.

    This implements `tensor.data = value`. `nn.Module.to` uses it for parameters, so that an
    optimizer still refers to the moved parameters.
    """
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only a leaf can be moved to another device by `tensor.data = value`: detach the "
            "tensor first."
        )
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        raise NotImplementedError(
            "This lazy module has no parameters yet: call it once before you move it to a "
            "simulated device."
        )
    gradient, needed = tensor.grad, tensor.requires_grad
    new = value.detach()
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, needed)
    new.requires_grad_(needed)
    for name, mark in tensor.__dict__.items():
        if name not in _OWN_ATTRIBUTES:
            setattr(new, name, mark)
    if gradient is not None:
        # This copy is not recorded, because `nn.Module.to` copies the gradient again, which is
        # recorded.
        host = gradient.host if isinstance(gradient, SimulatedTensor) else gradient
        with _disable_current_modes():
            host = host.to(new.dtype, copy=True)
            place = _place(new)
            new.grad = SimulatedTensor(host, place) if is_place(place) else host
    if needed:
        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_refuse)
    tensor.__class__, new.__class__ = new.__class__, tensor.__class__
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    # Private API of PyTorch 2.11 to 2.14: `torch.utils.swap_tensors` without its check for weak
    # references.
    torch._C._swap_tensor_impl(tensor, new)


def _refuse(gradients: Any) -> None:
    raise RuntimeError(
        "A parameter was moved to another device between forward and backward. "
        "Move the module before the forward, or after the backward."
    )
