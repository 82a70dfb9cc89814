"""Rules about nodes that received a gradient and passed on none, or only zeros."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding, GradientStats, Node, Parameter
from ...graph.nodes import SAME_VALUES
from ...graph.units import count_text
from ..axes import number
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at, group_by_key, names_of, nodes_of

# Operations with a derivative of 0 everywhere: step functions and random samples.
_FLAT = ("sign", "sgn", "round", "floor", "ceil", "trunc", "bernoulli", "normal", "poisson")
# Operations with a derivative of 0 for some inputs -> the end of the message about them.
_SATURATED = {
    **dict.fromkeys(
        ("softmax", "log_softmax"), "is saturated: one input is so large that its slope is 0"
    ),
    "sigmoid": "is saturated: its inputs are so large that its slope is 0",
    "tanh": "is saturated: its inputs are so large that its slope is 0",
    "clamp": "clamped every value: its slope is 0 there",
    "clamp_min": "clamped every value: its slope is 0 there",
    "clamp_max": "clamped every value: its slope is 0 there",
    "hardtanh": "clamped every value: its slope is 0 there",
}


# If one of these operations uses a softmax, its result is attention weights rather than an output.
_WEIGHING = SAME_VALUES | {"bmm", "mm", "mul", "dropout", "native_dropout", "expand"}
_TORCH_PREFIXES = (
    "_",
    "CheckpointFunction",
    "CompiledFunction",
    "Broadcast",
    "Gather",
    "Scatter",
)  # name prefixes of PyTorch's own Function classes
_STRAIGHT_THROUGH = (
    "Use a straight-through estimator, x + (torch.{}(x) - x).detach(), or a smooth function."
)
_DRAW = "Sample with rsample() of a distribution, or as mean + std * torch.randn_like(std)."
_SINGLE_VALUE_ADVICE = {  # advice on a softmax over a single value
    "softmax": "Use sigmoid for a single output.",
    "log_softmax": "Use logsigmoid for a single output.",
}
_ADVICE = {
    "normal": _DRAW,
    "poisson": "A sample of a Poisson distribution has no gradient: use a score-function "
    "estimator with log_prob(sample).",
    **dict.fromkeys(
        ("softmax", "log_softmax", "sigmoid", "tanh"),
        "Lower the scale of its input, or normalize it.",
    ),
    **dict.fromkeys(
        ("clamp", "clamp_min", "clamp_max", "hardtanh"), "Widen the bounds, or remove the clamp."
    ),
}


@rule("error", of=(Parameter,))
def backward_returned_none(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient because the backward of a custom Function received a gradient and
    returned None.

    ## Why it matters

    A custom Function computes the gradients of its inputs in its own `backward`. None means "no
    gradient", so the parameters before the Function do not learn, and no error is raised.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return None


    model = nn.Linear(4, 1)
    with record(model) as recording:
        Scale.apply(model(torch.randn(8, 4))).mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient


    model = nn.Linear(4, 1)
    with record(model) as recording:
        Scale.apply(model(torch.randn(8, 4))).mean().backward()
    ```

    ## When it is intended

    None is correct for inputs that need no gradient, such as flags and integers, and is not
    reported for them.

    ## Not detected

    A gradient with wrong values is not detected. Check the Function with
    `torch.autograd.gradcheck`. A None for a tensor that other operations use directly, too, is not
    detected, either.

    ## See also

    - [Extending PyTorch](https://docs.pytorch.org/docs/stable/notes/extending.html)
    - [torch.autograd.gradcheck](https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html)
    """
    found = [
        (reading.dropping_nodes[p.node], p)
        for p in reading.graph.parameters
        if p.name not in reading.parameters_with_gradient
        and p.requires_grad
        and p.node in reading.dropping_nodes
    ]
    for dropping, parameters in group_by_key(found):
        node = reading.graph.nodes[dropping]
        advice = f"Return a gradient for every input that needs one in backward of {node.title}."
        if node.name.startswith(_TORCH_PREFIXES):
            advice = ""
        compiled = "compile" in node.note
        if compiled:
            advice = "The gradient was lost inside the compiled region: record the step with "
            advice += 'record(compiled="eager") to see where.'
        yield finding(
            "warning" if compiled else "error",
            f"{names_of(parameters)} got no gradient: {reading.call(dropping)}{at(node.where)} "
            "received a gradient and passed none on.",
            cause="backward returned None",
            advice=advice,
            where=node.where,
            nodes=(dropping, *nodes_of(parameters)),
        )


@finds("backward-returned-none", of=(GradientStats,))
def backward_returned_none_for_a_term(reading: Reading) -> Iterator[Finding]:
    """Find a custom Function that passes no gradient on, while other terms train its inputs."""
    nodes = reading.graph.nodes
    rows = {p.node: p for p in reading.graph.parameters if p.requires_grad and p.node is not None}
    for dropping in sorted({*reading.dropping_nodes.values()}):
        inputs = {edge.source for edge in reading.inputs[dropping] if not nodes[edge.source].leaf}
        is_final = inputs and all(reading.dropping_nodes.get(i) == dropping for i in inputs)
        if not (is_final and is_custom(nodes[dropping])):
            continue
        if any(nodes[node].placement for node in (dropping, *inputs)):
            continue  # not all gradients of DTensors are recorded
        before = [*inputs]
        for node in before:  # the list grows while it is iterated
            before += {edge.source for edge in reading.inputs[node]}.difference(before)
        parameters = [rows[node] for node in sorted(before) if node in rows]
        # Parameters without any gradient are reported as errors.
        names = {p.name for p in parameters}
        if not names or not names <= reading.parameters_with_gradient:
            continue
        last = nodes[dropping]
        user = next((e.target for e in reading.users[dropping] if e.target in reading.names), None)
        term = "the part of the loss behind it" if user is None else reading.call(user)
        yield finding(
            "warning",
            f"{reading.call(dropping)}{at(last.where)} received a gradient and passed none on, "
            f"because its backward returned None: {term} trains none of "
            f"{names_of(parameters)}, which get gradients from other terms only.",
            cause="backward returned None",
            advice=f"Return a gradient for every input that needs one in backward of {last.title}.",
            where=last.where,
            nodes=(dropping, *nodes_of(parameters)),
        )


