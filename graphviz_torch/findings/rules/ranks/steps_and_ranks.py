"""Rules that compare graphs: a graph that grows from step to step, and ranks that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ....graph import Collective, Finding, GradientStats, Graph, Parameter
from ....graph.text import listing, ranks_text
from ....graph.units import bytes_text, count_text
from ...graph_reading import averages, largest_unnamed_average
from ...rule import finding, finds, rule
from ...words import at
from .divergence import find_diverged

STEPS = 3  # minimal number of steps in which the graph grows
_MAX_STEPS_COMPARED = 5

# Relative difference of norms. The norms of equal weights on different devices differ by less, and
# those of weights with different seeds differ by more.
_NORM_TOLERANCE = 1e-5
_MAX_COMPRESSION = 4  # largest ratio of a gradient's bytes to the bytes sent for it
# Kinds of collectives to which all ranks of a group pass the same number of bytes.
_SAME_SIZE_KINDS = ("all_reduce", "broadcast", "reduce")


@finds("retained-graph", reads="steps")
def growing_graph(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report a graph that grows by the same number of nodes in each step.

    It grows because a result is kept with its history.
    """
    if graphs[-1].step.retained is not None:
        return  # reported by retained_graph
    if graphs[-1].step.continues_previous is False:
        return  # no result is carried over; the graph may grow because the sequence is longer
    if any(map(_is_grad_call, graphs[-STEPS:])):
        return  # the gradients of an inner loop's steps are part of the graph on purpose
    if len({sum(bool(node.leaf) for node in graph.nodes) for graph in graphs[-STEPS:]}) > 1:
        return  # more parameters are trained than before
    counts = [len(graph.nodes) for graph in graphs[-_MAX_STEPS_COMPARED:]]
    growth = counts[-1] - counts[-2] if len(counts) >= STEPS else 0
    # Episodes have varying lengths, so the graphs of three steps may grow by equal amounts by
    # chance.
    if growth <= 0 or any(after - before != growth for before, after in pairwise(counts)):
        return
    # The nodes that each step adds are created at the lines of the loop.
    created, before = (
        Counter((n.title, n.where, n.module) for n in g.nodes if not n.leaf) for g in graphs[:-3:-1]
    )
    added = set(created - before)
    newest = graphs[-1].nodes
    new = [n for n in newest if (n.title, n.where, n.module) in added]
    # The result that is kept is a sum outside of modules or, without one, the first new node.
    kept = next((n for n in new if n.title == "add" and not n.module), new[0] if new else None)
    where = kept.where if kept is not None else ""
    sizes = listing(map(str, counts[-STEPS:]))
    yield finding(
        "warning",
        f"The graph grows by {growth} nodes in each step ({sizes} nodes): a "
        f"result is kept with its history{at(where)}.",
        cause="history kept from step to step",
        advice="Add up numbers instead of tensors (total += loss.item()), or detach() the tensor "
        "that is carried over.",
        where=where,
        nodes=() if kept is None else (kept.id,),
    )


def _is_grad_call(graph: Graph) -> bool:
    """Return True if `torch.autograd.grad` ran instead of `backward()`: nodes ran, but no leaf."""
    ran = [node.leaf for node in graph.nodes if node.order is not None]
    return bool(ran) and not any(ran)


