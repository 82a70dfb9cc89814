"""Replacements of `torch.cuda` and `torch.accelerator` for threads that simulate CUDA.

Simulated CUDA has no clock, no memory limit, and no asynchronous work: streams and `synchronize` do
nothing, and `Event.elapsed_time` returns NaN. Random numbers come from the CPU's generator, which
`torch.manual_seed` seeds. Functions that seed or restore generators of CUDA do nothing. Therefore a
program gets the same random numbers as on the CPU.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import torch

from . import memory
from .device_names import SimulatedBlock, cuda_block, place_of

_Replacement = Callable[..., Any]
_NAME = "simulated"
_DTYPES = {
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
}


class Stream:
    """A stream that does nothing, because all work has already run."""

    cuda_stream = 0
    priority = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = _block().devices[_index(device)]

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def synchronize(self) -> None:
        """Return at once, because all work has already run."""

    def wait_event(self, event: Any) -> None:
        """Return at once, because the event has occurred."""

    def wait_stream(self, stream: Any) -> None:
        """Return at once, because the work of the other stream has already run."""

    def record_event(self, event: Any = None) -> Any:
        """Return `event`, or a new event if `event` is None."""
        return event or Event()

    def query(self) -> bool:
        """Return True, because all work has run."""
        return True

    def is_capturing(self) -> bool:
        """Return False: no CUDA graph is captured."""
        return False


class Event:
    """An event that has already occurred, without a time: a simulated device has no clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    def record(self, stream: Any = None) -> None:
        """Ignore the call, because there is no clock."""

    def wait(self, stream: Any = None) -> None:
        """Return at once, because the event has occurred."""

    def synchronize(self) -> None:
        """Return at once, because the event has occurred."""

    def query(self) -> bool:
        """Return True, because the event has occurred."""
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Return NaN. The first call warns that a simulated device has no clock."""
        _warn_of_time()
        return float("nan")


@cache
def _warn_of_time() -> None:
    warnings.warn(
        "A simulated CUDA device has no clock: Event.elapsed_time returns nan.", stacklevel=3
    )


class _TensorType(type):
    """The metaclass of `torch.cuda.FloatTensor` and the other legacy tensor types."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return getattr(torch, cls.__name__)(*args, **kwargs).to("cuda")

    def __instancecheck__(cls, value: Any) -> bool:
        is_tensor = isinstance(value, torch.Tensor)
        return is_tensor and value.is_cuda and value.dtype == cls.dtype


def legacy_type(given: Any) -> torch.dtype | None:
    """Return the dtype of a legacy CUDA tensor type, given as a class or by its name."""
    if isinstance(given, str) and given.startswith("torch.cuda."):
        given = getattr(torch.cuda, given[len("torch.cuda.") :], None)
    return given.dtype if isinstance(given, _TensorType) else None


class _GeneratorType(type):
    """The metaclass of `torch.Generator` while CUDA is simulated: CUDA generators use the CPU."""

    def __call__(cls, device: Any = "cpu") -> Any:
        return _Generator() if place_of(device) is not device else _Generator(device)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _Generator)


_Generator: Any = torch.Generator


