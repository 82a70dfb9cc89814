"""Rules about exceptions that ended the recording, in an operation or in backward."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import dropwhile, takewhile
from operator import methodcaller
from pathlib import PurePath

from ...graph import NO_PARAMETERS, Cause, Failure, Finding, Node
from ...graph.immutable import NamedTuple
from ...graph.text import listing, shorten
from ..failure_causes import (
    ADVICE,
    advice_on_carried,
    advice_on_change,
    advice_on_same_graph,
    backward_text,
    change_text,
    is_backward,
    origin_text,
)
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, operation_text
from .devices import is_mixed
from .leaves import UnregisteredParameters

# Exceptions by which a user ends a program.
_STOPPED = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")
_NON_LEAF = "can't optimize a non-leaf"
# Words that PyTorch's errors about the shapes and dtypes of operands contain.
_ABOUT_OPERANDS = ("shape", "size", "dim", "dtype", "scalar type", "broadcast", "matri")
_METADATA = r"metadata: \{'shape': torch\.Size\((\[[^\]]*\])\), 'dtype': torch\.(\w+)"
_SAVED, _RECOMPUTED = re.compile(f"saved {_METADATA}"), re.compile(f"recomputed {_METADATA}")
_READY_TWICE, _REENTRANT = "mark a variable ready only once", "CheckpointFunction"
_INDEX = re.compile(r"Parameter at index (\d+)")
_MAX_TEXT = 400  # characters of a worker's message
_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<")


@rule("error", of=(Failure,))
def changed_in_place(reading: Reading) -> Iterator[Finding]:
    """Backward failed because a tensor that a node had saved for backward was changed in place, by
    an operation or by an optimizer's step.

    ## Why it matters

    A node saves the tensors that its backward needs. With an overwritten tensor, the gradient would
    be wrong. PyTorch therefore raises an error, which does not name the line of the change.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        h = model(torch.randn(8, 4)).sigmoid()
        h += 1  # <- reported
        h.sum().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        h = model(torch.randn(8, 4)).sigmoid()
        h = h + 1
        h.sum().backward()
    ```

    ## When it is intended

    In-place operations save memory, and most of them are correct: only those that overwrite a saved
    tensor make backward fail. Apply them to leaves under `torch.no_grad()`, or to a `clone()`.

    ## Not detected

    Changes through `.data` or NumPy raise no error, and the gradient is silently wrong. Some of
    these changes are reported as `data-assignment`.

    ## See also

    - [In-place correctness checks](https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-correctness-checks)
    """
    failure = reading.graph.failure
    if failure is None or failure.node is None or failure.modified is None:
        return
    kept, node = failure.modified, reading.graph.nodes[failure.node]
    what = f"{kept.label} ({kept.tensor})" if kept.label else f"a tensor ({kept.tensor})"
    changes = [cause for cause in failure.causes if not is_backward(cause)]
    others = [cause for cause in failure.causes if is_backward(cause)]
    said = listing(dict.fromkeys(change_text(reading, change) for change in changes))
    message = f"{operation_text(node)}{at(node.where)} needs the original values of {what}, but "
    message += f"{said or 'an operation that was not recorded'} changed it in place"
    for other in others:
        message += f"; {backward_text(other)} had already run it, and {origin_text(reading, other)}"
    yield finding(
        "error",
        f"backward{at(failure.where)} failed: {message}.",
        cause="changed in place",
        advice=advice_on_carried(others[0])
        if others
        else advice_on_change(reading, failure, changes, node.title),
        where=next((change.where for change in changes), failure.where),
        nodes=_nodes(node.id, *(i for e in failure.causes for i in e.nodes), kept.node),
    )


@rule("error", of=(Failure,))
def backward_twice(reading: Reading) -> Iterator[Finding]:
    """Backward failed because an earlier backward had already run a part of the graph and freed the
    tensors that its nodes had saved.

    ## Why it matters

    A backward frees the tensors that its nodes have saved, so a second backward through the
    same nodes fails. `retain_graph=True` avoids the error. In a loop, however, each backward then
    also runs through the graphs of all earlier steps, and takes longer and longer.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, state = nn.Linear(4, 4), torch.zeros(1, 4)
    with record(model) as recording:
        for _ in range(2):
            state = model(state).tanh()  # <- reported
            state.sum().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, state = nn.Linear(4, 4), torch.zeros(1, 4)
    with record(model) as recording:
        for _ in range(2):
            state = model(state.detach()).tanh()
            state.sum().backward()
    ```

    ## When it is intended

    Two losses may share a part of the graph. Add the losses and call backward once, or pass
    `retain_graph=True` to the first backward.

    ## Not detected

    If several tensors carry history from one backward to the next, the finding names only the
    first.

    ## See also

    - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    failure = reading.graph.failure
    if failure is None or failure.node is None or failure.modified is not None:
        return
    for other in failure.causes:
        same = len(other.nodes) < 2
        before = backward_text(other)
        happened = f"{before} had run the same graph"
        if not same:
            happened = f"{origin_text(reading, other)}, which {before} had run"
        later = None if same else reading.graph.nodes[other.nodes[1]]
        yield finding(
            "error",
            f"backward{at(failure.where)} failed: {happened}, and its saved tensors were freed.",
            cause="backward ran before",
            advice=advice_on_same_graph(other) if same else advice_on_carried(other),
            where=failure.where if later is None else later.where or failure.where,
            nodes=_nodes(failure.node, *other.nodes),
        )


