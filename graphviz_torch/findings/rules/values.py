"""Rules about values: NaN, Inf, and ReLU layers that output only zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from ...graph import Edge, Finding, GradientStats
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.nodes import REGRESSION_LOSSES, SAME_VALUES
from ...graph.text import listing
from ..graph_reading import Reading
from ..repeated_findings import SPOILT
from ..rule import finding, rule
from ..words import at

Origin = Literal["operation", "input", "parameter"]

# In healthy trained transformers, 97 % of the ReLU outputs may be zero (Li et al. 2022, "The lazy
# neuron phenomenon"). Only a ReLU that passes less than 0.1 % is called dead.
DEAD_ELEMENTS = 0.999
DEAD_UNITS = 0.9
# In a smaller batch, all rows or elements may be zero by chance.
MIN_ROWS = 32
MIN_ELEMENTS = 64
SINCE_EARLIER_BACKWARD = "NaN or Inf in an earlier backward"
_RELU = ("relu", "threshold", "hardtanh")
_REGION_ADVICE = (
    'Record the step with record(compiled="eager"): the report then names the operation inside '
    "the region."
)
_NONFINITE_ADVICE = {
    "sqrt": "Add a small number before sqrt: its derivative at 0 is infinite.",
    "rsqrt": "Add a small number before rsqrt: its derivative at 0 is infinite.",
    "log": "Clamp its input to a minimum above 0, or use log_softmax.",
    **dict.fromkeys(("log2", "log10"), "Clamp its input to a minimum above 0."),
    "log1p": "Clamp its input to a minimum above -1.",
    "pow": "Clamp the base to a minimum above 0: for an exponent below 1, the derivative at 0 "
    "is infinite.",
    "div": "Add a small number to the divisor.",
    "reciprocal": "Add a small number to the divisor.",
    "norm": "Add a small number to the tensor: a norm has no derivative at 0.",
    "linalg_vector_norm": "Add a small number to the tensor: a norm has no derivative at 0.",
    "acos": "Clamp the input inside -1 and 1: the derivative at the ends is infinite.",
    "asin": "Clamp the input inside -1 and 1: the derivative at the ends is infinite.",
    "exp": "Subtract the largest value before exp, or use logsumexp.",
    "mul": "One factor is already NaN or Inf in the forward: check the operations that computed "
    "it.",
    "where": "torch.where passes 0 * Inf = NaN back through the branch that is not selected: "
    "clamp the input of that branch.",
}
_VALUE_ADVICE = {
    "softmax": "Leave at least one key unmasked in every row, or set fully masked rows to 0 "
    "with torch.where before the softmax.",
    "sqrt": "Clamp its input to at least 0: rounding may make a small number negative.",
    "mean": "Skip empty tensors, or divide a sum by max(count, 1).",
    **dict.fromkeys(
        ("nll_loss", "nll_loss2d"),
        "Skip batches without a target, or divide the sum by max(count, 1).",
    ),
    **dict.fromkeys(("var", "std"), "Pass unbiased=False, or skip groups of a single element."),
}


@rule("warning", of=_RELU)
def dead_relu(reading: Reading) -> Iterator[Finding]:
    """A ReLU passes almost no gradient, because nearly all of its inputs are negative.

    ## Why it matters

    A unit whose input is negative for all samples outputs 0 and passes no gradient, so it
    cannot recover. If most units are dead, the layer computes a constant.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.constant_(model[0].bias, -3.5)
    with record(model) as recording:
        model(torch.randn(512, 4)).mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.zeros_(model[0].bias)
    with record(model) as recording:
        model(torch.randn(512, 4)).mean().backward()
    ```

    ## When it is intended

    A sparse autoencoder or a mixture of experts has sparse activations on purpose.

    ## Not detected

    A recorded step contains only one batch, so a unit that is reported may still be active for
    other batches.

    ## See also

    - [torch.nn.ReLU](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReLU.html)
    - [torch.nn.LeakyReLU](https://docs.pytorch.org/docs/stable/generated/torch.nn.LeakyReLU.html)
    """
    for node in reading.of_operations(_RELU):
        if not reading.inputs[node.id]:
            continue
        edge = reading.inputs[node.id][0]
        if len(reading.users[edge.source]) > 1:
            continue  # other users of the input also contribute to its gradient
        after, before = reading.stats(node.id), reading.stats(edge.source, edge.output_nr)
        meta = reading.meta(node.id)
        if after is None or before is None or meta is None or after.zero_fraction == 1:
            continue
        passed = (1 - before.zero_fraction) / (1 - after.zero_fraction)
        units = _dead_units(reading, edge.source) if meta.shape[:1] >= (MIN_ROWS,) else 0.0
        if math.prod(meta.shape) < MIN_ELEMENTS or (
            passed > 1 - DEAD_ELEMENTS and units < DEAD_UNITS
        ):
            continue
        dead = (
            f"{units:.1%} of its units"
            if units >= DEAD_UNITS
            else f"{1 - passed:.1%} of its elements"
        )
        loss = _loss_of(reading, node.id)
        leave_out = f"It is the last operation before {loss}: remove it, or use softplus if the "
        leave_out += "output must be positive."
        yield finding(
            "warning",
            f"{reading.call(node.id)} is dead: {dead} let no gradient through.",
            cause="inputs of the ReLU are negative",
            advice=leave_out
            if loss
            else "Lower the learning rate, check the bias and the scale of the input, or use "
            "LeakyReLU or GELU.",
            where=node.where,
            nodes=(node.id, edge.source),
        )


def _loss_of(reading: Reading, node: int) -> str:
    """Return the regression loss that uses a result, directly or reshaped; "" if there is none."""
    while len(reading.users[node]) == 1:
        user = reading.graph.nodes[reading.users[node][0].target]
        if user.operation in REGRESSION_LOSSES:
            return user.operation
        if user.title not in SAME_VALUES and user.title != "select":
            return ""
        node = user.id
    return ""


@immutable
class NonfiniteValue(Event):
    """The first NaN or Inf of a forward. `where` is the line of the operation that computed it."""

    operation: str = ""  # "log"; "" if unknown
    nan: int | None = 0  # number of NaN elements; None if at least one
    inf: int | None = 0  # number of Inf elements; None if at least one
    # whether the first NaN or Inf was in the operation's result, in an input or in a parameter
    origin: Origin = "operation"
    reason: str = ""  # cause: "its divisor has 2 zeros"
    in_loss: bool = False  # True if the loss is NaN or Inf as well


@rule("error", of=(NonfiniteValue,))
def nonfinite_value(reading: Reading) -> Iterator[Finding]:
    """An operation of the forward computed NaN or Inf. The first such operation is reported.

    ## Why it matters

    A NaN in the forward makes the loss NaN, and a step with this loss makes all parameters NaN. The
    finding names the first operation that computed NaN or Inf from finite inputs.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    scores = nn.Linear(4, 3)
    mask = torch.tensor([[False, False, True], [True, True, True]])
    with record(scores) as recording:
        logits = scores(torch.randn(2, 4)).masked_fill(mask, -torch.inf)
        loss = logits.softmax(1).square().mean()  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    scores = nn.Linear(4, 3)
    mask = torch.tensor([[False, False, True], [True, True, True]])
    with record(scores) as recording:
        logits = scores(torch.randn(2, 4)).masked_fill(mask, -torch.inf)
        weights = torch.where(mask.all(1, keepdim=True), 0.0, logits).softmax(1)
        loss = weights.square().mean()
        loss.backward()
    ```

    ## When it is intended

    Masked scores before a softmax are `-inf` on purpose. They are not reported if each row has a
    finite score.

    ## Not detected

    With `gradients="finite"`, results that were freed before backward are not checked.

    ## See also

    - [torch.autograd.detect_anomaly](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """
    for event in _nonfinite_values(reading):
        node = event.nodes[0] if event.nodes else None
        name = event.operation if node is None else reading.graph.nodes[node].title
        module = "" if node is None else reading.graph.nodes[node].module
        loss = "the loss is therefore not finite"
        loss = loss if event.in_loss else "gradients are therefore not finite"
        advice = _VALUE_ADVICE.get(name, _NONFINITE_ADVICE.get(name, "Check its inputs."))
        advice = _REGION_ADVICE if name == "compiled" else advice
        reason = event.reason
        if name == "div" and event.nan and not reason:  # the divisor contained no zero
            advice = "Check its inputs."
        meta = None if node is None else reading.meta(node)
        overflow = meta is not None and meta.dtype == "float16" and event.nan == 0
        if overflow and event.origin == "operation" and not reason:
            reason = "an overflow in float16, whose largest value is 65,504"
            advice = "Compute this part in float32, under torch.autocast(device, enabled=False), "
            advice += "or in bfloat16."
        if event.origin == "parameter":
            norms = ((p.name, p.norm) for p in reading.graph.parameters if p.norm is not None)
            spoilt = [name for name, norm in norms if not math.isfinite(norm)]
            one = f"{listing(spoilt)} {'is' if len(spoilt) == 1 else 'are'} NaN or Inf already"
            reason = one if spoilt else reason
            advice = "Look for the cause: an earlier step with NaN or Inf gradients, an "
            advice += "initialization that divides by zero, or the checkpoint that was loaded."
        elif event.origin == "operation" and not event.operation:
            name, module, advice = (
                "The root of backward",
                "",
                "Check the operations that computed it.",
            )
        elif event.origin == "input":
            advice = "Call torch.isnan(x).any() on the data, and on tensors that are computed "
            advice += "without gradients."
        yield finding(
            "error",
            f"{name}{f' in {module}' if module else ''}{at(event.where)} {_counts(event, reason)}; "
            f"{loss}.",
            cause=SPOILT if event.origin == "parameter" else "NaN or Inf in forward",
            advice=advice,
            where=event.where,
            nodes=event.nodes,
        )


def _counts(event: NonfiniteValue, reason: str) -> str:
    """Return a phrase such as "made 2 NaN and 1 Inf: its divisor has 2 zeros".

    For an input, an example is "has 1 Inf".
    """
    counts = (event.nan, "NaN"), (event.inf, "Inf")
    found = " and ".join(kind if n is None else f"{n} {kind}" for n, kind in counts if n != 0)
    does = "made" if event.operation or event.origin != "operation" else "has"
    return f"{does} {found}" + (f": {reason}" if reason else "")


def _nonfinite_values(reading: Reading) -> list[NonfiniteValue]:
    """Return the event of the forward's first NaN or Inf that reached the loss or a gradient.

    Return [] if there is none.
    """
    # A parameter that an earlier step of the recording made NaN is reported for that step only.
    inherited = reading.graph.step.nonfinite_since is not None
    return [
        event
        for event in reading.events(NonfiniteValue)
        if (event.in_loss or reading.nonfinite) and not (inherited and event.origin == "parameter")
    ][:1]


@rule("error", of=(GradientStats,), also=("watch",))
def nonfinite_gradient(reading: Reading) -> Iterator[Finding]:
    """A node received a finite gradient and passed on NaN or Inf. The first such node in backward
    is reported.

    ## Why it matters

    The loss is finite, but the next step makes parameters NaN, because the derivative of an
    operation is infinite, or its backward multiplies 0 by infinity. Clipping does not help, because
    the norm of the gradients is not finite either.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    with record(model) as recording:
        distance = (model(x) - model(x)).square().sum(1).sqrt()  # <- reported
        distance.mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    with record(model) as recording:
        distance = (model(x) - 1).square().sum(1).add(1e-8).sqrt()
        distance.mean().backward()
    ```

    ## When it is intended

    A gradient scaler expects overflows and skips the steps with them. With a scaler, a finding
    about an overflow has severity info.

    ## Not detected

    A node inside a compiled region is not named: `record(compiled="eager")` runs the step
    uncompiled and names it.

    ## See also

    - [torch.autograd.detect_anomaly](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    origin = _first_nonfinite(reading)
    if origin is None or _nonfinite_values(reading):
        return  # the rule nonfinite-value reports the cause in the forward
    first = reading.graph.step.nonfinite_since
    if first is not None:
        yield finding(
            "error",
            f"Gradients are NaN or Inf, as they have been since backward {first + 1} of the "
            "recording.",
            cause=SINCE_EARLIER_BACKWARD,
            advice=f"Call find(recording.graphs[{first}]) to see the cause of these values.",
            nodes=(origin,),
        )
        return
    node = reading.graph.nodes[origin]
    received = [stats for stats in node.grad_outputs if stats is not None]
    if any(stats.nonfinite for stats in received):
        bad = received
        message = f"The gradient that backward started from, at {reading.call(origin)}, is not "
        message += f"finite: {_count_text(bad)}."
    else:
        sources = [
            (e, s) for e in reading.sources(origin) if (s := reading.stats(e.source, e.output_nr))
        ]
        bad = [stats for _, stats in sources if stats.nonfinite]
        norm = max((s.norm for s in received), default=0.0)
        size = f" (norm {norm:.2g})" if received else ""
        name = reading.names.get(origin)
        message = f"{node.title}{f' in {node.module}' if node.module else ''}{at(node.where)} "
        message += f"({name}) " if name and name != node.title else ""
        message += f"received a finite gradient{size} and passed {_count_text(bad)} to its "
        message += f"input{'' if len(sources) == 1 else 's'} "
        message += f"{listing(_input(reading, edge) for edge, _ in sources)}."
    scaled = reading.graph.step.loss_scale
    skipped = scaled is not None and not any(stats.nan for stats in bad)
    yield finding(
        "info" if skipped else "error",
        message,
        cause="the scaled loss overflowed" if skipped else "NaN or Inf in backward",
        advice=f"Do nothing if this is rare: the loss is scaled by {scaled:g}, and the scaler "
        "skips such a step and lowers the scale."
        if skipped
        else _REGION_ADVICE
        if node.title == "compiled"
        else _NONFINITE_ADVICE.get(
            node.title,
            "Check the inputs of this node for a zero, a NaN or an Inf, which an earlier "
            "operation may have computed.",
        ),
        where=node.where,
        nodes=(origin, *(edge.source for edge in reading.sources(origin))),
    )


def _dead_units(reading: Reading, node: int) -> float:
    """Return the share of a layer's units without a gradient (from the bias); 0 if unknown."""
    for edge in reading.inputs[node]:
        source, stats = reading.graph.nodes[edge.source], reading.stats(edge.source)
        meta = reading.meta(edge.source)
        alone = len(reading.users[edge.source]) == 1  # gradients of several uses may cancel
        if source.leaf and alone and meta is not None and len(meta.shape) == 1 and stats:
            return stats.zero_fraction
    return 0.0


def _first_nonfinite(reading: Reading) -> int | None:
    """Return the node that computed the first NaN or Inf of backward.

    Return None if all gradients are finite.
    """
    nodes, bad = reading.graph.nodes, reading.nonfinite
    if not bad:
        return None
    order = {node.id: node.order for node in nodes if node.order is not None}
    first: tuple[int, int] | None = None
    for node in bad:
        users = {reading.regions.get(e.target, e.target) for e in reading.users[node]} & {*order}
        if users & bad:
            continue  # a user passed on the NaN or Inf that it had received
        if not users:
            made = node if node in order else None
        else:
            # If several users are candidates, prefer one whose derivative may be infinite.
            made = min(users, key=lambda u: (not _is_steep(nodes[u].title), order[u]))
        if made is not None:
            ready = max((order[user] for user in users), default=-1)
            if first is None or (ready, made) < first:
                first = (ready, made)
    return None if first is None else first[1]


def _is_steep(title: str) -> bool:
    """Return True if the derivative of an operation is infinite for some input."""
    return title in _NONFINITE_ADVICE and title not in ("mul", "where")


def _input(reading: Reading, edge: Edge) -> str:
    return f"{reading.call(edge.source)} ({reading.meta(edge.source, edge.output_nr)})"


def _count_text(gradients: list[GradientStats]) -> str:
    """Return the total numbers of NaN and Inf in gradients, as text: "2 NaN and 1 Inf"."""
    nan, inf = sum(stats.nan for stats in gradients), sum(stats.inf for stats in gradients)
    return " and ".join(f"{n} {name}" for n, name in ((nan, "NaN"), (inf, "Inf")) if n)
