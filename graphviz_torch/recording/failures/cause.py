"""Find the earlier action that made a backward fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...graph import Cause, Failure, Operand
from ..backward import Backward
from ..program.source_lines import source_text
from ..resolver import Resolver
from .node import FailingNode

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
