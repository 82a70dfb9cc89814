"""Move nested containers of tensors to a device, and preserve shared memory.

Tensors that share memory are copied as one block of bytes, and become views of the copied block. A
leaf that requires grad becomes a leaf on the device. The result of an operation is copied within
the autograd graph, so that gradients flow back through the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..graph import TensorMeta
from ..graph.immutable import NamedTuple, immutable
from ..graph.text import print_text, printable
from ..internals.tensors.memory import elements
from ..internals.tensors.metadata import device_label, tensor_meta
from .containers import children, join, rebuild, tensors_in, unmovable_reason, walk_structure

_ALIGNMENT = 16  # bytes; size of the largest element, complex128


@immutable
class Move:
    """One tensor that was moved.

    >>> import torch
    >>> from graphviz_torch import simulate_accelerator, to_device
    >>> with simulate_accelerator() as [device]:
    ...     x = to_device(torch.ones(3), device, report=lambda moves: print(moves.moved[0]))
    tensor: float32[3], 12 bytes, cpu -> sim:0
    """

    name: str
    tensor: TensorMeta  # metadata of the tensor after the move
    source: str  # device of the tensor before the move
    nbytes: int  # number of copied bytes; 0 if the tensor is a view of another copy
    shares: str = ""  # if the tensor is a view: name of the tensor whose copy it views

    def __str__(self) -> str:
        shared = f", shares memory with {self.shares}" if self.shares else ""
        return (
            f"{self.name or 'tensor'}: {self.tensor.dtype}{list(self.tensor.shape)}, "
            f"{self.nbytes:,} bytes, {self.source} -> {self.tensor.device}{shared}"
        )


@immutable
class Moves:
    """The report of `to_device`: the tensors that moved, the objects that stayed, and why.

    >>> import torch
    >>> from graphviz_torch import simulate_accelerator, to_device
    >>> with simulate_accelerator() as [device]:
    ...     batch = to_device({"x": torch.ones(3)}, device, report=print)
    x: float32[3], 12 bytes, cpu -> sim:0
    1 moved, 12 bytes
    """

    moved: tuple[Move, ...] = ()
    stayed: tuple[tuple[str, str], ...] = ()  # (name, reason why it stayed)

    _repr_pretty_ = print_text

    @property
    def nbytes(self) -> int:
        """Number of copied bytes. Memory that several tensors share counts once."""
        return sum(move.nbytes for move in self.moved)

    def __str__(self) -> str:
        lines = [str(move) for move in self.moved]
        lines += [f"{name or 'it'} stays: {reason}" for name, reason in self.stayed]
        return "\n".join(
            [*map(printable, lines), f"{len(self.moved)} moved, {self.nbytes:,} bytes"]
        )


class Loader:
    """A wrapper of a DataLoader that moves each batch to a device.

    All other attributes are those of the wrapped loader.
    """

    def __init__(self, loader: Any, device: torch.device, numbers: bool = False) -> None:
        self.loader, self.device, self.numbers = loader, device, numbers

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield Mover(self.device, self.numbers).move(batch, "batch")

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # `copy` and `pickle` read attributes before `loader` exists
            raise AttributeError(name)
        return getattr(self.loader, name)


class Layout(NamedTuple):
    """The positions of a tensor's elements in its storage. Offsets and strides count elements."""

    device: torch.device
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    end: int  # offset of the last element, plus 1

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> Layout:
        """Return the layout of a tensor."""
        size, stride, offset = tensor.size(), tensor.stride(), int(tensor.storage_offset())
        last = int(sum((n - 1) * s for n, s in zip(size, stride, strict=True)))
        end = offset + (last + 1 if tensor.numel() else 0)
        return cls(tensor.device, tensor.dtype, offset, size, stride, end)


