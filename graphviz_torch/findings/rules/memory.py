"""Rules about memory that a step keeps needlessly: retained graphs, float64, views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...graph import Finding, RetainedGraphs, SavedTensor
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at
from .most_memory import MIN_BYTES, MIN_SHARE

# A view of at most a quarter of its storage is reported.
VIEW_RATIO = 4


@rule("warning", of=(RetainedGraphs,), also=("watch",))
def retained_graph(reading: Reading) -> Iterator[Finding]:
    """Graphs of earlier steps are still in memory, or the graph grows from step to step, because a
    result was kept with its history.

    ## Why it matters

    A tensor with a `grad_fn` keeps its graph alive, with all saved tensors of that graph. A running
    sum of losses, a list for a plot or a hidden state that is carried over keeps the graphs of all
    steps. Memory grows until training ends with an out-of-memory error.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, total = nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w, total = torch.randn(4, requires_grad=True), 0
    with record() as recording:
        for _ in range(4):
            total = total + (w * torch.randn(4)).sum()  # <- reported
            total.backward(retain_graph=True)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, total = nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w, total = torch.randn(4, requires_grad=True), 0
    with record() as recording:
        for _ in range(4):
            loss = (w * torch.randn(4)).sum()
            loss.backward()
            total += loss.item()
    ```

    ## When it is intended

    Truncated backpropagation through time keeps the graphs of a few steps on purpose, and
    meta-learning keeps the graphs of an inner loop. Silence the rule on the line if the number of
    graphs is bounded.

    ## Not detected

    A graph that only a C++ object keeps is not found. Growth that begins after the recorded steps
    is reported by `watch`.

    ## See also

    - [Frequently asked questions: out of memory](https://docs.pytorch.org/docs/stable/notes/faq.html)
    - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)
    """
    kept = reading.graph.step.retained
    if kept is None:
        return
    alive = f"The graphs of {kept.steps} earlier steps are still in memory"
    if kept.node is not None:
        message = f"{alive}, and backward runs through them again: {reading.call(kept.node)}"
        message += f"{at(kept.where)} was computed from one of them."
    elif kept.label and kept.where:
        message = f"{alive}: {kept.label} keeps the result of {kept.where} with its history"
        message += f", appended{at(kept.added_where)}." if kept.added_where else "."
    else:
        made = f"the result of {kept.where}" if kept.where else "a result of each"
        message = f"{alive}: {made} is kept with its history."
    yield finding(
        "warning" if kept.where or kept.node is not None else "info",
        message,
        cause="history kept from step to step",
        advice="Keep only the number, with item(), or a detached tensor, with detach().",
        where=kept.where,
        nodes=() if kept.node is None else (kept.node,),
    )


@finds("retained-graph", reads="end")
@immutable
class RetainedForward(Event):
    """A variable that keeps forwards of earlier steps that no backward has used."""

    # `where` is the line that appends the results, or the line that calls the module.
    label: str = ""  # name of the variable
    steps: int = 0
    made: str = ""  # line that calls the module

    def report(self) -> Finding:
        added = f", appended{at(self.where)}," if self.where != self.made else ""
        return finding(
            "warning",
            f"{self.label} keeps results of the forward{at(self.made)}{added} with their graphs, "
            f"from {self.steps} steps: no backward has run through them, and memory grows.",
            cause="history kept from step to step",
            advice="Keep a detach() of the tensor, or run the forward under torch.no_grad().",
            where=self.where,
            nodes=self.nodes,
        )


@rule("warning", of=("float64",))
def unintended_float64(reading: Reading) -> Iterator[Finding]:
    """Results are float64 although the parameters are not, which costs memory and time.

    ## Why it matters

    NumPy arrays are float64 by default. An operation with a float64 tensor returns float64, which
    needs twice the memory and, on most GPUs, takes 2 to 64 times as long.

    ## Example

    ```python
    import numpy
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        target = torch.as_tensor(numpy.linspace(0, 1, 8))
        (model(torch.randn(8, 4)).squeeze(1) - target).square().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import numpy
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        target = torch.as_tensor(numpy.linspace(0, 1, 8), dtype=torch.float32)
        (model(torch.randn(8, 4)).squeeze(1) - target).square().mean().backward()
    ```

    ## When it is intended

    Sums and tests may need the precision of float64. Convert only their inputs to float64, and
    convert the result back.

    ## Not detected

    float64 tensors without gradients are not checked.

    ## See also

    - [Type promotion](https://docs.pytorch.org/docs/stable/tensor_attributes.html)
    """
    graph = reading.graph
    dtypes = {p.tensor.dtype for p in graph.parameters} or {
        meta.dtype
        for n in graph.nodes
        if n.leaf == "parameter" and (meta := reading.meta(n.id)) is not None
    }
    wide = {n.id for n in graph.nodes for m in n.outputs if m and m.dtype == "float64"}
    if "float64" in dtypes or not dtypes or not wide:
        return
    origins = [i for i in sorted(wide) if not any(e.source in wide for e in reading.inputs[i])]
    # Casts are explicit, and so are promotions on the line of a cast. Other promotions are
    # implicit.
    casts = {i for i in origins if graph.nodes[i].name.startswith("ToCopy")}
    lines = {graph.nodes[i].where for i in casts} - {""}
    meant = all(i in casts or graph.nodes[i].where in lines for i in origins)
    line = next((graph.nodes[i].where for i in origins if graph.nodes[i].where), "")
    yield finding(
        "info" if meant else "warning",
        f"{listing(reading.call(i) for i in origins)} returned float64{at(line)}, so {len(wide)} "
        f"of {len(graph.nodes)} nodes have float64 results, although the parameters are "
        f"{listing(sorted(dtypes))}.",
        cause="cast to float64" if meant else "promotion to float64",
        advice="Convert NumPy arrays with torch.as_tensor(array, dtype=torch.float32), and "
        "create constants in the dtype of the other operand.",
        where=line,
        nodes=tuple(origins),
    )


@rule("warning", of=(SavedTensor,), advanced=True)
def view_retains_storage(reading: Reading) -> Iterator[Finding]:
    """A small view that is saved for backward keeps a large storage alive, although nothing else
    needs it.

    ## Why it matters

    A view shares the storage of its base tensor. As long as the view is saved for backward, the
    whole storage stays in memory.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w = torch.randn(1000, requires_grad=True)
    with record() as recording:
        table = torch.randn(2000, 1000)
        first = table[0]
        (w * first).sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w = torch.randn(1000, requires_grad=True)
    with record() as recording:
        table = torch.randn(2000, 1000)
        first = table[0].clone()
        (w * first).sum().backward()
    ```

    ## When it is intended

    The base may be a table that the program keeps until the end of training anyway.

    ## Not detected

    Views that the program keeps, but that autograd does not save, are not detected.

    ## See also

    - [Tensor views](https://docs.pytorch.org/docs/stable/tensor_view.html)
    """
    nodes, activations = reading.graph.nodes, reading.activations
    large = [
        (nodes[i], saved)
        for i, nbytes in activations.items()
        for saved in (nodes[i].saved if nbytes >= MIN_BYTES else ())
        if saved.nbytes >= MIN_BYTES and saved.kind == "activation"
    ]
    # Node whose saved bytes include a storage -> bytes of the largest tensor saved in this storage.
    largest: Counter[int] = Counter()
    for node in nodes if large else ():
        for saved in node.saved:
            if saved.shared_with is not None:
                known = largest[saved.shared_with]
                largest[saved.shared_with] = max(known, saved.tensor.nbytes or 0)
    total = sum(activations.values())
    for node, saved in large:
        needed = max(saved.tensor.nbytes or 0, largest[node.id])
        if saved.nbytes - needed < MIN_BYTES or needed * VIEW_RATIO > saved.nbytes:
            continue
        yield finding(
            "warning" if saved.nbytes >= MIN_SHARE * total else "info",
            f"{reading.call(node.id)}{at(node.where)} saves {saved.name or 'a tensor'} "
            f"({saved.tensor}, {bytes_text(needed)}), a view that keeps "
            f"{bytes_text(saved.nbytes)} alive.",
            cause="a view keeps its whole storage",
            advice="Call clone() on the slice, so that the storage of the base can be freed.",
            where=node.where,
            nodes=(node.id,),
        )
