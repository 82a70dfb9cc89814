"""Rules about training that fails without an error: all gradients are zero, or nothing changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph import Edge, Finding, GradientStats, Graph, Node
from ...graph.events import Event, OptimizerStep
from ...graph.immutable import immutable
from ...graph.units import count_text, number_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, operation_text

# If two gradients cancel, the rounding errors of their sum are below this share of the gradients.
_ROUNDING = 1e-5
ZERO_BELOW = 1e-12  # a gradient trains nothing if all of its elements are smaller
_FACTORS = ("mul", "div", "mm", "bmm", "addmm", "addcmul", "dot", "mv")
_CHOICES = ("where", "masked_fill", "masked_scatter", "maximum", "minimum", "index_put")
_BOUNDS = ("relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max", "relu6", "elu")
_SLOPES = ("sigmoid", "tanh", "softmax", "log_softmax", "erf", "logsigmoid", "log_sigmoid_forward")


@immutable
class RepeatedForward(Event):
    """Two calls of a module with the same arguments before one backward pass.

    `where` is the outermost line by which the call stack of the second call differs from that of
    the first call.
    """

    module: str = ""
    first: str = ""  # the corresponding line in the call stack of the first call


@rule(
    "warning",
    reads="recording",
    caused_by=("zero-gradient", "dead-relu", "nonfinite-value"),
)
def all_gradients_zero(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """All gradients of the model are zero, or below 1e-12, in all steps.

    ## Why it matters

    The optimizer steps, but no weight changes. The report names the first node in the order of
    backward that received a gradient and passed only zeros. Common causes are a factor of zero, an
    empty tensor and a saturated function. If one module ran twice on the same values, the gradients
    of the two runs may also cancel.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.ones(8, 4)
    scale = x.std(1, keepdim=True)
    with record(model) as recording:
        y = model(x / scale.clamp(min=1)) * scale  # <- reported
        nn.functional.mse_loss(y, torch.ones(8, 1)).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.ones(8, 4)
    scale = x.std(1, keepdim=True).clamp(min=1)
    with record(model) as recording:
        y = model(x / scale) * scale
        nn.functional.mse_loss(y, torch.ones(8, 1)).backward()
    ```

    ## When it is intended

    The gradient of a margin loss is zero if the scores of all samples differ by the margin or more.
    A run in which any step has a gradient is not reported.

    ## Not detected

    Gradients that are small but not zero are not reported, unless one module ran twice on the same
    values.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    judged = [
        (graph, largest) for graph in graphs if (largest := largest_gradient(graph)) is not None
    ]
    if not judged or any(graph.failure is not None for graph in graphs):
        return
    if all(largest < ZERO_BELOW * (graph.step.loss_scale or 1) for graph, largest in judged):
        yield _all_zero(Reading(judged[-1][0]))
        return
    reading = Reading(judged[-1][0])
    for event in reading.events(RepeatedForward)[:1]:
        if all(largest < _ROUNDING * largest_at_users(graph) for graph, largest in judged):
            yield _cancelling_runs(reading, event)


def _all_zero(reading: Reading) -> Finding:
    """Return the finding about the first node that passes only zeros."""
    nodes = reading.graph.nodes
    for node in reversed(nodes):  # users before inputs
        sources = passed_gradients(reading, node)
        if sources and not are_zero(node.grad_outputs) and all(are_zero([s]) for _, s in sources):
            why, advice = reason_for_zeros(reading, node, [edge for edge, _ in sources])
            largest = max(stats.max_abs for _, stats in sources)
            size = f"at most {number_text(largest)}" if largest else "only zeros"
            if largest:
                why = why.replace("is zero", "is almost zero")
            return finding(
                "warning",
                f"All gradients are {'below 1e-12' if largest else 'zero'}: "
                f"{operation_text(node)}{at(node.where)} received a gradient and passed {size}, "
                f"because {why}.",
                cause="a gradient of zeros",
                advice=advice,
                where=node.where,
                nodes=(node.id, *(edge.source for edge, _ in sources)),
            )
    ends = tuple(node for node, _ in reading.graph.outputs)
    where = next((nodes[end].where for end in ends if nodes[end].where), "")
    return finding(
        "warning",
        "All gradients are zero, including that of the first node of backward, "
        f"{reading.call(ends[0]) if ends else 'the loss'}{at(where)}.",
        cause="a gradient of zeros",
        advice="Check the gradient that is passed to backward(), and the factors of the loss.",
        where=where,
        nodes=ends,
    )


def _cancelling_runs(reading: Reading, event: RepeatedForward) -> Finding:
    """Return the finding about a module whose two runs give opposite gradients."""
    name = event.module or "the model"
    return finding(
        "warning",
        f"All gradients are zero except for rounding errors: {name} ran twice on the same "
        f"values{at(event.first)} and{at(event.where)}, and the two gradients cancel.",
        cause="two gradients cancel",
        advice="If one of the two runs is a reference, use a frozen copy for it, "
        "copy.deepcopy(model), and run the copy under torch.no_grad().",
        where=event.where,
        nodes=event.nodes,
    )


@immutable
class StalledTraining(Event):
    """Optimizer steps that changed no parameter that was compared, although each had a gradient.

    `where` is the line of the last backward pass.
    """

    backwards: int = 0  # number of backward passes
    steps: int = 0  # number of optimizer steps
    written_by: str = ""  # operation that wrote into a parameter after a step: "copy_"
    written_where: str = ""  # line of this operation


@rule(
    "warning",
    reads="end",
    of=(StalledTraining,),
    caused_by=(
        "all-gradients-zero",
        "zero-learning-rate",
        "step-without-gradients",
        "no-update",
        "optimizer-never-stepped",
        "not-in-optimizer",
    ),
)
def stalled_training(reading: Reading) -> Iterator[Finding]:
    """Several backwards run, but no parameter changes between them.

    ## Why it matters

    Either no optimizer steps, or the program writes the old values back after a step, or an update
    is rounded away. The report names the line that writes into the parameters after a step.

    ## Example

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with record(model) as recording:
        for _ in range(4):
            model(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.load_state_dict(state)  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as recording:
        for _ in range(4):
            model(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    ```

    ## When it is intended

    A program may need only the gradients, for example for a saliency map. If no optimizer steps,
    the finding has severity info.

    ## Not detected

    For each parameter, only the elements with the largest gradients are compared. Changes of other
    elements are not detected.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """
    for event in reading.events(StalledTraining):
        steps, line = count_text(event.steps, "optimizer step"), at(event.written_where)
        backwards = count_text(event.backwards, "backward")
        if not event.steps:
            if any(reading.events(OptimizerStep)):
                continue  # a later step uses the gradients that these backwards accumulated
            yield finding(
                "info",
                f"No parameter changed in {backwards}{at(event.where)}: no optimizer stepped.",
                cause="no parameter changes",
                advice="Call optimizer.step() after backward() if the model should learn.",
                where=event.where,
            )
        elif event.written_where:
            yield finding(
                "warning",
                f"{steps} were undone: after each step, {event.written_by}{line} set the "
                "parameters back to their old values.",
                cause="a step is undone",
                advice="Do not write into parameters that an optimizer updates: let "
                f"{event.written_by}{line} write into a copy, and use the copy in forward.",
                where=event.written_where,
            )
        else:
            yield finding(
                "warning",
                f"{steps} changed no parameter, in {backwards}{at(event.where)}.",
                cause="no parameter changes",
                advice="Check the learning rate and the dtype of the parameters, and look for "
                "code that writes the old values back.",
                where=event.where,
            )


@rule("warning", reads="end", caused_by=("all-gradients-zero", "stalled-training"))
@immutable
class ConstantLoss(Event):
    """The loss has the same value at every backward, although parameters change.

    ## Why it matters

    The loss does not depend on the parameters that change. It may be computed from the wrong
    tensor.

    ## Example

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            out = model(torch.ones(8, 4)).mean()
            loss = out - out.detach() + 1
            loss.backward()  # <- reported
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## Use instead

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.ones(8, 4)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## When it is intended

    A surrogate loss, such as a score function or the ratio of a probability to itself, has a
    constant value but a useful gradient. The finding has severity info unless all gradients are
    constant, too.

    ## Not detected

    Losses with more than one element, and recordings with fewer than three backwards, are not
    checked.

    ## See also

    - [torch.autograd.backward](https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html)
    """

    # `where` is the line that calls backward.
    value: float = 0.0
    count: int = 0  # number of backward passes

    def report(self) -> Finding:
        return finding(
            "info",
            f"The loss was {number_text(self.value)} at each of {self.count} backwards"
            f"{at(self.where)}.",
            cause="a constant loss",
            advice="Do nothing if only the gradient of the loss is needed; otherwise check how "
            "the loss is computed.",
            where=self.where,
        )


def largest_gradient(graph: Graph) -> float | None:
    """Return the largest element of the parameters' gradients; None if no gradient was recorded."""
    leaves = [graph.nodes[p.node] for p in graph.parameters if p.node is not None]
    found = [stats for leaf in leaves for stats in leaf.grad_outputs if stats is not None]
    if not found:
        return None
    return max(float("inf") if stats.nonfinite else stats.max_abs for stats in found)


