"""A tensor on a simulated device: what it holds, how operators run on it, how it moves."""

from __future__ import annotations

import copy
import re
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

# Private: leaves the modes that watch out of what a simulated tensor does inside (2.11 to 2.14).
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from .device_names import CPU, error_name, is_place, program_device
from .memory import count

LOCATION = "_simulated_location"  # of a storage that is saved or loaded: its device in the file

AUTOCAST = "AutocastCUDA"  # the dispatch key whose kernels autocast.py has
_AUTOCAST_KEYS = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, AUTOCAST))
_OWN = ("host", "place")  # attributes of a simulated tensor
# Operators that take tensors of several devices on a GPU too.
_CROSSES = {"copy_", "copy", "_to_copy", "_foreach_copy_", "_pack_padded_sequence"}
# Operators that take no number from the CPU beside tensors of a device.
_STRICT = {"cat", "stack"}
# Operators whose indices may be on the CPU, whatever the device of the tensor.
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class SimulatedTensor(torch.Tensor):
    """A tensor on a simulated device: a wrapper without memory around the CPU tensor it stands for.

    `host` is that CPU tensor, and `place` the device that PyTorch's C++ sees.
    """

    host: torch.Tensor
    place: torch.device

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: torch.Tensor, place: torch.device) -> SimulatedTensor:
        # A wrapper of another layout ends the process when autograd asks for that layout (2.13).
        if host.layout != torch.strided or host.is_nested:
            raise NotImplementedError(
                f"A simulated device holds dense tensors only, and this one is {host.layout}"
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

    # What a wrapper would answer for its own, empty memory.

    @property
    def data(self) -> torch.Tensor:
        """The same values without the graph, as `Tensor.data`."""
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
        """The device as the program names it."""
        return program_device(self.place)

    def get_device(self) -> int:
        """Return the index of the device."""
        return int(self.device.index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True where CUDA is simulated."""
        return self.device.type == "cuda"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """False: it has values."""
        return False

    def type(self, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the name of the legacy tensor type, or a tensor of another one."""
        if dtype is None:
            name = self.host.type()
            return name.replace("torch.", "torch.cuda.") if self.is_cuda else name
        return super().type(dtype, *args, **kwargs)

    def inner_tensors(self) -> list[torch.Tensor]:
        """What holds the values, as internals/tensors/memory.py asks."""
        return [self.host]

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory that holds the values: tensors that share it are views of each other."""
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        """Address of the first value in the CPU's memory."""
        return self.host.data_ptr()

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(indices(index), value)

    def tolist(self) -> Any:
        """The values as Python numbers, by way of the CPU."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused without `force`, as on a GPU."""
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
        new.__dict__.update({k: v for k, v in self.__dict__.items() if k not in _OWN})
        return new.requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support deepcopy: "
                f"this one was made by {type(self.grad_fn).__name__}. Detach it first."
            )
        new = SimulatedTensor(copy.deepcopy(self.host, memo), self.place)
        new.__dict__.update(
            {name: copy.deepcopy(v, memo) for name, v in self.__dict__.items() if name not in _OWN}
        )
        new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the CPU tensor that it holds; a simulated CUDA tensor in the place of a real one."""
        host: Any = self.host.detach()
        if self.is_cuda:
            setattr(host.untyped_storage(), LOCATION, str(self.device))
        if isinstance(self, torch.nn.Parameter):
            host = torch.nn.Parameter(host, self.requires_grad)
        else:
            host.requires_grad_(self.requires_grad)
        return host.__reduce_ex__(protocol)


def indices(index: Any) -> Any:
    """Lists of numbers as CPU tensors: torch would make them on the device, without values."""
    if isinstance(index, tuple):
        return tuple(map(indices, index))
    if isinstance(index, (list, range)):
        index = list(index)
        if all(isinstance(i, Integral) for i in tree_leaves(index)):
            return torch.tensor(index, dtype=None if index else torch.int64)
    return torch.from_numpy(index) if type(index).__name__ == "ndarray" else index


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on what its simulated tensors hold, and wrap what comes out."""
    name, mutable = _described(func)
    operands = _Operands([], [])
    host_args = [operands.unwrap(arg) for arg in args]
    host_kwargs = {key: operands.unwrap(value) for key, value in kwargs.items()}
    foreach = name.startswith("_foreach_")
    if foreach and name not in _CROSSES:
        for row in zip(*(arg for arg in args if isinstance(arg, (list, tuple))), strict=False):
            _Operands.of(row).check(name)
    elif name in _INDEXES:
        on_devices = [index for index in args[1] if index is not None and index.device != CPU]
        _Operands.of((args[0], on_devices, *args[2:])).check(name)
    elif name not in _CROSSES:
        written = args[0] if mutable and name.endswith("_") else None
        operands.check(name, written)
    device = kwargs.get("device")
    if device is None:
        to = args[0] if name == "copy_" else operands.wrappers[0]
        device = _place(to)
    elif is_place(device):
        host_kwargs["device"] = CPU
        host_kwargs.pop("pin_memory", None)
    if name == "histc" and not host_args[0].is_floating_point():  # as a GPU counts integers
        out = func(host_args[0].double(), *host_args[1:], **host_kwargs).to(host_args[0].dtype)
    else:
        out = func(*host_args, **host_kwargs)
    if mutable:
        for wrapper in operands.wrappers:
            _follow(wrapper)
    if name == "_pack_padded_sequence":  # batch sizes are for the CPU to read
        return operands.wrap(out[0], device), out[1]
    if foreach and isinstance(out, (list, tuple)):
        return [operands.wrap(host, _place(like)) for host, like in zip(out, args[0], strict=True)]
    return operands.wrap(out, device)


def _place(tensor: torch.Tensor) -> torch.device:
    """Return the device of a tensor as PyTorch's C++ knows it."""
    return tensor.place if isinstance(tensor, SimulatedTensor) else tensor.device


@cache
def _described(func: Any) -> tuple[str, bool]:
    """The operator's bare name, and whether it writes to an argument."""
    return func._schema.name.split("::")[1], func._schema.is_mutable


class _Operands(NamedTuple):
    """The tensors among an operator's arguments."""

    wrappers: list[SimulatedTensor]
    plain: list[torch.Tensor]

    @classmethod
    def of(cls, arguments: Any) -> _Operands:
        operands = cls([], [])
        operands.unwrap(arguments)
        return operands

    def unwrap(self, argument: Any) -> Any:
        """What the argument holds; an operator's arguments nest in lists and tuples alone."""
        if isinstance(argument, SimulatedTensor):
            self.wrappers.append(argument)
            return argument.host
        if isinstance(argument, torch.Tensor):
            self.plain.append(argument)
        elif type(argument) in (list, tuple):
            return type(argument)(map(self.unwrap, argument))
        return argument

    def wrap(self, out: Any, device: torch.device) -> Any:
        """What came out, as tensors of the device; what was written in place is itself again."""
        if isinstance(out, torch.Tensor):
            for wrapper in self.wrappers:
                if wrapper.host is out:
                    return wrapper
            return SimulatedTensor(out, device) if is_place(device) else out
        if isinstance(out, (list, tuple)):
            return type(out)([self.wrap(part, device) for part in out])
        return out

    def check(self, name: str, written: Any = None) -> None:
        """Raise as PyTorch does where tensors of several devices meet in one operator."""
        if not self.wrappers:
            return
        first = self.wrappers[0].place
        odd: torch.Tensor | None = next((t for t in self.wrappers if t.place != first), None)
        for other in self.plain if odd is None else ():
            if other.dim() or other.device != CPU or other is written or name in _STRICT:
                odd = other
        if odd is None:
            return
        message = (
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{error_name(first)} and {error_name(odd.device)}! (when running aten::{name})"
        )
        if odd.device.type == "meta" and not isinstance(odd, SimulatedTensor):
            message += (
                " The second has no values. Was it brought there outside simulate_accelerator()? "
                "That holds for one thread and one `with` block; enter it again there."
            )
        raise RuntimeError(message)


def _follow(wrapper: SimulatedTensor) -> None:
    """Give the wrapper the shape that its host tensor has now: after `resize_`, `t_`, `out=`."""
    host = wrapper.host
    if wrapper.shape == host.shape and wrapper.stride() == host.stride():
        return
    # Private: reaches the wrapper's own, empty memory below every Python dispatch (2.11 to 2.14).
    with torch.utils._mode_utils.no_dispatch():
        storage = torch.Tensor.untyped_storage(wrapper)
        wrapper.set_(storage, host.storage_offset(), host.size(), host.stride())


def become(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Make `tensor` what `value` is and stay the same object, as `tensor.data = value` does.

    `nn.Module.to` relies on it: optimizers and modules that share a parameter keep sharing it.
    """
    if not tensor.is_leaf:
        raise RuntimeError("Only a leaf can move to another device by `.data = `: detach it first.")
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        raise NotImplementedError(
            "A lazy module has no parameters to move to a simulated device yet: call it once first."
        )
    gradient, needed = tensor.grad, tensor.requires_grad
    new = value.detach()
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, needed)
    new.requires_grad_(needed)
    for name, mark in tensor.__dict__.items():
        if name not in _OWN:
            setattr(new, name, mark)
    if gradient is not None:  # nn.Module.to replaces its values next, and counts that copy
        host = gradient.host if isinstance(gradient, SimulatedTensor) else gradient
        with _disable_current_modes():
            host = host.to(new.dtype, copy=True)
            place = _place(new)
            new.grad = SimulatedTensor(host, place) if is_place(place) else host
    if needed:
        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_refuse)
    tensor.__class__, new.__class__ = new.__class__, tensor.__class__
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    # Private: torch.utils.swap_tensors without its refusal of a weakref's target (2.11 to 2.14).
    torch._C._swap_tensor_impl(tensor, new)


def _refuse(gradients: Any) -> None:
    raise RuntimeError(
        "A parameter was moved to another device between forward and backward. "
        "Move the module before the forward, or after the backward."
    )
