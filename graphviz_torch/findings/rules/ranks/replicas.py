"""Ranks that drift apart: weights that were the same, and buffers that each rank has of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....graph import Finding, Graph, Severity
from ....graph.events import GradientClip, OptimizerStep, UnusedInWrapper, WrapperBypass
from ....graph.text import listing, ranks_text
from ...graph_reading import REDUCING, averages
from ...replica_reading import Parted, parted
from ...rule import finding, rule
from ...words import at
from .steps_and_ranks import unaveraged

_DDP = "DistributedDataParallel"


class _Reason(NamedTuple):
    """Why the ranks came apart, as far as that is known."""

    severity: Severity
    text: str  # behind "differ between the ranks since step 2"
    advice: str
    where: str
    cause: str


@rule("error", reads="ranks")
def diverged_replicas(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Ranks that train one model have different values of a parameter: from the start, since a
    step, or because nothing averages the gradients of the parameter.

    ## Why it matters

    Data parallelism relies on equal weights on all ranks: the mean of the gradients is a gradient
    of none of the models otherwise. Nothing fails; the loss is a little worse, and a checkpoint has
    the weights of one rank.

    ## Example

    In all three programs one process plays both ranks. A program that `torchrun` starts records on
    each rank, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all. The
    learning rate is not the same:

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

    Each rank draws its own initial weights:

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

    The gradient of the bias is not averaged:

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

    One program repairs all three: the same weights, the same learning rate, and an average of every
    gradient. `DistributedDataParallel` sends the weights of rank 0 and averages by itself.

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

    Experts, and ranks that train different models, differ from the start and nothing averages their
    gradients: they are not reported. Where weights are averaged now and then (local SGD), ignore
    the rule.

    ## Not detected

    Values that differ and have the same checksum or norm, and parameters of a rank whose graph is
    missing.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [Internal design of DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html)
    """
    if any(_has_other_reason(graph) for graph in graphs) or _still(graphs):
        return
    known = set(unaveraged(graphs))
    every = list(parted(graphs, "parameter"))
    own = _own_modules(graphs, [each.name for each in every if not each.since])
    found = [
        each
        for each in every
        if each.since and each.name not in known and own.isdisjoint(_around(each.name))
    ]
    groups: dict[tuple[str, _Reason], list[str]] = {}
    for each in found:
        reason = None if each.again else _reason(graphs, each)
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


def _own_modules(graphs: Sequence[Graph], different: Sequence[str]) -> set[str]:
    """Return the paths of modules that each rank has of its own, such as its experts.

    Some of the parameters of such a module differ from the start, and the gradient of none is
    averaged: its biases of zeros and norms of ones were the same at the start alone.

    Args:
        graphs: one of each rank.
        different: names of the parameters that the ranks never had the same.
    """
    averaged = {path for each in map(averages, graphs) for name in each for path in _around(name)}
    return {path for name in different for path in _around(name)} - averaged


