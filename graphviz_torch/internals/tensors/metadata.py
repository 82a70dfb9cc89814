"""Read metadata that autograd nodes keep: shape, dtype and device of each output, and attributes.

Outputs are read from `_input_metadata` (2.11 to 2.15), a tuple with one entry per output. It is
correct for custom Functions and after backward. Only an assignment to `.data` makes it wrong.

If a subclass computes its own sizes, PyTorch caches them in the tensor's `__dict__`, as
`_sym_sizes_capsule` and similar names (private, 2.13). A capsule cannot be pickled, so `torch.save`
would refuse the tensor. Capsules that our reads created are therefore removed.

Attributes are the arguments of an operation that are not tensors: an exponent, a stride, a
dimension. They are read from `_saved_*` of C++ nodes (2.11 to 2.15). A saved tensor also has
`_raw_saved_*`. Its `_saved_*` is not read, since reading it would unpack the tensor. Shapes and
options are left out, because the graph has them elsewhere.

The AccumulateGrad node of a leaf is found without calling an operator. `get_gradient_edge` calls
the operator `view_as` on the leaf. Sparse, MKL-DNN, nested and lazy leaves refuse this call, and
modes, tracers, checkpoint policies and subclasses see it. Two internals of autograd find the node
without calling an operator.

Private API (2.13) does this: `torch._C._functions.DelayedError` takes a plain tensor and returns an
alias that has a node. For subclasses the C++ part of `Function.apply` is used, because an alias of
a subclass cannot be created without running the subclass's code. That call appears in a profile.

Tensors saved for backward are read from private attributes (2.11 to 2.15): `fn._raw_saved_<name>`
is a SavedTensor, whose `data` is the saved tensor. A custom Function has one list of SavedTensors.
In 2.8 and 2.9 a SavedTensor has no `data`, and unpacking it may run a hook of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from marshal import dumps
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn.parameter import is_lazy

from ...graph import TensorMeta
from ...graph.immutable import NamedTuple
from ..functions import TensorBase
from .memory import PLAIN

# Labels that replace a device's name; `simulate_accelerator` adds an entry for its device.
DEVICE_LABELS: dict[torch.device, str] = {}

Outputs = tuple[TensorMeta | None, ...]

_shape_dtype_device = attrgetter("shape", "dtype", "device")


def device_label(device: torch.device) -> str:
    """Return a device's name in a graph: "cpu", "cuda:0", "sim:0" for a simulated device."""
    return DEVICE_LABELS.get(device) or str(device)


def tensor_meta(tensor: torch.Tensor) -> TensorMeta:
    """Return the shape, dtype and device of a tensor as a `TensorMeta`."""
    with torch._C.DisableTorchFunction():
        if type(tensor) in PLAIN:
            return _meta(_shape(tensor), tensor.dtype, tensor.device)
        with without_new_capsules(tensor):
            return _meta(_shape(tensor), tensor.dtype, tensor.device)


def tensor_metas(tensors: Sequence[torch.Tensor]) -> list[TensorMeta]:
    """Return `tensor_meta` of each tensor; call this inside `unseen_calls()`.

    Equal results are the same object.
    """
    find: Any = _Known().__getitem__
    with suppress(RuntimeError, TypeError):
        if set(map(type, tensors)) <= set(PLAIN):  # the common case: no symbolic or ragged sizes
            return list(chain.from_iterable(map(find, map(_shape_dtype_device, tensors))))
    return list(map(tensor_meta, tensors))


@contextmanager
def without_new_capsules(tensor: torch.Tensor) -> Iterator[None]:
    """Remove the capsules that PyTorch adds to the tensor's `__dict__` inside this context."""
    own = object.__getattribute__(tensor, "__dict__")
    before = set(own)
    try:
        yield
    finally:
        for name in own.keys() - before:
            if "_capsule" in name:
                del own[name]


class _Known(dict[Any, Outputs]):
    """A cache: (shape, dtype, device) -> the outputs of an autograd node with one such output."""

    def __missing__(self, key: Any) -> Outputs:
        sizes, dtype, device = key
        outputs = self[key] = (_meta(_plain(sizes), dtype, device),)
        return outputs


