"""Track memory: the lifetime of each storage, with its role, line and module.

All bytes of a storage count while anything refers to the storage. Three kinds of memory do not
count: memory that a kernel uses internally, bytes that an allocator adds by rounding, and memory
that CUDA, NCCL and cuBLAS reserve.

The role of a storage is the first in this list that applies:

    parameter     a parameter of a called module or of an optimizer; if it is sharded, only this
                  rank's shard
    gradient      `.grad` of a parameter before an optimizer steps, and gradients in fully_shard
    optimizer     state of an optimizer after its step
    buffer        a buffer of a called module
    gathered      unsharded parameters, which fully_shard gathers and frees
    input         arguments of the outermost module
    activation    tensors that the graph has saved when backward starts
    communication inputs and outputs of collectives
    recomputed    tensors that a checkpointed segment recomputes
    temporary     everything else, mostly gradients inside the graph

If the program uses CUDA, only memory on the device counts. A tensor is on the device if the program
places it there, or if an operator uses or creates it together with such a tensor. If the program
does not use CUDA, all memory counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils import flop_counter

from ..graph.text import called_at
from ..internals.frames import LIBRARY, OTHER, code_owner, user_frame
from ..internals.hooks.checkpoints import CheckpointWatch
from ..internals.hooks.dispatch import sequence_number
from ..internals.hooks.engine import EngineCalled, EngineWatch, running_node
from ..internals.hooks.modes import unseen_calls
from ..internals.hooks.modules import ModuleBegan, ModuleEnded, ModuleWatch
from ..internals.hooks.optimizers import Stepped, Stepping, StepWatch, parameters_of
from ..internals.hooks.storages import StorageWatch
from ..internals.tensors.memory import parts, storage_id
from ..internals.tensors.pytree import tensors
from ..internals.wrappers import is_wrapped_child, unsharded_parameters
from ..recording.memory import Memory, checkpoints_of
from ..tracing.nodes import gradient_edges_of
from ..tracing.tracer import collect_nodes
from .blocks import LOOP, Placement, StorageBlock, peak_of

_flops: Any = flop_counter
# An operator for which `torch.utils.flop_counter` has no formula.
_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


# Operators whose arguments may be on different devices: copies, and indexing, because indices may
# be on the CPU. For each indexing operator, the numbers are the positions of its other arguments.
_COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::_copy_from"})
_INDEXED = {"aten::index": (0,), "aten::index_put": (0, 2), "aten::index_put_": (0, 2)}
# Roles that any other role replaces.
_REPLACEABLE_ROLES = frozenset({"temporary", "communication", "recomputed"})
_SCALAR_BYTES = 16  # a storage up to this size is one number, which may be on any device


class MemoryTracker:
    """A context manager that counts the memory and FLOPs of the code in its block.

    A step starts with the first call of a module after `begin_step()`. Counts of earlier steps are
    discarded.

    Args:
        on_host: function of the arguments of a collective. It returns True if the process group
            sends CPU tensors.
    """

    def __init__(self, on_host: Callable[[Iterable[Any]], bool] = lambda args: False) -> None:
        self._on_host = on_host
        self.blocks: list[StorageBlock] = []
        self.phases: list[tuple[int, str]] = []  # (first moment, phase)
        self.moment = 0  # number of changes of memory so far
        self.uses_device = False  # True if the program uses a device
        self.flops = 0
        self.first_moment = 0  # first moment of the step
        self._is_waiting = True  # True until the step starts
        self._blocks: dict[int, StorageBlock] = {}  # `storage_id` -> allocated block
        self._saved: list[list[StorageBlock]] = []  # for each backward: blocks of saved tensors
        self._paths: dict[int, str] = {}
        self._stack: list[str] = []
        self._roots: dict[int, Module] = {}
        self._optimizers: dict[int, Any] = {}
        # Sequence number of a node -> (module, line) that created the node in forward.
        self._origins: dict[int, tuple[str, str]] = {}
        # Depth of the module stack at the start of each running backward.
        self._backward_depth: list[int] = []
        self._stepping = False
        self._crossing = False
        self._checkpoints = CheckpointWatch()
        self._storages = StorageWatch(
            self._on_storage_change, self._on_storage_free, self._on_operator
        )
        self._watches: tuple[Any, ...] = (
            ModuleWatch(self._module_began, self._module_ended),
            EngineWatch(self._backward_began, self._backward_ended),
            StepWatch(self._will_step, self._has_stepped),
            self._checkpoints,
            self._storages,
        )

    def __enter__(self) -> MemoryTracker:
        for watch in self._watches:
            watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in reversed(self._watches):
            watch.__exit__(None, None, None)
        self._roots, self._optimizers = {}, {}

    def begin_step(self) -> None:
        """Discard the counts, and start a new step at the next call of a module."""
        self._is_waiting = True

    def close_step(self) -> None:
        """End the step, and assign the final roles."""
        self._assign_roles()

    @property
    def activations(self) -> list[StorageBlock]:
        """Storages saved for backward; in a step with several backwards, for the largest."""
        every = [[b for b in blocks if b.role == "activation"] for blocks in self._saved]
        return max(every, key=lambda blocks: sum(b.nbytes for b in blocks), default=[])

    @property
    def counted_blocks(self) -> list[StorageBlock]:
        """Storages that count: if the program uses a device, those on the device, otherwise all."""
        return [block for block in self.blocks if not self.uses_device or block.placement.device]

    # Methods that the simulated accelerator calls:

    def put(self, given: Any) -> None:
        """Place tensors on the device."""
        self.uses_device = True
        with unseen_calls():
            for block in self._blocks_of(tensors(given)):
                block.placement.put()

    def has(self, tensor: Tensor) -> bool:
        """Return True if a tensor is on the device. Inside an operator the result is False."""
        if self._storages.inside:
            return False
        with unseen_calls():
            return any(block.placement.device for block in self._blocks_of([tensor]))

    def allocated_bytes(self) -> int:
        """Return the number of bytes that are allocated on the device."""
        return sum(block.nbytes for block in self._blocks.values() if block.placement.device)

    def peak_bytes(self) -> int:
        """Return the largest number of bytes on the device in this step."""
        there = [block for block in self.blocks if block.placement.device]
        return peak_of(there, self.first_moment).nbytes

    @contextmanager
    def crossing(self) -> Iterator[None]:
        """Return a context manager in which operators may mix devices, as copies do."""
        before, self._crossing = self._crossing, True
        try:
            yield
        finally:
            self._crossing = before

    def bytes_of(self, role: str) -> int:
        """Return the number of allocated bytes with this role."""
        return sum(block.nbytes for block in self._blocks.values() if block.role == role)

    # Callbacks of the hooks:

    def _on_storage_change(self, number: int, nbytes: int) -> None:
        old = self._blocks.get(number)
        if old is not None:
            self._end(number)
            old.role = "gathered" if old.role in _REPLACEABLE_ROLES else old.role
        self.moment += 1
        phase, here = self._position()
        self._mark(phase)
        side = Placement() if old is None else old.placement
        block = self._blocks[number] = StorageBlock(nbytes, self.moment, phase, here, side)
        self.blocks.append(block)
        if old is not None:
            block.role = old.role
        elif phase == "backward" and len(self._stack) > self._backward_depth[-1]:
            block.role = "recomputed"

    def _mark(self, phase: str) -> None:
        if not self.phases or self.phases[-1][1] != phase:
            self.phases.append((self.moment, phase))

    def _on_storage_free(self, number: int) -> None:
        if number in self._blocks:
            self._end(number)

    def _end(self, number: int) -> None:
        self.moment += 1
        self._blocks.pop(number).freed_at = self.moment

    def _on_operator(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        packet = operator._overloadpacket
        if operator.namespace in ("c10d", "fsdp"):
            self._label_collective(operator, args, kwargs, result)
        if self.uses_device and not self._crossing:
            self._join(operator, args, kwargs, result)
        formula: Any = _flops.flop_registry.get(packet)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        elif str(packet) == _ATTENTION:
            self.flops += _flops.sdpa_flop_count(*(each.shape for each in args[:3]))
        elif str(packet) == f"{_ATTENTION}_backward":
            self.flops += _flops.sdpa_backward_flop_count(*(each.shape for each in args[:4]))

    def _label_collective(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Assign roles to the buffers that FSDP and DDP collectives read and write."""
        # The arguments of `chunk_cat` are unsharded gradients that a reduce_scatter will read.
        if operator._schema.name == "fsdp::chunk_cat":
            self._assign_role(_plain(args), "gradient")
        there = self.uses_device and operator.namespace == "c10d" and not self._on_host(args)
        for block in self._blocks_of(_plain([result, *args, *kwargs.values()])):
            block.role = "communication" if block.role in _REPLACEABLE_ROLES else block.role
            if there and block.nbytes > _SCALAR_BYTES:
                block.placement.put()

    def _join(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Join the placements of all tensors that an operator uses or creates."""
        schema = operator._schema
        if schema.name in _COPIES:
            return
        made = self._blocks_of(_plain([result]))
        if not schema.is_mutable and all(block.placement.device for block in made):
            return  # the results are on the device already, such as a view
        taken = [args[i] for i in _INDEXED.get(schema.name, range(len(args))) if i < len(args)]
        given = self._blocks_of(_plain([*taken, *kwargs.values()]))
        together = [*made, *(block for block in given if block.nbytes > _SCALAR_BYTES)]
        for block in together[1:]:
            together[0].placement.join(block.placement)
        # The results are on the device if any argument is, even a single number.
        if any(block.placement.device for block in given):
            for block in made:
                block.placement.put()

    def _module_began(self, event: ModuleBegan) -> None:
        module = event.module
        if not self._stack:
            self._outermost(module, event.args)
        elif id(module) not in self._paths:
            self._paths.update(_paths(module, type(module).__name__))
        self._stack.append(self._paths.get(id(module), ""))

    def _outermost(self, module: Module, args: Any) -> None:
        if not self._backward_depth:
            if id(module) not in self._roots or id(module) not in self._paths:
                self._roots[id(module)] = module
                self._paths.update(_paths(module, ""))
            if self._is_waiting:
                self._begin()
            with unseen_calls():
                self._assign_role(tensors(args), "input")

    def _module_ended(self, _: ModuleEnded) -> None:
        if self._stack:
            self._stack.pop()

    def _begin(self) -> None:
        self._is_waiting = False
        self.blocks = list(self._blocks.values())
        self.first_moment, self.phases = self.moment, []
        self.flops, self._saved, self._origins = 0, [], {}

    def _backward_began(self, event: EngineCalled) -> None:
        self._backward_depth.append(len(self._stack))
        with unseen_calls():
            self._assign_roles()
            ends = [end for output in event.outputs for end in gradient_edges_of(output)]
            ids, _ = collect_nodes([fn for fn, _ in ends])
            saved = Memory(ids, (), checkpoints=checkpoints_of(ids, self._checkpoints.frames()))
            self._saved.append(self._assign_role(saved.activations, "activation"))
            saved.release()

    def _backward_ended(self, _: object) -> None:
        self._backward_depth.pop()

    def _will_step(self, event: Stepping) -> None:
        self._stepping = True
        self.moment += 1  # adds a moment for the optimizer step, even if it allocates nothing
        self._mark("optimizer")
        self._optimizers[id(event.optimizer)] = event.optimizer
        with unseen_calls():
            self._assign_roles()

    def _has_stepped(self, _: Stepped) -> None:
        self._stepping = False
        with unseen_calls():
            self._assign_roles()

    # Methods that find the position of an allocation in the program:

    def _position(self) -> tuple[str, tuple[str, str]]:
        """Return the phase of the running code, and its (module, line)."""
        frame = sys._getframe(2)
        if self._stepping:
            return "optimizer", ("", _line(frame))
        if not self._backward_depth:
            here = (self._stack[-1] if self._stack else "", _line(frame))
            self._origins[sequence_number() - 1] = here
            return ("forward" if self._stack else LOOP), here
        if len(self._stack) > self._backward_depth[-1]:  # checkpointing repeats a forward
            here = self._stack[-1], _line(frame)
            self._origins[sequence_number() - 1] = here
            return "backward", here
        node = running_node()
        origin = None if node is None else self._origins.get(node._sequence_nr())
        return "backward", origin or ("", _line(frame))

    # Methods that assign roles to storages:

    def _assign_roles(self) -> None:
        for module in self._roots.values():
            whole = [each for part in module.modules() for *_, each in unsharded_parameters(part)]
            self._assign_role(whole, "gathered")
            self._assign_role(module.parameters(), "parameter")
            self._assign_role(module.buffers(), "buffer")
        for optimizer in self._optimizers.values():
            self._assign_role(parameters_of(optimizer), "parameter")
            self._assign_role(
                tensors([list(state.values()) for state in optimizer.state.values()]), "optimizer"
            )
        for tensor in self._parameters():
            if tensor.grad is not None:
                self._assign_role([tensor.grad], "gradient")

    def _parameters(self) -> Iterator[Tensor]:
        for module in self._roots.values():
            yield from module.parameters()
        for optimizer in self._optimizers.values():
            yield from parameters_of(optimizer)

    def _assign_role(self, given: Iterable[Tensor], role: str) -> list[StorageBlock]:
        """Assign a role to the storages of tensors, and return the storages.

        A storage keeps its role if that role is not one of `_REPLACEABLE_ROLES`.
        """
        found = self._blocks_of(given)
        for block in found:
            if block.role in _REPLACEABLE_ROLES:
                block.role = role
        return found

    def _blocks_of(self, given: Iterable[Tensor]) -> list[StorageBlock]:
        numbers = {storage_id(part): None for tensor in given for part in parts(tensor)}
        return [self._blocks[number] for number in numbers if number in self._blocks]


def _plain(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in the arguments of an operator, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _plain(value)


def _line(frame: FrameType | None) -> str:
    """Return the innermost line outside of PyTorch, with the user's line if it is in a library."""
    user = user_frame(frame)
    while frame is not None and code_owner(frame.f_code.co_filename) == OTHER:
        frame = frame.f_back
    if user is None or frame is None:
        return ""
    if frame is not user and code_owner(frame.f_code.co_filename) == LIBRARY:
        return called_at(_text(frame), _text(user))
    return _text(user)


def _text(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _paths(module: Module, path: str) -> dict[int, str]:
    """Return the paths of a module and all of its submodules, by their `id`.

    A module inside a wrapper, such as DistributedDataParallel, has the path of the wrapper.
    """
    found = {id(module): path}
    for name, child in module._modules.items():
        if child is not None:
            below = "" if is_wrapped_child(module, name) else name
            found |= _paths(child, f"{path}.{below}" if path and below else path or below)
    return found
