"""Rules about collectives inside a step: lost gradients, superfluous traffic, small batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....graph import Collective, Cut, Finding, Node
from ....graph.text import listing
from ....graph.units import bytes_text
from ...graph_reading import Reading, averages
from ...rule import finding, rule
from ...words import at
from .averages import MIB, waste_severity

_MIN_UNIT, _LARGE_UNIT = 64 * MIB, 1024 * MIB  # parameter bytes of one fully_shard call
# Batch norm is worse with fewer rows (Wu and He 2018, "Group Normalization").
_MIN_ROWS = 16
_DTENSOR_CASTS = ("_ToTorchTensor", "_FromTorchTensor")


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

    There may not be enough memory to keep the module's unsharded parameters until backward.

    ## Not detected

    Calls that a checkpoint repeats in backward are not counted.

    ## See also

    - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)
    """
    for sent, times in _repeated_gathers(reading.graph.collectives):
        if any(_is_later_call(node, sent.module) for node in reading.graph.nodes):
            size = sent.nbytes * sent.group_size * (times - 1)
            yield finding(
                waste_severity(size),
                f"The parameters of {sent.module} are gathered {times} times in one "
                f"forward{at(sent.where)}, because they are freed after each call of the module.",
                cause="freed between two calls",
                advice="Pass reshard_after_forward=False to the module's own fully_shard, which "
                "keeps the parameters until backward.",
                where=sent.where,
            )


def _repeated_gathers(collectives: Sequence[Collective]) -> Iterator[tuple[Collective, int]]:
    """Yield the first gather of parameters that a forward gathers repeatedly, and how often."""
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
    """Return True if a repeated call of a module created the node: "cell#2.fc" for "cell"."""
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

    If the model fits on each rank, only the optimizer states need sharding.

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

    Both redistributions are collectives, which run in the forward and again in backward. All of
    this traffic is superfluous.

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

    It is rarely intended. Usually the `output_layouts` of one parallel style do not match the
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
                waste_severity(size),
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
    """Return the only node that uses a node's result; to_local and from_local are skipped.

    Return None if there are several users.
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

    The noise may be wanted as regularization, for example in detectors and GANs.

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
                advice="On a GPU, use nn.SyncBatchNorm.convert_sync_batchnorm(model), which uses "
                "the rows of all ranks; nn.GroupNorm does not use the batch.",
                where=found[0].where,
                nodes=tuple(node.id for node in found),
            )
