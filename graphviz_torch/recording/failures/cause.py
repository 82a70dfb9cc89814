"""Find the earlier action that made a backward fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...graph import Cause, Failure, Operand
from ..backward import Backward
from ..program import Program
from ..program.source_lines import source_text
from .node import FailingNode

Computed = tuple[str, int, str]  # variable name; sequence number and type of the maker node


def explain_failure(
    failure: Failure,
    run: Backward,
    failing: FailingNode,
    computed: Sequence[Computed],
    before: Sequence[Backward],
    program: Program,
) -> Failure:
    """Return a failure with the node that backward could not run, and the earlier action that broke
    it.

    Args:
        failure: the exception that ended the recording.
        run: the backward that raised it.
        failing: the node at which it failed.
        computed: the program's variables at that time.
        before: the earlier backwards.
        program: names lines.
    """
    line = program.line()
    changes = [
        Cause(
            c.operation,
            line(c.place),
            (*run.node_ids([c.number]),),
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
    found = [_previous_run(run, failing.node, other, computed, program) for other in ran[-1:]]
    if failing.freed and not found:
        old = number < program.origins.first  # created before the recording
        last, user = _last_known(
            run, failing.node, lambda n: n < program.origins.first if old else n == number
        )
        label = _name(run, last, computed, program)
        found = [Cause("backward", "", _not_none(last, user), label=label)]
    if not failing.freed:  # keep earlier runs only for a graph carried over from an earlier step
        found = [each for each in found if each.in_loop and len(each.nodes) > 1]
    return replace(failure, node=failing.node, modified=modified, causes=(*changes, *found))


def _previous_run(
    run: Backward, node: int, other: Backward, computed: Sequence[Computed], program: Program
) -> Cause:
    """Return an earlier run of a node as a Cause, with the place where the two runs diverge."""
    last, user = _last_known(run, node, other.has_run)
    # Newer nodes belong to the program's next step; older nodes that did not run lead to them.
    newest = max(other.numbers)
    before, later = _last_known(run, last, lambda number: number <= newest)
    return Cause(
        "grad" if not other.call.accumulates else "backward",
        program.line()(other.call.place),
        _not_none(last, user if later is None else later),
        label=_name(run, last if later is None else before, computed, program),
        in_loop=other.call.callers == run.call.callers,
        stepped=other.call.step != run.call.step,
    )


def _not_none(*nodes: int | None) -> tuple[int, ...]:
    return tuple(node for node in nodes if node is not None)


def _last_known(run: Backward, node: int, known: Callable[[int], bool]) -> tuple[int, int | None]:
    """Return the last node with a known number, from a node towards the outputs, and that node's
    user.

    The user is None if an output is reached.
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


def _name(run: Backward, node: int, computed: Sequence[Computed], program: Program) -> str:
    """Return the caller's name of a node's result, or of a later result of the same line and
    type.
    """
    columns = run.reading.columns
    label: str = columns["label"][node]
    if label and "," not in label:  # of one output
        return label
    source = program.source(run.numbers[node])
    for name, number, kind in computed if source else ():
        if kind == columns["name"][node] and program.source(number) == source:
            return name
    return ""
