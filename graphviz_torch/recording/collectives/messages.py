"""Of what a message between two ranks is: of which module, and of forward or backward.

A pipeline sends outside of all modules. What it carries tells:

    sent    a module's result           forward     a gradient of what a module took    backward
    taken   what a module is given      forward     what a backward begins with         backward

Compared are storages, so a detached result counts as well; a copy of it does not. Modules are those
that the program calls, and those that these call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor

from ...graph import CollectivePhase
from ...internals.hooks.collectives.watch import Sent
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.pytree import flatten
from ..listener import RunBegan, RunEnded
from ..program import Program

_DEPTH = 2  # of modules


class Content(NamedTuple):
    """What a message carries."""

    phase: CollectivePhase
    module: str


class Messages:
    """What the messages of a recording carry.

    Args:
        program: names the modules.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._depth = 0
        self._contents: dict[int, tuple[Any, Content]] = {}  # by storage, of what may be sent
        self._taken: dict[int, tuple[Any, int]] = {}  # by storage, the number of the call
        self._found: dict[int, Content] = {}  # by the number of the call
        # By id() of what will have a `.grad`: itself, and the module that it is given to.
        self._inputs: dict[int, tuple[ref[Tensor], str]] = {}

    def content(self, call: int) -> Content | None:
        """What the message of a call carries; None where that is not known."""
        return self._found.get(call)

    def sent(self, event: Sent) -> None:
        """A message was sent, or is to be taken."""
        for tensor in event.given:
            key = storage_id(tensor)
            if event.kind == "recv":
                self._contents.pop(key, None)
                self._taken[key] = storage_ref(tensor), event.call
            elif event.kind == "send" and (known := self._content(key)) is not None:
                self._found[event.call] = known

    def module_began(self, event: ModuleBegan) -> None:
        self._depth += 1
        if self._depth <= _DEPTH:
            path = self._program.table.path(event.module) or ""
            for tensor in _tensors(event.args):
                self._take(tensor, Content("forward", path))
                if tensor.is_leaf and tensor.requires_grad:
                    weak, known = self._inputs.get(id(tensor), (None, ""))
                    if not known or weak is None or weak() is not tensor:
                        self._inputs[id(tensor)] = ref(tensor), path

    def module_ended(self, event: ModuleEnded) -> None:
        if self._depth <= _DEPTH:
            path = self._program.table.path(event.module) or ""
            for tensor in _tensors(event.output):
                inner = self._content(storage_id(tensor))
                module = path or ("" if inner is None else inner.module)
                self._give(tensor, Content("forward", module))
        self._depth = max(0, self._depth - 1)

    def backward_began(self, event: RunBegan) -> None:
        for gradient, output in zip(event.given, event.outputs, strict=False):
            if isinstance(gradient, Tensor) and isinstance(output, Tensor):
                known = self._content(storage_id(output))
                module = "" if known is None else known.module
                self._take(gradient, Content("backward", module))

    def backward_ended(self, event: RunEnded) -> None:
        for gradient in event.gradients:
            if gradient is not None and storage_id(gradient):
                self._give(gradient, Content("backward", ""))
        for weak, path in self._inputs.values():
            tensor = weak()
            if tensor is not None and tensor.grad is not None and storage_id(tensor.grad):
                self._give(tensor.grad, Content("backward", path))

    def forget(self) -> None:
        """A step is over: what was taken may be used in the next one."""
        self._found, self._inputs = {}, {}
        self._contents = {k: each for k, each in self._contents.items() if not each[0].expired()}
        self._taken = {k: each for k, each in self._taken.items() if not each[0].expired()}

    def close(self) -> None:
        self._contents, self._taken, self._inputs = {}, {}, {}

    def _content(self, key: int) -> Content | None:
        weak, content = self._contents.get(key, (None, None))
        return None if weak is None or weak.expired() else content

    def _give(self, tensor: Tensor, content: Content) -> None:
        self._contents[storage_id(tensor)] = storage_ref(tensor), content

    def _take(self, tensor: Tensor, content: Content) -> None:
        """What was taken is used; of a module and those inside it, the first that has a name."""
        weak, call = self._taken.get(storage_id(tensor), (None, -1))
        if weak is not None and not weak.expired():
            self._found[call] = content
            if content.module or content.phase == "backward":
                del self._taken[storage_id(tensor)]


def _tensors(values: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in flatten(values, ask=False) if storage_id(tensor))