@finds("ddp-unused-parameter", reads="ranks")
def skipped_parameter(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report parameters with a gradient on some ranks only, for which DDP waits."""
    having = [{p.name for p in graph.parameters if p.has_grad} for graph in graphs]
    known = [{p.name for p in graph.parameters if p.requires_grad} for graph in graphs]
    everywhere = dict.fromkeys(p.name for graph in graphs for p in graph.parameters)
    groups: dict[tuple[int, ...], list[str]] = {}
    wrapped = any(each.phase == "backward" for g in graphs for each in averages(g).values())
    for name in everywhere:
        missing = tuple(r for r in range(len(graphs)) if name in known[r] - having[r])
        if missing and any(name in names for names in having):
            groups.setdefault(missing, []).append(name)
    for ranks, names in groups.items():
        uncalled = all(
            p.module_called is False for r in ranks for p in graphs[r].parameters if p.name in names
        )
        has = f"{ranks_text(ranks).capitalize()} {'has' if len(ranks) == 1 else 'have'}"
        yield finding(
            "error",
            f"{has} no gradient for {listing(names)}, but other ranks have one"
            f"{': its module was never called' if uncalled else ''}.",
            cause="never called on that rank" if uncalled else "no gradient on that rank",
            advice="Run the same modules on every rank"
            + (
                ", or use DistributedDataParallel(find_unused_parameters=True)." if wrapped else "."
            ),
        )


@rule("error", reads="ranks", also=("rehearse",))
def mismatched_collectives(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """The ranks of a group call different collectives, or call them in a different number or order,
    so they wait for each other forever or mix up their data.

    ## Why it matters

    A collective returns when all ranks of the group have called it. If a rank does not, the program
    hangs until the watchdog ends it, by default after ten minutes for NCCL. If two different calls
    have the same size, the ranks continue with wrong data.

    ## Example

    In this example, one process simulates both ranks. If `torchrun` starts a program, each rank
    records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all ranks:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, ranks = nn.Linear(4, 1), []
    for rank in range(2):
        with record(model) as recording:
            loss = model(torch.randn(8, 4)).mean()
            loss.backward()
            if rank == 0:
                dist.all_reduce(loss.detach())  # <- reported
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, ranks = nn.Linear(4, 1), []
    for rank in range(2):
        with record(model) as recording:
            loss = model(torch.randn(8, 4)).mean()
            loss.backward()
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(mean.item())
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## When it is intended

    Ranks with different tasks, such as the stages of a pipeline, call collectives of their own
    groups. They are not reported, and messages between two ranks (`send`, `recv`) are not compared.

    ## Not detected

    A group is not compared if the graph of one of its ranks is missing. Collectives of other
    threads are not detected.

    ## See also

    - [Distributed communication](https://docs.pytorch.org/docs/stable/distributed.html)
    - [TORCH_DISTRIBUTED_DEBUG](https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug)
    """
    for size, members in _groups(graphs).values():
        if len(members) != size:
            continue  # a rank of the group is missing, or several groups have this name
        for i in range(max(map(len, members.values()))):
            calls = {rank: row[i] if i < len(row) else None for rank, row in members.items()}
            first, one = next((rank, each) for rank, each in calls.items() if each is not None)
            other = next((rank for rank in calls if not _match(one, calls[rank])), None)
            if other is None:
                continue
            # A rank whose program failed calls no more collectives.
            if calls[other] is not None or graphs[other].failure is None:
                yield finding(
                    "error",
                    f"Ranks call different collectives: call {i + 1} of {one.group or 'all ranks'} "
                    f"is {_call_text(one)} on rank {first}, and {_call_text(calls[other])} on rank "
                    f"{other}.",
                    cause="different collectives",
                    advice="Call the same collectives in the same order on every rank: not "
                    "inside `if rank == 0`, and in a loop over a list, not over a set.",
                    where=one.where,
                )
            break


def _groups(graphs: Sequence[Graph]) -> dict[str, tuple[int, dict[int, list[Collective]]]]:
    """Return each process group's size and collectives by rank, without send and recv."""
    sent = [[c for c in graph.collectives if c.kind not in ("send", "recv")] for graph in graphs]
    timeless = {each.group for row in sent for each in row if not each.times}
    found: dict[str, tuple[int, dict[int, list[Collective]]]] = {}
    for rank, row in enumerate(sent):
        for each in row:
            # All groups of a mesh dimension have the same name, but `times` contains their own
            # names.
            name = each.group if each.group in timeless else f"{each.group} {each.times[0].group}"
            size = each.group_size if each.group else len(graphs)
            _, members = found.setdefault(name, (size, {}))
            members.setdefault(rank, []).append(each)
            if not each.group:
                members |= {other: [] for other in range(len(graphs)) if other not in members}
    return found


def _match(a: Collective | None, b: Collective | None) -> bool:
    """Return True if two ranks of a group may pair these calls with each other.

    Args:
        a: a call of one rank; None if it has made no further call.
        b: the call of the other rank, or None.
    """
    if a is None or b is None:
        return a is b
    if (a.kind, a.dtype) != (b.kind, b.dtype) or (
        a.kind in _SAME_SIZE_KINDS and a.nbytes != b.nbytes
    ):
        return False
    # The parameters of a DDP bucket are inferred from sizes, and may be wrong.
    exact = a.phase != "backward" or a.kind != "all_reduce"
    return not (exact and a.parameters and b.parameters) or a.parameters == b.parameters


def _call_text(collective: Collective | None) -> str:
    """Return a collective and its line, such as "all_reduce of fc.weight at train.py:9"."""
    if collective is None:
        return "nothing"
    payload = listing(collective.parameters)
    if not payload and collective.kind != "barrier":
        payload = f"{bytes_text(collective.nbytes)} {collective.dtype}"
    return f"{collective.kind}{f' of {payload}' if payload else ''}{at(collective.where)}"


@rule("info", reads="ranks", advanced=True)
def rank_only_sync(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Only some ranks read values back from their device, and the other ranks wait for them in the
    next collective.

    ## Why it matters

    A read waits until the device has finished all queued work. If only rank 0 logs the loss, it
    calls the next collective later than the other ranks, and all devices are idle until then.

    ## Example

    In this example, one process simulates both ranks. If `torchrun` starts a program, each rank
    records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all ranks:

    ```python
    import torch
    import torch.distributed as dist
    from graphviz_torch import record, simulate_accelerator

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ranks = []
    with simulate_accelerator() as [device]:
        for rank in range(2):
            with record() as recording:
                (loss := torch.ones(4, device=device, requires_grad=True).sum()).backward()
                print(loss.item() if rank == 0 else "")  # <- reported
                dist.all_reduce(torch.ones(1))
            ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from graphviz_torch import record, simulate_accelerator

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ranks = []
    with simulate_accelerator() as [device]:
        for rank in range(2):
            with record() as recording:
                (loss := torch.ones(4, device=device, requires_grad=True).sum()).backward()
                loss = loss.detach()
                dist.all_reduce(torch.ones(1))
            print(loss.item() if rank == 0 else "")
            ranks.append(recording.graph)
    dist.destroy_process_group()
    ```

    ## When it is intended

    Logging on rank 0 every hundred steps has no measurable cost.

    ## Not detected

    A read on more than half of the ranks is not reported. A rank that is late for another reason,
    such as writing a checkpoint, is not detected.

    ## See also

    - [CUDA semantics: asynchronous execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """
    if len(graphs) < 2 or not all(graph.collectives for graph in graphs):
        return
    reads = [Counter(t.where for t in graph.transfers if t.kind == "DtoH") for graph in graphs]
    for where in dict.fromkeys(line for counts in reads for line in counts):
        ranks = [rank for rank, counts in enumerate(reads) if counts[where]]
        if where and 2 * len(ranks) <= len(graphs):
            times = max(counts[where] for counts in reads)
            yield finding(
                "info",
                f"{ranks_text(ranks).capitalize()} alone read{'s' * (len(ranks) == 1)} values "
                f"back from a device, {count_text(times, 'time')}{at(where)}: the other ranks "
                "wait in the next collective until the read is done.",
                cause="a read on some ranks only",
                advice="Read less often: keep x.detach(), and call item() once for many steps.",
                where=where,
            )


@finds("diverged-replicas", reads="ranks")
def different_weights(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report parameters whose values differ between ranks that average their gradients."""
    names = []
    later = {each.name for each in find_diverged(graphs, "parameter") if each.since}
    for name, copies in _averaged_copies(graphs):
        norms = [each.norm for each in copies]
        known = [norm for norm in norms if norm is not None]
        whole = len(known) == len(norms) and not any(each.extent for each in copies)
        if whole and name not in later and max(known) - min(known) > _NORM_TOLERANCE * max(known):
            names.append(name)
    if not names:
        return
    average = averages(graphs[0])[names[0]]
    where = average.where
    if average.phase == "backward":
        yield finding(
            "error",
            f"The values of {listing(names)} differ between the ranks, although the ranks average "
            f"the gradients in backward{at(where)}.",
            cause="different weights on a rank",
            advice="DistributedDataParallel makes weights equal when it wraps the model. Look "
            "for code that changed them on one rank afterwards: weights that were loaded "
            "later, gradients that are clipped by each rank's own norm, or a step that one "
            "rank skipped. If your own hooks average the gradients, broadcast the weights from "
            "rank 0 first.",
            where=where,
        )
    else:
        yield finding(
            "error",
            f"The values of {listing(names)} differ between the ranks, although the ranks average "
            f"the gradients{at(where)}.",
            cause="different weights on a rank",
            advice="Start with the same weights on every rank: broadcast them from rank 0 "
            "(dist.broadcast(parameter.detach(), src=0)), set the same seed before the model "
            "is created, or use DistributedDataParallel, which broadcasts them.",
            where=where,
        )


@finds("repeated-batch", reads="ranks")
def same_batch(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report that all ranks computed equal gradients before averaging.

    They did so because they had the same batch.
    """
    rows = [
        [_stats(graph, each) for graph, each in zip(graphs, copies, strict=True)]
        for _, copies in _averaged_copies(graphs)
    ]
    known = [row for row in rows if None not in row]
    if not known or not all(_equal(row) for row in known):
        return
    if any(row[0] is not None and row[0].norm > 0 for row in known):
        where = next(iter(averages(graphs[0]).values())).where
        yield finding(
            "warning",
            f"{'Both' if len(graphs) == 2 else f'All {len(graphs)}'} ranks computed the same "
            f"gradients before they averaged them{at(where)}: each had the same batch.",
            cause="the same batch on every rank",
            advice="Give the DataLoader a sampler=DistributedSampler(dataset), or let each rank "
            "sample its batches with its own seed.",
            where=where,
        )


@finds("diverged-replicas", reads="ranks")
def unaveraged_parameter(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report parameters with equal values whose different gradients are not averaged.

    Nothing is reported unless the gradients of other parameters are averaged.
    """
    names = unaveraged_names(graphs)
    if names:
        yield finding(
            "error",
            f"{listing(names)} got different gradients on the ranks, and these are not averaged, "
            f"unlike those of {listing(averages(graphs[0]))}: the copies diverge.",
            cause="not averaged",
            advice="Average the gradient of this parameter, too: call fully_shard(model) after "
            "fully_shard of its blocks, or wrap the whole model in one DistributedDataParallel.",
        )


def unaveraged_names(graphs: Sequence[Graph]) -> list[str]:
    """Return the names of replicated parameters whose gradients differ and are not averaged.

    The list is empty unless gradients of other parameters are averaged.
    """
    reduced = [averages(graph) for graph in graphs]
    if len(graphs) < 2 or not all(reduced):
        return []
    unnamed = max(map(largest_unnamed_average, graphs))
    names = []
    for name, copies in _copies(graphs):
        size = copies[0].tensor.nbytes or 0
        if any(name in averages for averages in reduced) or unnamed >= size // _MAX_COMPRESSION:
            continue
        norms = {each.norm for each in copies}
        gradients = [_stats(graph, each) for graph, each in zip(graphs, copies, strict=True)]
        replicas = len(norms) == 1 and None not in norms and not any(c.extent for c in copies)
        learned = all(each.stepped for each in copies) and None not in gradients
        if replicas and learned and not _equal(gradients):
            names.append(name)
    return names


def _copies(graphs: Sequence[Graph]) -> Iterator[tuple[str, list[Parameter]]]:
    """Yield the name of each parameter that all ranks have, and its copies by rank."""
    first, *others = [{each.name: each for each in graph.parameters} for graph in graphs] or [{}]
    for name, parameter in first.items() if others else ():
        copies = [parameter, *(table[name] for table in others if name in table)]
        if len(copies) == len(graphs):
            yield name, copies


def _averaged_copies(graphs: Sequence[Graph]) -> Iterator[tuple[str, list[Parameter]]]:
    """Yield name and copies of each parameter whose gradient all ranks average together.

    The copies are in order of ranks.
    """
    reduced = [averages(graph) for graph in graphs]
    for name, copies in _copies(graphs):
        found = [each[name] for each in reduced if name in each]
        everybody = all(not each.group or each.group_size == len(graphs) for each in found)
        if len(found) == len(graphs) and everybody:
            yield name, copies


def _stats(graph: Graph, parameter: Parameter) -> GradientStats | None:
    """Return the statistics of a parameter's gradient in a graph; None if unknown."""
    gradients = () if parameter.node is None else graph.nodes[parameter.node].grad_outputs
    return gradients[0] if gradients else None


def _equal(gradients: Sequence[GradientStats | None]) -> bool:
    """Return True if the recorded statistics of the gradients are equal."""
    return len({(g.norm, g.max_abs, g.mean, g.zero_fraction) for g in gradients if g}) == 1
