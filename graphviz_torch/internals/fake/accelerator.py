"""Simulate a CUDA device for a program that runs on fake tensors.

A tensor on the simulated device is a CPU tensor. Our modes replace "cuda" by "cpu" wherever PyTorch
takes a device, and the functions of `torch.cuda` return values as if there were a device. PyTorch
therefore uses the CPU's kernels and the CPU's lists of operators for autocast, while optimizers
choose their multi-tensor versions as on CUDA. A move between host and device copies the tensor, as
on a real machine. In Python, a tensor on the device reports a CUDA device. In PyTorch's C++ code it
is a CPU tensor.

Uses private API (2.13): the devices for which optimizers use multi-tensor kernels, the accelerator
that fully_shard queries, the engine's function as in `hooks/engine.py`, and `FakeTensor.device`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import overrides
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..hooks.storages import is_wrapper

_CPU = torch.device("cpu")
_TENSOR: Any = torch.Tensor
_parse: Any = torch._C._nn._parse_to
_move: Any = _TENSOR.to
_ENGINE = "_engine_run_backward"
_functions: Any = overrides._get_current_function_mode_stack
_Fake: Any = FakeTensor
_Mode: Any = TorchDispatchMode
_optimizers: Any = import_module("torch.optim.optimizer")  # `torch.optim` shadows this module
_foreach_utils: Any = torch.utils._foreach_utils


class DevicePlacement(Protocol):
    """Interface of an object that records which tensors are on the simulated device."""

    def put(self, given: Any) -> None:
        """Mark all tensors in a nested value as being on the simulated device."""

    def has(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is marked as being on the simulated device."""

    def allocated_bytes(self) -> int:
        """Return the bytes that are now allocated on the simulated device."""

    def peak_bytes(self) -> int:
        """Return the largest number of bytes allocated at a time in this training step."""

    def crossing(self) -> AbstractContextManager[None]:
        """Return a context manager in which results are not put on the device of their inputs."""


