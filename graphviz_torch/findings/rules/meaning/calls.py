"""Rules about calls that do not have the intended effect, and about repeated batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ....graph import Edge, Finding
from ....graph.events import CopiedValues, IneffectiveCall
from ....graph.immutable import immutable
from ....graph.nodes import SAME_VALUES
from ....graph.units import bytes_text
from ...axes import attribute
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from ..cuts import upstream

# Cause of repeated batches:
# - "workers": workers have equal random states
# - "stream": each worker iterates over all data
# - "first": each step creates a new iterator, and uses its first batch
# - "twice": the dataset returns a batch twice in a row
# - "pass": a shuffled pass over the data repeats the previous pass
# - "persistent": persistent workers keep the dataset as it was when they started
RepeatKind = Literal["workers", "stream", "first", "twice", "pass", "persistent"]
# Argument of `backward` because of which the graph was kept.
RetainedBy = Literal["retain_graph", "create_graph"]

_PRODUCTS = ("mm", "addmm", "linear", "mv", "addmv")
_MIN_CALLS = 8  # minimal number of calls, each on one slice, that is reported
_RETAIN_ADVICE = {
    "retain_graph": "Remove retain_graph=True.",
    "create_graph": "If the loss differentiates through these gradients, look for a cut before "
    "the loss: detach(), .data, no_grad, load_state_dict(). Otherwise remove create_graph=True.",
}


@rule("warning", reads="end")
@immutable
class DropoutInEvalMode(IneffectiveCall):
    """A functional dropout still drops values while the model is in eval mode.

    ## Why it matters

    Predictions and validation scores are random, and worse than without dropout.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(F.dropout(x, 0.5))  # <- reported


    model = Net(6, 3)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        model.eval()(torch.randn(8, 6))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(F.dropout(x, 0.5, training=self.training))


    model = Net(6, 3)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        model.eval()(torch.randn(8, 6))
    ```

    ## When it is intended

    Monte Carlo dropout samples predictions on purpose.

    ## Not detected

    Other randomness, such as added noise, is not detected by this rule. `experiment` reports it as
    `random-in-eval-mode`.

    ## See also

    - [torch.nn.functional.dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html)
    """

    function: str = ""  # "dropout"

    def report(self) -> Finding:
        attention = self.function == "scaled_dot_product_attention"
        passed = "dropout_p=p if self.training else 0.0" if attention else "training=self.training"
        return finding(
            "warning",
            f"{self.function}(){at(self.where)} drops values in eval mode, too, because it "
            "does not know the mode of the model.",
            cause="dropout in eval mode",
            advice=f"Pass {passed}"
            + ("" if attention else ", or use an nn.Dropout module")
            + "; do nothing if dropout in eval mode is intended, as in Monte Carlo dropout.",
            where=self.where,
        )


@immutable
class UnneededRetainGraph(IneffectiveCall):
    """Backward passes that keep their graphs, although no later backward pass uses the graphs."""

    by: RetainedBy = "retain_graph"
    count: int = 0  # number of backward passes


@rule(
    "warning",
    reads="end",
    of=(UnneededRetainGraph,),
    caused_by=("data-assignment", "unused-derivative-input"),
)
def unneeded_retain_graph(reading: Reading) -> Iterator[Finding]:
    """A backward keeps its graph with retain_graph or create_graph, and no later backward uses it.

    ## Why it matters

    The saved tensors that backward would free are kept until the next step, and the peak memory
    grows by their size. With create_graph, autograd also records the backward, which takes longer.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward(retain_graph=True)  # <- reported
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
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A step may run a second backward through the same graph. Such a graph is not reported.

    ## Not detected

    The recording does not see a use of the graph after the recording's end. The rule may therefore
    report a graph that is still needed.

    ## See also

    - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    """
    kept = sum(saved.nbytes for node in reading.graph.nodes for saved in node.saved)
    copies = reading.events(CopiedValues)
    for event in reading.events(UnneededRetainGraph):
        if copies and event.by == "create_graph":
            copy = copies[0]
            yield finding(
                "warning",
                f"{copy.operation}{at(copy.where)} copies values without their history, so "
                f"nothing learns through the gradients of backward{at(event.where)} with "
                "create_graph=True.",
                cause="values copied out of a history",
                advice="Call the module with the tensors themselves: torch.func.functional_call("
                "model, tensors, (x,)).",
                where=copy.where,
            )
            continue
        memory = f": {bytes_text(kept)} are kept until the next backward" if kept else ""
        yield finding(
            "info",
            f"backward{at(event.where)} keeps its graph ({event.by}=True) {event.count} times, "
            f"and no later backward uses the graph{memory}.",
            cause="an unneeded graph",
            advice=_RETAIN_ADVICE[event.by],
            where=event.where,
        )


@immutable
class CallPerSample(IneffectiveCall):
    """A module that is called separately for each sample of a batch."""

    module: str = ""
    count: int = 0  # number of calls


@rule("info", reads="end", of=(CallPerSample, "select", "unbind"), advanced=True)
def called_for_each_sample(reading: Reading) -> Iterator[Finding]:
    """A module or a function is called once for each sample of a batch, each time with one slice of
    the same tensor.

    ## Why it matters

    Each call launches its own small kernels: a batch of 64 takes up to 64 times as long as one call
    for all samples.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        x, y = torch.randn(16, 6), torch.arange(16) % 3
        out = torch.stack([model(row) for row in x])  # <- reported
        F.cross_entropy(out, y).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        x, y = torch.randn(16, 6), torch.arange(16) % 3
        out = model(x)
        F.cross_entropy(out, y).backward()
    ```

    ## When it is intended

    Samples of different lengths do not fit into one tensor without padding.

    ## Not detected

    Loops over other axes, such as the time of a recurrent model, are not reported.

    ## See also

    - [torch.func.vmap](https://docs.pytorch.org/docs/stable/generated/torch.func.vmap.html)
    """
    calls = [(e.module, e.count, e.where) for e in reading.events(CallPerSample)]
    for name, count, where in calls or _products_of_slices(reading):
        yield finding(
            "info",
            f"{name} ran {count} times{at(where)}, each time on a different slice of the same "
            "tensor: one call on the whole tensor does the same work in less time.",
            cause="a call for each sample",
            advice="Call it once on the whole tensor, whose dimension 0 is the batch.",
            where=where,
        )


def _products_of_slices(reading: Reading) -> Iterator[tuple[str, int, str]]:
    """Yield groups of independent products of one weight and each row of a result.

    Yields:
        The name of the module or weight, the number of products, and their line.
    """
    rows: dict[tuple[int, int, str], list[int]] = {}
    for node in reading.of_operations(_PRODUCTS):
        sources = [_base(reading, edge) for edge in reading.inputs[node.id]]
        weights = [i for i, _ in sources if reading.graph.nodes[i].leaf == "parameter"]
        sliced = [i for i, is_row in sources if is_row]
        if weights and len(sliced) == 1:
            rows.setdefault((sliced[0], weights[-1], node.where), []).append(node.id)
    for (_, weight, where), ids in rows.items():
        if len(ids) >= _MIN_CALLS and upstream(reading, ids[-1], set()).isdisjoint(ids[:-1]):
            product = f"The product with {reading.call(weight)}"
            yield reading.graph.nodes[ids[0]].module or product, len(ids), where


def _base(reading: Reading, edge: Edge) -> tuple[int, bool]:
    """Return the base of a view, and True if the view is one row (a vector) of the base.

    Args:
        reading: the graph.
        edge: the edge from the view to its user.
    """
    for _ in range(8):
        node = reading.graph.nodes[edge.source]
        before = reading.inputs[node.id]
        if node.operation in ("select", "unbind") and before:
            meta = reading.meta(node.id)
            first = attribute(node, "dim") == "0"
            return before[0].source, first and meta is not None and len(meta.shape) == 1
        if node.operation not in SAME_VALUES or not before:
            break
        edge = before[0]
    return edge.source, False


@rule("warning", reads="end")
@immutable
class RepeatedBatch(IneffectiveCall):
    """A batch is used more than once: the workers of a DataLoader return the same batches, each
    step takes the first batch of a new iterator, a shuffled pass repeats the previous pass,
    persistent workers ignore a change of the dataset, or all ranks have the same batch.

    ## Why it matters

    The model sees only a part of the data. If all ranks have the same batch, the average of their
    equal gradients is the gradient of one rank, so the other ranks contribute nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from graphviz_torch import record

    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.arange(32) % 3), batch_size=8)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            x, y = next(iter(loader))  # <- reported
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    ```

    In this example, one process simulates both ranks. If `torchrun` starts a program, each rank
    records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all ranks:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, batch, ranks = nn.Linear(4, 1), torch.randn(8, 4), []
    for rank in range(2):
        model.zero_grad()
        with record(model) as recording:
            model(batch).mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # <- reported
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from graphviz_torch import record

    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.arange(32) % 3), batch_size=8)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    ```

    Give each rank its own samples, as `sampler=DistributedSampler(dataset)` does for a DataLoader:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, batch, ranks = nn.Linear(4, 1), torch.randn(8, 4), []
    for rank in range(2):
        model.zero_grad()
        with record(model) as recording:
            model(batch[rank::2]).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## When it is intended

    Overfitting one batch is a common first test of a model. Ranks that divide the layers or the
    sequence get the same batch on purpose.

    ## Not detected

    Batches that overlap only in part are not reported. Equal batches on all ranks are not detected
    if the model has dropout, because different masks make the gradients differ.

    ## See also

    - [torch.utils.data: iterable-style datasets](https://docs.pytorch.org/docs/stable/data.html#iterable-style-datasets)
    - [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
    """

    what: RepeatKind = "workers"
    count: int = 0  # number of repeated batches; for "first", number of steps with the first batch
    among: int = 0  # number of all batches
    workers: int = 0  # number of worker processes
    seeded: str = ""  # line that calls manual_seed, if there is only one
    attribute: str = ""  # attribute of the dataset that the program changed: "epoch"

    def report(self) -> Finding:
        if self.what == "first":
            text = (
                f"Each step creates a new iterator of the DataLoader{at(self.where)} and takes "
                f"its first batch, which was the same in {self.count} steps. The other samples "
                "are never used."
            )
            cause = "a new pass for each step"
            advice = "Write for batch in loader, or keep one iter(loader) and create another one "
            advice += "when it is exhausted."
        elif self.what == "persistent":
            text = (
                f"The program changed the attribute {self.attribute} of the dataset after the "
                f"workers of the DataLoader{at(self.where)} had started: persistent workers keep "
                "their copies of the dataset, so the change has no effect."
            )
            cause = "persistent workers with an old copy of the dataset"
            advice = "Construct the DataLoader with persistent_workers=False, or store the value "
            advice += "in shared memory (torch.tensor(0).share_memory_())."
        elif self.what in ("twice", "pass"):
            return self._equal_batches()
        else:
            text = (
                f"{self.count} of {self.among} batches of the DataLoader{at(self.where)} are "
                f"equal to a batch that another of its {self.workers} workers had just returned."
            )
            cause, advice = _WORKERS[self.what]
        return finding("warning", text, cause=cause, advice=advice, where=self.where)

    def _equal_batches(self) -> Finding:
        """Return the finding about a DataLoader without workers that returns a batch twice."""
        if self.what == "twice":
            where = self.where
            text = (
                f"{self.count} of {self.among} batches of the DataLoader{at(where)} repeat the "
                "previous batch."
            )
            advice = "Check the generators from which the dataset draws: give each its own seed."
        else:
            where = self.seeded or self.where
            seeded = f": manual_seed{at(self.seeded)} sets one seed again" if self.seeded else ""
            text = (
                f"The DataLoader{at(self.where)} shuffles, and {self.count} batches repeated those "
                f"of the previous pass, in the same order{seeded}."
            )
            advice = "Set the seed once, before the first epoch."
        return finding("info", text, cause="repeated batches", advice=advice, where=where)


_WORKERS = {
    "stream": (
        "workers that each return all of the data",
        "In __iter__, let each worker yield its own part of the data, chosen by "
        "torch.utils.data.get_worker_info().",
    ),
    "workers": (
        "workers that draw the same numbers",
        "Draw random numbers with torch, which seeds each worker differently; or seed other "
        "generators in worker_init_fn, with torch.initial_seed().",
    ),
}
