"""Rules about gradients that ranks do not average, average twice, or average needlessly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ....graph import Collective, Finding, Graph, Severity
from ....graph.events import Event, OptimizerStep
from ....graph.immutable import immutable
from ....graph.text import listing
from ....graph.units import bytes_text
from ...graph_reading import REDUCING, Reading
from ...rule import finding, finds, rule
from ...words import at

MIB = 1 << 20
MIN_WASTE = MIB  # findings about fewer superfluous bytes have severity info


@immutable
class WrapperBypass(Event):
    """An optimizer step with gradients of a forward that bypassed DistributedDataParallel.

    `where` is the line that calls the forward; `nodes` are the ids of the parameters' nodes.
    """

    wrapper: str = ""  # name of the caller's variable for the DistributedDataParallel module


@rule("error", reads="end", of=(WrapperBypass,))
def ddp_bypassed(reading: Reading) -> Iterator[Finding]:
    """A forward did not go through DistributedDataParallel, as in `model.module(x)`. Its gradients
    are not averaged, so each rank trains its own model.

    ## Why it matters

    DistributedDataParallel averages gradients only after a forward of the wrapper. Without it, no
    error is raised, but each rank trains only on its own part of the data. The weights of the ranks
    diverge, and a checkpoint contains the weights of only one rank.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model.module(torch.randn(8, 4)).square().mean().backward()  # <- reported
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is intended

    An evaluation on one rank may call `model.module`. It has no backward, so it is not
    reported. A program that averages the gradients itself is not reported either.

    ## Not detected

    A forward of the module is not reported if no optimizer steps with its gradients.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [Internal design of DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html)
    """
    graph = reading.graph
    sent = sum(c.nbytes for c in graph.collectives if c.phase != "forward")
    sizes = {p.node: p.tensor.nbytes or 0 for p in graph.parameters}
    for event in reading.events(WrapperBypass):
        # A program that averages gradients itself may send them in half precision.
        if 2 * sent < sum(sizes.get(node, 0) for node in event.nodes):
            name = event.wrapper or "the wrapper"
            yield finding(
                "error",
                f"The forward{at(event.where)} did not go through {name}, so the gradients that "
                "the optimizer used were not averaged: each rank trains its own model.",
                cause="forward past the wrapper",
                advice=f"Call {name}(...) instead of {name}.module(...): DistributedDataParallel "
                "averages gradients only after its own forward.",
                where=event.where,
                nodes=event.nodes,
            )


@rule("error", reads="end")
@immutable
class DdpUnusedParameter(Event):
    """DistributedDataParallel waits for the gradient of a parameter on which the loss of this or
    another rank does not depend.

    ## Why it matters

    A bucket of gradients is averaged as soon as all gradients in it are computed. If one parameter
    gets no gradient, its bucket is not averaged, and the next forward raises an error. If other
    ranks have that gradient, they wait for this rank.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layers = nn.Linear(4, 1)
    layers.scale = nn.Parameter(torch.ones(1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()  # <- reported
        optimizer.step()
    dist.destroy_process_group()
    ```

    In this example, one process simulates both ranks. If `torchrun` starts a program, each rank
    records itself, and `graphviz_torch.distributed.gather_graphs` returns the graphs of all ranks:

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"small": nn.Linear(4, 1), "large": nn.Linear(4, 1)})
    ranks = []
    for rank in range(2):
        model.zero_grad()
        with record(model) as recording:
            model["small" if rank else "large"](torch.randn(8, 4)).mean().backward()
        ranks.append(recording.graph)
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layers = nn.Linear(4, 1)
    layers.scale = nn.Parameter(torch.ones(1), requires_grad=False)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"small": nn.Linear(4, 1), "large": nn.Linear(4, 1)})
    ranks = []
    for rank in range(2):
        model.zero_grad()
        x = torch.randn(8, 4)
        with record(model) as recording:
            (model["small"](x) + model["large"](x)).mean().backward()
        ranks.append(recording.graph)
    ```

    ## When it is intended

    With `find_unused_parameters=True`, DistributedDataParallel traverses the graph after each
    forward and marks unused parameters as ready. A recording of one rank then has no such finding.

    ## Not detected

    Parameters that are unused only in steps after the recording are not detected.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [Internal design of DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design)
    """

    # `where` is the line that called the wrapper's forward.
    parameters: tuple[str, ...] = ()

    def report(self) -> Finding:
        return finding(
            "error",
            f"DistributedDataParallel waits for the gradients of {listing(self.parameters)}, on "
            f"which the loss of the forward{at(self.where)} does not depend. Their buckets are "
            "not averaged, and the next forward raises an error.",
            cause="unused parameters",
            advice="Use these parameters, remove them, set their requires_grad to False before "
            "the model is wrapped, or pass find_unused_parameters=True.",
            where=self.where,
        )


@finds("redundant-all-reduce", reads="steps")
def repeated_average(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report several backwards before one optimizer step, each of which averages gradients.

    Only the last of these backwards needs to average the gradients.
    """
    steps = (any(isinstance(e, OptimizerStep) for e in graph.events) for graph in graphs)
    first = next((i for i, stepped in enumerate(steps) if stepped), 0)
    rounds = [[c for c in graph.collectives if _is_average(c)] for graph in graphs[: first + 1]]
    names = (dict.fromkeys(n for c in sent for n in c.parameters) for sent in rounds)
    times = Counter(name for each in names for name in each)
    repeated = [name for name, count in times.items() if count > 1]
    if not repeated:
        return
    waste = [c for sent in rounds[:-1] for c in sent if not set(repeated).isdisjoint(c.parameters)]
    size, sharded = sum(each.nbytes for each in waste), waste[0].kind == "reduce_scatter"
    yield finding(
        "info" if sharded else waste_severity(size),
        f"The gradients of {listing(repeated)} are {'reduced' if sharded else 'averaged'} "
        f"{max(times.values())} times{at(waste[0].where)} before an optimizer steps with them: "
        + (
            f"a single reduction would send {bytes_text(size)} less."
            if sharded
            else f"{bytes_text(size)} are sent needlessly."
        ),
        cause="averaged in every backward",
        advice="Call model.set_requires_gradient_sync(False) before all micro-batches except "
        "the last. Each rank then keeps unsharded gradients until the last micro-batch, which "
        "needs memory."
        if sharded
        else "Run forward and backward of all micro-batches except the last inside `with "
        "model.no_sync():`. Running only backward inside is not enough.",
        where=waste[0].where,
    )


@rule("warning", reads="end", of=(Collective,))
def redundant_all_reduce(reading: Reading) -> Iterator[Finding]:
    """The ranks average gradients more often than a step needs: in each of several backwards, or by
    hand after DistributedDataParallel has already averaged them.

    ## Why it matters

    Each average sends all gradients over the network. In gradient accumulation over four batches,
    three of four averages are superfluous. If gradients that are already averaged are summed again
    by hand, the sum is the average times the number of ranks.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # <- reported
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for batch in torch.randn(4, 8, 4):
            (model(batch).square().mean() / 4).backward()  # <- reported
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    Average only in the last backward of a step. The forward must be inside `no_sync()`, too:

    ```python
    import torch
    import torch.distributed as dist
    from contextlib import nullcontext
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for i, batch in enumerate(torch.randn(4, 8, 4)):
            with model.no_sync() if i < 3 else nullcontext():
                (model(batch).square().mean() / 4).backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is intended

    If FSDP does not reduce gradients after each micro-batch, each rank keeps whole gradients. If
    they do not fit into memory, reduce the gradients in each backward.

    ## Not detected

    Averages over two different groups of ranks, one after the other, are not reported.

    ## See also

    - [DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync)
    """
    sent = reading.graph.collectives
    averaged = {(n, c.group, c.group_size) for c in sent if _is_average(c) for n in c.parameters}
    repeated = [
        each
        for each in sent
        if each.kind in ("all_reduce", "reduce") and each.gradients and each.phase == "other"
        if any((name, each.group, each.group_size) in averaged for name in each.parameters)
    ]
    if repeated:
        names = list(dict.fromkeys(name for each in repeated for name in each.parameters))
        size, ranks = sum(each.nbytes for each in repeated), repeated[0].group_size
        large = f", and without a division the sum is {ranks} times the average" * (ranks > 1)
        yield finding(
            "warning",
            f"The gradients of {listing(names)}, which DistributedDataParallel has averaged in "
            f"backward, are reduced again{at(repeated[0].where)}: {bytes_text(size)} are sent "
            f"needlessly{large}.",
            cause="averaged, and reduced by hand",
            advice="Remove the manual all_reduce, or train without DistributedDataParallel.",
            where=repeated[0].where,
        )


def _is_average(collective: Collective) -> bool:
    """Return True if the collective averages gradients in the backward of its own graph."""
    return collective.kind in REDUCING and collective.own and bool(collective.gradients)


@rule("info", reads="steps", advanced=True)
def divided_twice(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """The program divides the loss by the number of ranks, although the average over the ranks also
    divides the gradients by this number, so the gradients are too small.

    ## Why it matters

    With eight ranks, the gradients are an eighth of the mean. The steps of SGD are eight times too
    small, and clipping and weight decay have a different effect than on one device. With Adam, the
    factor is hardly visible.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    model = fully_shard(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for batch in torch.randn(2, 8, 4):
            optimizer.zero_grad()
            loss = model(batch).square().mean() / dist.get_world_size()  # <- reported
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    model = fully_shard(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for batch in torch.randn(2, 8, 4):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is intended

    The divisor may be another number that happens to be the number of ranks, such as the number of
    micro-batches in a step.

    ## Not detected

    A division that is not the last operation of the loss, and a division of the gradients by hand,
    are not detected.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)
    """
    last = graphs[-1]
    steps = [any(isinstance(e, OptimizerStep) for e in graph.events) for graph in graphs]
    sent = [c for c in last.collectives if _is_average(c) and c.group_size > 1]
    if not (sent and all(steps) and len(last.outputs) == 1):
        return  # the loss may be divided by the number of backwards per step
    node, reading = last.nodes[last.outputs[0][0]], Reading(last)
    ranks, inputs = sent[0].group_size, reading.inputs[node.id]
    mean_of_terms = any(last.nodes[edge.source].title == "add" for edge in inputs)
    if node.title == "div" and f"other={ranks}" in node.attributes and not mean_of_terms:
        yield finding(
            "info",
            f"The loss is divided by {ranks}{at(node.line)}, and {ranks} ranks train: the "
            f"average of the gradients{at(sent[0].where)} also divides by the number of ranks.",
            cause="divided twice",
            advice="If this divisor is meant as the number of ranks, remove the division, which "
            "only makes the gradients smaller.",
            where=node.line,
            nodes=(node.id,),
        )


def waste_severity(size: int) -> Severity:
    """Return the severity of a finding about `size` superfluous bytes."""
    return "info" if size < MIN_WASTE else "warning"
