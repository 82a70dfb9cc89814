"""Rules about weights and buffers that should be equal on all ranks but differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....graph import Finding, Graph
from ....graph.events import OptimizerStep
from ....graph.text import listing, ranks_text
from ...graph_reading import averages
from ...rule import finding, rule
from ...words import at
from .divergence import (
    DivergenceReason,
    find_diverged,
    has_other_reason,
    modules_around,
    own_modules,
    reason_for_divergence,
)
from .steps_and_ranks import unaveraged_names

_DDP = "DistributedDataParallel"


@rule("error", reads="ranks")
def diverged_replicas(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Ranks that train one model have different values of a parameter, from the start or after
    some step, for example because the parameter's gradients are not averaged.

    ## Why it matters

    Data parallelism needs equal weights on all ranks. If the weights differ, the mean of the
    gradients fits no rank's model. No error is raised, but the loss is worse, and a checkpoint
    contains the weights of only one rank.

    ## Example

    In these three examples, one process simulates both ranks. In a program that `torchrun` starts,
    each rank records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of
    all ranks. In the first example, the learning rates differ:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    weights, ranks = nn.Linear(4, 1, bias=False).state_dict(), []
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        (model := nn.Linear(4, 1, bias=False)).load_state_dict(weights)
        with record(model) as recording:
            model(torch.randn(8, 4)).square().mean().backward()
            dist.all_reduce(model.weight.grad)
            torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1)).step()  # <- reported
        ranks.append(recording.graph)
        dist.destroy_process_group()
    ```

    In the second example, each rank has its own initial weights:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ranks = []
    for rank in range(2):
        model = nn.Linear(4, 1)
        with record(model) as recording:
            model(torch.randn(8, 4)).mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # <- reported
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    In the third example, the gradient of the bias is not averaged:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weights, ranks = nn.Linear(4, 1).state_dict(), []
    for rank in range(2):
        (model := nn.Linear(4, 1)).load_state_dict(weights)
        with record(model) as recording:
            model(torch.randn(8, 4)).square().mean().backward()
            dist.all_reduce(model.weight.grad)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## Use instead

    One program repairs all three: it has the same weights and learning rate on all ranks, and
    averages every gradient. `DistributedDataParallel` sends the weights of rank 0 to all ranks, and
    averages the gradients.

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weights, ranks = nn.Linear(4, 1).state_dict(), []
    for rank in range(2):
        (model := nn.Linear(4, 1)).load_state_dict(weights)
        with record(model) as recording:
            model(torch.randn(8, 4)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## When it is intended

    Experts, and models that each rank trains independently, are not reported: they differ from the
    start, and their gradients are not averaged. If a program averages weights only from time to
    time (local SGD), ignore the rule.

    ## Not detected

    Values that differ but have the same checksum or norm are not detected, nor are parameters of a
    rank whose graph is missing. If a program calls all_to_all, modules without an averaged gradient
    count as experts, and are not reported.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [Internal design of DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html)
    """
    if any(has_other_reason(graph) for graph in graphs) or _ranks_without_step(graphs):
        return
    known = set(unaveraged_names(graphs))
    every = list(find_diverged(graphs, "parameter"))
    # Experts that get tokens by all_to_all may start with equal weights on all ranks.
    sent = (each for graph in graphs for each in graph.collectives)
    exchanged = any(each.kind == "all_to_all" for each in sent)
    different = [each.name for each in every if exchanged or not each.since]
    own = own_modules(graphs, different)
    found = [
        each
        for each in every
        if each.since and each.name not in known and own.isdisjoint(modules_around(each.name))
    ]
    groups: dict[tuple[str, DivergenceReason], list[str]] = {}
    for each in found:
        reason = None if each.diverged_before else reason_for_divergence(graphs, each)
        if reason is not None:
            groups.setdefault((each.since, reason), []).append(each.name)
    for (since, reason), names in groups.items():
        verb = "differs" if len(names) == 1 else "differ"
        yield finding(
            reason.severity,
            f"{listing(names)} {verb} between the ranks since {since}{reason.text}.",
            cause=reason.cause,
            advice=reason.advice,
            where=reason.where,
        )


