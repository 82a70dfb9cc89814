"""Rules about the noise that a network is trained to remove, as in diffusion and flow matching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ...graph import Finding, Node
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.nodes import REGRESSION_LOSSES
from ..axes import attribute
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

NoiseFault = Literal["", "other noise", "input", "one for all", "other time", "uniform", "factors"]


@immutable
class MixedNoise(Event):
    """A loss whose target, noise or time does not fit the noisy input of the network."""

    fault: NoiseFault = ""
    drawn: str = ""  # line that drew the noise, or the time that the network got
    given: str = ""  # line that added the noise to the data, or drew the time of the noise


@rule("warning", of=(MixedNoise,))
def mismatched_noise(reading: Reading) -> Iterator[Finding]:
    """The noisy input of a diffusion or flow model does not fit the model's target or time, or its
    noise is drawn or scaled wrongly.

    ## Why it matters

    Such a model gets `a * data + b * noise` and the time, which determines a and b. It predicts the
    noise, the data, or a difference of both.

    If the target contains noise that was drawn again, the input says nothing about this noise, and
    the model can only predict its mean, which is 0. If the model gets another time than that of its
    noise, it learns an average over all times. The loss falls nevertheless, and only the generated
    samples show the mistake.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    network, data = nn.Linear(9, 8), torch.rand(16, 8)
    with record(network) as recording:
        t = torch.rand(16, 1)
        noisy = (1 - t) * data + t * torch.randn_like(data)
        noise = torch.randn_like(data)
        F.mse_loss(network(torch.cat([noisy, t], dim=1)), noise - data).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    network, data = nn.Linear(9, 8), torch.rand(16, 8)
    with record(network) as recording:
        t = torch.rand(16, 1)
        noise = torch.randn_like(data)
        noisy = (1 - t) * data + t * noise
        F.mse_loss(network(torch.cat([noisy, t], dim=1)), noise - data).backward()
    ```

    ## When it is intended

    Sub-variance-preserving diffusion has the factors a and 1 - a ** 2, which look as if a square
    root were missing. Unknown factors are therefore reported as a note.

    ## Not detected

    Noise that NumPy or a worker of a DataLoader draws is not followed, and neither are targets
    that a network computes.

    ## See also

    - [Denoising diffusion probabilistic models](https://arxiv.org/abs/2006.11239)
    - [Flow matching](https://arxiv.org/abs/2210.02747)
    """
    for event in reading.events(MixedNoise):
        node = reading.graph.nodes[event.nodes[0]] if event.nodes else None
        if node is not None and _is_error(reading, node):
            yield _finding(event)


def _is_error(reading: Reading, node: Node) -> bool:
    """Return True for a loss, and for a difference that is only squared, or made absolute."""
    if node.call.rpartition("/")[2].partition("#")[0] in REGRESSION_LOSSES:
        return True
    users = [reading.graph.nodes[edge.target] for edge in reading.users[node.id]]
    square = [each for each in users if attribute(each, "exponent") in ("2", "2.0")]
    return bool(users) and all(
        each in square
        or each.operation in ("abs", "linalg_vector_norm")
        or (each.operation == "mul" and len(reading.inputs[each.id]) == 2 and len(users) == 2)
        for each in users
    )


def _finding(event: MixedNoise) -> Finding:
    drawn, given, line = at(event.drawn), at(event.given), at(event.where)
    message, advice = {
        "other noise": (
            f"The target of the loss{line} contains noise that was drawn{drawn}. The network did "
            f"not get this noise: its noisy input{given} contains other noise.",
            "Draw the noise once, and use it in the noisy input and in the target.",
        ),
        "input": (
            f"The target of the loss{line} is the noisy input of the network itself, computed"
            f"{given}: the network learns to return its input.",
            "Pass the data, the noise or the velocity as the target.",
        ),
        "one for all": (
            f"The noise that was drawn{drawn} is the same for all samples of the batch: it is "
            f"broadcast{given}.",
            "Draw the noise with torch.randn_like of the data.",
        ),
        "other time": (
            f"The network gets a time that was drawn{drawn}, but the noise of its input has the "
            f"time that was drawn{given}.",
            f"Pass the network the time that was drawn{given}.",
        ),
        "uniform": (
            f"The noise that was drawn{drawn} is uniform between 0 and 1, but its factors{given} "
            "are those of normal noise.",
            "Use torch.randn or torch.randn_like, which draw from a normal distribution.",
        ),
        "factors": (
            f"Data and noise are mixed{given} with factors a and b that are neither a**2 + b**2 = "
            "1, nor a + b = 1, nor constant.",
            "Check for a missing square root: a diffusion adds sqrt(alpha_bar) * data and "
            "sqrt(1 - alpha_bar) * noise.",
        ),
    }[event.fault or "input"]
    return finding(
        "info" if event.fault == "factors" else "warning",
        message,
        cause=f"noise that does not fit: {event.fault}",
        advice=advice,
        where=_line(event),
        nodes=event.nodes,
    )


def _line(event: MixedNoise) -> str:
    """Return the line of the mistake, as far as it is known."""
    if event.fault == "factors":
        return event.given
    return event.where if event.fault in ("other noise", "input") else event.drawn