def rows() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Return the rows for `patches.py`: owner, name and maker of each function to replace."""
    generic: Any = torch.accelerator
    owners = [torch.cuda, torch.cuda.memory, torch.cuda.random, generic]
    if hasattr(generic, "memory"):
        owners.append(generic.memory)
    names = [
        (owner, name, _if_simulated(new))
        for name, new in _replacements().items()
        for owner in owners
    ]
    types = {
        name: _TensorType(name, (), {"__module__": "torch.cuda", "dtype": dtype})
        for name, dtype in _DTYPES.items()
    }
    replaced = {
        **types,
        "Stream": Stream,
        "Event": Event,
    }
    names += [(torch.cuda, name, _always(new)) for name, new in replaced.items()]
    names += [(torch.cuda.streams, name, _always(replaced[name])) for name in ("Stream", "Event")]
    names.append((torch, "Generator", _always(_GeneratorType("Generator", (), {}))))
    nvtx = importlib.import_module("torch.cuda.nvtx")
    names += [
        (nvtx, n, _if_simulated(lambda *_, **__: None)) for n in ("range_push", "range_pop", "mark")
    ]
    cudnn: Any = torch.backends.cudnn
    # PyTorch's own function warns if PyTorch was compiled without cuDNN.
    names.append((cudnn.m, "is_acceptable", _if_simulated(lambda _: False)))
    return [row for row in names if hasattr(row[0], row[1])]


def _replacements() -> dict[str, _Replacement]:
    """Return a dict from function names in `torch.cuda` and `torch.accelerator` to replacements."""
    nothing = (
        "init _lazy_init synchronize empty_cache empty_host_cache ipc_collect "
        "manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all "
        "set_per_process_memory_fraction reset_accumulated_memory_stats"
    )
    found: dict[str, _Replacement] = {name: lambda *_, **__: None for name in nothing.split()}
    found |= {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(_block().places),
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda *_: True,
        "get_arch_list": list,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in _block().places],
        "get_device_name": lambda device=None: _properties(device).name,
        "get_device_capability": lambda device=None: (0, 0),
        "get_device_properties": lambda device=None: _properties(device),
        "utilization": lambda device=None: 0,
        **dict.fromkeys(("set_device", "set_device_index", "set_device_idx"), _set_device),
        **dict.fromkeys(
            ("current_device", "current_device_index", "current_device_idx"),
            lambda: _block().current,
        ),
        **dict.fromkeys(("_exchange_device", "_maybe_exchange_device"), _exchange_device),
        **dict.fromkeys(("current_stream", "default_stream"), _stream),
        "set_stream": lambda stream: setattr(_block(), "stream", stream),
        **dict.fromkeys(("memory_allocated", "memory_reserved"), _allocated_bytes),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _peak),
        **dict.fromkeys(("memory_cached", "max_memory_cached"), _allocated_bytes),
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
            lambda device=None: memory.reset_peak(_place(device)),
        ),
        "memory_stats": lambda device=None: defaultdict(int, _statistics(device)),
        "memory_summary": lambda device=None, **_: (
            f"{_block().devices[_index(device)]} ({_NAME}): {_allocated_bytes(device):,} bytes "
            f"allocated, at most {_peak(device):,}"
        ),
        **dict.fromkeys(
            ("mem_get_info", "get_memory_info"),
            lambda device=None: (_host_memory() - _allocated_bytes(device), _host_memory()),
        ),
    }
    return found


def _if_simulated(new: _Replacement) -> Callable[[_Replacement], _Replacement]:
    """Return a maker of functions that call `new` where CUDA is simulated, else `original`."""

    def make(original: _Replacement) -> _Replacement:
        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if cuda_block() is None else new(*args, **kwargs)

        return replacement

    return make


def _always(new: Any) -> Callable[[Any], Any]:
    return lambda original: new


def _block() -> SimulatedBlock:
    block = cuda_block()
    if block is None:
        raise RuntimeError(
            "This thread simulates no CUDA device: enter simulate_accelerator(name='cuda') in this "
            "thread, too."
        )
    return block


def _index(device: Any = None) -> int:
    block = _block()
    if device is None or device == -1:
        return block.current
    return block.places.index(_place(device))


def _place(device: Any = None) -> torch.device:
    found = place_of("cuda" if device is None else device)
    if found not in _block().places:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return found  # type: ignore[no-any-return]


def _set_device(device: Any) -> None:
    if device != -1:
        _block().current = _index(device)


def _exchange_device(device: int) -> int:
    """Make a device the current device, and return the index of the previous current device."""
    before = _block().current
    _set_device(device)
    return before


def _stream(device: Any = None) -> Any:
    block, index = _block(), _index(device)
    if block.stream is not None and block.stream.device == block.devices[index]:
        return block.stream
    return _default_stream(block.devices[index])


@cache
def _default_stream(device: torch.device) -> Stream:
    return Stream(device)


def _allocated_bytes(device: Any = None) -> int:
    return memory.ALLOCATED[_place(device)]


def _peak(device: Any = None) -> int:
    return memory.PEAK[_place(device)]


def _statistics(device: Any) -> dict[str, int]:
    kinds = [f"{kind}_bytes.all" for kind in ("allocated", "reserved", "active")]
    pairs = (("current", _allocated_bytes(device)), ("peak", _peak(device)))
    return {f"{kind}.{name}": number for kind in kinds for name, number in pairs}


def _host_memory() -> int:
    """Return the machine's memory in bytes, for use as the device's memory; 0 on Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # as on Windows
        return 0


def _properties(device: Any = None) -> Any:
    _place(device)
    return SimpleNamespace(
        name=_NAME,
        major=0,
        minor=0,
        total_memory=_host_memory(),
        multi_processor_count=os.cpu_count() or 1,
        warp_size=32,
        gcnArchName="",
        is_integrated=True,
        is_multi_gpu_board=False,
    )