class Mover:
    """The state of one call of `to_device`. An object that occurs repeatedly is moved once.

    Args:
        device: the target device.
        numbers: True to turn Python numbers into tensors.
    """

    def __init__(self, device: torch.device, numbers: bool = False) -> None:
        self.device, self.numbers = device, numbers
        self.moved: list[Move] = []
        self.stayed: list[tuple[str, str]] = []
        self._new: dict[int, Any] = {}  # id of an original object -> the moved one
        self._originals: list[Any] = []  # kept alive, so that their ids are not reused
        self._at_address: dict[int, list[tuple[str, torch.Tensor]]] = {}  # storage -> tensors in it

    def move(self, tree: Any, name: str = "") -> Any:
        """Return `tree` with all of its tensors on the device.

        Args:
            tree: a tensor, module, optimizer, DataLoader, or a container of these.
            name: prefix of the names in the report.
        """
        things = list(walk_structure(tree, name))
        for path, thing in things:
            if isinstance(thing, torch.Tensor):
                self._at_address.setdefault(_address(thing), []).append((path, thing))
        for path, thing in things:
            if isinstance(thing, torch.nn.Module):
                self._module(path, thing)
        for path, thing in things:
            if isinstance(thing, torch.optim.Optimizer):
                self._optimizer(path, thing)
        return self._rebuild(tree, name)

    def report(self) -> Moves:
        """Return the tensors that have been moved so far, and the objects that stayed."""
        return Moves(tuple(self.moved), tuple(self.stayed))

    # Methods that move modules and optimizers in place:

    def _module(self, path: str, module: torch.nn.Module) -> None:
        named = dict([*module.named_parameters(), *module.named_buffers()])
        before = {
            name: (t, Layout.from_tensor(t), self._sharing_memory(t)) for name, t in named.items()
        }
        gradients = {n: t.grad.device for n, t in named.items() if t.grad is not None}
        try:
            module.to(self.device)
        except (RuntimeError, NotImplementedError) as error:
            self.stayed.append((path, f"{type(module).__name__}.to failed: {error}"))
            return
        now = dict([*module.named_parameters(), *module.named_buffers()])
        for name, (old, layout, sharing) in before.items():
            self._finish_in_place(join(path, name), old, now[name], layout, sharing)
        for name, source in gradients.items():
            self._note(join(path, name + ".grad"), now[name].grad, source)

    def _optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            stays = not (group.get("capturable") or group.get("fused"))
            for i, parameter in enumerate(group["params"]):
                name = self._name(parameter, join(path, f"params.{i}"))
                self._parameter(name, parameter)
                state = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    # The step counter of an optimizer stays on the CPU, as in `load_state_dict`.
                    if isinstance(value, torch.Tensor) and not (key == "step" and stays):
                        state[key] = self._rebuild(value, join(path, f"state.{i}.{key}"))

    def _parameter(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.device == self.device:
            return
        layout, sharing, gradient = (
            Layout.from_tensor(parameter),
            self._sharing_memory(parameter),
            parameter.grad,
        )
        parameter.grad = None
        parameter.data = parameter.data.to(self.device)
        if gradient is not None:
            parameter.grad = self._rebuild(gradient, name + ".grad")
        self._finish_in_place(name, parameter, parameter, layout, sharing)

    def _finish_in_place(
        self,
        name: str,
        old: torch.Tensor,
        new: torch.Tensor,
        layout: Layout,
        sharing: list[tuple[str, torch.Tensor]],
    ) -> None:
        """Report a tensor that was moved in place, and recreate the tensors that shared its memory.

        Args:
            name: name of the tensor in the report.
            old: the tensor before the move.
            new: the tensor after the move, often the same object.
            layout: layout of `old` before the move.
            sharing: (name, tensor) of the tensors that shared memory with `old`.
        """
        self._remember(old, new)
        self._note(name, new, layout.device)
        for label, other in sharing:
            view = _view(new, layout, other)
            if view is not None and other is not old and id(other) not in self._new:
                self._note(label, view, other.device, shares=name)
                self._remember(other, view)

    # Methods that return moved copies of tensors and containers:

    def _rebuild(self, thing: Any, name: str) -> Any:
        if id(thing) in self._new:
            return self._new[id(thing)]
        if isinstance(thing, torch.Tensor):
            self._tensor(name, thing)
            return self._new[id(thing)]
        if isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
            return thing
        if isinstance(thing, (torch.utils.data.DataLoader, Loader)):
            inner = thing.loader if isinstance(thing, Loader) else thing
            return self._remember(thing, Loader(inner, self.device, self.numbers))
        if self.numbers and type(thing) in (bool, int, float, complex):
            new = torch.tensor(thing, device=self.device)
            self._note(name, new, torch.device("cpu"))
            return new
        if callable(getattr(type(thing), "to", None)) and not isinstance(thing, type):
            return self._call_to(name, thing)
        parts = children(thing)
        if parts is None:
            reason = unmovable_reason(thing)
            if reason:
                self.stayed.append((name, reason))
            return thing
        self._remember(thing, thing)  # otherwise a container that contains itself recurses forever
        values = [self._rebuild(part, join(name, key)) for key, part in parts]
        if all(new is old for new, (_, old) in zip(values, parts, strict=True)):
            return thing
        return self._remember(thing, rebuild(thing, values))

    def _call_to(self, name: str, thing: Any) -> Any:
        """Move an object such as a PackedSequence or BatchEncoding by calling its method `to`."""
        sources = {key: tensor.device for key, tensor in tensors_in(thing)}
        try:
            new = thing.to(self.device)
        except Exception as error:
            self.stayed.append((name, f"{type(thing).__name__}.to failed: {error}"))
            return thing
        for key, tensor in tensors_in(new):
            self._note(join(name, key), tensor, sources.get(key, tensor.device))
        return self._remember(thing, new)

    def _tensor(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.device == self.device:
            self._remember(tensor, tensor)
            return
        try:
            sharing = [pair for pair in self._sharing_memory(tensor) if pair[1].grad_fn is None]
            if tensor.grad_fn is not None:
                self._result(name, tensor)
            elif tensor.layout == torch.strided and (len(sharing) > 1 or _repeats(tensor)):
                self._block(sharing or [(name, tensor)])
            else:
                moved = _without_grad(tensor).to(self.device)
                self._remember(tensor, self._leaf(name, tensor, moved))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            self.stayed.append((name, str(error)))
            self._remember(tensor, tensor)

    def _result(self, name: str, tensor: torch.Tensor) -> None:
        """Copy the result of an operation within the graph. A view remains a view of its base."""
        base = tensor._base
        if base is not None and any(base is other for _, other in self._sharing_memory(tensor)):
            layout = Layout.from_tensor(base)
            self._rebuild(base, self._name(base, name))
            new = _view(self._new[id(base)], layout, tensor)
            if new is not None:
                self._note(name, new, tensor.device, shares=self._name(base, name))
                self._remember(tensor, new)
                return
        new = tensor.to(self.device)
        self._note(name, new, tensor.device)
        self._remember(tensor, new)

    def _block(self, group: list[tuple[str, torch.Tensor]]) -> None:
        """Move tensors that share memory: copy the bytes once, and recreate the tensors as views.

        Args:
            group: (name, tensor) of the tensors in one storage.
        """
        layouts = [Layout.from_tensor(tensor) for _, tensor in group]
        start = min(p.offset * p.dtype.itemsize for p in layouts) // _ALIGNMENT * _ALIGNMENT
        end = max(p.end * p.dtype.itemsize for p in layouts)
        whole = next((i for i, (_, t) in enumerate(group) if _nbytes(t) == end - start), None)
        if whole is not None:  # one tensor covers all bytes, so this tensor is copied
            group.insert(0, group.pop(whole))
            layouts.insert(0, layouts.pop(whole))
            first = _without_grad(group[0][1]).to(self.device)
            block = first.as_strided((first.numel(),), (1,), first.storage_offset())
        else:
            storage = max((t.untyped_storage() for _, t in group), key=lambda s: s.nbytes())
            span = torch.empty(0, dtype=torch.uint8, device=group[0][1].device)
            block = span.set_(storage, start, (end - start,), (1,)).to(self.device)
        block = block.detach().view(torch.uint8)
        for i, ((name, tensor), layout) in enumerate(zip(group, layouts, strict=True)):
            size = layout.dtype.itemsize
            typed = block[: len(block) // size * size].view(layout.dtype)
            laid = typed.as_strided(layout.size, layout.stride, layout.offset - start // size)
            new = self._leaf(name, tensor, laid.detach(), group[0][0] if i else "", end - start)
            self._remember(tensor, new)

    def _leaf(
        self,
        name: str,
        old: torch.Tensor,
        new: torch.Tensor,
        shares: str = "",
        nbytes: int | None = None,
    ) -> torch.Tensor:
        """Return `new` as a leaf with the class, requires_grad and grad of `old`.

        The move is added to the report.

        Args:
            name: name of the tensor in the report.
            old: the original leaf.
            new: the moved values.
            shares: name of the tensor whose copy contains `new`; "" if `new` is a copy of its own.
            nbytes: number of copied bytes; None computes it from `new`.
        """
        if isinstance(old, torch.nn.Parameter):
            new = torch.nn.Parameter(new, old.requires_grad)
        new.requires_grad_(old.requires_grad)
        self._note(name, new, old.device, shares, nbytes)
        if old.grad is not None:
            new.grad = self._rebuild(old.grad, name + ".grad")
        return new

    def _sharing_memory(self, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return (name, tensor) of all tensors to move that share the storage of `tensor`."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for name, other in self._at_address.get(_address(tensor), []):
            found.setdefault(id(other), (name, other))
        return list(found.values())

    def _name(self, tensor: torch.Tensor, default: str) -> str:
        return next((name for name, t in self._sharing_memory(tensor) if t is tensor), default)

    def _remember(self, old: Any, new: Any) -> Any:
        self._new[id(old)] = new
        self._originals.append(old)
        return new

    def _note(
        self,
        name: str,
        new: torch.Tensor | None,
        source: torch.device,
        shares: str = "",
        nbytes: int | None = None,
    ) -> None:
        if new is not None and new.device != source:
            meta = tensor_meta(new)
            count = new.numel() * new.element_size() if nbytes is None else nbytes
            self.moved.append(
                Move(name, meta, device_label(source), 0 if shares else count, shares)
            )


def _address(tensor: torch.Tensor) -> int:
    # Tensors without memory of their own (meta, sparse, empty, wrappers) share no memory.
    found = elements(tensor) if tensor.layout is torch.strided else None
    if found is None or found.extent or not found.tensors:
        return id(tensor)
    return found.tensors[0].untyped_storage().data_ptr() or id(tensor)


def _without_grad(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor.detach()` if the tensor requires grad, otherwise the tensor itself."""
    return tensor.detach() if tensor.requires_grad else tensor


def _nbytes(tensor: torch.Tensor) -> int:
    """Return a tensor's number of bytes; 0 if there are gaps between its elements in memory."""
    dense = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1:
            if stride != dense:
                return 0
            dense *= size
    return tensor.numel() * tensor.element_size()


def _repeats(tensor: torch.Tensor) -> bool:
    """Return True if several elements of a tensor have the same address, as after `expand`."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.size(), tensor.stride(), strict=True))


def _view(new: torch.Tensor, old: Layout, alias: torch.Tensor) -> torch.Tensor | None:
    """Recreate `alias`, which shares memory with the original tensor, as a view of `new`.

    Returns None if some elements of `alias` are not in `new`, or if the dtypes differ.

    Args:
        new: the moved tensor.
        old: the layout of the original tensor.
        alias: the other tensor in the original's storage.
    """
    layout = Layout.from_tensor(alias)
    inside = old.offset <= layout.offset and layout.end <= old.end and layout.dtype == old.dtype
    if not inside or new.stride() != old.stride:
        return None
    offset = layout.offset - old.offset + new.storage_offset()
    if alias.grad_fn is not None:
        return new.as_strided(layout.size, layout.stride, offset)
    view = new.detach().as_strided(layout.size, layout.stride, offset)
    return view.requires_grad_(alias.requires_grad)
