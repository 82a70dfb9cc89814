"""Rules about collectives that autograd does not see."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...graph_reading import Reading, averages
from ...rule import finding, rule
from ...words import at


@immutable
class CollectiveInGraph(Event):
    """A collective that changed a tensor in place in the middle of a graph, unseen by autograd.

    `where` is the line of the collective; `nodes` are the ids of the node that made the tensor.
    """

    kind: str = ""  # "all_reduce"
    label: str = ""  # name of the caller's variable for the tensor


@rule("warning", of=(CollectiveInGraph,))
def non_differentiable_all_reduce(reading: Reading) -> Iterator[Finding]:
    """A collective such as `all_reduce` changes a tensor that the loss is computed from, and
    autograd does not notice.

    ## Why it matters

    The functions of `torch.distributed` have no gradient. Backward treats the reduced tensor as if
    this rank alone had computed it, so the gradient lacks the contributions of the other ranks. If
    the gradients are then averaged over the ranks, as in DistributedDataParallel, they are too
    small by the number of ranks.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = nn.Linear(4, 2, bias=False)
    with record(model) as recording:
        mean = model(torch.randn(8, 4)).mean(0) / 2
        dist.all_reduce(mean)  # <- reported
        mean.square().sum().backward()
        dist.all_reduce(model.weight.grad, dist.ReduceOp.AVG)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    import torch.distributed.nn
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = nn.Linear(4, 2, bias=False)
    with record(model) as recording:
        mean = model(torch.randn(8, 4)).mean(0) / 2
        mean = torch.distributed.nn.all_reduce(mean)
        mean.square().sum().backward()
        dist.all_reduce(model.weight.grad, dist.ReduceOp.AVG)
    dist.destroy_process_group()
    ```

    ## When it is intended

    In tensor parallelism that a program implements itself, each rank computes a part of a sum, and
    the loss is the same on all ranks. The gradient is then right without a collective in backward.
    If no gradients are reduced over the ranks, the finding is therefore a note.

    Gradients that are summed over the ranks are right, too, if all ranks compute the same loss.

    ## Not detected

    A loss on which backward is called may be reduced for a log, and is not reported. Collectives
    under `torch.no_grad()`, and those that return new tensors, are not checked by this rule.

    ## See also

    - [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html)
    """
    averaged = averages(reading.graph)
    for event in reading.events(CollectiveInGraph):
        name = event.label or "a tensor that the loss is computed from"
        extra = (
            " The gradients are then reduced over the ranks: an average of them is too small."
            if averaged
            else ""
        )
        yield finding(
            "warning" if averaged else "info",
            f"{event.kind}{at(event.where)} changes {name} in place, and autograd does not notice: "
            f"no gradient flows to the other ranks.{extra}",
            cause="collective without gradient",
            advice=f"Call torch.distributed.nn.functional.{event.kind}, which is differentiable, "
            "and use its result.",
            where=event.where,
            nodes=event.nodes,
        )
