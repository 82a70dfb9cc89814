"""Rules about collectives of one rank: gradients that are not averaged, and superfluous traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ....graph import Collective, Cut, Finding, Graph, Node, Severity
from ....graph.events import OptimizerStep, UnusedInWrapper, WrapperBypass
from ....graph.text import listing
from ....graph.units import bytes_text
from ...graph_reading import REDUCING, Reading, averages
from ...rule import finding, finds, rule
from ...words import at

MIB = 1 << 20
_MIN_WASTE = MIB  # superfluous bytes; for less, the severity is info
_MIN_UNIT, _LARGE_UNIT = 64 * MIB, 1024 * MIB  # bytes of the parameters of one fully_shard call
# Batch norm is worse with fewer rows (Wu and He 2018, "Group Normalization").
_MIN_ROWS = 16
_DTENSOR_CASTS = ("_ToTorchTensor", "_FromTorchTensor")


@rule("error", reads="end", of=(WrapperBypass,))
def ddp_bypassed(reading: Reading) -> Iterator[Finding]:
    """A forward did not go through DistributedDataParallel, as in `model.module(x)`. Its gradients
    are not averaged, so each rank trains its own model.

    ## Why it matters

    DistributedDataParallel averages gradients only after a forward of the wrapper. Otherwise no
    error is raised, but each rank trains on its part of the data only, the weights of the ranks
    diverge, and a checkpoint has the weights of one rank.

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

    An evaluation on one rank may call `model.module`. It has no backward, so that it is not
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


@rule("error", reads="end", of=(UnusedInWrapper,))
def ddp_unused_parameter(reading: Reading) -> Iterator[Finding]:
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

    In this example, one process plays both ranks. In a program that `torchrun` starts, each rank
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

    A parameter that only a step after the recording does not use is not detected.

    ## See also

    - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    - [Internal design of DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design)
    """
    for event in reading.events(UnusedInWrapper):
        yield finding(
            "error",
            f"DistributedDataParallel waits for the gradients of {listing(event.parameters)}, on "
            f"which the loss of the forward{at(event.where)} does not depend. Their buckets are "
            "not averaged, and the next forward raises an error.",
            cause="unused parameters",
            advice="Use these parameters, remove them, set their requires_grad to False before "
            "the model is wrapped, or pass find_unused_parameters=True.",
            where=event.where,
        )


@finds("redundant-all-reduce", reads="steps")
def repeated_average(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report several backwards before one step that all average gradients; only the last needs
    to.
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
        "info" if sharded else _severity(size),
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
    """The ranks average gradients more often than a step needs, in each of several backwards, or by
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
            advice="Remove the all_reduce by hand, or train without DistributedDataParallel.",
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

    The divisor may be another number that happens to be equal, such as the number of micro-batches
    in a step.

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
        return  # the divisor may be the number of backwards in a step
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


@rule("warning", of=(Cut,), advanced=True)
def non_differentiable_all_gather(reading: Reading) -> Iterator[Finding]:
    """The loss uses the copy of this rank's tensor that `all_gather` returned, through which no
    gradient flows back.

    ## Why it matters

    `torch.distributed.all_gather` is not differentiable. In a contrastive loss, the features of a
    rank then get a gradient on one side of the product only. The gradient is wrong, but no error is
    raised.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = nn.Linear(4, 2)
    with record(model) as recording:
        features = model(torch.randn(8, 4))
        every = [torch.zeros_like(features) for _ in range(2)]
        dist.all_gather(every, features)  # <- reported
        scores = features @ torch.cat(every).t()
        nn.functional.cross_entropy(scores, torch.arange(8)).backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = nn.Linear(4, 2)
    with record(model) as recording:
        features = model(torch.randn(8, 4))
        every = [torch.zeros_like(features) for _ in range(2)]
        dist.all_gather(every, features)
        every[dist.get_rank()] = features
        scores = features @ torch.cat(every).t()
        nn.functional.cross_entropy(scores, torch.arange(8)).backward()
    dist.destroy_process_group()
    ```

    `torch.distributed.nn.functional.all_gather` is differentiable: in backward, each rank
    also sends the gradients of the tensors that it received to the ranks they came from.

    ## When it is intended

    Gathered negatives may be meant as constants, as in the queue of MoCo. Silence the rule at the
    line then.

    ## Not detected

    Copies that are converted to NumPy or a list of numbers before the loss uses them are not
    followed.

    ## See also

    - [torch.distributed.all_gather](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
    """
    for cut in reading.graph.cuts:
        if cut.how == "all_gather" and cut.after:
            name = cut.label or "this rank's tensor"
            yield finding(
                "warning",
                f"all_gather{at(cut.where)} is not differentiable, but the loss uses the gathered "
                f"copy of {name}{at(reading.graph.nodes[cut.after[0]].line)}: no gradient flows "
                "back through the copy.",
                cause="all_gather without gradient",
                advice="Use torch.distributed.nn.functional.all_gather, which is "
                "differentiable, or replace this rank's copy by the tensor itself.",
                where=cut.where,
                nodes=cut.after,
            )