@rule("warning", of=(GradientStats,), caused_by=("softmax-of-one",))
def zero_gradient(reading: Reading) -> Iterator[Finding]:
    """A parameter's gradient is all zeros, because a step function such as round or sign, or a
    custom Function whose backward returned zeros, is between the parameter and the loss.

    ## Why it matters

    Rounding, signs and comparisons are constant between their jumps, so their gradient is
    exactly 0. The parameters before them never change, although each of these parameters has a
    `.grad`.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        model(torch.randn(8, 4)).round().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        y = model(torch.randn(8, 4))
        (y + (y.round() - y).detach()).mean().backward()
    ```

    ## When it is intended

    Quantization uses a straight-through estimator, which passes a gradient and is not reported.

    ## Not detected

    Gradients that are tiny but not zero are not reported.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    - [torch.round](https://docs.pytorch.org/docs/stable/generated/torch.round.html)
    """
    nodes = reading.graph.nodes
    listed = reading.graph.parameters or _leaves(reading)
    zeros = [
        (p.node, p)
        for p in listed
        if p.requires_grad and p.node is not None and _zeros_only(nodes[p.node])
    ]
    if not zeros:
        return
    # Id of a node -> id of the operation with derivative 0 through which the node's output passes.
    step: dict[int, int] = {}
    for node in reversed(nodes):  # users before inputs
        for edge in reading.users[node.id]:
            user = nodes[edge.target]
            slopeless = user.title in _FLAT or (
                (user.title in _SATURATED or is_custom(user))
                and _zeros_only(node)
                and len(reading.users[node.id]) == 1
            )
            if slopeless and _has_nonzero(user):
                step[node.id] = user.id
            elif user.id in step:
                step.setdefault(node.id, step[user.id])
    rows = [(step[node], p) for node, p in zeros if node in step]
    # Report one finding for each line, even if many modules run the line.
    lines = {flat: (nodes[flat].title, nodes[flat].where or flat) for flat, _ in rows}
    whys = {flat: _cause_and_advice(reading, flat) for flat, _ in rows}
    for (_, (why, advice)), found in group_by_key(((lines[f], whys[f]), (f, p)) for f, p in rows):
        flats = list(dict.fromkeys(flat for flat, _ in found))
        node, parameters = nodes[flats[0]], [p for _, p in found]
        more = f", and in {count_text(len(flats) - 1, 'other module')}," if flats[1:] else ""
        custom = is_custom(node)  # its zeros may be intended
        yield finding(
            "info" if custom else "warning",
            f"{names_of(parameters)} got a gradient of only zeros: "
            f"{reading.call(node.id)}{more}{at(node.where)} {why}.",
            cause="zeros from a custom backward" if custom else f"{node.title} has no slope",
            advice=advice,
            where=node.where,
            nodes=(*flats, *nodes_of(parameters)),
        )


def _leaves(reading: Reading) -> tuple[Parameter, ...]:
    """Return the graph's named leaves as `Parameter`s, for a program that calls no module."""
    return tuple(
        Parameter(name, meta, True, node)
        for node, name in reading.names.items()
        if reading.graph.nodes[node].leaf and (meta := reading.meta(node)) is not None
    )


def _cause_and_advice(reading: Reading, flat: int) -> tuple[str, str]:
    """Return the reason why a node's derivative is 0, and the advice on it.

    Args:
        reading: the graph.
        flat: id of the node.
    """
    node, meta = reading.graph.nodes[flat], reading.meta(flat)
    dim = number(node, "dim")
    shape = () if meta is None else meta.shape
    # PyTorch treats a tensor without dimensions as one of size 1.
    if node.title in _SINGLE_VALUE_ADVICE and dim is not None and (shape[dim] if shape else 1) == 1:
        weighs = any(
            reading.graph.nodes[edge.target].operation in _WEIGHING for edge in reading.users[flat]
        )
        why = "normalizes a dimension of size 1, so its result is 1 for every input"
        return why, "" if weighs else _SINGLE_VALUE_ADVICE[node.title]
    if is_custom(node):
        advice = f"Check backward of {node.title} with torch.autograd.gradcheck."
        return "received a gradient, and its backward returned zeros", advice
    advice = _ADVICE.get(node.title, _STRAIGHT_THROUGH).format(node.title)
    return _SATURATED.get(node.title, "has slope 0 everywhere"), advice


def is_custom(node: Node) -> bool:
    """Return True for a node of a custom Function, whose name does not end in a digit."""
    own = node.name.endswith("Backward") and not node.name.startswith(_TORCH_PREFIXES)
    return own and "compile" not in node.note


def _has_nonzero(node: Node) -> bool:
    return any(s is not None and s.zero_fraction < 1 for s in node.grad_outputs)


def _zeros_only(node: Node) -> bool:
    for stats in node.grad_outputs:
        if stats is None or stats.zero_fraction != 1:
            return False
    return bool(node.grad_outputs)
