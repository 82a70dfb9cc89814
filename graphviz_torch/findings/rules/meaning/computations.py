"""Rules about results that are added to themselves, and about layers outside of autocast."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.nodes import SAME_VALUES
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

_LOW = ("bfloat16", "float16")
_PRODUCTS = {"mm", "addmm", "linear", "convolution"}


@rule("warning", of=("add",))
def self_add(reading: Reading) -> Iterator[Finding]:
    """A result is added to itself, usually because the input of a residual connection was
    overwritten.

    ## Why it matters

    `x + x` only doubles `x`. Usually a residual connection was meant, but the branch overwrote the
    variable of its input, so the skip connection is missing.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record


    class Block(nn.Linear):
        def forward(self, x):
            x = super().forward(x).relu()
            return x + x  # <- reported


    model = nn.Sequential(Block(6, 6), nn.Linear(6, 3))
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record


    class Block(nn.Linear):
        def forward(self, x):
            return x + super().forward(x).relu()


    model = nn.Sequential(Block(6, 6), nn.Linear(6, 3))
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
    ```

    ## When it is intended

    If a factor of 2 is meant, write `2 * x`.

    ## Not detected

    A sum of two equal results that were computed separately is not reported.

    ## See also

    - [torch.add](https://docs.pytorch.org/docs/stable/generated/torch.add.html)
    """
    for node in reading.of_operations(("add",)):
        given = reading.inputs[node.id]
        if len(given) != 2 or given[0].source != given[1].source:
            continue
        if given[0].output_nr != given[1].output_nr:
            continue
        name = reading.call(given[0].source)
        inside = bool(node.module)  # outside of modules, a self-add is often intended
        yield finding(
            "warning" if inside else "info",
            f"add{at(node.where)} adds {name} to itself, which only doubles it.",
            cause="a result added to itself",
            advice="Add the branch's input to its output, and keep the two in different variables."
            if inside
            else "",
            where=node.where,
            nodes=(node.id, given[0].source),
        )


@rule("info", of=_LOW)
def outside_autocast(reading: Reading) -> Iterator[Finding]:
    """A layer ran outside of autocast, in float32, while autocast ran other layers in a smaller
    dtype.

    ## Why it matters

    In float32, a layer's results need twice as much memory as in float16 or bfloat16, and the layer
    takes several times as long on GPUs with tensor cores.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    with record(nn.ModuleDict({"body": body, "head": head})) as recording:
        with torch.autocast("cpu", torch.bfloat16):
            h = body(torch.randn(8, 6)).relu()
        F.cross_entropy(head(h.float()), torch.arange(8) % 3).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    with record(nn.ModuleDict({"body": body, "head": head})) as recording:
        with torch.autocast("cpu", torch.bfloat16):
            h = head(body(torch.randn(8, 6)).relu())
        F.cross_entropy(h.float(), torch.arange(8) % 3).backward()
    ```

    ## When it is intended

    A last layer may be kept in float32 for its precision.

    ## Not detected

    Models whose parameters themselves have the smaller dtype are not checked.

    ## See also

    - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html)
    """
    nodes = reading.graph.nodes
    cast, plain = list[int](), list[int]()
    for node in reading.of_operations(_PRODUCTS):
        meta = reading.meta(node.id)
        if meta is None or not node.module:
            continue
        dtype, casts = _weight(reading, node.id)
        if dtype == "float32" and casts and meta.dtype in _LOW:
            cast.append(node.id)
        elif dtype == "float32" and meta.dtype == "float32":
            plain.append(node.id)
    if not cast or not plain:
        return
    low = reading.meta(cast[0])
    layers = listing(dict.fromkeys(nodes[i].module for i in plain))
    first = nodes[plain[0]]
    yield finding(
        "info",
        f"{layers}{at(first.where)} computed in float32, and {len(cast)} other matrix "
        f"product{'s' * (len(cast) != 1)} in {low.dtype if low else ''}: autocast was disabled in "
        "the float32 layers.",
        cause="outside of autocast",
        where=first.where,
        nodes=tuple(plain),
    )


def _weight(reading: Reading, product: int) -> tuple[str, bool]:
    """Return the dtype of the weight in a matrix product, and whether the weight is cast.

    The dtype is "" if it is unknown.
    """
    nodes = reading.graph.nodes
    for edge in reading.inputs[product]:
        node, casts = edge.source, False
        while nodes[node].operation in (*SAME_VALUES, "expand") and reading.inputs[node]:
            casts |= nodes[node].operation == "to_copy"
            node = reading.inputs[node][0].source
        meta = reading.meta(node)
        if nodes[node].leaf == "parameter" and meta is not None and len(meta.shape) > 1:
            return meta.dtype, casts
    return "", False