def all_outputs(fns: Iterable[Any]) -> tuple[list[Outputs], list[int]]:
    """Return the outputs of each node, and the indices of nodes that may have undefined outputs.

    Equal values are the same object. Leaves are not read from their tensors, which takes a third of
    the time: the program may have replaced `data` after the forward, as sharding does.
    """
    find = _Known().__getitem__  # faster than an index
    found: list[Outputs] = []
    several: list[int] = []
    for i, fn in enumerate(fns):
        # A symbolic or ragged shape raises an exception, or cannot be hashed.
        try:
            entries = fn._input_metadata
            if len(entries) == 1:
                sizes, dtype, device = _shape_dtype_device(entries[0])  # sizes are a list
                outputs = find((tuple(sizes), dtype, device))
            else:
                looks = map(_shape_dtype_device, entries)
                outputs = tuple([find((tuple(s), dtype, device))[0] for s, dtype, device in looks])
        except (RuntimeError, TypeError):
            outputs = tuple(map(_read, fn._input_metadata))
        if len(outputs) > 1:
            several.append(i)
        found.append(outputs)
    if not several:
        return found, several
    # The metadata that autograd gives to an undefined output.
    undefined = _meta((), torch.get_default_dtype(), torch.device("cpu"))
    return found, [i for i in several if undefined in found[i]]


def defined_outputs(fn: Any, outputs: Outputs, used: set[int]) -> Outputs:
    """Return the outputs of an autograd node, with None for those that autograd left undefined.

    Args:
        fn: the node, which has several outputs.
        outputs: metadata of the node's outputs.
        used: indices of the outputs that the graph uses, which are therefore defined.

    Autograd gives an undefined output the metadata of a scalar on the CPU. If no node uses such an
    output, it is taken to be undefined in three cases:

    - Another output is on another device.
    - The node is a custom Function, for whose non-tensor arguments autograd creates such outputs.
    - The node belongs to a double backward, and another output is not a scalar. The undefined
      output is then a gradient that was not requested.
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
    """Return True if `kind` is the class of nodes of a Python `autograd.Function`."""
    return issubclass(kind, torch.autograd.function.BackwardCFunction)


def _read(entry: Any) -> TensorMeta:
    return _meta(_shape(entry), entry.dtype, entry.device)


def _meta(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> TensorMeta:
    return TensorMeta(shape, str(dtype)[6:], device_label(device))


def _shape(value: Any) -> tuple[int, ...]:
    """Return the sizes as plain ints, with -1 for a size that is ragged or unknown."""
    try:
        sizes = tuple(value.shape)
    except RuntimeError:
        # A nested tensor with strided layout has no shape, and its metadata has none either.
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
    # `size` is a SymInt. `int(size)` would add a guard in `torch.compile`; reading its hint does
    # not.
    node = size.node
    if node.is_nested_int() or not node.has_hint():
        return -1
    return int(node.hint)


Attributes = tuple[str, ...]  # of the form "name=value", with the value as in Python


class _Members(NamedTuple):
    """The attributes of an autograd node class that are not tensors, and how to read them."""

    names: list[str]
    # Returns the attributes' values in a tuple, or the value itself if there is only one.
    get: Callable[[Any], Any] | None


_NOTHING = _Members([], None)
_LEFT_OUT = ("sizes", "size", "numel", "strides", "options", "scalar_type", "sizes_opt")
_members: dict[type, _Members] = {}  # class of C++ nodes, which is never freed -> its attributes
_UNSIGNED = 1 << 63  # larger numbers are negative dimensions, stored as unsigned 64-bit numbers


def attributes(fns: Sequence[Any]) -> list[Attributes]:
    """Return the attributes (such as `dim` or `alpha`) of each autograd node.

    The attributes of custom Functions are not read, since only their authors know the meaning.
    """
    known: dict[Any, Attributes] = {}
    found: list[Attributes] = [()] * len(fns)
    types = list(map(type, fns))
    kinds = {kind: _members.get(kind) or _members_of(kind) for kind in set(types)}
    keeping = {kind: (names, get) for kind, (names, get) in kinds.items() if get is not None}
    for i, kind in enumerate(types):
        if kind in keeping:
            names, get = keeping[kind]
            values = get(fns[i])
            key = kind, values_key(values)
            if key not in known:
                row = values if len(names) > 1 else (values,)
                pairs = zip(names, row, strict=True)
                known[key] = tuple([f"{name}={_text(v)}" for name, v in pairs if v is not None])
            found[i] = known[key]
    return found


def values_key(values: Any) -> bytes | str:
    """Return a dict key for numbers, strings and lists of them; the keys of 1 and 1.0 differ."""
    try:
        return dumps(values, 2)  # takes a quarter of the time of repr
    except ValueError:  # raised for a symbolic size
        return repr(values)


def _members_of(kind: type) -> _Members:
    if hasattr(kind, "_raw_saved_tensors") or hasattr(kind, "_forward_cls"):
        return _NOTHING  # custom Functions are not cached, as their class may refer to tensors
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


_alias: Any = torch._C._functions.DelayedError("", 1)


def accumulator(leaf: Tensor) -> Any:
    """Return the AccumulateGrad node of a leaf; None if it has none.

    A tensor that requires no gradient has no such node, and neither has a tensor inside a
    `torch.func` transform.

    >>> leaf = torch.ones(2).to_sparse().requires_grad_()
    >>> accumulator(leaf).variable is leaf
    True
    """
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch._C._InferenceMode(False),
    ):
        if not leaf.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            return None
        enabled = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(True)
            if _is_subclass(leaf):
                with without_new_capsules(leaf):
                    return _subclass_accumulator(leaf)
            return _alias(leaf).grad_fn.next_functions[0][0]
        finally:
            torch._C._set_grad_enabled(enabled)


class _Edges(torch.autograd.Function):
    """Custom Function that collects the autograd nodes of its inputs, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, found: list[Any]) -> None:
        found.append(ctx.next_functions[0][0])


