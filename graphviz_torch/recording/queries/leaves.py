"""Find leaves that a program creates: by `x.requires_grad = True`, `requires_grad_` and `tensor`.

An example is `torch.tensor(result, requires_grad=True)`: backward ends at the new leaf, so the
operations that computed `result` get no gradient. Calls that freeze a parameter, or that copy a
result into a parameter, are found, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import ClassVar

import torch
from torch import Tensor

from ...graph.events import CopiedValues, LeafBackward, NewLeaves, ParameterFreeze
from ...graph.immutable import NamedTuple
from ...internals.frames import OWN, CodePosition, code_owner
from ...internals.functions import LOAD_STATE_CODE, SET_REQUIRES_GRAD, TensorBase
from ...internals.hooks.calls import Called
from ..listener import BackwardBegan
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.source_lines import last_assignment, source_text

_MAX_LEAVES = 256  # maximum number of leaves created by the program to remember


class NewLeafRow(NamedTuple):
    """A leaf that the program has created."""

    leaf: int  # number of the tensor
    place: CodePosition | None
    name: str  # the function or attribute that created it
    maker: str  # the library function that the program called, or the same as `name`


class ReachedLeavesRow(NamedTuple):
    """Leaves that a backward reaches, if rows name them."""

    leaves: dict[int, int]  # number of the tensor -> id()


class LeafRootRow(NamedTuple):
    """A leaf from which a backward begins."""

    leaf: int | None  # number of the tensor; None for one that is in no earlier row
    event: LeafBackward
    place: CodePosition | None  # the line that assigned the leaf's variable
    key: int  # id() of the tensor


def created_leaves(event: Called, program: Program) -> Iterable[NewLeafRow | Found]:
    """Return a row of a call that creates a leaf, or an event for a parameter."""
    func, args, kwargs, result, frame, _, _ = event
    if program.steps.is_own_call(frame):
        return ()
    kwargs = kwargs or {}
    if func is TensorBase.copy_:
        return _copies(event, program)
    if func is torch.tensor:
        wanted, tensor, name = kwargs.get("requires_grad"), result, "torch.tensor"
    else:
        tensor, name = args[0], "requires_grad_" if result is not None else "requires_grad"
        wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if isinstance(tensor, torch.nn.Parameter):
        return () if wanted else (Found(ParameterFreeze(), program.place(frame)),)
    if not wanted or not tensor.is_leaf:
        return ()
    number, maker = program.identities.number(tensor), _called_function(frame) or name
    return (NewLeafRow(number, program.place(frame), name, maker),)


def _copies(event: Called, program: Program) -> Iterable[Found]:
    """Return an event for a copy of a result into a parameter, through which no gradient flows."""
    target, value = [*event.args[:2], None, None][:2]
    if torch.is_grad_enabled() or not isinstance(target, torch.nn.Parameter):
        return ()
    if not isinstance(value, Tensor) or value.grad_fn is None:
        return ()
    loads = event.frame.f_code is LOAD_STATE_CODE
    copied = CopiedValues(operation="load_state_dict" if loads else "copy_")
    return (Found(copied, program.place(event.frame)),)


def leaves_of_backward(
    event: BackwardBegan, program: Program
) -> Iterator[LeafRootRow | ReachedLeavesRow]:
    """Yield the leaves from which a backward begins, and those that it reaches."""
    for tensor in event.outputs:
        if not isinstance(tensor, Tensor) or tensor.grad_fn is not None:
            continue
        if any(tensor is parameter for _, parameter in program.parameters()):
            continue
        label = program.label(tensor, event.frame)
        place, name = last_assignment(event.frame, label), ""
        if isinstance(tensor, torch.nn.Parameter):
            name = "nn.Parameter"
        elif "Variable(" in source_text(place):
            name = "Variable"
        found = LeafBackward(label=label, maker=name)
        yield LeafRootRow(program.identities.find(tensor), found, place, id(tensor))
    if known := program.identities.find_ids(event.live.reached):
        yield ReachedLeavesRow(known)


class Leaves(Query):
    """Find leaves that the program created, and that a backward reaches or begins with."""

    functions = frozenset(
        (SET_REQUIRES_GRAD, TensorBase.requires_grad_, torch.tensor, TensorBase.copy_)
    )
    rows_of: ClassVar[RowsOf] = {
        "on_call_end": created_leaves,
        "on_backward_start": leaves_of_backward,
    }

    def __init__(self) -> None:
        self._leaves: dict[int, NewLeafRow] = {}  # by number of the tensor
        self._makers: dict[CodePosition | None, str] = {}  # line -> function that created a leaf

    def on_new_leaf(self, row: NewLeafRow) -> None:
        self._leaves[row.leaf] = row
        self._makers[row.place] = row.maker
        while len(self._leaves) > _MAX_LEAVES:
            del self._leaves[next(iter(self._leaves))]
        while len(self._makers) > _MAX_LEAVES:
            del self._makers[next(iter(self._makers))]

    def on_leaf_root(self, row: LeafRootRow) -> Iterator[Found]:
        made = self._leaves.get(row.leaf or 0)
        event, place = row.event, row.place
        if made is not None:
            event, place = LeafBackward(label=event.label, maker=made.name), made.place
        yield Found(event, place, leaves=(row.key,))

    def on_reached_leaves(self, row: ReachedLeavesRow) -> Iterator[Found]:
        lines: dict[CodePosition | None, set[int]] = {}
        for number in row.leaves.keys() & self._leaves.keys():
            lines.setdefault(self._leaves[number].place, set()).add(row.leaves[number])
        for place, keys in lines.items():
            yield Found(NewLeaves(maker=self._makers.get(place, "")), place, leaves=keys)


def _called_function(frame: FrameType | None) -> str:
    """Return the library function that the user's line called; "" if it called torch directly."""
    name = ""
    while frame is not None and code_owner(frame.f_code.co_filename) != OWN:
        name, frame = frame.f_code.co_name, frame.f_back
    return name