class FakeAccelerator:
    """Context manager that simulates a CUDA device.

    Args:
        local: index of this process's device.
        count: number of devices of the machine.
        memory: memory of each device in bytes.
        placement: records which tensors are on the device.
    """

    def __init__(self, local: int, count: int, memory: int, placement: DevicePlacement) -> None:
        self.is_used = False  # True once the program has used the device
        self.placement = placement
        self._moving = False
        self._local, self._count, self._memory = local, count, memory
        self._open = ExitStack()

    def __enter__(self) -> FakeAccelerator:
        with ExitStack() as opened:
            for name, answer in self._answers().items():
                if hasattr(torch.cuda, name):
                    opened.enter_context(patch.object(torch.cuda, name, answer))
            for owner, name, new in self._replacements():
                opened.enter_context(patch.object(owner, name, new))
            functions = _Functions(self)
            opened.enter_context(functions)
            for owner in (torch.autograd, torch.autograd.graph):
                run = functions.wrap_engine(getattr(owner, _ENGINE))
                opened.enter_context(patch.object(owner, _ENGINE, run))
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def replace_cuda(self, device: Any) -> Any:
        """Return the CPU if `device` is a CUDA device, otherwise `device` itself."""
        kind = type(device)
        if kind is torch.device and device.type == "cuda":
            self.is_used = True
            return _CPU
        if kind is str and (device == "cuda" or device.startswith("cuda:")):
            self.is_used = True
            return "cpu"
        return device

    def operators(self) -> AbstractContextManager[Any]:
        """Return a dispatch mode that marks new tensors as on the device; enter this mode last."""
        return _Operators(self)

    def _attributes(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield (owner, name, replacement) of attributes by which a tensor reports its device."""
        here = torch.device("cuda", self._local)
        for name, answer in {"device": here, "is_cuda": True, "is_cpu": False}.items():
            yield _TENSOR, name, property(self._answer(getattr(_TENSOR, name).__get__, answer))
        yield _Fake, "device", property(self._answer(_Fake.device.fget, here))
        yield _TENSOR, "get_device", self._answer(_TENSOR.get_device, self._local)

    def _answer(self, real: Any, answer: Any) -> Callable[[Any], Any]:
        return lambda tensor: (
            answer if self.is_used and self.placement.has(tensor) else real(tensor)
        )

    def _moves(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield (owner, name, replacement) of methods that copy tensors between host and device."""
        yield (
            _TENSOR,
            "to",
            lambda tensor, *given, **kwargs: self._move_tensor(tensor, given, kwargs),
        )
        yield _TENSOR, "cuda", lambda tensor, *_, **__: self._move_tensor(tensor, ("cuda",), {})
        yield _TENSOR, "cpu", lambda tensor, *_, **__: self._move_tensor(tensor, ("cpu",), {})

    def _move_tensor(self, tensor: Any, given: Any, kwargs: Any) -> Any:
        """Run `tensor.to(...)`, which copies the tensor if it moves between host and device.

        Args:
            tensor: the tensor.
            given: positional arguments of `to`.
            kwargs: keyword arguments of `to`.
        """
        if self._moving:  # this call comes from a mode that handles the outer call
            return _move(tensor, *given, **kwargs)
        self._moving = True
        try:
            return self._move_between_devices(tensor, given, kwargs)
        finally:
            self._moving = False

    def _move_between_devices(self, tensor: Any, given: Any, kwargs: Any) -> Any:
        if given and type(given[0]) is int:  # a device index
            given = "cuda", *given[1:]
        elif type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": "cuda"}
        aims = [*given, *kwargs.values()]
        others = [each for each in aims if isinstance(each, torch.Tensor)]
        aims = [each.device for each in others] or aims
        onto = any(self.replace_cuda(each) is not each for each in aims)
        if not onto and not any(_is_host(each) for each in aims):
            return _move(tensor, *given, **kwargs)
        new = [self.replace_cuda(each) for each in given]
        named = {name: self.replace_cuda(each) for name, each in kwargs.items()}
        if (
            onto is self.placement.has(tensor) or type(tensor) is torch.Tensor
        ):  # a tensor that is not fake, such as a seed, is not moved
            return _move(tensor, *new, **named)
        with self.placement.crossing():
            result = _move(tensor, *new, **{**named, "copy": True})
        if onto:
            self.placement.put(result)
        return result

    def _answers(self) -> dict[str, Any]:
        """Return name of a function of `torch.cuda` -> its replacement."""
        properties = SimpleNamespace(
            name="a device that is not there", total_memory=self._memory, major=9, minor=0,
            multi_processor_count=132, warp_size=32, gcnArchName="",
        )  # fmt: skip
        answers: dict[str, Any] = {
            "is_available": True,
            "is_initialized": True,
            "is_current_stream_capturing": False,
            "device_count": self._count,
            "current_device": self._local,
            "get_device_name": properties.name,
            "get_device_capability": (9, 0),
            "get_device_properties": properties,
            "is_bf16_supported": True,
        }
        nothing = (
            "init _lazy_init set_device synchronize empty_cache manual_seed manual_seed_all seed "
        )
        nothing += "seed_all reset_peak_memory_stats ipc_collect set_per_process_memory_fraction "
        nothing += "reset_max_memory_allocated set_rng_state set_rng_state_all set_stream"
        found = {name: _returning(answer) for name, answer in answers.items()}
        found |= {name: _returning(None) for name in nothing.split()}
        found |= dict.fromkeys(("Stream", "current_stream", "default_stream"), FakeStream)
        found |= {"Event": FakeEvent, "stream": _on_stream, "device": _on_stream}
        for kind in ("allocated", "reserved"):  # both are equal without a caching allocator
            found[f"memory_{kind}"] = lambda *_: self.placement.allocated_bytes()
            found[f"max_memory_{kind}"] = lambda *_: self.placement.peak_bytes()
        found["mem_get_info"] = lambda *_: (
            self._memory - self.placement.allocated_bytes(),
            self._memory,
        )
        found["memory_stats"] = lambda *_: defaultdict(int, self._statistics())
        return found | {"get_rng_state": lambda *_: torch.get_rng_state()}

    def _statistics(self) -> dict[str, int]:
        """Return the entries of `torch.cuda.memory_stats` that a rehearsal computes.

        All other entries are 0.
        """
        now, most = self.placement.allocated_bytes(), self.placement.peak_bytes()
        kinds = [f"{kind}_bytes.all" for kind in ("allocated", "reserved", "active")]
        return {
            f"{kind}.{when}": n for kind in kinds for when, n in (("current", now), ("peak", most))
        }

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        accelerator: Any = torch.accelerator
        yield accelerator, "is_available", _returning(True)
        yield accelerator, "device_count", _returning(self._count)
        yield accelerator, "current_accelerator", _returning(torch.device("cuda"))
        yield accelerator, "current_device_index", _returning(self._local)
        yield accelerator, "set_device_index", _returning(None)
        yield accelerator, "synchronize", _returning(None)
        yield accelerator, "current_stream", FakeStream
        yield (
            torch._C,
            "_get_accelerator",
            lambda *_: torch.device("cuda" if self.is_used else "cpu"),
        )
        yield dist, "is_nccl_available", _returning(True)
        yield torch, "set_default_device", _returning(None)
        yield torch.nn.Module, "to", _wrap_module_to(torch.nn.Module.to)
        kind: Any = torch.amp.autocast_mode.autocast
        yield kind, "__init__", self._autocast(kind.__init__)
        devices = _foreach_utils._get_foreach_kernels_supported_devices
        asked = lambda: [*devices(), *["cpu"] * self.is_used]  # noqa: E731
        yield from self._attributes()
        yield from self._moves()
        yield _optimizers, "_get_foreach_kernels_supported_devices", asked

    def _autocast(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(this: Any, device_type: str, dtype: Any = None, *args: Any, **kw: Any) -> None:
            if device_type == "cuda":  # torch.utils.checkpoint passes "cuda" on any machine
                device_type, dtype = "cpu", torch.float16 if dtype is None else dtype
            init(this, device_type, dtype, *args, **kw)

        return __init__


class _Functions(TorchFunctionMode):
    """Function mode that replaces the device "cuda" by "cpu" in arguments of torch functions."""

    def __init__(self, accelerator: FakeAccelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        accelerator = self._accelerator
        if func is torch.device:  # stays "cuda", because the program may read the device's type
            numbered = args and type(args[0]) is int
            device = func("cuda", *args) if numbered else func(*args, **kwargs)
            accelerator.replace_cuda(device)
            return device
        if func is _parse:  # called by `Module.to`, which afterwards moves each tensor
            return func(*args, **kwargs)
        if func is _TENSOR.pin_memory:
            return args[0]
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": "cuda"}
        given = [*args, *kwargs.values()]
        new = [accelerator.replace_cuda(value) for value in given]
        if all(one is other for one, other in zip(new, given, strict=True)):
            return func(*args, **kwargs)
        named = dict(zip(kwargs, new[len(args) :], strict=True))
        with accelerator.placement.crossing():
            result = func(*new[: len(args)], **named)
        accelerator.placement.put(result)
        return result

    def wrap_engine(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the engine's function `run` so that this mode is active in the code that it calls.

        A backward calls hooks and recomputes checkpointed segments.
        """

        def run_inside(*args: Any, **kwargs: Any) -> Any:
            with nullcontext() if self in _functions() else self:
                return run(*args, **kwargs)

        return run_inside


class _Operators(_Mode):  # type: ignore[misc]
    """Dispatch mode that replaces "cuda" by "cpu" in operators called by PyTorch's own code."""

    def __init__(self, accelerator: FakeAccelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper(kind) for kind in types):
            return NotImplemented  # the subclass then dispatches operators on its inner tensors
        device = kwargs.get("device") if kwargs else None
        if device is None or device.type != "cuda":
            return func(*args, **(kwargs or {}))
        placement = self._accelerator.placement
        with placement.crossing():
            result = func(*args, **{**kwargs, "device": self._accelerator.replace_cuda(device)})
        placement.put(result)
        return result


def _is_host(value: Any) -> bool:
    kind = type(value)
    return (kind is str and value == "cpu") or (kind is torch.device and value.type == "cpu")


class FakeStream:
    """A simulated stream, on which nothing runs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _nothing(self, *_: Any, **__: Any) -> None:
        return None

    synchronize = wait = wait_event = wait_stream = record = _nothing

    def record_event(self, event: Any = None) -> Any:
        """Return `event` or a new simulated event."""
        return event or FakeEvent()

    def is_capturing(self) -> bool:
        """Return False: no CUDA graph is captured."""
        return False

    def query(self) -> bool:
        """Return True: all work is complete."""
        return True


class FakeEvent(FakeStream):
    """A simulated event of a simulated stream."""

    def elapsed_time(self, other: Any) -> float:
        """Return 0.0; a simulated device has no clock."""
        return 0.0


@contextmanager
def _on_stream(*_: Any) -> Iterator[None]:
    yield


def _wrap_module_to(to: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Module.to` to accept a device index, because PyTorch parses an index in C++."""

    def to_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = "cuda", *args[1:]
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cuda"
        return to(self, *args, **kwargs)

    return to_device


def _returning(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer
