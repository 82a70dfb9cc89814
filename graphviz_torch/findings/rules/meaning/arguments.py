"""Rules about small numbers that underflow in the dtype of a tensor, and about unused inputs."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from ..custom_functions import UnreadArgument
from ..values import NonfiniteValue

# Dtype -> half of its smallest positive number, which rounds to 0.
_ROUNDS_TO_ZERO = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}
_BOUNDS = {"clamp": "min", "clamp_min": "min", "add": "other"}


@rule("warning", of=_BOUNDS, advanced=True)
def epsilon_underflow(reading: Reading) -> Iterator[Finding]:
    """An epsilon that should keep a divisor away from zero rounds to zero in the divisor's dtype,
    in the forward or as the `eps` of an optimizer.

    ## Why it matters

    The smallest positive number of float16 is 6e-8, so 1e-8 is rounded to 0. The division then
    yields Inf or NaN for exactly the values that the epsilon is meant for.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4).half()
    with record(model) as recording:
        h = model(torch.randn(3, 4).half())
        norm = h.norm(dim=1, keepdim=True).clamp(min=1e-8)  # <- reported
        (h / norm).float().sum().backward()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3).half()
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-8)
    with record(model) as recording:
        model(torch.randn(8, 6).half()).float().square().mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4).half()
    with record(model) as recording:
        h = model(torch.randn(3, 4).half())
        norm = h.norm(dim=1, keepdim=True).clamp(min=1e-4)
        (h / norm).float().sum().backward()
    ```

    Keep the parameters in float32, and let autocast compute the forward in float16 or bfloat16:

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-8)
    with record(model) as recording:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(torch.randn(8, 6))
        scores.float().square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A divisor that is never small needs no epsilon. Remove the epsilon.

    ## Not detected

    An epsilon that is a tensor (`x + eps`, where `eps` is a tensor) is not checked. bfloat16 is
    rarely affected, because it has the same range as float32.

    ## See also

    - [torch.finfo](https://docs.pytorch.org/docs/stable/type_info.html)
    - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html)
    """
    broken = {node for event in reading.events(NonfiniteValue) for node in event.nodes}
    for node in reading.of_operations(_BOUNDS):
        key = f"{_BOUNDS[node.operation]}="
        texts = [a.removeprefix(key) for a in node.attributes if a.startswith(key)]
        meta = reading.meta(node.id) if texts else None
        if meta is None or meta.dtype not in _ROUNDS_TO_ZERO:
            continue
        text = texts[0]
        try:
            number = abs(float(text))
        except ValueError:
            continue
        if not 0 < number <= _ROUNDS_TO_ZERO[meta.dtype]:
            continue
        # The divisor may be the result of an expand after this node.
        users = {edge.target for edge in reading.users[node.id]}
        users |= {edge.target for user in users for edge in reading.users[user]}
        yield finding(
            "warning" if not broken.isdisjoint(users) else "info",
            f"{text}, an argument of {node.title}{at(node.where)}, rounds to 0 in {meta.dtype}, "
            "so a division by 0 is still possible.",
            cause=f"a number that underflows in {meta.dtype}",
            advice="Pass a larger epsilon, such as 1e-4, or compute the divisor in float32.",
            where=node.where,
            nodes=(node.id,),
        )


@rule("info", of=(UnreadArgument,), also=("experiment",))
def unused_input(reading: Reading) -> Iterator[Finding]:
    """The output does not depend on an input: forward never reads it, or no operation uses it.

    ## Why it matters

    If forward forgets a condition, a mask or a time step, the model works without this input, and
    no error is raised.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x)


    model = Net(4, 3)
    with record(model) as recording:
        model(torch.randn(8, 4), torch.rand(8, 3)).square().sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x) * mask


    model = Net(4, 3)
    with record(model) as recording:
        model(torch.randn(8, 4), torch.rand(8, 3)).square().sum().backward()
    ```

    ## When it is intended

    An argument may exist only for the signature, or for another mode of the model.

    ## Not detected

    `find` does not report an input that forward reads but no operation uses, and does not check
    modules inside the model. `experiment(recording, "inputs")` reports each input that no operation
    of the model uses. An input with a small effect is not reported.

    ## See also

    - [torch.nn.Module.forward](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.forward)
    """
    for event in reading.events(UnreadArgument):
        if not event.gradient:
            yield finding(
                "info",
                f"The forward of {event.owner}{at(event.where)} got {event.argument} and never "
                "reads it: the output does not depend on it.",
                cause="an unused input",
                advice=f"Use {event.argument} in forward, or do not pass it.",
                where=event.where,
            )