@rule("error", of=(Failure,))
def exception(reading: Reading) -> Iterator[Finding]:
    """The recording ended with an exception. Its graph contains the operations up to the failure.

    ## Why it matters

    The traceback names the line that failed. The recording adds the operands with their shapes,
    dtypes and devices, and the graph up to the failure.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 2)
    with record(model) as recording:
        model(torch.randn(4, 8)).sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 2)
    with record(model) as recording:
        model(torch.randn(8, 4)).sum().backward()
    ```

    ## When it is intended

    A program may catch an exception outside of the `record()` block on purpose; the exception ends
    the recording nevertheless.

    ## Not detected

    Exceptions that the program catches inside the block are not reported.

    ## See also

    - [Frequently asked questions](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """
    failure = reading.graph.failure
    if failure is None or is_mixed(failure) or failure.error in _STOPPED:
        return
    if _NON_LEAF in failure.message:
        return  # reported as non-leaf-in-optimizer
    if NO_PARAMETERS in failure.message and reading.events(UnregisteredParameters):
        return  # reported as not-registered
    if failure.node is not None and (failure.modified is not None or failure.causes):
        return  # reported as changed-in-place or backward-twice
    if failure.error == "CheckpointError" and failure.causes:
        yield _rerun(failure)
        return
    twice = next((n for n in reading.graph.nodes if n.name.startswith(_REENTRANT)), None)
    if _READY_TWICE in failure.message and twice is not None:
        yield _ready_twice(reading, failure, twice)
        return
    if (mapped := called_in_vmap(failure)) is not None and reading.loss_has_no_grad:
        yield _grad_in_vmap(failure, mapped)
        return
    given = failure.operands if failure.operation != "backward" else ()
    got = listing((f"{o.label or 'a tensor'} ({o.tensor})" for o in given), most=8)
    worker = _in_worker(failure.message)
    line = _sentences(worker.message if worker else failure.message).rstrip(".")
    inside = at(failure.raised_where)
    if failure.node is not None:
        node = reading.graph.nodes[failure.node]
        inside = (
            f", in {operation_text(node)}{at(node.where)}{f', raised{inside}' if inside else ''}"
        )
    elif worker:
        inside = f", raised in a worker of the DataLoader{at(worker.where)}"
    elif inside:
        inside = f", raised{inside}"
    yield finding(
        "error",
        f"{failure.operation or 'The recording'}{at(failure.where)} ended with {failure.error}"
        f"{inside}: {line}{f'; it got {got}' if got else ''}.",
        cause=failure.error,
        advice=next(
            (advice for said, advice in ADVICE.items() if said in failure.message),
            _generic_advice(failure) if got else "",
        ),
        where=(worker and worker.where) or failure.raised_where or failure.where,
        nodes=_nodes(failure.node, *(operand.node for operand in failure.operands)),
    )


def called_in_vmap(failure: Failure) -> Cause | None:
    """Return the call of torch.vmap inside which a call failed; None if there is none."""
    return next((cause for cause in failure.causes if cause.operation == "vmap"), None)