def _around(name: str) -> list[str]:
    """Return the paths of the modules around a parameter: "a" and "a.b" of "a.b.weight"."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _has_other_reason(graph: Graph) -> bool:
    """Does another rule say why."""
    ends = WrapperBypass, UnusedInWrapper
    return graph.failure is not None or any(isinstance(event, ends) for event in graph.events)


def _reason(graphs: Sequence[Graph], found: Parted) -> _Reason | None:
    reduced = [averages(graph) for graph in graphs]
    own = [each[found.name].where for each in reduced if found.name in each]
    if all(found.name in each for each in reduced):
        return _of_averaged(graphs, f", though the gradients are averaged{at(own[0])}")
    if found.wrapper == "DTensor":
        return _of_averaged(graphs, ", which have the same part of a DTensor")
    if any(found.name in each for each in reduced):
        return None  # ranks that do not send the same are told of
    used = _used(graphs, found.name)
    if found.wrapper:
        return _Reason(
            "error",
            f": {found.wrapper} wraps the model, and nothing averages the gradients",
            f"{_DDP} averages after forwards of its own, outside of no_sync(): call the wrapper, "
            "not what it holds, and leave no_sync() for the last micro-batch.",
            used,
            "not averaged",
        )
    if any(reduced):
        others = reduced[0] or next(filter(None, reduced))
        first = next(iter(others.values()))
        by_hand = first.phase != "backward"
        return _Reason(
            "error",
            f": nothing averages the gradients, as it does those of {listing(others)}"
            f"{at(first.where)}",
            "Average these gradients with the others."
            if by_hand
            else f"Wrap the model that has it in {_DDP}, too, or average the gradients by hand.",
            first.where if by_hand else used,
            "not averaged",
        )
    return _of_nothing(graphs, found, used)


def _of_nothing(graphs: Sequence[Graph], found: Parted, used: str) -> _Reason:
    """Why, where no gradient is averaged that is known."""
    sizes = {p.name: p.tensor.nbytes or 0 for p in graphs[0].parameters}
    sent = [c for c in graphs[0].collectives if c.kind in REDUCING and not c.parameters]
    by_hand = [c for c in sent if c.phase == "other"]
    if any(4 * each.nbytes >= sizes.get(found.name, 0) for each in by_hand):
        where = max(by_hand, key=lambda each: each.nbytes).where
        return _Reason(
            "warning",
            f": nothing averages the gradients. What is reduced{at(where)} is not the .grad of a "
            "parameter, and is not put back there",
            "Reduce parameter.grad itself, or copy the result into it before the optimizer steps.",
            where,
            "not averaged",
        )
    others = [c.where for c in sent if c.phase == "backward"]
    if others:
        return _Reason(
            "error",
            f": no {_DDP} wraps the model, while one averages gradients{at(others[0])}",
            f"Wrap the model that has it in {_DDP}, too, or average the gradients by hand.",
            used,
            "not averaged",
        )
    return _Reason(
        "info",
        ": they began with the same, and nothing averages gradients",
        f"Wrap the model in {_DDP}, or average the gradients by hand. Where each rank is to train "
        "by itself, or weights are averaged now and then, it is as it should be.",
        used,
        "not averaged",
    )


def _of_averaged(graphs: Sequence[Graph], averaged: str) -> _Reason:
    """Why, where the gradients are averaged, or should be the same without."""
    steps = [[e for e in graph.events if isinstance(e, OptimizerStep)] for graph in graphs]
    lines = [step.where for row in steps for step in row]
    where = lines[0] if lines else ""
    rates = _other_rates([[step.learning_rates for step in row] for row in steps])
    if rates:
        return _Reason(
            "error",
            f"{averaged}: the learning rate is {listing(rates)}",
            "Give the optimizer the same learning rate on every rank.",
            where,
            "other learning rates",
        )
    clips = [e.where for g in graphs for e in g.events if _clips_by_given_norm(e)]
    if clips:
        return _Reason(
            "error",
            f"{averaged}: clip_grads_with_norm_(){at(clips[0])} clips by a norm that each rank "
            "gives it",
            "Average the gradients first, and compute the norm of what comes of it.",
            clips[0],
            "clipped by each rank's own norm",
        )
    return _Reason(
        "error",
        averaged,
        "Look for what a rank does by itself between that average and the next step: an "
        "optimizer's state or weights that one rank alone loads, a step that one rank skips, "
        "gradients that it changes.",
        where,
        "other weights on a rank",
    )


def _other_rates(rates: Sequence[Sequence[Sequence[float | None]]]) -> list[str]:
    """The first two rates that are not the same, by rank; `rates[i]` are rank i's, by step."""
    first, *others = [[rate for step in row for rate in step] for row in rates]
    for rank, row in enumerate(others, 1):
        for one, other in zip(first, row, strict=False):
            if one is not None and other is not None and one != other:
                return [f"{one:.6g} on rank 0", f"{other:.6g} on rank {rank}"]
    return []


