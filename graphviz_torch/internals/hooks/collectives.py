"""The seam of collectives: what ranks send to each other, whoever asks for it.

All goes through the operators below: from `torch.distributed`, DTensor, `fully_shard`, and DDP's
reducer, which is C++. While anybody watches and there is a process group, they have a kernel of
ours; where a group is made later, from then on. The kernel lies below autograd, modes and
subclasses: it sees each collective once, from every thread. A functional operator calls one of
c10d's inside, and only the outer one is told.

Not seen: operators of symmetric memory that are none of these (`nvshmem_put`), and what a library
sends by itself, with NCCL or MPI.

Private: names and arguments of the operators, `ProcessGroup.unbox`, how a group is found by its
name, and `_update_default_pg`, which is called when the first group is made (2.8 to 2.15).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.library import Library

from ...graph import CollectiveKind
from ..tensors.pytree import tensors
from .dispatch import sequence_number
from .installation import Installation

# Names of operators, by namespace.
_KINDS: dict[str, dict[str, CollectiveKind]] = {
    "c10d": {
        "allreduce_": "all_reduce",
        "allreduce_coalesced_": "all_reduce",
        "allgather_": "all_gather",
        "_allgather_base_": "all_gather",
        "allgather_coalesced_": "all_gather",
        "allgather_into_tensor_coalesced_": "all_gather",
        "reduce_scatter_": "reduce_scatter",
        "_reduce_scatter_base_": "reduce_scatter",
        "reduce_scatter_tensor_coalesced_": "reduce_scatter",
        "alltoall_": "all_to_all",
        "alltoall_base_": "all_to_all",
        "broadcast_": "broadcast",
        "reduce_": "reduce",
        "gather_": "gather",
        "scatter_": "scatter",
        "send": "send",
        "recv_": "recv",
        "recv_any_source_": "recv",
        "barrier": "barrier",
        "monitored_barrier_": "barrier",
    },
    "_c10d_functional": {
        "all_reduce": "all_reduce",
        "all_reduce_": "all_reduce",
        "all_reduce_coalesced": "all_reduce",
        "all_reduce_coalesced_": "all_reduce",
        "all_gather_into_tensor": "all_gather",
        "all_gather_into_tensor_out": "all_gather",
        "all_gather_into_tensor_coalesced": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "reduce_scatter_tensor_out": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
        "all_to_all_single": "all_to_all",
        "broadcast": "broadcast",
        "broadcast_": "broadcast",
        "isend": "send",
        "irecv": "recv",
    },
    "_dtensor": {"shard_dim_alltoall": "all_to_all"},
    "symm_mem": {
        "one_shot_all_reduce": "all_reduce",
        "one_shot_all_reduce_copy": "all_reduce",
        "two_shot_all_reduce_": "all_reduce",
        "multimem_all_reduce_": "all_reduce",
        "multimem_one_shot_all_reduce": "all_reduce",
        "_low_contention_all_gather": "all_gather",
        "_low_contention_reduce_scatter": "reduce_scatter",
        "fused_all_gather_matmul": "all_gather",
        "fused_matmul_reduce_scatter": "reduce_scatter",
        "all_to_all_vdev": "all_to_all",
    },
}
_WAIT = "_c10d_functional::wait_tensor"
# What the arguments of those operators are called.
_INPUTS: tuple[str, ...] = (
    "input_tensors",
    "input_tensor",
    "input_list",
    "inputs",
    "input",
    "tensors",
    "tensor",
)
_INPUTS += ("symm_buffer", "A")
_GROUPS = ("process_group", "group_name")
_PEERS = ("root_rank", "src", "dst")


class Group(NamedTuple):
    """The ranks that take part."""

    name: str  # by which PyTorch knows it
    description: str  # what whoever made it calls it
    ranks: tuple[int, ...]
    has_all: bool  # are all ranks in it


class Sent(NamedTuple):
    """A collective was begun, as far as its result is there."""

    kind: CollectiveKind
    group: Group
    given: list[Tensor]  # by this rank; what it takes, where it only takes
    made: list[Tensor]  # of a functional one: what is there when it has been waited for
    asynchronous: bool
    peer: int | None  # the one rank that gives or takes
    number: int  # of this thread's next node


class Waited(NamedTuple):
    """A functional collective was waited for."""

    tensor: Tensor  # that it makes


class CollectiveWatch:
    """A context that tells of each collective that this process begins, in any thread.

    Args:
        sent, waited: take the events.
    """

    def __init__(self, sent: Callable[[Sent], object], waited: Callable[[Waited], object]) -> None:
        self.sent, self.waited = sent, waited

    def __enter__(self) -> CollectiveWatch:
        _INSTALLATION.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _INSTALLATION.discard(self)


_libraries: list[Library] = []
_theirs: list[Any] = []  # PyTorch's function that ours stands for
_here = threading.local()  # .inside: is one of the operators running


def _install() -> None:
    if not dist.is_available():
        return
    if not dist.is_initialized():
        if not _theirs:
            _theirs.append(_c10d()._update_default_pg)
            _c10d()._update_default_pg = _update
    elif not _libraries:
        for name in (*_kinds(), _WAIT):
            namespace, _, operator = name.partition("::")
            # First: an interrupt may come between the two.
            library = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            _libraries.append(library)
            library.impl(operator, _kernel(name), "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]


def _remove() -> None:
    while _theirs:
        if _c10d()._update_default_pg is _update:  # else somebody else has put theirs there
            _c10d()._update_default_pg = _theirs[-1]
        _theirs.pop()
    while _libraries:
        _libraries[-1]._destroy()  # type: ignore[no-untyped-call]
        _libraries.pop()


def _c10d() -> Any:
    return dist.distributed_c10d


def _update(group: Any) -> None:
    _theirs[-1](group)
    _INSTALLATION.refresh()


_INSTALLATION: Installation[CollectiveWatch] = Installation(_install, _remove)


def _kernel(name: str) -> Callable[..., Any]:
    namespace, _, packet = name.partition("::")
    operator = getattr(getattr(torch.ops, namespace), packet).default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "inside", False):
            return operator.redispatch(keys & below, *args, **kwargs)
        _here.inside = True
        try:
            result = operator.redispatch(keys & below, *args, **kwargs)
        finally:
            _here.inside = False
        for watch in _INSTALLATION.watchers:
            if name == _WAIT:
                watch.waited(Waited(args[0]))
            else:
                watch.sent(_sent(name, args, result))
        return result

    return kernel


@cache
def _kinds() -> dict[str, CollectiveKind]:
    """Those operators that this version of PyTorch has, by name."""
    known = {
        f"{namespace}::{name}": kind
        for namespace, kinds in _KINDS.items()
        for name, kind in kinds.items()
    }
    return {name: kind for name, kind in known.items() if _schema(name) is not None}


def _schema(operator: str) -> Any:
    return next(iter(torch._C._jit_get_schemas_for_operator(operator)), None)


def _sent(operator: str, args: tuple[Any, ...], result: Any) -> Sent:
    at = _arguments(operator)
    group = _group(args[at.group])
    root = None if at.peer is None else args[at.peer]
    # It is counted among the ranks of the group.
    peer = None if root is None or not 0 <= root < len(group.ranks) else group.ranks[root]
    given = tensors(args[at.inputs]) or tensors(args[0])  # scatter, at a rank that only takes
    made = [] if operator.startswith("c10d::") else tensors(result)
    # A default at the end is left out by who calls the kernel.
    waits = at.asynchronous is not None and args[at.asynchronous :][:1] == (False,)
    return Sent(_kinds()[operator], group, given, made, not waits, peer, sequence_number())


class _Arguments(NamedTuple):
    """Where an operator has its arguments."""

    inputs: int
    group: int
    asynchronous: int | None
    peer: int | None


@cache
def _arguments(operator: str) -> _Arguments:
    names = [argument.name for argument in _schema(operator).arguments]

    def place(wanted: tuple[str, ...]) -> int | None:
        return next((names.index(name) for name in wanted if name in names), None)

    inputs, group = place(_INPUTS), place(_GROUPS)
    assert inputs is not None, operator
    assert group is not None, operator
    return _Arguments(inputs, group, place(("async_op",)), place(_PEERS))


def _group(given: Any) -> Group:
    if isinstance(given, str):
        given = _c10d()._resolve_process_group(given)
    elif isinstance(given, torch.ScriptObject):
        given = dist.ProcessGroup.unbox(given)
    ranks = tuple(dist.get_process_group_ranks(given))
    return Group(given.group_name, given.group_desc, ranks, len(ranks) == dist.get_world_size())
