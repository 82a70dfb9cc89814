"""Failures: why the recording ended with an exception, in the operation or in backward."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Earlier, Failure, Finding, Node
from .devices import is_mixed
from .rule import Reading, at, finding, listing, rule

# The person ended it, not the program.
_STOPPED = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")
# By what PyTorch says.
_ADVICE = {
    "does not require grad": "Look for detach(), .data, no_grad or item() between the parameters "
    "and the loss.",
    "modified by an inplace operation": "Make a new tensor, a = a + 1, instead of changing one "
    "that backward needs, a += 1.",
    "backward through the graph a second time": "Add the losses and call backward() once, run "
    "the forward again, or pass retain_graph=True to the first.",
    "leaf Variable that requires grad is being used in an in-place": "Change it under "
    "torch.no_grad(), if it is to be changed; else make a new tensor, a = a + 1.",
    "is a view and is being modified inplace": "Make a new tensor of it, with clone(), and change "
    "that.",
    "implicitly created only for scalar outputs": "Call backward() on one number, as of loss.mean()"
    " or loss.sum(), or pass gradient=.",
    "appears to not have been used in the graph": "Ask for the gradients of what the output was "
    "computed from, or pass allow_unused=True.",
    "out of memory": "Take a smaller batch, torch.utils.checkpoint for what keeps most, or bfloat16"
    " autocast; what graphs keep is in Node.saved.",
}
_INPLACE = ("add_", "sub_", "mul_", "div_", "pow_")
_SIGNS = dict(zip(_INPLACE, ("+", "-", "*", "/", "**"), strict=True))
_PARTS = ("setitem", "index_put_", "index_fill_", "index_copy_", "masked_fill_", "scatter_")


@rule()
def changed_in_place(reading: Reading) -> Iterator[Finding]:
    """Backward failed because a tensor that a node kept for it was changed in place: by which line,
    or by an optimizer's step."""
    failure = reading.graph.failure
    if failure is None or failure.node is None or failure.kept is None:
        return
    kept, node = failure.kept, reading.graph.nodes[failure.node]
    what = f"{kept.label} ({kept.tensor})" if kept.label else f"a {kept.tensor}"
    changes = [_change(earlier) for earlier in failure.earlier]
    yield finding(
        "error",
        f"{_run(failure)} failed: {_operation(node)}{at(node.source)} needs {what} as it was, "
        f"and {listing(dict.fromkeys(changes)) or 'something'} changed it in place.",
        cause="changed in place",
        advice=_instead(failure, node.title),
        where=next((earlier.where for earlier in failure.earlier), node.source),
        nodes=_nodes(
            node.id, *(i for earlier in failure.earlier for i in earlier.nodes), kept.node
        ),
    )


@rule()
def backward_twice(reading: Reading) -> Iterator[Finding]:
    """Backward failed because an earlier backward had run a part of the graph: which part, and what
    carried it over."""
    failure = reading.graph.failure
    if failure is None or failure.node is None:
        return
    for earlier in failure.earlier:
        if earlier.operation == "backward":
            yield _twice(reading, failure, earlier, failure.node)


@rule()
def failed(reading: Reading) -> Iterator[Finding]:
    """The recording ended with an exception; the graph goes as far as the failure."""
    failure = reading.graph.failure
    if failure is None or is_mixed(failure) or failure.error in _STOPPED:
        return
    if failure.node is not None and (failure.kept is not None or failure.earlier):
        return  # told by the rules above
    given = failure.operands if failure.operation != "backward" else ()
    got = listing((f"{o.label or 'a tensor'} ({o.tensor})" for o in given), limit=8)
    line = failure.message.strip().partition("\n")[0].rstrip(".")
    inside = ""
    if failure.node is not None:
        node = reading.graph.nodes[failure.node]
        inside = f", in {_operation(node)}{at(node.source)}"
    yield finding(
        "error",
        f"{failure.operation or 'The recording'}{at(failure.where)} ended with {failure.error}"
        f"{inside}: {line}{f'; it got {got}' if got else ''}.",
        cause=failure.error,
        advice=next(
            (advice for said, advice in _ADVICE.items() if said in failure.message),
            "Look at the shapes and dtypes of what it got." if got else "",
        ),
        where=failure.where,
        nodes=_nodes(failure.node, *(operand.node for operand in failure.operands)),
    )


def _run(failure: Failure) -> str:
    return f"{failure.operation or 'backward'}{at(failure.where)}"


def _operation(node: Node) -> str:
    # Not by the label: that is its result's.
    return f"{node.title} in {node.module}" if node.module else node.title


def _nodes(*nodes: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(node for node in nodes if node is not None))


def _change(earlier: Earlier) -> str:
    name = "the optimizer's step" if earlier.operation == "step" else earlier.operation
    return f"{name}{at(earlier.where)}"


def _instead(failure: Failure, user: str) -> str:
    """What to do instead of the first change."""
    if not failure.earlier:
        return f"Look for +=, an assignment to a part, or inplace=True after {user} has taken it."
    how, line = failure.earlier[0].operation, at(failure.earlier[0].where)
    name = failure.kept.label if failure.kept and failure.kept.label.isidentifier() else "a"
    if how == "step":
        return "Run backward before step(), or the forward again after it."
    if how in _SIGNS:
        return f"Make a new tensor{line}: {name} = {name} {_SIGNS[how]} ... instead of {name} " + (
            f"{_SIGNS[how]}= ...."
        )
    if how in _PARTS:
        return f"Change a copy{line}: {name} = {name}.clone() before it, or torch.where."
    if how.endswith("_"):
        return f"Make a new tensor{line}: {how[:-1]} instead of {how}."
    return f"Leave inplace=True or out= out{line}."


def _twice(reading: Reading, failure: Failure, earlier: Earlier, failing: int) -> Finding:
    nodes = reading.graph.nodes
    before = f"backward at {earlier.where}" if earlier.where else "a backward before the recording"
    advice = "Add the losses and call backward() once, or pass retain_graph=True to the first."
    if len(earlier.nodes) < 2:
        happened = f"{before} had run the same graph, and freed what it kept."
    else:
        old, new = (nodes[i] for i in earlier.nodes[:2])
        happened = (
            f"{reading.call(new.id)}{at(new.source)} uses {reading.call(old.id)}{at(old.source)}, "
            f"which {before} had run, and what that kept is freed."
        )
        if earlier.where == failure.where:  # a loop
            again = _of_the_same_line(reading, old)
            # A node with several outputs has a name for each.
            same = [n for n in (old, *again) if n.name == old.name and "," not in n.label]
            name = next((n.label for n in same if n.label), "")
            advice = f"Compute {name or 'it'} anew in every step."
            if again:
                how = f"{name} = {name}.detach()" if name.isidentifier() else "with detach()"
                advice = f"Cut off what goes from one step to the next: {how}."
    return finding(
        "error",
        f"{_run(failure)} failed: {happened}",
        cause="backward ran before",
        advice=advice,
        where=failure.where,
        nodes=_nodes(failing, *earlier.nodes),
    )


def _of_the_same_line(reading: Reading, node: Node) -> list[Node]:
    """The other nodes that the line made, without those that this one was computed from."""
    behind, stack = {node.id}, [node.id]
    while stack:
        sources = {edge.source for edge in reading.inputs[stack.pop()]} - behind
        behind |= sources
        stack.extend(sources)
    same = (n for n in reading.graph.nodes if node.source and n.source == node.source)
    return [other for other in same if other.id not in behind]