@rule("error", reads="ranks", advanced=True)
def skipped_step(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """An optimizer step with averaged gradients ran on some ranks but not on others, so their
    weights differ from then on.

    ## Why it matters

    After a step that one rank skips, the ranks have different weights. From then on, averages mix
    gradients of different models, and no error is raised.

    ## Example

    In this example, one process simulates both ranks. If `torchrun` starts a program, each rank
    records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all ranks:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    model, ranks = nn.Linear(4, 1, bias=False), []
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        with record(model) as recording:
            (loss := model(torch.randn(8, 4)).square().mean()).backward()
            dist.all_reduce(model.weight.grad)
            if rank == 1:  # a rank's own test, such as a check for NaN in its loss
                torch.optim.SGD(model.parameters(), lr=0.1).step()  # <- reported
        ranks.append(recording.graph)
        dist.destroy_process_group()
    ```

    ## Use instead

    Test the averaged gradient, so that all ranks make the same decision:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weights, ranks = nn.Linear(4, 1, bias=False).state_dict(), []
    for rank in range(2):
        (model := nn.Linear(4, 1, bias=False)).load_state_dict(weights)
        with record(model) as recording:
            (loss := model(torch.randn(8, 4)).square().mean()).backward()
            dist.all_reduce(model.weight.grad)
            if model.weight.grad.isfinite().all():
                torch.optim.SGD(model.parameters(), lr=0.1).step()
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## When it is intended

    It is never intended in data parallelism. Ranks that average no gradients are not reported.

    ## Not detected

    A step that a rank skipped before the last recorded backward is not reported by this rule;
    the weights then differ between the ranks, which `diverged-replicas` reports.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [torch.distributed.all_reduce](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
    """
    steps = [[e for e in graph.events if isinstance(e, OptimizerStep)] for graph in graphs]
    idle = _ranks_without_step(graphs)
    if not idle:
        return
    first = next(rank for rank, row in enumerate(steps) if row)
    yield finding(
        "error",
        f"{ranks_text(idle).capitalize()} did not step after the last backward, but rank {first} "
        f"did{at(steps[first][-1].where)}, although all ranks average the gradients.",
        cause="a step that some ranks skip",
        advice="Let all ranks make the same decision: call dist.all_reduce(flag) before the step.",
        where=steps[first][-1].where,
    )


def _ranks_without_step(graphs: Sequence[Graph]) -> list[int]:
    """Return the ranks whose optimizer did not step although that of other ranks did.

    Return [] unless all ranks average gradients.
    """
    if any(graph.failure is not None or not averages(graph) for graph in graphs):
        return []
    steps = [any(isinstance(e, OptimizerStep) for e in graph.events) for graph in graphs]
    return [rank for rank, stepped in enumerate(steps) if any(steps) and not stepped]


@rule("warning", reads="ranks")
def diverged_buffers(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Ranks that train one model have different buffers, such as the running averages of BatchNorm,
    and do not synchronize them.

    ## Why it matters

    Each rank evaluates a different model. A checkpoint contains the buffers of only one rank, so
    the scores of the loaded model differ from those during training.

    ## Example

    In this example, one process simulates both ranks. If `torchrun` starts a program, each rank
    records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all ranks:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    weights, ranks = nn.Linear(4, 4, bias=False).state_dict(), []
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False))
        model[0].load_state_dict(weights)
        with record(model) as recording:
            model(torch.randn(32, 4)).exp().mean().backward()  # <- reported
            dist.all_reduce(model[0].weight.grad)
        ranks.append(recording.graph)
        dist.destroy_process_group()
    ```

    ## Use instead

    `DistributedDataParallel` sends the buffers of rank 0 before each forward, and `SyncBatchNorm`
    computes the same statistics on all ranks. A norm without buffers cannot differ:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    weights, ranks = nn.Linear(4, 4, bias=False).state_dict(), []
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4))
        model[0].load_state_dict(weights)
        with record(model) as recording:
            model(torch.randn(32, 4)).exp().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        ranks.append(recording.graph)
        dist.destroy_process_group()
    ```

    ## When it is intended

    A buffer may be a rank's own state, such as a counter of its samples.

    ## Not detected

    Buffers that differ during training, but are equal when the recording ends, are not reported.

    ## See also

    - [DistributedDataParallel: broadcast_buffers](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html)
    """
    together = all(map(averages, graphs))
    names = [
        each.name
        for each in find_diverged(graphs, "buffer")
        if together and not each.diverged_before
    ]
    if not names:
        return
    owner = names[0].rpartition(".")[0]
    lines = [node.line for node in graphs[0].nodes if node.module == owner and node.line]
    where = lines[0] if lines else ""
    verb = "differs" if len(names) == 1 else "differ"
    yield finding(
        "warning",
        f"{listing(names)} {verb} between the ranks, which train one model{at(where)}: each rank "
        "evaluates with its own buffers, and a checkpoint contains the buffers of only one rank.",
        cause="diverged buffers",
        advice=f"Do not pass broadcast_buffers=False to {_DDP}, convert BatchNorm to "
        "SyncBatchNorm, or broadcast the buffers before the model is evaluated or saved.",
        where=where,
    )