@rule("warning", reads="end", of=(Collective,), advanced=True)
def fsdp_regather(reading: Reading) -> Iterator[Finding]:
    """A module with `fully_shard` is called several times in one forward, and its parameters, which
    are freed after each call, are gathered again for the next.

    ## Why it matters

    Each gather sends all parameters of the module over the network, and the forward waits for it. A
    shared layer that is called twelve times costs twelve gathers instead of one.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    cell = nn.Linear(4, 4)
    model = nn.Sequential(cell, nn.ReLU(), cell, nn.Linear(4, 1))
    fully_shard(cell)
    fully_shard(model)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()  # <- reported
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

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    cell = nn.Linear(4, 4)
    model = nn.Sequential(cell, nn.ReLU(), cell, nn.Linear(4, 1))
    fully_shard(cell, reshard_after_forward=False)
    fully_shard(model)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    dist.destroy_process_group()
    ```

    ## When it is intended

    There may be no memory to keep the module's whole parameters until backward.

    ## Not detected

    Calls that a checkpoint repeats in backward are not counted.

    ## See also

    - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)
    """
    for sent, times in _repeated_gathers(reading.graph.collectives):
        if any(_is_later_call(node, sent.module) for node in reading.graph.nodes):
            size = sent.nbytes * sent.group_size * (times - 1)
            yield finding(
                _severity(size),
                f"The parameters of {sent.module} are gathered {times} times in one "
                f"forward{at(sent.where)}, because they are freed after each call of the module.",
                cause="freed between two calls",
                advice="Pass reshard_after_forward=False to the module's own fully_shard, which "
                "keeps the parameters until backward.",
                where=sent.where,
            )


def _repeated_gathers(collectives: Sequence[Collective]) -> Iterator[tuple[Collective, int]]:
    """Yield the first gather of parameters that one forward gathers repeatedly, and the number of
    gathers.
    """
    times: dict[tuple[str, ...], list[Collective]] = {}
    known: set[tuple[str, ...]] = set()
    for each in collectives:
        if each.phase == "backward":
            for names, row in times.items():
                if len(row) > 1 and names not in known:
                    known.add(names)
                    yield row[0], len(row)
            times = {}
        elif each.phase == "forward" and each.kind == "all_gather" and each.parameters:
            times.setdefault(each.parameters, []).append(each)


def _is_later_call(node: Node, module: str) -> bool:
    """Return True if a second or later call of a module created the node: "cell#2.fc" for
    "cell".
    """
    parts = node.scope.split(".")[: module.count(".") + 1]
    plain = ".".join([part.partition("#")[0] for part in parts])
    return bool(module) and plain == module and "#" in "".join(parts)


@rule("warning", reads="end", of=(Collective,), advanced=True)
def fsdp_single_unit(reading: Reading) -> Iterator[Finding]:
    """`fully_shard` was called only for the whole model, so each forward gathers all parameters at
    once before it computes anything.

    ## Why it matters

    The gather does not overlap with computation, and each rank has the whole model in memory while
    it computes. Sharding then does not save the memory that it should save.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
    fully_shard(model)
    with record(model) as recording:
        model(torch.randn(2, 2048)).sum().backward()  # <- reported
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

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    with record(model) as recording:
        model(torch.randn(2, 2048)).sum().backward()
    dist.destroy_process_group()
    ```

    ## When it is intended

    A model may fit on each rank, so that only the optimizer states need sharding.

    ## Not detected

    Models below 64 MiB, and models in which one parameter is more than half, are not reported.

    ## See also

    - [Getting started with fully_shard](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html)
    - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)
    """
    gathers = [c for c in reading.graph.collectives if c.kind == "all_gather" and c.parameters]
    if len({each.parameters for each in gathers}) != 1:
        return
    names, where = set(gathers[0].parameters), gathers[0].where
    sizes = [p.tensor.nbytes or 0 for p in reading.graph.parameters if p.name in names]
    total = sum(sizes)
    if total < _MIN_UNIT or 2 * max(sizes) > total:
        return
    yield finding(
        "info" if total < _LARGE_UNIT else "warning",
        f"All {len(names)} parameters, {bytes_text(total)}, are gathered at once{at(where)}, "
        "without overlap with computation, and each rank then has the whole model in memory.",
        cause="a single unit",
        advice="Call fully_shard on each block before the model: the parameters of a block are "
        "then gathered while the previous block runs, and freed after the block.",
        where=where,
    )


