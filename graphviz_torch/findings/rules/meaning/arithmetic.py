"""Rules about superfluous or lossy arithmetic, such as a second softmax."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding, Node
from ....graph.events import Event
from ....graph.immutable import immutable
from ...axes import number, shape_of
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from ..losses import SCORES, has_weights, is_of_cross_entropy, maker_of_first_input

_SOFTMAXES = ("softmax", "log_softmax")
_CLAMPS = ("clamp", "clamp_min", "clamp_max", "clip")


@rule("warning", of=_SOFTMAXES)
def double_softmax(reading: Reading) -> Iterator[Finding]:
    """A softmax was applied to the probabilities that another softmax had returned.

    ## Why it matters

    Probabilities differ by at most 1. Their softmax is almost uniform, whatever the scores were: an
    entropy or a balance loss that is computed from it hardly changes, and its gradients are small.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    router = nn.Linear(4, 3)
    with record(router) as recording:
        scores = router(torch.randn(16, 4)).softmax(-1)
        load = scores.softmax(-1).mean(0)  # <- reported
        loss = load.square().sum()
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    router = nn.Linear(4, 3)
    with record(router) as recording:
        load = router(torch.randn(16, 4)).softmax(-1).mean(0)
        loss = load.square().sum()
        loss.backward()
    ```

    ## When it is intended

    Some methods flatten a distribution in this way. A temperature makes the intention clearer.

    ## Not detected

    A softmax before a loss that applies one itself is reported as `loss-input`. A softmax of other
    probabilities, such as those that `exp` returns, is not detected.

    ## See also

    - [torch.nn.functional.softmax](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html)
    """
    for node in reading.of_operations(_SOFTMAXES):
        maker = maker_of_first_input(reading, node)
        if maker is None or maker.operation != "softmax" or is_of_cross_entropy(reading, node):
            continue
        yield finding(
            "warning",
            f"{node.title}{at(node.where)} got probabilities: softmax{at(maker.where)} was applied "
            "already, and a second softmax is almost uniform.",
            cause="a second softmax",
            advice=f"Pass the raw scores to {node.title}{at(node.where)}, or remove the second "
            "softmax.",
            where=node.where,
            nodes=(maker.id, node.id),
        )


@rule("warning", of=_SOFTMAXES)
def softmax_of_one(reading: Reading) -> Iterator[Finding]:
    """A softmax normalizes a dimension of size 1, so its result is 1 for any scores.

    ## Why it matters

    The gradient of the scores is 0. The cross entropy of a model with a single output is always 0,
    and attention with such weights treats all positions equally.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    target = torch.zeros(8, dtype=torch.long)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 4)), target).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    target = (torch.arange(8) % 2).float()
    with record(model) as recording:
        scores = model(torch.randn(8, 4)).squeeze(-1)
        F.binary_cross_entropy_with_logits(scores, target).backward()
    ```

    ## When it is intended

    A mixture with a single expert has a weight of 1 on purpose. A sequence of a single position is
    not reported, because only the features that a layer returns are checked.

    ## Not detected

    Scores that are reshaped between the layer and the softmax are not checked.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [BCEWithLogitsLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html)
    """
    for node in reading.of_operations(_SOFTMAXES):
        dim, maker = number(node, "dim"), maker_of_first_input(reading, node)
        shape = shape_of(reading, node.id)
        if dim is None or not shape or shape[dim] != 1 or maker is None:
            continue
        made = shape_of(reading, maker.id)
        features = 1 if maker.operation == "convolution" else len(made) - 1
        layer = maker.operation in SCORES and has_weights(reading, maker)
        # A Linear computes (samples * positions, features), and a view divides the rows again.
        same = dim % len(shape) == (features if len(made) == len(shape) else len(shape) - 1)
        if not layer or made[features] != 1 or not same:
            continue
        name = "cross_entropy" if is_of_cross_entropy(reading, node) else node.title
        yield finding(
            "warning",
            f"{name}{at(node.where)} normalizes dimension {dim} of {list(shape)}, which has a "
            f"single element: each result is {0 if 'log' in node.operation else 1}, and its "
            "gradient is 0.",
            cause="a softmax of one element",
            advice="Use binary_cross_entropy_with_logits for a single output, or give the layer an "
            "output for each class. For weights of positions, normalize the dimension of the "
            "positions.",
            where=node.where,
            nodes=(maker.id, node.id),
        )


@immutable
class SelfDifference(Event):
    """The difference or the quotient of a tensor and its own detached copy."""

    label: str = ""  # name of the caller's variable for the tensor


@rule("info", of=(SelfDifference,))
def ratio_to_itself(reading: Reading) -> Iterator[Finding]:
    """The program computes the ratio of a probability to its own detached copy, which is always 1.

    ## Why it matters

    Such a ratio has the gradient of a policy gradient step, which is correct for samples of the
    current policy.

    If the samples come from an older policy, as in the second step on one rollout, the ratio needs
    the log-probabilities that were stored when the samples were drawn. Otherwise nothing corrects
    for the difference between the policies, and a clamp of the ratio never limits a step.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    policy, states, advantage = nn.Linear(4, 3), torch.randn(16, 4), torch.randn(16)
    with record(policy) as recording:
        log_prob = policy(states).log_softmax(-1)[:, 0]
        ratio = (log_prob - log_prob.detach()).exp()  # <- reported
        loss = -(ratio.clamp(0.8, 1.2) * advantage).mean()
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    policy, states, advantage = nn.Linear(4, 3), torch.randn(16, 4), torch.randn(16)
    with torch.no_grad():  # when the samples are drawn
        old_log_prob = policy(states).log_softmax(-1)[:, 0]
    with record(policy) as recording:
        log_prob = policy(states).log_softmax(-1)[:, 0]
        ratio = (log_prob - old_log_prob).exp()
        loss = -(ratio.clamp(0.8, 1.2) * advantage).mean()
        loss.backward()
    ```

    ## When it is intended

    With one step on each rollout, the samples come from the current policy, and the ratio is 1 on
    purpose.

    ## Not detected

    Old log-probabilities that are computed a second time with the same weights are not detected.

    ## See also

    - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)
    """
    nodes = reading.graph.nodes
    for event in reading.events(SelfDifference):
        for each in event.nodes:
            ratio = nodes[each]
            if ratio.operation in ("sub", "rsub"):
                users = (nodes[edge.target] for edge in reading.users[each])
                exponential = next((user for user in users if user.operation == "exp"), None)
                if exponential is None:
                    continue
                ratio = exponential
            yield _ratio(reading, event, ratio)


def _ratio(reading: Reading, event: SelfDifference, ratio: Node) -> Finding:
    users = (reading.graph.nodes[edge.target] for edge in reading.users[ratio.id])
    clamp = next((user for user in users if user.operation in _CLAMPS), None)
    name = event.label or "a tensor"
    limited = "" if clamp is None else f", and clamp{at(clamp.where)} never limits it"
    return finding(
        "info",
        f"The ratio{at(event.where)} compares {name} with its own detached copy, so it is 1"
        f"{limited}.",
        cause="a ratio to itself",
        advice="Do nothing if each batch is sampled by the current policy and used for one "
        "step. Otherwise store the log-probabilities when the batch is sampled, and use them "
        "in place of the copy.",
        where=event.where,
        nodes=(*event.nodes, ratio.id),
    )


@rule("info", of=("to_copy", "copy"))
def imaginary_part_dropped(reading: Reading) -> Iterator[Finding]:
    """A complex tensor was converted to a real dtype, which drops its imaginary part.

    ## Why it matters

    Later operations use the real part only, and the imaginary part gets no gradient. After an
    inverse Fourier transform, the imaginary part is zero only if the spectrum has the symmetry of a
    real signal, and learned complex weights do not keep this symmetry.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, dtype=torch.cfloat))

        def forward(self, x):
            return torch.fft.ifft(torch.fft.fft(x) * self.weight).to(torch.float32)  # <- reported


    model = Mixer()
    with record(model) as recording:
        model(torch.randn(4, 8)).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.cfloat))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)


    model = Mixer()
    with record(model) as recording:
        model(torch.randn(4, 8)).square().mean().backward()
    ```

    ## When it is intended

    The program may need the real part only. Write `x.real` for it, which is not reported.

    ## Not detected

    A complex tensor that is written into a real tensor is not detected.

    ## See also

    - [Complex numbers](https://docs.pytorch.org/docs/stable/complex_numbers.html)
    """
    for node in reading.of_operations(("to_copy", "copy")):
        made = reading.meta(node.id)
        given = next(
            (reading.meta(edge.source, edge.output_nr) for edge in reading.inputs[node.id]), None
        )
        if made is None or given is None:
            continue
        if given.dtype.startswith("complex") and not made.dtype.startswith("complex"):
            yield finding(
                "info",
                f"The conversion of {given} to {made.dtype}{at(node.where)} drops the imaginary "
                "part, which gets no gradient.",
                cause="an imaginary part is dropped",
                advice="Write .real if only the real part is wanted. For a real signal, use "
                "rfft and irfft, or their variants.",
                where=node.where,
                nodes=(node.id,),
            )
