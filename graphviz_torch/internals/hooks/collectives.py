"""Watch the collectives of this process, whichever code issues them.

`torch.distributed`, DTensor, `fully_shard`, and DDP's reducer, which is C++, call the operators
listed here. While a watch is open and a process group exists, these operators have a kernel of
ours. The kernel is below autograd, modes and subclasses, so it sees each collective once, in every
thread. A functional operator calls a c10d operator internally; only the functional operator is
reported.

Operators of symmetric memory that are missing from the list (`nvshmem_put`), and messages that a
library sends itself with NCCL or MPI, are not seen.

Uses private API (2.8 to 2.15): `ProcessGroup.unbox`, the lookup of a group by name, and
`_update_default_pg`, which is called when the first group is created.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.library import Library

from ...graph import CollectiveKind
from ...graph.immutable import NamedTuple
from ..exceptions import ignore_exceptions
from ..frames import hide_frame
from ..tensors.pytree import tensors
from .collective_works import Wait, WorkMethods
from .dispatch import sequence_number
from .watch import Replacement, Row, Watch


class RankGroup(NamedTuple):
    """The ranks that take part in a collective."""

    name: str  # PyTorch's name of the group
    description: str  # description given by the code that created the group
    ranks: tuple[int, ...]
    has_all: bool  # True if the group contains all ranks
    rank: int  # global number of this rank
    on_cpu: bool  # True if the ranks wait for each other on the CPU, as with gloo


class CollectiveStarted(NamedTuple):
    """A collective that is about to start."""

    call: int  # number of the collective in this process
    kind: CollectiveKind
    group: RankGroup


class CollectiveIssued(NamedTuple):
    """A collective whose call has returned, although the collective may still be running."""

    call: int  # number of the collective in this process
    kind: CollectiveKind
    group: RankGroup
    given: list[Tensor]  # this rank's inputs; for a rank that only receives, its outputs
    made: list[Tensor]  # outputs of a functional collective, which may be read after a wait
    filled: list[Tensor]  # output buffers, for a collective that is not functional
    asynchronous: bool
    peer: int | None  # the global rank of the root, source or destination
    number: int  # sequence number of this thread's next node
    begin: float  # start and end of the call by `time.perf_counter`
    end: float


class CollectiveAwaited(NamedTuple):
    """A wait for a collective; the wait has ended."""

    tensor: Tensor | None  # the output, for a functional collective
    call: int | None = None  # number of a collective that is not functional, if known
    at_once: bool = False  # True if the function that started the collective also waited
    begin: float = 0.0  # `time.perf_counter` at the start of the wait
    end: float = 0.0


class CollectiveWatch(Watch):
    """A watch on each collective that this process starts, in any thread.

    Args:
        on_start, on_issue, on_wait_end: called with the event.
        on_return: called with the number of a collective whose call has returned.
        on_wait_start: called before a wait, with the number of the collective, or None if unknown.
        on_raise: called with None when a collective, or a wait for one, raises.
    """

    def __init__(
        self,
        *,
        on_start: Callable[[CollectiveStarted], object] | None = None,
        on_issue: Callable[[CollectiveIssued], object] | None = None,
        on_return: Callable[[int], object] | None = None,
        on_wait_start: Callable[[int | None], object] | None = None,
        on_wait_end: Callable[[CollectiveAwaited], object] | None = None,
        on_raise: Callable[[None], object] | None = None,
    ) -> None:
        self.on_start, self.on_issue, self.on_return = on_start, on_issue, on_return
        self.on_wait_start, self.on_wait_end, self.on_raise = on_wait_start, on_wait_end, on_raise


_libraries: list[Library] = []
# .inside: True while an operator runs; .call: number of this thread's last collective
_thread_state = threading.local()
_calls = count(1)
_groups: WeakKeyDictionary[Any, RankGroup] = WeakKeyDictionary()


def _rows() -> Iterable[Row]:
    if not dist.is_available():
        return ()
    return _WORKS.rows() if dist.is_initialized() else [(_c10d(), "_update_default_pg", _update)]


def _install() -> None:
    if dist.is_available() and dist.is_initialized() and not _libraries:
        for name in (*kinds(), WAIT):
            namespace, _, operator = name.partition("::")
            # The library is stored before a kernel is added, so that `_remove` also runs after an
            # interrupt.
            library = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            _libraries.append(library)
            kernel = _kernel(name)
            library.impl(operator, kernel, "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]


def _remove() -> None:
    while _libraries:
        _libraries[-1]._destroy()  # type: ignore[no-untyped-call]
        _libraries.pop()


def _c10d() -> Any:
    return dist.distributed_c10d


def _update(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def update(group: Any) -> None:
        original(group)
        _INSTALLATION.refresh()

    return update


_INSTALLATION = Replacement[CollectiveWatch](_rows, _install, _remove)
CollectiveWatch.installation = _INSTALLATION


def _kernel(name: str) -> Callable[..., Any]:
    namespace, _, packet = name.partition("::")
    operator = getattr(getattr(torch.ops, namespace), packet).default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_thread_state, "inside", False):
            return operator.redispatch(keys & below, *args, **kwargs)
        begin = time.perf_counter()
        if name == WAIT:
            _notify_waiting(Wait(None, at_once=False))
        else:
            group = _group(args[arguments(name).group])
            call = _thread_state.call = next(_calls)
            _notify("on_start", CollectiveStarted(call, kinds()[name], group))
        _thread_state.inside = True
        try:
            result = operator.redispatch(keys & below, *args, **kwargs)
        except BaseException as error:
            _notify_raised()
            hide_frame(error)
            raise
        finally:
            _thread_state.inside = False
        if name == WAIT:
            _notify("on_wait_end", CollectiveAwaited(args[0], begin=begin, end=time.perf_counter()))
        else:
            end = time.perf_counter()
            _notify("on_return", call)
            for watch in _INSTALLATION.watchers:
                if watch.on_issue is not None:
                    watch.on_issue(_sent_event(name, call, group, args, result, begin, end))
        return result

    return kernel


def _notify(event: str, happened: object) -> None:
    for watch in _INSTALLATION.watchers:
        take = getattr(watch, event)
        if take is not None:
            take(happened)


def _notify_waiting(wait: Wait) -> None:
    _notify("on_wait_start", wait.call)


def _notify_waited(wait: Wait, begin: float) -> None:
    _notify(
        "on_wait_end", CollectiveAwaited(None, wait.call, wait.at_once, begin, time.perf_counter())
    )


def _notify_raised() -> None:
    _notify("on_raise", None)


_WORKS = WorkMethods(
    lambda: getattr(_thread_state, "call", None), _notify_waiting, _notify_waited, _notify_raised
)


def _sent_event(
    operator: str,
    call: int,
    group: RankGroup,
    args: tuple[Any, ...],
    result: Any,
    begin: float,
    end: float,
) -> CollectiveIssued:
    at = arguments(operator)
    root = None if at.peer is None else args[at.peer]
    # The operator gets the root as a rank within the group.
    peer = None if root is None or not 0 <= root < len(group.ranks) else group.ranks[root]
    # A rank that only receives in a scatter has no inputs; `given` is its output instead.
    given = tensors(args[at.inputs]) or tensors(args[0])
    made, filled = (
        ([], tensors(args[0])) if operator.startswith("c10d::") else (tensors(result), [])
    )
    # The dispatcher omits trailing arguments that have their default value.
    waits = at.asynchronous is not None and args[at.asynchronous :][:1] == (False,)
    kind, number = kinds()[operator], sequence_number()
    return CollectiveIssued(
        call, kind, group, given, made, filled, not waits, peer, number, begin, end
    )


def _group(given: Any) -> RankGroup:
    if isinstance(given, str):
        given = _c10d()._resolve_process_group(given)
    elif isinstance(given, torch.ScriptObject):
        given = dist.ProcessGroup.unbox(given)
    found = _groups.get(given)
    if found is None:
        ranks = tuple(dist.get_process_group_ranks(given))
        has_all = len(ranks) == dist.get_world_size()
        found = _groups[given] = RankGroup(
            given.group_name, given.group_desc, ranks, has_all, dist.get_rank(), _on_cpu(given)
        )
    return found


def _on_cpu(group: Any) -> bool:
    with ignore_exceptions():  # raised if the group has no backend for the CPU
        return str(group._get_backend(torch.device("cpu")).name()) == "gloo"
    return False


# Operator names by namespace.
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
WAIT = "_c10d_functional::wait_tensor"
# Names of the operators' arguments: inputs, process group, and peer.
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


@cache
def kinds() -> dict[str, CollectiveKind]:
    """Return the kind of each operator that exists in this version of PyTorch, by operator name."""
    known = {
        f"{namespace}::{name}": kind
        for namespace, kinds in _KINDS.items()
        for name, kind in kinds.items()
    }
    return {name: kind for name, kind in known.items() if _schema(name) is not None}


def _schema(operator: str) -> Any:
    return next(iter(torch._C._jit_get_schemas_for_operator(operator)), None)


class Arguments(NamedTuple):
    """The positions of an operator's arguments; None if the operator has no such argument."""

    inputs: int
    group: int
    asynchronous: int | None
    peer: int | None


@cache
def arguments(operator: str) -> Arguments:
    """Return the positions of an operator's arguments, given the operator's name."""
    names = [argument.name for argument in _schema(operator).arguments]

    def place(wanted: tuple[str, ...]) -> int | None:
        return next((names.index(name) for name in wanted if name in names), None)

    inputs, group = place(_INPUTS), place(_GROUPS)
    assert inputs is not None, operator
    assert group is not None, operator
    return Arguments(inputs, group, place(("async_op",)), place(_PEERS))