def _subclass_accumulator(leaf: Tensor) -> Any:
    found: list[Any] = []
    apply: Any = super(torch.autograd.Function, _Edges).apply
    apply(leaf, found)
    return found[0]


def _is_subclass(leaf: Tensor) -> bool:
    # This function of PyTorch also returns True for meta and nested tensors, which are plain
    # tensors unless they have a class of their own.
    like: bool = torch._C._dispatch_isTensorSubclassLike(leaf)
    return like and not leaf.is_meta and type(leaf) not in (Tensor, torch.nn.Parameter)


# True if this version of torch exposes `SavedTensor.data`.
HAS_SAVED_TENSOR_DATA: bool = hasattr(torch._C._autograd.SavedTensor, "data")
MISSING_SAVED_TENSORS = (
    f"tensors saved for backward, which torch {torch.__version__} does not expose"
)

_PREFIX = "_raw_saved_"
_OF_FUNCTION = [("_raw_saved_tensors", "")]


class _SavedNames(dict[type, list[tuple[str, str]]]):
    def __missing__(self, kind: type) -> list[tuple[str, str]]:
        if issubclass(kind, BackwardCFunction):
            return _OF_FUNCTION  # not cached, because a class of the user may refer to tensors
        names = [name for name in dir(kind) if name.startswith(_PREFIX)]
        self[kind] = [(name, name.removeprefix(_PREFIX)) for name in names]
        return self[kind]


# For each node class, the attributes that refer to saved tensors, each with the tensor's name.
SAVED_NAMES = _SavedNames()


def saved_value(fn: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that a node saved for backward, without unpacking it.

    Returns None if the node saved no such tensor, if backward has freed it, if a hook of the
    program packed it, or if this version of torch does not expose it.
    """
    raw = getattr(fn, f"{_PREFIX}{name}", None) if HAS_SAVED_TENSOR_DATA else None
    try:
        return None if raw is None or raw.unpack_hook is not None else raw.data
    except RuntimeError:
        return None


def saved_index(fn: Any) -> torch.Tensor | None:
    """Return the index that a node of `x[index]`, index_select or gather saved.

    Returns None for an index of a later dimension, and if `saved_value` would.
    """
    if not hasattr(fn, "_raw_saved_indices"):
        first = getattr(fn, "_saved_dim", None) == 0
        return saved_value(fn, "index") if first else None
    raw = fn._raw_saved_indices
    try:
        alone = HAS_SAVED_TENSOR_DATA and len(raw) == 1 and raw[0].unpack_hook is None
        return raw[0].data if alone else None
    except (RuntimeError, AttributeError):
        return None
