"""Rules about losses that are computed from a single row of a batch."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at

_MIN_ROWS = 4  # a batch of fewer rows is not reported
_MIN_TENSORS = 2  # rows of data are reported for at least this number of tensors


@immutable
class RowOfData(Event):
    """A single row that the program takes of each of several tensors, in each step.

    `where` is the line that takes the row of the first tensor.
    """

    labels: tuple[str, ...] = ()  # names of the tensors
    shapes: tuple[str, ...] = ()  # shapes of the rows: "[1, 4]"
    rows: int = 0  # number of rows of each tensor
    steps: int = 0


@rule("warning", reads="end", of=(RowOfData,))
def single_row(reading: Reading) -> Iterator[Finding]:
    """The loss depends on a single row of a batch, because an index takes one row where all rows
    were meant.

    ## Why it matters

    All other rows of the batch are loaded or computed without any effect. The gradient is that of a
    single sample and noisy, and an epoch uses only a fraction of the data.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            x, y = torch.randn(32, 4), torch.randn(32, 1)
            optimizer.zero_grad()
            (model(x[:1]) - y[:1]).square().mean().backward()  # <- reported
            optimizer.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        scores, labels = model(torch.randn(32, 4)), torch.arange(32) % 3
        losses = nn.functional.cross_entropy(scores, labels, reduction="none")
        losses[0].backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            x, y = torch.randn(32, 4), torch.randn(32, 1)
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        scores, labels = model(torch.randn(32, 4)), torch.arange(32) % 3
        losses = nn.functional.cross_entropy(scores, labels, reduction="none")
        losses.mean().backward()
    ```

    ## When it is intended

    A program may check that a model can learn a single sample. It then takes the same sample in
    each step, which is not reported. A loss may need only one of the rows that a model computes,
    such as the last row of a sequence. A single row of results is therefore reported as a note.

    ## Not detected

    A row of data is reported only if at least two tensors are read at the same row, in two steps. A
    batch of fewer than four rows is not checked.

    ## See also

    - [Indexing](https://docs.pytorch.org/docs/stable/tensor_view.html)
    """
    graph = reading.graph
    used = {str(list(meta.shape)) for data in graph.untracked for meta in data.tensors}
    sizes = {meta.shape[0] for node in graph.nodes for meta in node.outputs if meta and meta.shape}
    for event in reading.events(RowOfData):
        rows = [n for n, shape in zip(event.labels, event.shapes, strict=True) if shape in used]
        if len(rows) < _MIN_TENSORS or event.rows in sizes:
            continue
        names = listing(dict.fromkeys(filter(None, rows))) or "several tensors"
        yield finding(
            "warning",
            f"The loss uses one of {event.rows} rows of {names}{at(event.where)}, in each of "
            f"{event.steps} steps, and the other rows are not used.",
            cause="one row of a batch",
            advice="Pass all rows, or load only those that are used.",
            where=event.where,
        )


@finds("single-row", of=("select", "slice"))
def single_row_of_results(reading: Reading) -> Iterator[Finding]:
    """Find a row that is all that the loss uses of the results for a batch."""
    sizes = {
        meta.shape[0]
        for data in reading.graph.untracked
        for meta in data.tensors
        if data.kind == "data" and len(meta.shape) > 1
    }
    for node in reading.of_operations(("select", "slice")):
        (edge,) = reading.inputs[node.id] if len(reading.inputs[node.id]) == 1 else (None,)
        before = None if edge is None else reading.meta(edge.source, edge.output_nr)
        after = reading.meta(node.id)
        if edge is None or before is None or after is None or "dim=0" not in node.attributes:
            continue
        rows = before.shape[0] if before.shape else 0
        is_row = len(after.shape) < 2 if node.operation == "select" else after.shape[:1] == (1,)
        if rows < _MIN_ROWS or rows not in sizes or not is_row:
            continue
        if len(reading.users[edge.source]) > 1 or len(after.shape) >= len(before.shape) > 2:
            continue
        name = reading.call(edge.source)
        yield finding(
            "info",
            f"The loss uses one of {rows} rows of {name}{at(node.where)}: the other rows get no "
            "gradient.",
            cause="one row of a batch",
            advice=f"Use the mean over all rows of {name}, unless one row is meant.",
            where=node.where,
            nodes=(node.id, edge.source),
        )
