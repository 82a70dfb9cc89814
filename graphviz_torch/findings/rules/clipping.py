"""Rules about clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding
from ...graph.events import ClipMoment, GradientClip, IneffectiveCall
from ...graph.immutable import immutable
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at


@rule("warning", reads="end", of=(GradientClip,))
def ineffective_clipping(reading: Reading) -> Iterator[Finding]:
    """Gradients were clipped at a time when clipping does not protect the step: after the step,
    before backward, after each of several backwards, while they were multiplied by the loss scale,
    or before the ranks averaged them. A clipping call that got no parameters is also reported.

    ## Why it matters

    Clipping is effective only between the backward that computes the gradients and the step that
    uses them. At any other time, the code looks safe, but a single bad batch can still ruin the
    weights.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ```

    ## When it is intended

    A call of `clip_grad_norm_` with an infinite bound only measures the norm, and is not reported.

    ## Not detected

    Clipping that the program implements itself, for example with `mul_`, is not detected.

    ## See also

    - [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    - [Gradient clipping with a scaler](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    """
    clips = reading.events(GradientClip)
    in_time = {event.where for event in clips if event.moment == "in time"}
    early = {event.where for event in clips if event.moment == "before backward"}
    for event in clips:
        known = _CLIPPED.get(event.moment)
        if known is None or (event.moment == "before backward" and event.where in in_time):
            continue
        if event.moment == "after the step" and event.where in early:
            continue  # in a loop, a clip before backward also follows the previous step
        cause, message, advice = known
        yield finding(
            "warning",
            f"{event.function}(){at(event.where)} {message}.",
            cause=cause,
            advice=advice,
            where=event.where,
        )


# When gradients are clipped -> cause, message and advice.
_CLIPPED: dict[ClipMoment, tuple[str, str, str]] = {
    "after the step": (
        "clipped after the step",
        "clips gradients after the step that used them, so it has no effect",
        "Clip between backward() and optimizer.step().",
    ),
    "while scaled": (
        "clipped while scaled",
        "clips gradients that are still multiplied by the loss scale, so it clips far too much",
        "Call scaler.unscale_(optimizer) before clipping.",
    ),
    "before the average": (
        "clipped before the average",
        "clips the gradients of each rank by this rank's norm, before the ranks average them",
        "Average the gradients first, and clip the average.",
    ),
    "no parameters": (
        "clipped nothing",
        "got no parameters, and so clips nothing: an iterator that was read before is empty",
        "Pass model.parameters(), or keep the parameters in a list: list(filter(...)).",
    ),
    "each backward": (
        "clipped in each micro-batch",
        "clips the gradients after each of several backwards before one step, so it clips sums "
        "that it has clipped already, and not the gradient of the whole batch",
        "Clip once, between the last backward() and optimizer.step().",
    ),
    "before backward": (
        "clipped too early",
        "found no gradient to clip, because backward runs later",
        "Clip between backward() and optimizer.step().",
    ),
}


@rule("info", reads="end")
@immutable
class ExtremeClipNorm(IneffectiveCall):
    """The bound of gradient clipping is far below all gradient norms, so all clipped gradients have
    the same norm, or it is far above all norms and has no effect.

    ## Why it matters

    With a bound far below all norms, every gradient is scaled to the same norm, so only the
    learning rate determines the size of a step. A bound far above all norms never clips.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.001)  # <- reported
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    ```

    ## When it is intended

    Normalized gradient descent clips every gradient on purpose. A high bound may be a safeguard
    against rare large gradients.

    ## Not detected

    Clipping that the program implements itself is not checked.

    ## See also

    - [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """

    function: str = ""  # "clip_grad_norm_"
    count: int = 0  # number of gradient norms
    share: float = 0.0  # median of (maximum norm / gradient norm); above 1, clipping has no effect

    def report(self) -> Finding:
        low, values = self.share < 1, self.function == "clip_grad_value_"
        return finding(
            "info",
            f"{self.function}(){at(self.where)} {self._clip_text(low=low, values=values)}",
            cause="a bound that is always reached" if low else "a bound that is never reached",
            advice=_CLIP_ADVICE[values] if low else "",
            where=self.where,
        )

    def _clip_text(self, *, low: bool, values: bool) -> str:
        count, share = self.count, f"{self.share:.2g}"
        if values and low:
            return (
                f"clipped each of {count} gradients at {share} of the mean absolute value of its "
                "elements (median), which leaves little more than their signs."
            )
        if values:
            return (
                f"clipped none of {count} gradients: its bound is {share} times their largest "
                "value."
            )
        if low:
            return (
                f"scaled each of {count} gradients to the norm of the bound, {share} of the "
                "gradient's own norm (median)."
            )
        return f"clipped none of {count} gradients: its bound is {share} times their norm (median)."


_CLIP_ADVICE = {
    False: "Raise max_norm to about the norm of most gradients, so that it "
    "clips only those that are far larger.",
    True: "Raise clip_value to about the largest value of most gradients, so that "
    "it clips only values that are far larger.",
}