def _grad_in_vmap(failure: Failure, mapped: Cause) -> Finding:
    """Return the finding about autograd.grad inside vmap, where no tensor requires grad."""
    return finding(
        "error",
        f"{failure.operation}{at(failure.where)} failed inside torch.vmap{at(mapped.where)}: the "
        "tensors that vmap passes to its function do not require a gradient, nor do results "
        "computed from them.",
        cause="autograd.grad inside vmap",
        advice="Use torch.func.grad inside vmap, as in vmap(grad(f)), in place of autograd.grad.",
        where=failure.where,
    )


def _rerun(failure: Failure) -> Finding:
    """Return the finding about a checkpoint whose recomputation differs from its first run."""
    segment, *changes = failure.causes
    then, now = (pattern.search(failure.message) for pattern in (_SAVED, _RECOMPUTED))
    what = "was recomputed differently in backward"
    if then and now:
        what = (
            f"returned {now[2]}{now[1]} when it was recomputed, and {then[2]}{then[1]} in the "
            "forward"
        )
    message = f"backward{at(failure.where)} failed: the checkpointed code{at(segment.where)} {what}"
    advice = (
        "Look for state that the first run changes and the second run reads: a counter, a cache, "
    )
    advice += "or a mode. Move that state out of the checkpointed code."
    changed = next((each for each in changes if each.where), None)
    if changed is not None:
        message += f". The first run changed the buffer {changed.label} in place{at(changed.where)}"
        message += f" ({changed.operation})"
        advice = f"Change {changed.label} outside of the checkpointed code, after the step."
    return finding(
        "error",
        f"{message}.",
        cause=failure.error,
        advice=advice,
        where=segment.where or failure.where,
    )


def _ready_twice(reading: Reading, failure: Failure, checkpoint: Node) -> Finding:
    """Return the finding about a gradient that DDP got twice, due to reentrant checkpoints."""
    index = _INDEX.search(failure.message)
    parameters = [p.name for p in reading.graph.parameters if p.requires_grad]
    number = int(index[1]) if index else len(parameters)
    name = parameters[number] if number < len(parameters) else "a parameter"
    return finding(
        "error",
        f"backward{at(failure.where)} failed: DistributedDataParallel got the gradient of {name} "
        f"twice. Each reentrant checkpoint{at(checkpoint.where)} runs a backward of its own, "
        "and two checkpoints of one step use this parameter.",
        cause=failure.error,
        advice=f"Pass use_reentrant=False to checkpoint{at(checkpoint.where)}.",
        where=checkpoint.where or failure.where,
        nodes=(checkpoint.id,),
    )


class _WorkerError(NamedTuple):
    """The exception of a DataLoader worker, parsed from the main process's message."""

    message: str
    where: str  # the innermost line outside of installed libraries


def _in_worker(message: str) -> _WorkerError | None:
    """Return the exception of a DataLoader worker that a message quotes; None if there is none."""
    if _WORKER.match(message) is None:
        return None
    frames = [*_FRAME.finditer(message)]
    own = [match.groups() for match in frames if not _INSTALLED.search(match[1])]
    where = f"{PurePath(own[-1][0]).name}:{own[-1][1]}" if own else ""
    lines = message[frames[-1].end() if frames else 0 :].splitlines()[1:]
    # The source line of the last frame is followed by the exception, whose message may have several
    # lines, and by the stack of C++ functions.
    said = [*dropwhile(methodcaller("startswith", "    "), lines)]
    text = " ".join(line.strip() for line in takewhile(_is_no_stack, said))
    return (
        _WorkerError(shorten(text.partition(": ")[2] or text, _MAX_TEXT), where) if text else None
    )


def _is_no_stack(line: str) -> bool:
    return not line.startswith("Exception raised from ")


def _sentences(message: str) -> str:
    """Return the first line of a message, without a sentence that continues on the next line."""
    line, _, more = message.strip().partition("\n")
    whole = line.rstrip()
    if more.strip() and not whole.endswith((".", ":", "!", "?", ";")) and ". " in whole:
        return whole[: whole.rindex(". ") + 1]
    return whole


def _generic_advice(failure: Failure) -> str:
    """Return advice on an exception that no key of ADVICE matches; "" without advice."""
    said = failure.message.lower()
    senders = "gloo", "processgroup", "collective"
    if "timed out" in said and any(word in said for word in senders):
        return (
            "Another rank did not reach this call: check at which line each of the other "
            "ranks waits or ended."
        )
    about = any(word in said for word in _ABOUT_OPERANDS)
    return "Check the shapes and dtypes of the arguments." if about else ""


def _nodes(*nodes: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(node for node in nodes if node is not None))
