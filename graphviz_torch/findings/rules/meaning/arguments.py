"""Arguments: numbers that a dtype does not have."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import NonfiniteValue
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

# By dtype: half of its least number above 0, which rounds to 0.
_LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}
_BOUNDS = {"clamp": "min", "clamp_min": "min", "add": "other"}


@rule("warning", of=_BOUNDS, advanced=True)
def epsilon_underflow(reading: Reading) -> Iterator[Finding]:
    """A small number that keeps a divisor away from 0 is 0 in the dtype of the divisor, as 1e-8 is
    in float16: in the forward, or as the eps of an optimizer.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4).half()
    with record(model) as recording:
        h = model(torch.randn(3, 4).half())
        norm = h.norm(dim=1, keepdim=True).clamp(min=1e-8)
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
        optimizer.step()
    ```
    """
    broken = {node for event in reading.events(NonfiniteValue) for node in event.nodes}
    for node in reading.of(_BOUNDS):
        key = f"{_BOUNDS[node.operation]}="
        texts = [a.removeprefix(key) for a in node.attributes if a.startswith(key)]
        meta = reading.meta(node.id) if texts else None
        if meta is None or meta.dtype not in _LEAST:
            continue
        text = texts[0]
        try:
            number = abs(float(text))
        except ValueError:
            continue
        if not 0 < number <= _LEAST[meta.dtype]:
            continue
        # By way of an expand it may be the divisor that was 0.
        users = {edge.target for edge in reading.users[node.id]}
        users |= {edge.target for user in users for edge in reading.users[user]}
        yield finding(
            "warning" if not broken.isdisjoint(users) else "info",
            f"{text}, which {node.title}{at(node.where)} was given, is 0 in {meta.dtype}: it "
            "keeps nothing away from 0.",
            cause=f"a number that {meta.dtype} does not have",
            advice="Pass a larger one, such as eps=1e-4, or compute this part in float32.",
            where=node.where,
            nodes=(node.id,),
        )
