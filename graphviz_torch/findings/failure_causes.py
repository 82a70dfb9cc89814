"""Describe the calls that made a backward fail: changes in place, and other backwards."""

from __future__ import annotations

import re

from ..graph import Cause, Failure
from .graph_reading import Reading
from .words import at

_AUGMENTED_OPERATORS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/", "pow_": "**"}
# `h += x`, but not `h[0] += x`
_AUGMENTED = re.compile(r"([A-Za-z_][\w.]*)\s*(\*\*|[-+*/])=(?!=)")
_PARTIAL_WRITES = (
    "setitem",
    "index_put_",
    "index_fill_",
    "index_copy_",
    "masked_fill_",
    "scatter_",
)
_MAX_SOURCE_LINE = 60  # maximal length of a source line that a message quotes


def is_backward(cause: Cause) -> bool:
    """Return True for a call of backward, or of autograd.grad."""
    return cause.operation in ("backward", "grad")


def backward_text(other: Cause) -> str:
    """Return a call and its line, such as "backward at train.py:9"."""
    name = "autograd.grad" if other.operation == "grad" else "backward"
    return f"{name}{at(other.where)}" if other.where else f"an earlier {name}"


def change_text(reading: Reading, change: Cause) -> str:
    """Return a change in place and its line, such as "add_ in block.relu at train.py:9"."""
    if change.operation == "step":
        return f"the optimizer's step{at(change.where)}"
    text = f" ({change.text})" if _is_visible(change) else ""
    return f"{change.operation}{_module_text(reading, change)}{at(change.where)}{text}"


def _module_text(reading: Reading, change: Cause) -> str:
    """Return " in block.relu", or "" if the module is not known."""
    modules = (reading.graph.nodes[i].module for i in change.nodes)
    return next((f" in {module}" for module in modules if module), "")


def _is_visible(change: Cause) -> bool:
    """Return True if the source line shows the in-place change, and is short enough to quote."""
    name, text = change.operation.partition("(")[0].rstrip("_"), change.text
    seen = name in text or re.search(r"(\]|\*\*|[-+*/%&|^])\s*=[^=]", text) is not None
    return bool(text) and seen and len(text) <= _MAX_SOURCE_LINE


def advice_on_change(reading: Reading, failure: Failure, changes: list[Cause], user: str) -> str:
    """Return the code to write instead of the first in-place change, as advice.

    Args:
        reading: the graph.
        failure: the exception of backward.
        changes: the in-place changes of the saved tensor, in order.
        user: the operation that saved the tensor, as text.
    """
    if not changes:
        return (
            f"Look for code that changes the tensor after {user} saved it: compiled code, a "
            "thread, C++."
        )
    first = changes[0]
    if first.operation == "step":
        return (
            "Call backward before the step, or run the forward again after it. If a tensor is "
            "carried from one step to the next, such as a hidden state, detach() it in between."
        )
    if failure.modified is not None and failure.modified.node is not None:
        return "Call backward before the change, or run the forward again after it."
    line, written = at(first.where), _AUGMENTED.match(first.text)
    if "max_norm=" in first.operation:
        return (
            "Pass a clone() of the weight to the embedding, or normalize the weight before "
            "the forward."
        )
    if "inplace=" in first.operation:
        return f"Use inplace=False{_module_text(reading, first) or line}."
    if "out=" in first.operation:
        return f"Remove the argument out={line}."
    if first.of_view:  # a new tensor would not change the base of the view
        if written:
            return f"Call clone() on the base tensor before the view {written[1]} is created."
        return "Call clone() on the base tensor before the view is created."
    if first.operation in _PARTIAL_WRITES:
        return f"Change a copy{line}, made with clone(), or use torch.where."
    if written and _AUGMENTED_OPERATORS.get(first.operation) == written[2]:
        name, sign = written[1], written[2]
        return (
            f"Compute a new tensor{line}: {name} = {name} {sign} ... instead of {name} {sign}= ...."
        )
    return (
        f"Compute a new tensor{line} instead of changing this one, or give {user} a clone() of it."
    )


def origin_text(reading: Reading, other: Cause) -> str:
    """Return the phrase "NODE uses TENSOR".

    Another backward ran the node that computed TENSOR, but not NODE.
    """
    nodes = reading.graph.nodes
    old, new = (nodes[i] for i in other.nodes[:2])
    direct = any(edge.source == old.id for edge in reading.inputs[new.id])
    name = other.label if direct and other.label else reading.call(old.id)
    return (
        f"{reading.call(new.id)}{at(new.where)} {'uses' if direct else 'comes from'} "
        f"{name}{at(old.where)}"
    )


def advice_on_carried(other: Cause) -> str:
    """Return advice on a tensor that connects a new graph to one that backward already ran."""
    name = other.label
    detached = f"{name} = {name}.detach()" if name.isidentifier() else "detach()"
    if (other.in_loop or not other.where) and other.operation != "grad":
        return (
            f"Detach {name or 'the tensor'} between the steps, with {detached}. If a list keeps "
            "it, clear the list after each step. If the gradient of each step should reach the "
            "source of this tensor, compute the tensor again in each step."
        )
    if other.operation == "grad":
        return (
            f"Pass create_graph=True to autograd.grad{at(other.where)} if its result is "
            "differentiated again; otherwise pass retain_graph=True, or run the forward again."
        )
    if other.stepped:
        return (
            f"Detach {name or 'the tensor'} if only one of the two losses should train its "
            "source. Otherwise run its forward again after the step."
        )
    return "Add the losses and call backward() once, or pass retain_graph=True to the first."


def advice_on_same_graph(other: Cause) -> str:
    """Return advice on a graph through which backward ran again, after a complete first run."""
    if other.in_loop:
        return "Run the forward again before each backward, in the loop or the closure."
    if other.operation == "grad":
        return f"Pass retain_graph=True to autograd.grad{at(other.where)}."
    return "Call backward() once, or pass retain_graph=True to the first."
