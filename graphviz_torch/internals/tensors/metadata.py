"""What autograd notes of each node: its outputs' shapes, dtypes and devices, and its attributes.

Outputs are read from `_input_metadata` (2.11 to 2.15): a tuple with one entry for each output. It
is right for custom Functions and after backward, and goes stale only if `.data` is set.

Private: where a subclass answers for its sizes itself, PyTorch keeps the answer in the tensor's
`__dict__`, as `_sym_sizes_capsule` and the like (2.13). A capsule cannot be pickled, and
`torch.save` then refuses the tensor: so what our reading put there is taken out again.

Attributes are what autograd keeps of an operation that is not a tensor: an exponent, a stride, a
dimension. They are read from `_saved_*` (2.11 to 2.15) of C++ nodes. A tensor has `_raw_saved_*`
beside it, and is left alone: to read it would unpack it. So are shapes and options, which a graph
tells otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from marshal import dumps
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ...graph import TensorMeta
from ..functions import TensorBase
from .memory import PLAIN

# What to call a device that is not what it seems: `simulate_accelerator` enters its own here.
DEVICE_LABELS: dict[torch.device, str] = {}

Outputs = tuple[TensorMeta | None, ...]

_entries = attrgetter("_input_metadata")
_look = attrgetter("shape", "dtype", "device")


def device_label(device: torch.device) -> str:
    """A device's name in a graph: "cpu", "cuda:0"; "sim:0" for a simulated one."""
    return DEVICE_LABELS.get(device) or str(device)


def tensor_meta(tensor: torch.Tensor) -> TensorMeta:
    """Shape, dtype and device of a live tensor, as a plain value."""
    with torch._C.DisableTorchFunction():
        if type(tensor) in PLAIN:
            return _meta(_shape(tensor), tensor.dtype, tensor.device)
        with undisturbed(tensor):
            return _meta(_shape(tensor), tensor.dtype, tensor.device)


def tensor_metas(tensors: Sequence[torch.Tensor]) -> list[TensorMeta]:
    """The same of many, asked inside `unseen_calls()`. Equal values are made once and shared."""
    known = _Known()
    with suppress(RuntimeError, TypeError):
        if set(map(type, tensors)) <= set(PLAIN):  # and no size is symbolic or ragged, as most
            return [meta for key in map(_look, tensors) for meta in known[key] if meta is not None]
    return list(map(tensor_meta, tensors))


@contextmanager
def undisturbed(tensor: torch.Tensor) -> Iterator[None]:
    """A context after which the tensor's `__dict__` has no capsule that it did not have before."""
    own = object.__getattribute__(tensor, "__dict__")
    before = set(own)
    try:
        yield
    finally:
        for name in own.keys() - before:
            if "_capsule" in name:
                del own[name]


class _Known(dict[Any, Outputs]):
    """The outputs of a node that has one, by the shape, dtype and device of that."""

    def __missing__(self, key: Any) -> Outputs:
        sizes, dtype, device = key
        outputs = self[key] = (_meta(_plain(sizes), dtype, device),)
        return outputs


def all_outputs(fns: Iterable[Any]) -> tuple[list[Outputs], list[int]]:
    """For each node its outputs, and the positions of nodes with one that may be undefined.

    Equal values are made once and shared.
    """
    known = _Known()
    found: list[Outputs] = []
    several: list[int] = []
    for i, entries in enumerate(map(_entries, fns)):
        # What raises or cannot be hashed has a symbolic or a ragged shape.
        try:
            if len(entries) == 1:
                sizes, dtype, device = _look(entries[0])  # sizes are a list
                outputs = known[tuple(sizes), dtype, device]
            else:
                looks = map(_look, entries)
                outputs = tuple([known[tuple(s), dtype, device][0] for s, dtype, device in looks])
        except (RuntimeError, TypeError):
            outputs = tuple(map(_read, entries))
        if len(outputs) > 1:
            several.append(i)
        found.append(outputs)
    if not several:
        return found, several
    undefined = _meta((), torch.get_default_dtype(), torch.device("cpu"))  # as one reads
    return found, [i for i in several if undefined in found[i]]