def _clips_by_given_norm(event: object) -> bool:
    if not isinstance(event, GradientClip):
        return False
    return event.function == "clip_grads_with_norm_" and event.moment == "in time"


def _used(graphs: Sequence[Graph], name: str) -> str:
    """The line at which the forward uses a parameter."""
    for graph in graphs:
        node = next((p.node for p in graph.parameters if p.name == name), None)
        for edge in graph.edges if node is not None else ():
            if edge.source == node and graph.nodes[edge.target].line:
                return graph.nodes[edge.target].line
    return ""


@rule("error", reads="ranks", advanced=True)
def skipped_step(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Some ranks stepped with the averaged gradients and others did not: from then on each of them
    trains a model of its own.

    ## Why it matters

    The weights of the ranks differ after the step that one of them skips. The next averages mix
    gradients of different models, without an error.

    ## Example

    Here one process plays both ranks. A program that `torchrun` starts records on each rank, and
    `graphviz_torch.distributed.gather_graphs` returns the graphs of all:

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

    Decide after an `all_reduce`, so that all ranks decide the same:

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

    Not in data parallelism. Ranks that average no gradients are not reported.

    ## Not detected

    A step that a rank skips before the last recorded backward: `diverged-replicas` then reports the
    weights.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [torch.distributed.all_reduce](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
    """
    steps = [[e for e in graph.events if isinstance(e, OptimizerStep)] for graph in graphs]
    stood = _still(graphs)
    if not stood:
        return
    first = next(rank for rank, row in enumerate(steps) if row)
    yield finding(
        "error",
        f"{ranks_text(stood).capitalize()} did not step after the last backward, and rank {first} "
        f"did{at(steps[first][-1].where)}, while all average the gradients.",
        cause="a step that some ranks skip",
        advice="Decide on all ranks alike: reduce what decides (dist.all_reduce(flag)) before the "
        "step.",
        where=steps[first][-1].where,
    )


def _still(graphs: Sequence[Graph]) -> list[int]:
    """The ranks that did not step, where others did, and all average."""
    if any(graph.failure is not None or not averages(graph) for graph in graphs):
        return []
    steps = [any(isinstance(e, OptimizerStep) for e in graph.events) for graph in graphs]
    return [rank for rank, stepped in enumerate(steps) if any(steps) and not stepped]


@rule("warning", reads="ranks")
def diverged_buffers(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Ranks that train one model have different buffers, such as the running averages of BatchNorm,
    and nothing makes them equal.

    ## Why it matters

    Each rank evaluates a different model, and a checkpoint has the buffers of one rank: its scores
    are not those that the training printed.

    ## Example

    Here one process plays both ranks. A program that `torchrun` starts records on each rank, and
    `graphviz_torch.distributed.gather_graphs` returns the graphs of all:

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

    Buffers that are each rank's own state, such as a counter of its samples.

    ## Not detected

    Buffers that differ during the training and are equal again when the recording ends.

    ## See also

    - [DistributedDataParallel: broadcast_buffers](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html)
    """
    together = all(map(averages, graphs))
    names = [each.name for each in parted(graphs, "buffer") if together and not each.again]
    if not names:
        return
    owner = names[0].rpartition(".")[0]
    lines = [node.line for node in graphs[0].nodes if node.module == owner and node.line]
    where = lines[0] if lines else ""
    verb = "differs" if len(names) == 1 else "differ"
    yield finding(
        "warning",
        f"{listing(names)} {verb} between the ranks, which train one model{at(where)}: each "
        "rank evaluates with its own, and a file has those of one rank.",
        cause="buffers of each rank",
        advice=f"Leave {_DDP}(broadcast_buffers=True) as it is, convert BatchNorm to "
        "SyncBatchNorm, or broadcast the buffers before the model is evaluated or saved.",
        where=where,
    )
