"""Find the node at which a backward failed, and the earlier action that made the backward fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..graph import Cause, Failure, Operand, TensorMeta
from ..graph.immutable import mutable
from ..internals.tensors.metadata import HAS_SAVED_TENSOR_DATA, SAVED_NAMES, tensor_meta
from ..tracing.nodes import GradFn
from .backward import Backward
from .program.in_place import Changes, InPlaceChange, same_memory
from .program.source_lines import source_text
from .resolver import Resolver

# A variable of the program: its name, and the sequence number and type of its value's node.
Computed = tuple[str, int, str]


def explain_failure(
    failure: Failure,
    resolver: Resolver,
    failing: FailingNode,
    computed: Sequence[Computed],
    before: Sequence[Backward],
    first: int,
) -> Failure:
    """Return a copy of `failure` with the node that failed and the earlier actions that caused it.

    Args:
        failure: the exception that ended the recording.
        resolver: finds the node ids and texts of the graph of the backward that failed.
        failing: the node at which this backward failed.
        computed: the program's variables when backward failed.
        before: the earlier backwards.
        first: sequence number of the first node that the recording knows.
    """
    run = resolver.backward
    changes = [
        Cause(
            c.operation,
            resolver.line(c.place),
            resolver.nodes([c.number]),
            source_text(c.place),
            of_view=c.view,
        )
        for c in failing.changes
    ]
    modified = None
    if failing.saved is not None:
        label = "" if failing.leaf is None else run.reading.columns["label"][failing.leaf]
        modified = Operand(label, failing.saved, "", failing.leaf)
    number = run.numbers[failing.node]
    ran = [one for one in before if (one.has_freed if failing.freed else one.has_run)(number)]
    found = [_previous_run(resolver, failing.node, other, computed) for other in ran[-1:]]
    if failing.freed and not found:
        old = number < first  # the node is older than the recording
        last, user = _last_known(run, failing.node, lambda n: n < first if old else n == number)
        label = _name(resolver, last, computed)
        found = [Cause("backward", "", _not_none(last, user), label=label)]
    if not failing.freed:  # an earlier graph matters only if this graph continues it
        found = [each for each in found if each.in_loop and len(each.nodes) > 1]
    return replace(failure, node=failing.node, modified=modified, causes=(*changes, *found))


def _previous_run(
    resolver: Resolver, node: int, other: Backward, computed: Sequence[Computed]
) -> Cause:
    """Return the `Cause` of a failure: an earlier backward already ran the node.

    The cause names the last node that the graphs of both backwards share, and the next node
    downstream.

    Args:
        resolver: finds the node ids and texts of the graph of the backward that failed.
        node: the node at which it failed.
        other: the earlier backward.
        computed: the program's variables when backward failed.
    """
    run = resolver.backward
    last, user = _last_known(run, node, other.has_run)
    # A node that the earlier backward did not run may still have existed when it ran. The search
    # continues to the first node that was created after that backward.
    newest = max(other.numbers)
    before, later = _last_known(run, last, lambda number: number <= newest)
    return Cause(
        "grad" if not other.call.accumulates else "backward",
        resolver.line(other.call.place),
        _not_none(last, user if later is None else later),
        label=_name(resolver, last if later is None else before, computed),
        in_loop=other.call.callers == run.call.callers,
        stepped=other.call.step != run.call.step,
    )


def _not_none(*nodes: int | None) -> tuple[int, ...]:
    return tuple(node for node in nodes if node is not None)


def _last_known(run: Backward, node: int, known: Callable[[int], bool]) -> tuple[int, int | None]:
    """Follow a path from a node towards the outputs up to the last node that is known.

    Args:
        run: the backward whose graph is searched.
        node: the node at which the path begins.
        known: returns True if the node with a sequence number counts as known.

    Returns:
        The last known node, and the next node on the path. The next node is None if the last known
        node is an output.
    """
    users: dict[int, list[int]] = {}
    for source, target, _, _ in run.reading.edges:
        users.setdefault(source, []).append(target)
    stack, seen = [node], {node}
    while stack:
        node = stack.pop()
        for user in users.get(node, ()):
            if not known(run.numbers[user]):
                return node, user
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return node, None


def _name(resolver: Resolver, node: int, computed: Sequence[Computed]) -> str:
    """Return the program's name for a node's result; "" if unknown.

    If no variable is the result, the name of another result may be returned, which a node of the
    same type and line created.

    Args:
        resolver: finds the node ids and texts of the graph of the backward that failed.
        node: id of the node.
        computed: the program's variables when backward failed.
    """
    run = resolver.backward
    columns = run.reading.columns
    label: str = columns["label"][node]
    if label and "," not in label:  # a label with a comma names several outputs
        return label
    source = resolver.line_of_node(run.numbers[node])
    for name, number, kind in computed if source else ():
        if kind == columns["name"][node] and resolver.line_of_node(number) == source:
            return name
    return ""


# PyTorch's messages (2.13).
_CHANGED = re.compile(r"one of the variables needed .* version (\d+); expected version (\d+)")
_FREED = "Trying to backward through the graph a second time"
_REFUSED = re.compile(
    r"Function '?(\w+)'? returned (?:an invalid gradient|an incorrect number of|nan values)"
)
_ENGINE = torch.autograd.graph.__file__  # file of the function that calls the engine


@mutable
class FailingNode:
    """The node at which a backward failed."""

    node: int
    saved: TensorMeta | None = None  # the node's saved tensor that was changed in place
    leaf: int | None = None  # id of the node of the leaf that shares memory with `saved`
    changes: list[InPlaceChange] = field(default_factory=list)  # in-place changes of `saved`
    freed: bool = False  # True if an earlier backward freed the node's saved tensors


def find_failing_node(
    fns: Mapping[int, GradFn],
    order: Sequence[int],
    error: BaseException,
    changes: Changes,
    ran_before: Callable[[int], bool],
) -> FailingNode | None:
    """Return the node at which a backward failed; None if this is not certain.

    Args:
        fns: the live nodes that backward may run, by id.
        order: ids of the nodes that received gradients, in order. It is empty if unknown.
        error: the exception that the engine raised.
        changes: the in-place changes that were recorded.
        ran_before: returns True if an earlier backward ran the node with this id and freed its
            saved tensors.
    """
    message = str(error)
    if not _is_from_node(error):
        return None
    if message.startswith(_FREED):
        if not HAS_SAVED_TENSOR_DATA:
            return FailingNode(order[-1], freed=True) if order else None
        for node in _candidates(fns, order):
            if (order or ran_before(node)) and _is_freed(fns[node]):
                return FailingNode(node, freed=True)
        return None
    if said := _CHANGED.match(message):
        return _node_of_message(fns, order, said, changes)
    if not order:
        return None
    refused = _REFUSED.match(message)
    last = fns[order[-1]]
    if refused and refused[1] != last.name().rpartition("::")[2]:
        return None
    return FailingNode(order[-1]) if refused or issubclass(type(last), BackwardCFunction) else None


def find_node_in_checkpoint(
    fns: Mapping[int, GradFn], error: BaseException, changes: Changes
) -> FailingNode | None:
    """Return the node at which a reentrant checkpoint's backward failed; None if not certain.

    Args:
        fns: the live nodes of the nested backward, by id.
        error: the exception that the engine raised.
        changes: the in-place changes that were recorded.
    """
    found, said = (
        find_failing_node(fns, [], error, changes, lambda node: False),
        _CHANGED.match(str(error)),
    )
    if found is None or found.saved is None or said is None or found.changes:
        return found
    shape = found.saved.shape
    return replace(found, changes=changes.when_first_run(shape, int(said[2]), int(said[1])))


def _node_of_message(
    fns: Mapping[int, GradFn], order: Sequence[int], said: re.Match[str], changes: Changes
) -> FailingNode | None:
    """Return the node that saved the tensor to which PyTorch's message refers.

    Args:
        fns: the live nodes that backward may run, by id.
        order: ids of the nodes that received gradients, in order.
        said: the message, with the tensor's version and the expected version as groups.
        changes: the in-place changes that were recorded.

    Returns:
        The node; None unless exactly one node fits the message.
    """
    found: dict[int, Tensor] = {}
    for node in _candidates(fns, order):
        for attribute, tensor in _saved_tensors(fns[node]):
            changed = tensor is not None and tensor._version == int(said[1])
            if tensor is not None and changed and said[0] in _error(fns[node], attribute):
                found.setdefault(node, tensor)
        if node in order[-1:] and found:
            break
    if len(found) != 1:
        return None
    ((node, tensor),) = found.items()
    since = changes.changes_since(tensor, int(said[2]))
    return FailingNode(node, tensor_meta(tensor), _leaf(fns, tensor), since)


def _candidates(fns: Mapping[int, GradFn], order: Sequence[int]) -> Iterator[int]:
    """Yield the nodes that may have failed, the most likely one first.

    This is the last node that received gradients. The nodes that received none follow, in the order
    in which the engine would run them.
    """
    ran = set(order)
    yield from order[-1:]
    others = [node for node in fns if node not in ran]
    yield from sorted(others, key=lambda node: -int(fns[node]._sequence_nr()))


def _saved_tensors(fn: GradFn) -> Iterator[tuple[str, Tensor | None]]:
    """Yield a node's saved tensors, each with the name of the attribute that unpacks the tensor.

    A freed tensor is given as None. Tensors that hooks packed are left out.
    """
    for raw_name, name in SAVED_NAMES[type(fn)]:
        attribute = f"_saved_{name}" if name else "saved_tensors"
        try:
            raw: Any = getattr(fn, raw_name)
        except RuntimeError:
            yield attribute, None
            continue
        row = [one for one in (raw if type(raw) is tuple else (raw,)) if one is not None]
        if HAS_SAVED_TENSOR_DATA and all(one.unpack_hook is None for one in row):
            yield from ((attribute, one.data) for one in row)


def _leaf(fns: Mapping[int, GradFn], tensor: Tensor) -> int | None:
    """Return the id of the node of the leaf that shares memory with a tensor; None if none does."""
    for node, fn in fns.items():
        if type(fn).__name__ == "AccumulateGrad" and same_memory(fn.variable, tensor):
            return node
    return None


def _is_freed(fn: GradFn) -> bool:
    saved = _saved_tensors(fn)
    return any(tensor is None and _FREED in _error(fn, name) for name, tensor in saved)


def _error(fn: GradFn, attribute: str) -> str:
    """Return the message of the error raised when a saved tensor is read; "" if there is none.

    Args:
        fn: the node that saved the tensor.
        attribute: name of the attribute that unpacks the tensor.
    """
    try:
        getattr(fn, attribute)
    except RuntimeError as error:
        return str(error)
    return ""


def _is_from_node(error: BaseException) -> bool:
    """Return True if a node of this backward, not a hook or a nested backward, raised the error.

    An error raised by a C++ node has no frame in the traceback. It is recognized by its message.
    """
    trace = error.__traceback__
    while trace is not None:
        code, trace = trace.tb_frame.f_code, trace.tb_next
        if code.co_name == "_engine_run_backward" and code.co_filename == _ENGINE:
            if trace is None:
                return str(error).startswith((_FREED, "one of the", "Function "))
            if trace.tb_frame.f_code is not BackwardCFunction.apply.__code__:
                return False
            break
    while trace is not None:  # searches the inner frames for a nested backward
        code, trace = trace.tb_frame.f_code, trace.tb_next
        if code.co_name == "_engine_run_backward" and code.co_filename == _ENGINE:
            return False
    return True