def defined(fn: Any, outputs: Outputs, used: set[int]) -> Outputs:
    """The outputs of a node with None for each that autograd left undefined.

    Args:
        fn: the node, with several outputs.
        outputs: as read.
        used: the numbers of the outputs that something in the graph uses, and so are defined.

    Autograd does not tell an undefined output from a true scalar on the CPU, so for a scalar that
    nothing uses this goes by the node. Undefined is what lies on another device than its siblings,
    an output of a custom Function (an argument that is not a tensor, or not differentiable), and of
    a double backward a gradient that was not asked for, unless those asked for are scalars too.
    """
    on_device = any(meta is not None and meta.device != "cpu" for meta in outputs)
    asked = any(meta is not None and meta.shape for meta in outputs)
    twice = "BackwardBackward" in type(fn).__name__
    if not (on_device or is_custom(type(fn)) or (twice and asked)):
        return outputs
    return tuple(
        meta if nr in used or meta is None or meta.shape or meta.device != "cpu" else None
        for nr, meta in enumerate(outputs)
    )


def is_custom(kind: type) -> bool:
    """Is this the class of the nodes of a Python `autograd.Function`?"""
    return issubclass(kind, torch.autograd.function.BackwardCFunction)


def _read(entry: Any) -> TensorMeta:
    return _meta(_shape(entry), entry.dtype, entry.device)


def _meta(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> TensorMeta:
    return TensorMeta(shape, str(dtype)[6:], device_label(device))


def _shape(value: Any) -> tuple[int, ...]:
    """Sizes as plain ints; -1 where a size is ragged or not known yet."""
    try:
        sizes = tuple(value.shape)
    except RuntimeError:
        # A nested tensor with strided layout has no shape; its metadata know no more than that.
        if not isinstance(value, torch.Tensor) or is_lazy(value):
            return (-1,)
        sizes = tuple(_size(value, dim) for dim in range(TensorBase.dim(value)))
    return _plain(sizes)


def _plain(sizes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(size if type(size) is int else _number(size) for size in sizes)


def _size(tensor: torch.Tensor, dim: int) -> int:
    try:
        return TensorBase.size(tensor, dim)
    except RuntimeError:
        return -1


def _number(size: Any) -> int:
    # A SymInt. `int(size)` would settle what `torch.compile` keeps open; its hint does not.
    node = size.node
    if node.is_nested_int() or not node.has_hint():
        return -1
    return int(node.hint)


Attributes = tuple[str, ...]  # "name=value", the value as Python writes it


class _Members(NamedTuple):
    """What the nodes of a class keep that is not a tensor."""

    names: list[str]
    get: Callable[[Any], Any] | None  # gives their values: several as a tuple, one as itself


_NOTHING = _Members([], None)
_LEFT_OUT = ("sizes", "size", "numel", "strides", "options", "scalar_type", "sizes_opt")
_members: dict[type, _Members] = {}  # of PyTorch's own nodes, which live for ever
_UNSIGNED = 1 << 63  # a dimension that counts from the end is kept as an unsigned number


def attributes(fns: Sequence[Any]) -> list[Attributes]:
    """The attributes of each live node; of a custom Function none, for they are its author's."""
    known: dict[Any, Attributes] = {}
    found: list[Attributes] = [()] * len(fns)
    types = list(map(type, fns))
    kinds = {kind: _members.get(kind) or _members_of(kind) for kind in set(types)}
    keeping = {kind: (names, get) for kind, (names, get) in kinds.items() if get is not None}
    for i, kind in enumerate(types):
        if kind in keeping:
            names, get = keeping[kind]
            values = get(fns[i])
            key = kind, _key(values)
            if key not in known:
                row = values if len(names) > 1 else (values,)
                pairs = zip(names, row, strict=True)
                known[key] = tuple([f"{name}={_text(v)}" for name, v in pairs if v is not None])
            found[i] = known[key]
    return found


def _key(values: Any) -> bytes | str:
    """What tells numbers, texts, and lists of them apart, 1 and 1.0 too."""
    try:
        return dumps(values, 2)  # a quarter of the time of repr
    except ValueError:  # a size that is not known yet
        return repr(values)


def _members_of(kind: type) -> _Members:
    if hasattr(kind, "_raw_saved_tensors") or hasattr(kind, "_forward_cls"):
        return _NOTHING  # of a custom Function, whose class may hold tensors and is not kept
    members = set(dir(kind))
    names = sorted(one.removeprefix("_saved_") for one in members if one.startswith("_saved_"))
    plain = [
        name
        for name in names
        if f"_raw_saved_{name}" not in members and not name.endswith(_LEFT_OUT)
    ]
    get = attrgetter(*(f"_saved_{name}" for name in plain)) if plain else None
    _members[kind] = _Members(plain, get)
    return _members[kind]


def _text(value: Any) -> str:
    if type(value) is int and value >= _UNSIGNED:
        value -= 1 << 64
    elif type(value) is tuple:
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)
