"""Losses: what a loss takes, and what it was given."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Finding, Node
from .rule import Reading, at, finding, rule

# They hand on values as they are.
_SAME = {
    "view",
    "unsafe_view",
    "reshape_alias",
    "transpose",
    "permute",
    "t",
    "squeeze",
    "unsqueeze",
}
_SAME |= {"clone", "alias", "slice", "select", "index", "to_copy", "expand", "unflatten"}
_SCORES = ("addmm", "mm", "linear", "baddbmm", "convolution", "mkldnn_linear")
# What an operation takes, and what makes something else of what.
_RAW = ("raw scores", dict.fromkeys(("softmax", "sigmoid"), "probabilities"))
_LOG = (
    "log-probabilities",
    {"softmax": "probabilities", **dict.fromkeys(_SCORES, "raw scores")},
)
_TAKES = {
    "log_softmax": _RAW,
    "binary_cross_entropy_with_logits": _RAW,
    "nll_loss": _LOG,
    "nll_loss2d": _LOG,
}
_ADVICE = {
    "log_softmax": "Leave the {made} out: cross_entropy and log_softmax have one of their own.",
    "binary_cross_entropy_with_logits": "Leave the {made} out, or use binary_cross_entropy.",
    "nll_loss": "Use cross_entropy on the raw scores, or log_softmax before it.",
    "nll_loss2d": "Use cross_entropy on the raw scores, or log_softmax before it.",
}


@rule()
def loss_input(reading: Reading) -> Iterator[Finding]:
    """A loss got what it does not take: cross_entropy what a softmax gave, nll_loss what is no
    log-probability, binary_cross_entropy_with_logits what a sigmoid gave."""
    for node in reading.graph.nodes:
        if node.operation not in _TAKES:
            continue
        takes, others = _TAKES[node.operation]
        made = _maker(reading, node)
        if made is None or made.operation not in others:
            continue
        yield finding(
            "warning",
            f"{_name(reading, node)}{at(node.source)} takes {takes}, and got "
            f"{others[made.operation]} from {reading.call(made.id)}{at(made.source)}.",
            cause=f"{others[made.operation]} where {takes} belong",
            advice=_ADVICE[node.operation].format(made=made.operation),
            where=node.source,
            nodes=(made.id, node.id),
        )


def _maker(reading: Reading, node: Node) -> Node | None:
    """What computed the values that a node takes first."""
    while True:
        source = next((e.source for e in reading.inputs[node.id] if e.input_nr == 0), None)
        if source is None:
            return None
        node = reading.graph.nodes[source]
        if node.operation not in _SAME:
            return node


def _name(reading: Reading, node: Node) -> str:
    """What the user called: cross_entropy is a log_softmax and an nll_loss of one line."""
    users = [node]
    while len(users) == 1 and users[0].operation in (*_SAME, node.operation):
        users = [reading.graph.nodes[edge.target] for edge in reading.users[users[0].id]]
    after = users[0] if len(users) == 1 else node
    whole = after.operation.startswith("nll_loss") and after.source == node.source
    return "cross_entropy" if node.operation == "log_softmax" and whole else node.operation
