"""Rules about the data in a batch: the rows, and the scale of the values."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, finds, rule
from ...words import at

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


@rule("warning", reads="end")
@immutable
class UnpairedRows(Event):
    """Two different indices choose the inputs and the targets of a loss, so the rows do not belong
    together.

    ## Why it matters

    Each prediction is compared with the target of another sample. The best that the model can learn
    is a constant prediction, such as the mean of the targets.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for order in torch.randperm(64).split(16):
            loss = nn.functional.mse_loss(model(x[order]), y[:16])  # <- reported
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for order in torch.randperm(64).split(16):
            loss = nn.functional.mse_loss(model(x[order]), y[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## When it is intended

    Targets may be shuffled on purpose, to show the loss of a model without information. A sample
    may also have another sample as its target, such as its nearest neighbor.

    ## Not detected

    Rows are compared only if slices or tensors of indices choose them from two tensors of the same
    length, and they are reported after two steps. Indices that differ by a constant, as in a
    forecast, are not reported.

    ## See also

    - [TensorDataset](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.TensorDataset)
    """

    target: str = ""  # line that chooses the rows of the target
    inputs: str = ""  # line that chooses the rows of the input
    count: int = 0  # number of steps in which the rows differ

    def report(self) -> Finding:
        chosen = f"the rows of the target{at(self.target)}"
        if self.target == self.inputs:
            chosen = "the rows of the target"
        return finding(
            "warning",
            f"In {self.count} steps, {chosen} and those of the input{at(self.inputs)} have "
            f"different indices: the loss{at(self.where)} compares each prediction with the target "
            "of another sample.",
            cause="inputs and targets of different rows",
            advice="Choose the rows of both by the same index: x[index] and y[index].",
            where=self.where,
        )


_NORMS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_layer_norm"}
_NORMS |= {"native_group_norm"}


@immutable
class UnscaledPixels(Event):
    """A call of a layer whose input consists of whole numbers from 0 to at most 255."""

    largest: int = 0  # the largest number


@rule("info", of=(UnscaledPixels,))
def unscaled_pixels(reading: Reading) -> Iterator[Finding]:
    """The first layer gets whole numbers up to 255, such as the pixels of an image that were not
    scaled.

    ## Why it matters

    The initial weights of a layer are chosen for inputs of about unit variance. With pixels up to
    255, the scores and the gradients of the first steps are about a hundred times too large: ReLUs
    die, and the usual learning rates are too large.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    images = torch.randint(256, (4, 3, 8, 8)).float()
    model = nn.Conv2d(3, 2, 3)
    with record(model) as recording:
        model(images).square().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    images = torch.randint(256, (4, 3, 8, 8)).float() / 255
    model = nn.Conv2d(3, 2, 3)
    with record(model) as recording:
        model(images).square().mean().backward()
    ```

    ## When it is intended

    Other whole numbers, such as counts, may have a range up to 255. A layer whose result a batch,
    layer or group norm normalizes is not reported, because the norm removes the scale.

    ## Not detected

    Pixels that were scaled twice, and those from which only the mean was subtracted, are not
    reported.

    ## See also

    - [torchvision: ToDtype, with scale=True](https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.v2.ToDtype.html)
    """
    for event in reading.events(UnscaledPixels):
        users = [
            reading.graph.nodes[edge.target].operation
            for node in event.nodes
            for edge in reading.users[node]
        ]
        if users and not any(user in _NORMS for user in users):
            yield finding(
                "info",
                f"The input of the layer{at(event.where)} consists of whole numbers up to "
                f"{event.largest}, like the pixels of an image that were not scaled.",
                cause="pixels that were not scaled",
                advice="Divide the pixels by 255, or subtract their mean and divide by their "
                "standard deviation.",
                where=event.where,
                nodes=event.nodes,
            )
