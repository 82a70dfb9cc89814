"""The earlier action that made a backward fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...graph import Cause, Failure, Operand
from ..backward import Backward
from ..program import Program
from ..program.source_lines import source_text
from .node import FailingNode

Computed = tuple[str, int, str]  # of a tensor: name, number and kind of the node that made it


def explained(
    failure: Failure,
    run: Backward,
    failing: FailingNode,
    computed: Sequence[Computed],
    before: Sequence[Backward],
    program: Program,
) -> Failure:
    """Return a failure with the node that backward could not run, and the earlier action on it.

    Args:
        failure: the exception that ended a recording.
        run: the backward that raised it.
        failing: the node at which it did.
        computed: what the program had by name then.
        before: the runs before that one.
        program: what names lines.
    """
    line = program.line()
    changes = [
        Cause(
            c.operation,
            line(c.place),
            (*run.made([c.number]),),
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
    ran = [one for one in before if (one.freed if failing.freed else one.has_run)(number)]
    found = [_parted(run, failing.node, other, computed, program) for other in ran[-1:]]
    if failing.freed and not found:
        old = number < program.origins.first  # from before the recording
        last, user = _parts(
            run, failing.node, lambda n: n < program.origins.first if old else n == number
        )
        label = _name(run, last, computed, program)
        found = [Cause("backward", "", _known(last, user), label=label)]
    if not failing.freed:  # it came over from an earlier step, or it has nothing to do with that
        found = [each for each in found if each.in_loop and len(each.nodes) > 1]
    return replace(failure, node=failing.node, modified=modified, causes=(*changes, *found))


def _parted(
    run: Backward, node: int, other: Backward, computed: Sequence[Computed], program: Program
) -> Cause:
    """Return an earlier run of a node, and where the two runs diverge."""
    last, user = _parts(run, node, other.has_run)
    # What was made later is the program's next step; what was made before it, not run, leads there.
    newest = max(other.numbers)
    before, later = _parts(run, last, lambda number: number <= newest)
    return Cause(
        "grad" if not other.call.accumulates else "backward",
        program.line()(other.call.place),
        _known(last, user if later is None else later),
        label=_name(run, last if later is None else before, computed, program),
        in_loop=other.call.callers == run.call.callers,
        stepped=other.call.step != run.call.step,
    )


def _known(*nodes: int | None) -> tuple[int, ...]:
    return tuple(node for node in nodes if node is not None)


def _parts(run: Backward, node: int, known: Callable[[int], bool]) -> tuple[int, int | None]:
    """Return, from a node towards the outputs, the last node with a known number, and its user.

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
    kind.
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
