"""Rules about copies between devices that are unused, repeated or slow, or that make the program
wait.

Rules about the forward ignore copies of a model's own parameters, because moving a model once is
normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ...graph import Finding, Transfer
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key, in_code

# Bytes of a large copy: 1 MiB takes 0.04 to 0.1 ms at the 12 to 25 GB/s of PCIe 3 and 4, as long as
# several kernel launches.
LARGE_COPY = 1 << 20
# Bytes of a tiny copy: starting a copy takes about 10 us, more than 95 % of the time for 4 KiB
# (CUDA C++ Best Practices Guide, "Data Transfer Between Host and Device").
TINY_COPY = 4096
MIN_TINY_COPIES = 16
# Copies of one tensor that are reported. Two copies may have different purposes.
MIN_REPEATS = 3
# If more nodes run on the other device, the copies are not a round trip: the model is divided
# between devices.
MAX_ROUND_TRIP_NODES = 8

_READS = ("item", "tolist", "numpy", "cpu", "bool", "__bool__", "float", "int", "print")
# Calls that read the size of their result from the device, because the size depends on values.
_SIZE_READS = {
    "getitem": "Indexing with",
    "setitem": "Writing to elements selected by",
    "masked_select": "masked_select() with",
    "nonzero": "nonzero() of",
    "where": "where() of",
    "argwhere": "argwhere() of",
    "unique": "unique() of",
    "unique_consecutive": "unique_consecutive() of",
}

_LIBRARY_ADVICE = {  # advice on reads inside a library, by module
    "torch.distributions.distribution": "Create the distribution with validate_args=False: it "
    "then does not check its values.",
}

# Nodes of DataParallel, which copies the parameters to its replicas in every step.
_REPLICATED = ("Broadcast", "Gather", "Scatter")
_REPLICA_ADVICE = (
    "These are replicas, copied in each forward: DistributedDataParallel keeps one on each device."
)

Numbered = list[tuple[int, Transfer]]  # transfers with their indices in the graph


@rule("warning", of=(Transfer,))
def unused_copy(reading: Reading) -> Iterator[Finding]:
    """A tensor was copied to a device, but the copy was never used, such as that of `x.cuda()`
    without an assignment.

    ## Why it matters

    `Tensor.to()` and `Tensor.cuda()` return a copy and do not move the tensor itself, unlike the
    methods of a module. A call without an assignment costs a copy and has no effect.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        x = torch.randn(8, 4)
        x.to(gpu)  # <- reported
        w = torch.randn(4, requires_grad=True)
        (x @ w).sum().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        x = torch.randn(8, 4)
        x = x.to(gpu)
        w = torch.randn(4, device=gpu, requires_grad=True)
        (x @ w).sum().backward()
    ```

    ## When it is intended

    A program may copy a tensor only to warm up a device before a measurement.

    ## Not detected

    A use of the copy after the recorded block is not seen.

    ## See also

    - [torch.Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    - [torch.nn.Module.to](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """
    unused = [
        (i, t)
        for i, t in _forward(reading)
        if t.used is False and t.kind != "DtoH" and not t.library
    ]
    for _, group in group_by_key(((t.where, t.label, t.target), (i, t)) for i, t in unused):
        first, name = group[0][1], _name_of(group)
        call = f"{name}.{_call(first)}"
        yield finding(
            "warning",
            f"{name} was copied to {first.target}{at(first.where)}{_times(group)}, but the copy "
            "was never used.",
            cause="the copy was not kept",
            advice=f"Replace {call} with {name} = {call}{at(first.where)}, because a move "
            "returns the copy."
            if any(t.label for _, t in group)
            else f"Assign the result of {_call(first)}{at(first.where)}, or remove the call.",
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def repeated_copy(reading: Reading) -> Iterator[Finding]:
    """The same tensor is copied to the same device repeatedly.

    ## Why it matters

    Each copy needs bandwidth between host and device, and the program waits for a copy from
    pageable memory.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        table = torch.randn(8, 4)
        loss = sum((table.to(gpu) @ w).sum() for _ in range(4))  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        table = torch.randn(8, 4)
        table = table.to(gpu)
        loss = sum((table @ w).sum() for _ in range(4))
        loss.backward()
    ```

    ## When it is intended

    Offloading keeps a tensor on the host to save device memory.

    ## Not detected

    A tensor that is re-created with the same values for each copy is not recognized as the same.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    known = [
        (i, t)
        for i, t in _forward(reading)
        # The rule device-sync reports repeated reads of one number.
        if _data_key(reading, t) is not None and (t.tensor.shape or t.kind != "DtoH")
    ]
    for _, group in group_by_key(
        ((_data_key(reading, t), t.source, t.target), (i, t)) for i, t in known
    ):
        first = group[0][1]
        same = [*(t for _, t in group), *_copies_in_previous_steps(reading, first)]
        extra = sum(t.nbytes or 0 for t in same[1:])
        if len(same) < (2 if extra >= LARGE_COPY else MIN_REPEATS):
            continue
        lines = list(dict.fromkeys(t.where for _, t in group if t.where))
        yield finding(
            "warning",
            f"{_name_of(group)} was copied from {first.source} to {first.target} {len(same)} "
            f"times, {bytes_text(extra)} more than one copy needs{at(listing(lines))}.",
            cause="copied repeatedly",
            advice=f"Move {_name_of(group)} once, before the loop, and use the copy in the loop.",
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def round_trip(reading: Reading) -> Iterator[Finding]:
    """A tensor was copied to another device and back, with few operations or none in between.

    ## Why it matters

    The program makes two copies and waits twice, for an operation that the first device could
    compute in microseconds.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        h = (w * 2).cpu()  # <- reported
        h = h.clamp(min=0).to(gpu)
        h.sum().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        h = (w * 2).clamp(min=0)
        h.sum().backward()
    ```

    ## When it is intended

    The device may not support an operation, or a library may need NumPy arrays.

    ## Not detected

    Round trips with more than a few operations in between are not reported.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    outward: dict[tuple[int | None, str, str], tuple[int, Transfer]] = {}
    for i, t in _forward(reading):
        first = outward.pop((t.data, t.target, t.source), None) if t.data is not None else None
        if first is None:
            outward.setdefault((t.data, t.source, t.target), (i, t))
        elif t.operation not in _READS or t.operation == "cpu":
            small = (t.nbytes or 0) < LARGE_COPY
            if small and t.library:
                continue  # a library makes both copies
            yield _round_trip(reading, first, (i, t), 0, "info" if small else "warning")
    nodes = reading.graph.nodes
    copies = {t.node: (i, t) for i, t in _forward(reading) if t.node is not None}
    for start, first in copies.items():
        if first[1].kind != "DtoH" or start is None:
            continue
        seen, stack = {start}, [start]
        while stack and len(seen) <= MAX_ROUND_TRIP_NODES:
            for edge in reading.users[stack.pop()]:
                back = copies.get(edge.target)
                if back is not None and back[1].target == first[1].source:
                    yield _round_trip(reading, first, back, len(seen) - 1, "warning")
                    stack = []
                    break
                if edge.target not in seen and nodes[edge.target].device == first[1].target:
                    seen.add(edge.target)
                    stack.append(edge.target)


@rule("warning", of=(Transfer,))
def pageable_copy(reading: Reading) -> Iterator[Finding]:
    """A large copy to a device starts from pageable memory. Such a copy is slower than a copy from
    pinned memory and cannot overlap with computation.

    ## Why it matters

    The driver first copies pageable memory to its own pinned buffer. `non_blocking=True` has no
    effect on such a copy, and the program waits for the copy in every step.

    ## Example

    ```python
    import torch
    from torch.utils.data import DataLoader
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        for batch in DataLoader(torch.randn(400_000, 4), batch_size=100_000):
            x = batch.to(gpu)  # <- reported
            (x @ w).sum().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch.utils.data import DataLoader
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        for batch in DataLoader(torch.randn(400_000, 4), batch_size=100_000, pin_memory=True):
            x = batch.to(gpu, non_blocking=True)
            (x @ w).sum().backward()
    ```

    ## When it is intended

    A single copy before the training is normal, and has severity info. Pinned memory cannot be
    swapped out, so pin only buffers that are used for copies.

    ## Not detected

    Copies below 1 MiB, and copies from a device to the host, are not reported.

    ## See also

    - [Pinned memory buffers](https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers)
    - [pin_memory and non_blocking](https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    """
    large = [
        (i, t)
        for i, t in _forward(reading)
        if t.kind == "HtoD" and t.pinned is False and (t.nbytes or 0) >= LARGE_COPY
    ]
    for _, group in group_by_key(((t.where, t.label, t.target), (i, t)) for i, t in large):
        first, moved = group[0][1], sum(t.nbytes or 0 for _, t in group)
        yield finding(
            # A single copy may be a part of the setup. Repeated copies at one line move the data of
            # a loop.
            "warning" if first.where and len(group) >= MIN_REPEATS else "info",
            f"{_name_of(group)} ({bytes_text(moved)}{_times(group)}) was copied to {first.target} "
            f"from pageable memory{at(first.where)}.",
            cause="pageable host memory",
            advice="Use DataLoader(pin_memory=True), or pin_memory() once, and "
            f'{_prefix(group)}to("{in_code(first.target)}", non_blocking=True).',
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def tiny_copies(reading: Reading) -> Iterator[Finding]:
    """Many tiny copies follow each other, and each takes longer to start than to run.

    ## Why it matters

    Starting a copy takes microseconds, whatever its size. 32 copies of 16 bytes take about 32 times
    as long as one copy of 512 bytes.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        rows = [row.to(gpu) for row in torch.randn(32, 4)]  # <- reported
        sum((row * w).sum() for row in rows).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        rows = torch.randn(32, 4).to(gpu)
        sum((row * w).sum() for row in rows).backward()
    ```

    ## When it is intended

    The copies may belong to different steps of a loader, which cannot be joined.

    ## Not detected

    Tiny copies with other copies in between are not counted as one row.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    # Consecutive copies at one line come from a loop over parts of the data. The copies of a
    # training loop's batches, in contrast, alternate with copies at other lines or with calls of
    # modules.
    lines: dict[tuple[str, str, str], list[Numbered]] = {}
    for key, run in groupby(_forward(reading), _run_key):
        lines.setdefault(key[:3], []).append(list(run))
    for (line, *_), runs in lines.items():
        pieces = [run for run in map(_tiny, runs) if len(run) >= MIN_TINY_COPIES]
        if not pieces:
            continue
        group = pieces[0]
        first = group[0][1]
        if first.operation in _READS or _is_size(first):
            continue
        if len({t.data for _, t in group} - {None}) == 1:
            continue
        # The copies belong to one step if they are in a forward or are nodes of the graph. They
        # also do if no module call is between them, while a module call separates other copies of
        # the line. Otherwise they may be the small batches of many steps that call no module.
        together = (
            bool(first.in_forward)
            or len({run[0][1].moment for run in runs}) > 1
            or all(t.node is not None for _, t in group)
        )
        moved = sum(t.nbytes or 0 for _, t in group)
        again = f" ({len(pieces)} such rows)" if len(pieces) > 1 else ""
        yield finding(
            "warning" if together else "info",
            f"{len(group)} copies from {first.source} to {first.target} in a row{at(line)} move "
            f"{bytes_text(moved)} in total{again}.",
            cause="many tiny copies",
            advice=f"{'Join' if together else 'If one step makes them, join'} them with "
            "torch.stack or torch.cat, and copy once.",
            **_fields([each for run in pieces for each in run]),
        )


@rule("warning", of=(Transfer,))
def device_sync(reading: Reading) -> Iterator[Finding]:
    """The program reads a value from a device inside a forward or in a loop, and waits for the
    device.

    ## Why it matters

    GPU kernels run asynchronously. A read makes the program wait until all queued work is done, and
    the GPU is then idle while the program prepares the next step. A read in every hundredth step
    has no measurable cost.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,):
        model = nn.Linear(4, 1).to(gpu)
        x = torch.randn(8, 4).to(gpu)
        with record(model) as recording:
            for _ in range(4):
                loss = model(x).square().mean()
                loss.backward()
                print(loss.item())  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,):
        model = nn.Linear(4, 1).to(gpu)
        x = torch.randn(8, 4).to(gpu)
        with record(model) as recording:
            for _ in range(4):
                loss = model(x).square().mean()
                loss.backward()
        print(loss.item())
    ```

    ## When it is intended

    Logging now and then, early stopping, and a check for NaN before the step need the value.

    ## Not detected

    Waiting without a read, such as `torch.cuda.synchronize()`, is not reported.

    ## See also

    - [CUDA semantics: asynchronous execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    - [Performance tuning guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html)
    """
    reads = [
        (i, t)
        for i, t in _forward(reading)
        if t.kind == "DtoH" and not t.non_blocking and (t.operation in _READS or _is_size(t))
    ]
    for _, group in group_by_key(
        ((t.where, t.operation, t.module, t.in_forward, t.library), (i, t)) for i, t in reads
    ):
        first = group[0][1]
        inside = bool(first.in_forward or first.module)
        known = len(group) + sum(
            _is_same_read(first, t) for g in reading.before for t in g.transfers
        )
        # Reads that a library makes outside of a forward, such as those of a GradScaler, are not
        # reported.
        if not inside and (not first.where or known < MIN_REPEATS or first.library):
            continue
        by = f" by {first.library}" if first.library else ""
        place = f"in the forward of {first.module or 'the model'}" if inside else "in a loop"
        place += f"{at(first.where)}{_times(group)}"
        if _is_size(first):
            advice = "If the result may keep its size, multiply by the mask, or use "
            advice += "torch.where(mask, x, 0)."
            message = f"{_SIZE_READS[first.operation]} {first.label or 'a tensor'}{by} {place}: "
            message += "to read the size of its result, each call waits for all queued work of "
            message += f"{first.source}."
        else:
            message = f"{_name_of(group)} is read{by} with {first.operation}() {place}: each read "
            message += f"waits for all queued work of {first.source}."
            if not inside:
                advice = (
                    "Keep the tensor, and read its value after the loop or once for many steps."
                )
            elif first.tensor.shape:
                advice = f"Compute with the tensor on {first.source} instead of reading it."
            else:
                advice = (
                    "Compute with the tensor: use torch.where or a mask instead of a Python if."
                )
        yield finding(
            "warning" if inside and not by and not _is_size(first) else "info",
            message,
            cause="a read waits for the device",
            advice=_LIBRARY_ADVICE.get(first.library, "") if by else advice,
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def copy_in_backward(reading: Reading) -> Iterator[Finding]:
    """A copy between devices is a part of the graph, so backward copies the gradient back in every
    step.

    ## Why it matters

    The backward of a copy is another copy, in the other direction. Both cost time in every step,
    and wait for the devices.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, requires_grad=True)
        x = torch.randn(8, 4).to(gpu)
        (x @ w.to(gpu)).sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4, device=gpu, requires_grad=True)
        x = torch.randn(8, 4).to(gpu)
        (x @ w).sum().backward()
    ```

    ## When it is intended

    A model that is divided between devices, or offloading, needs such copies.

    ## Not detected

    Copies through which no gradient flows are not reported.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    nodes = reading.graph.nodes
    inside = [
        (i, t)
        for i, t in enumerate(reading.graph.transfers)
        # Copies before a cut have nodes that do not run. Copies by saved-tensor hooks belong to
        # other nodes.
        if t.node is not None
        and (t.phase == "forward" or "copy" in nodes[t.node].name.lower())
        and (nodes[t.node].order is not None or not reading.ran)
        and nodes[t.node].title not in _REPLICATED
    ]
    kinds: dict[str, list[tuple[int, Transfer, str]]] = {}
    for i, t in inside:
        edges = reading.inputs[t.node or 0]
        source = edges[0].source if edges else None
        leaf = "" if source is None else str(nodes[source].leaf)
        if source is not None and leaf == "parameter" and _is_used_on_own_device(reading, source):
            leaf = "replica"
        name = reading.names.get(source) if source is not None else None
        kinds.setdefault(leaf, []).append((i, t, name or reading.call(t.node or 0)))
    for kind, group in kinds.items():
        copies = {t.node: t for _, t, _ in group}
        names = listing(dict.fromkeys(name for _, _, name in group))
        moved = bytes_text(sum(t.nbytes or 0 for t in copies.values()))
        yield finding(
            "warning" if kind in ("parameter", "replica") else "info",
            f"{names}: {len(copies)} {'copy' if len(copies) == 1 else 'copies'} between devices "
            f"inside the graph ({moved}), which backward repeats for the gradient.",
            cause="a copy with a gradient",
            advice={
                "parameter": "Move the model once with model.to(device) before training.",
                "replica": _REPLICA_ADVICE,
                "tensor": "Create the leaf, with requires_grad=True, on the device where it is "
                "used.",
            }.get(kind, "Keep consecutive modules on one device if memory allows."),
            where=next((t.where for _, t, _ in group if t.where), ""),
            nodes=tuple(node for node in copies if node is not None),
            transfers=tuple(i for i, _, _ in group),
        )


def _is_used_on_own_device(reading: Reading, leaf: int) -> bool:
    """Return True if a parameter is on an accelerator and an operation uses it there."""
    device = reading.graph.nodes[leaf].device
    uses = [reading.graph.nodes[edge.target] for edge in reading.users[leaf]]
    local = (node for node in uses if node.device == device and node.operation != "to_copy")
    return device != "cpu" and any(local)


def _forward(reading: Reading) -> Numbered:
    """Return the transfers of the forward that rules check, with their indices in the graph.

    Moves of a model and its parameters, DataParallel's copies to replicas, and copies by
    saved-tensor hooks such as `torch.autograd.graph.save_on_cpu` are left out.
    """
    return [
        (i, t)
        for i, t in enumerate(reading.graph.transfers)
        if t.phase == "forward"
        and t.label not in reading.parameter_names
        and not t.operation.startswith("Module.")
        and t.operation not in ("pack", "replicate")
    ]


def _run_key(each: tuple[int, Transfer]) -> tuple[str, str, str, int | None]:
    transfer = each[1]
    return transfer.where, transfer.module, transfer.kind, transfer.moment


def _tiny(run: Numbered) -> Numbered:
    return [(i, t) for i, t in run if 0 < (t.nbytes or 0) <= TINY_COPY]


def _copies_in_previous_steps(reading: Reading, first: Transfer) -> list[Transfer]:
    """Return the copies of the same data between the same devices in earlier steps."""
    key = first.data, first.source, first.target
    known = (t for graph in reading.before for t in graph.transfers if t.phase == "forward")
    return [t for t in known if first.data is not None and (t.data, t.source, t.target) == key]


def _is_same_read(one: Transfer, other: Transfer) -> bool:
    """Return True if two transfers are the same read in different steps: the same call at the same
    line.
    """
    keys = [(each.where, each.operation, each.kind, each.library) for each in (one, other)]
    return keys[0] == keys[1]


def _is_size(transfer: Transfer) -> bool:
    """Return True if only the size of a result was read, as in `x[mask]` or `nonzero`."""
    integer = transfer.tensor.dtype in ("int32", "int64") and not transfer.tensor.shape
    return transfer.kind == "DtoH" and integer and transfer.operation in _SIZE_READS


def _data_key(reading: Reading, transfer: Transfer) -> object:
    """Return a key that is equal for transfers of the same data; None if unknown."""
    if transfer.data is not None:
        return transfer.data
    edges = reading.inputs[transfer.node] if transfer.node is not None else []
    return (edges[0].source, edges[0].output_nr) if edges else None


def _round_trip(
    reading: Reading,
    outward: tuple[int, Transfer],
    back: tuple[int, Transfer],
    between: int,
    severity: str,
) -> Finding:
    (i, first), (j, last) = outward, back
    node = first.node
    edges = reading.inputs[node] if node is not None else []
    name = _name(first) if first.label or not edges else reading.call(edges[0].source)
    return finding(
        "warning" if severity == "warning" else "info",
        f"{name} went from {first.source} to {first.target}{at(first.where)} and came back"
        f"{at(last.where)} with {between or 'no'} node{'' if between == 1 else 's'} in between.",
        cause="a round trip",
        advice=f"Stay on {first.source}: this saves both copies and the waiting for them.",
        where=first.where,
        nodes=tuple(t.node for t in (first, last) if t.node is not None),
        transfers=(i, j),
    )


def _fields(group: Numbered) -> dict[str, object]:
    return {
        "where": group[0][1].where,
        "nodes": tuple(dict.fromkeys(t.node for _, t in group if t.node is not None)),
        "transfers": tuple(i for i, _ in group),
    }


def _name_of(group: Numbered) -> str:
    """Return the first label of the transferred tensors, or a description such as "a f32[8, 4]"."""
    return _name(next((t for _, t in group if t.label), group[0][1]))


def _name(transfer: Transfer) -> str:
    return transfer.label or f"a {transfer.tensor._replace(device='')}"


def _prefix(group: Numbered) -> str:
    """Return the first label with a dot, such as "x."; "" if no tensor has a label."""
    return next((f"{t.label}." for _, t in group if t.label), "")


def _call(transfer: Transfer) -> str:
    if transfer.operation in ("cuda", "cpu"):
        return f"{transfer.operation}()"
    return f'to("{in_code(transfer.target)}")'


def _times(group: Numbered) -> str:
    return f", {len(group)} times" if len(group) > 1 else ""