@rule("warning", of=(Collective,), advanced=True)
def redistributed_back(reading: Reading) -> Iterator[Finding]:
    """A DTensor is redistributed and then redistributed back, without a computation in between.

    ## Why it matters

    Both redistributions are collectives in the forward, and again in backward. All of this traffic
    is superfluous.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]).requires_grad_()
    with record() as recording:
        h = x.exp().redistribute(mesh, [Replicate()])
        h = h.redistribute(mesh, [Shard(0)])  # <- reported
        h.relu().to_local().sum().backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from graphviz_torch import record

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]).requires_grad_()
    with record() as recording:
        h = x.exp()
        h.relu().to_local().sum().backward()
    dist.destroy_process_group()
    ```

    ## When it is intended

    It is seldom intended. Usually `output_layouts` of one parallel style do not match
    `input_layouts` of the next.

    ## Not detected

    Redistributions with any operation in between are not reported, although some operations could
    run in either layout.

    ## See also

    - [torch.distributed.tensor](https://docs.pytorch.org/docs/stable/distributed.tensor.html)
    - [Tensor parallelism](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html)
    """
    nodes = reading.graph.nodes
    for node in nodes:
        before = reading.inputs[node.id]
        if node.title != "Redistribute" or len(before) != 1:
            continue
        source, back = nodes[before[0].source], _only_user(reading, node)
        if back is None or back.title != "Redistribute" or not source.placement:
            continue
        sent = [c for c in reading.graph.collectives if c.node in (node.id, back.id)]
        if back.placement == source.placement and sent:
            size = sum(each.nbytes for each in sent)
            placement = source.placement.rpartition(", local ")[0]
            yield finding(
                _severity(size),
                f"The result of {reading.call(source.id)} ({placement}) is "
                f"redistributed{at(node.line)} and redistributed back{at(back.line)}, without a "
                f"computation in between: {bytes_text(size)} are sent needlessly.",
                cause="redistributed back",
                advice="Remove both, or let the modules before and after use the same layout "
                "(output_layouts, input_layouts).",
                where=back.where,
                nodes=(source.id, node.id, back.id),
            )


def _only_user(reading: Reading, node: Node) -> Node | None:
    """Return the only user of a node's result, skipping to_local and from_local; None if there are
    several users.
    """
    while True:
        users = reading.users[node.id]
        if len(users) != 1:
            return None
        node = reading.graph.nodes[users[0].target]
        if node.title not in _DTENSOR_CASTS:
            return node


@rule("info", of=(Collective,))
def unsynced_batch_norm(reading: Reading) -> Iterator[Finding]:
    """On each rank, a batch norm normalizes fewer than 16 rows, while the ranks average gradients.

    ## Why it matters

    The mean and variance of a few rows are noisy. Accuracy suffers from the small batch of each
    rank, although all ranks together have a large batch.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = DistributedDataParallel(model)
    with record(model) as recording:
        model(torch.randn(4, 4)).square().mean().backward()  # <- reported
    dist.destroy_process_group()
    ```

    ## Use instead

    `nn.SyncBatchNorm.convert_sync_batchnorm(model)` computes the statistics over all ranks, but
    needs a GPU. A norm that does not use the batch works everywhere:

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 1))
    model = DistributedDataParallel(model)
    with record(model) as recording:
        model(torch.randn(4, 4)).square().mean().backward()
    dist.destroy_process_group()
    ```

    ## When it is intended

    The noise may be wanted as regularization, as in some trainings of detectors and GANs.

    ## Not detected

    Batch norms whose class name does not begin with BatchNorm, and batch norms in eval mode, are
    not reported.

    ## See also

    - [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html)
    - [GroupNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html)
    """
    if not averages(reading.graph):
        return
    modes = {row.path: row.mode for row in reading.graph.modules}
    rows: dict[int, list[Node]] = {}
    for node in reading.graph.nodes:
        own = node.module_class.rpartition("/")[2].startswith("BatchNorm")
        meta = reading.meta(node.id)
        if own and "batch_norm" in node.title and modes.get(node.module) == "train" and meta:
            rows.setdefault(meta.shape[0] if meta.shape else _MIN_ROWS, []).append(node)
    for count, found in rows.items():
        if count < _MIN_ROWS:
            names = list(dict.fromkeys(node.module for node in found))
            yield finding(
                "info",
                f"{listing(names)} normalize{'s' if len(names) == 1 else ''} only the {count} "
                "rows of each rank, while the ranks average gradients.",
                cause="statistics of each rank",
                advice="On a GPU, use nn.SyncBatchNorm.convert_sync_batchnorm(model), which "
                "uses the rows of all ranks; nn.GroupNorm needs no batch.",
                where=found[0].where,
                nodes=tuple(node.id for node in found),
            )


def _severity(size: int) -> Severity:
    return "info" if size < _MIN_WASTE else "warning"
