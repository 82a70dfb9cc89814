"""The seam of collectives: what ranks send to each other, whoever asks for it.

All goes through the operators of operators.py: from `torch.distributed`, DTensor,
`fully_shard`, and DDP's reducer, which is C++. While anybody watches and there is a process group,
they have a kernel of ours; where a group is made later, from then on. The kernel lies below
autograd, modes and subclasses: it sees each collective once, from every thread. A functional
operator calls one of c10d's inside, and only the outer one is told.

Not seen: operators of symmetric memory that are none of them (`nvshmem_put`), and what a library
sends by itself, with NCCL or MPI.

Private: `ProcessGroup.unbox`, how a group is found by its name, and `_update_default_pg`, which is
called when the first group is made (2.8 to 2.15).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.library import Library

from ....graph import CollectiveKind
from ...frames import hide
from ...tensors.pytree import tensors
from ..dispatch import sequence_number
from ..watch import Installation, Watch
from .operators import WAIT, arguments, kinds
from .works import Wait, WorkMethods


class Group(NamedTuple):
    """The ranks that take part."""

    name: str  # by which PyTorch knows it
    description: str  # what whoever made it calls it
    ranks: tuple[int, ...]
    has_all: bool  # are all ranks in it
    rank: int  # this one, among all
    on_cpu: bool  # do its ranks wait for each other on the CPU, as gloo's do


class Begun(NamedTuple):
    """A collective is about to begin."""

    call: int  # its number in this process
    kind: CollectiveKind
    group: Group


class Sent(NamedTuple):
    """A collective was begun, as far as its result is there."""

    call: int  # its number in this process
    kind: CollectiveKind
    group: Group
    given: list[Tensor]  # by this rank; what it takes, where it only takes
    made: list[Tensor]  # of a functional one: what is there when it has been waited for
    filled: list[Tensor]  # of another one: what the program gave it for the result
    asynchronous: bool
    peer: int | None  # the one rank that gives or takes
    number: int  # of this thread's next node
    begin: float  # by `time.perf_counter`: when the call began, and when it was back
    end: float


class Waited(NamedTuple):
    """A collective was waited for."""

    tensor: Tensor | None  # that it makes, of a functional one
    call: int | None = None  # the number of another one, where it is known
    at_once: bool = False  # did the function wait that began it
    begin: float = 0.0  # by `time.perf_counter`
    end: float = 0.0


class CollectiveWatch(Watch):
    """Tells of each collective that this process begins, in any thread, until `close()`.

    Args:
        begun, sent, waited: take the events.
        returned, waiting: take the number of a collective: what began it is back; a wait for it
            begins (None: of one that is not known).
        raised: called where a collective, or a wait for one, raises.
    """

    def __init__(
        self,
        *,
        begun: Callable[[Begun], object] | None = None,
        sent: Callable[[Sent], object] | None = None,
        returned: Callable[[int], object] | None = None,
        waiting: Callable[[int | None], object] | None = None,
        waited: Callable[[Waited], object] | None = None,
        raised: Callable[[None], object] | None = None,
    ) -> None:
        self.begun, self.sent, self.returned = begun, sent, returned
        self.waiting, self.waited, self.raised = waiting, waited, raised


_libraries: list[Library] = []
_theirs: list[Any] = []  # PyTorch's function that ours stands for
_here = threading.local()  # .inside: is one of the operators running; .call: the last one's number
_calls = count(1)
_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()


def _install() -> None:
    if not dist.is_available():
        return
    if not dist.is_initialized():
        if not _theirs:
            _theirs.append(_c10d()._update_default_pg)
            _c10d()._update_default_pg = _update
    elif not _libraries:
        for name in (*kinds(), WAIT):
            namespace, _, operator = name.partition("::")
            # First: an interrupt may come between the two.
            library = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            _libraries.append(library)
            library.impl(operator, _kernel(name), "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]
        _WORKS.install()  # last: where there is a library, it may be there


def _remove() -> None:
    while _theirs:
        if _c10d()._update_default_pg is _update:  # else somebody else has put theirs there
            _c10d()._update_default_pg = _theirs[-1]
        _theirs.pop()
    if _libraries:
        _WORKS.remove()
    while _libraries:
        _libraries[-1]._destroy()  # type: ignore[no-untyped-call]
        _libraries.pop()


def _c10d() -> Any:
    return dist.distributed_c10d


def _update(group: Any) -> None:
    _theirs[-1](group)
    _INSTALLATION.refresh()


_INSTALLATION: Installation[CollectiveWatch] = Installation(_install, _remove)
CollectiveWatch.installation = _INSTALLATION


def _kernel(name: str) -> Callable[..., Any]:
    namespace, _, packet = name.partition("::")
    operator = getattr(getattr(torch.ops, namespace), packet).default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "inside", False):
            return operator.redispatch(keys & below, *args, **kwargs)
        begin = time.perf_counter()
        if name == WAIT:
            _waiting(Wait(None, at_once=False))
        else:
            group = _group(args[arguments(name).group])
            call = _here.call = next(_calls)
            _tell("begun", Begun(call, kinds()[name], group))
        _here.inside = True
        try:
            result = operator.redispatch(keys & below, *args, **kwargs)
        except BaseException as error:
            _raised()
            hide(error)
            raise
        finally:
            _here.inside = False
        if name == WAIT:
            _tell("waited", Waited(args[0], begin=begin, end=time.perf_counter()))
        else:
            end = time.perf_counter()
            _tell("returned", call)
            for watch in _INSTALLATION.watchers:
                if watch.sent is not None:
                    watch.sent(_sent(name, call, group, args, result, begin, end))
        return result

    return kernel


def _tell(event: str, happened: object) -> None:
    for watch in _INSTALLATION.watchers:
        take = getattr(watch, event)
        if take is not None:
            take(happened)


def _waiting(wait: Wait) -> None:
    _tell("waiting", wait.call)


def _waited(wait: Wait, begin: float) -> None:
    _tell("waited", Waited(None, wait.call, wait.at_once, begin, time.perf_counter()))


def _raised() -> None:
    _tell("raised", None)


_WORKS = WorkMethods(lambda: getattr(_here, "call", None), _waiting, _waited, _raised)


def _sent(
    operator: str,
    call: int,
    group: Group,
    args: tuple[Any, ...],
    result: Any,
    begin: float,
    end: float,
) -> Sent:
    at = arguments(operator)
    root = None if at.peer is None else args[at.peer]
    # It is counted among the ranks of the group.
    peer = None if root is None or not 0 <= root < len(group.ranks) else group.ranks[root]
    given = tensors(args[at.inputs]) or tensors(args[0])  # scatter, at a rank that only takes
    made, filled = (
        ([], tensors(args[0])) if operator.startswith("c10d::") else (tensors(result), [])
    )
    # A default at the end is left out by who calls the kernel.
    waits = at.asynchronous is not None and args[at.asynchronous :][:1] == (False,)
    kind, number = kinds()[operator], sequence_number()
    return Sent(call, kind, group, given, made, filled, not waits, peer, number, begin, end)


def _group(given: Any) -> Group:
    if isinstance(given, str):
        given = _c10d()._resolve_process_group(given)
    elif isinstance(given, torch.ScriptObject):
        given = dist.ProcessGroup.unbox(given)
    found = _groups.get(given)
    if found is None:
        ranks = tuple(dist.get_process_group_ranks(given))
        has_all = len(ranks) == dist.get_world_size()
        found = _groups[given] = Group(
            given.group_name, given.group_desc, ranks, has_all, dist.get_rank(), _on_cpu(given)
        )
    return found


def _on_cpu(group: Any) -> bool:
    with suppress(Exception):  # it has no backend for the CPU
        return str(group._get_backend(torch.device("cpu")).name()) == "gloo"
    return False