def largest_at_users(graph: Graph) -> float:
    """Return the largest element of the gradients at the nodes that use parameters."""
    leaves = {p.node for p in graph.parameters if p.node is not None}
    users = {edge.target for edge in graph.edges if edge.source in leaves}
    stats = (stats for node in users for stats in graph.nodes[node].grad_outputs)
    return max((each.max_abs for each in stats if each is not None), default=0.0)


def passed_gradients(reading: Reading, node: Node) -> list[tuple[Edge, GradientStats]]:
    """Return the edges along which a node passed a gradient, with the gradient's statistics."""
    if node.leaf or not any(node.grad_outputs):
        return []
    pairs = [(edge, reading.stats(edge.source, edge.output_nr)) for edge in reading.inputs[node.id]]
    return [(edge, stats) for edge, stats in pairs if stats is not None]


def are_zero(gradients: Sequence[GradientStats | None]) -> bool:
    """Return True if no gradient has an element that could train anything."""
    return all(
        stats is None or (stats.max_abs < ZERO_BELOW and not stats.nonfinite) for stats in gradients
    )


def reason_for_zeros(reading: Reading, node: Node, edges: list[Edge]) -> tuple[str, str]:
    """Return the reason why a node passes only zero gradients, and the advice to the user.

    Args:
        reading: the graph.
        node: the node.
        edges: the edges along which it passes zeros.
    """
    metas = [reading.meta(edge.source, edge.output_nr) for edge in edges]
    empty = next((meta for meta in metas if meta is not None and 0 in meta.shape), None)
    if empty is not None:
        return f"its input is empty ({empty})", (
            "Check the code that selects the input of this operation."
        )
    uses = max(len(reading.users[edge.source]) for edge in edges)
    if uses > 1:  # the gradient of one use is not recorded, only the sum
        return f"the gradients of the {uses} uses of its input add up to zero", (
            "Check the operations that use its input: their gradients cancel, or each is zero."
        )
    if node.title in _FACTORS:
        return "its other factor is zero", (
            "Check that factor, such as a mask, a weight or a scale."
        )
    if node.title in _CHOICES:
        return "it selects every element from another input", "Check the condition or mask."
    if node.title in _BOUNDS:
        return "its derivative is 0 for every input", (
            "Widen its bounds, or use a leaky activation."
        )
    if node.title in _SLOPES:
        return "it is saturated", "Lower the scale of its input, or normalize it."
    return "its derivative is zero for this input", f"Check the input of {node.title}."
