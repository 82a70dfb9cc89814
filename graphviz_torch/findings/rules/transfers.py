"""Transfers: copies between devices that are wasted, repeated or slow, or make the program wait.

Rules of the forward leave out copies of a model's own parameters: one move of them is normal.
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
# Copies of one tensor: two may be for two places of the program.
MIN_REPEATS = 3
# More nodes than this on the other device are a placement, not a round trip.
MAX_ROUND_TRIP_NODES = 8

_READS = ("item", "tolist", "numpy", "cpu", "bool", "__bool__", "float", "int", "print")
# Calls whose result's size depends on values, so that the size is read from the device.
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

_LIBRARY_ADVICE = {  # on reads inside a library
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
    """A tensor was copied to a device and the copy never used, as by `x.cuda()` without assignment.

    ## Why it matters

    `Tensor.to()` and `cuda()` return a copy and leave the tensor where it is; for a module they
    move it. A call without assignment costs the copy and changes nothing.

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

    A copy that warms up a device before a measurement.

    ## Not detected

    Copies that are only read outside of the recorded block.

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
            f"{name} was copied to {first.target}{at(first.where)}{_times(group)}, and the copy "
            "was never used.",
            cause="the copy was not kept",
            advice=f"Replace {call} with {name} = {call}{at(first.where)}: a move returns the copy."
            if any(t.label for _, t in group)
            else f"Assign the result of {_call(first)}{at(first.where)}, or remove the call.",
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def repeated_copy(reading: Reading) -> Iterator[Finding]:
    """The same tensor is copied to the same device repeatedly.

    ## Why it matters

    Each copy takes bandwidth between host and device, and one from pageable memory makes the
    program wait.

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

    Offloading keeps a tensor on the host to save memory of the device.

    ## Not detected

    A tensor that is re-created with the same values for each copy.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    known = [
        (i, t)
        for i, t in _forward(reading)
        # Reading one number repeatedly is a matter of device-sync.
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
            advice=f"Move {_name_of(group)} once, before the loop, and use that copy.",
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def round_trip(reading: Reading) -> Iterator[Finding]:
    """A tensor was copied to another device and back, with few or no operations in between.

    ## Why it matters

    Two copies and two waits, for an operation that the first device could have computed in
    microseconds.

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

    An operation that the device does not have, or a library that needs NumPy.

    ## Not detected

    Trips with more than a few operations in between.

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
                continue  # made by a library
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
    """A large copy to a device starts from pageable memory: it is slower than one from pinned
    memory and cannot overlap with computation.

    ## Why it matters

    The driver first copies pageable memory to a pinned buffer of its own. `non_blocking=True` has
    no effect on such a copy: the program waits for it, in every step.

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

    A copy that is made once, before the training: it is a note. Pinned memory cannot be swapped
    out, so pin only buffers that are used for copies.

    ## Not detected

    Copies below 1 MiB, and copies from a device, which need a pinned target to overlap.

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
            # A single copy may be setup; repeated copies at one line are data of the loop.
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
    """Many tiny copies in a row, each of which takes longer to start than to run.

    ## Why it matters

    Starting a copy takes microseconds, whatever its size: 32 copies of 16 bytes take 32 times as
    long as one of 512.

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

    Copies that come from different steps of a loader.

    ## Not detected

    Copies with other work in between.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    # Consecutive copies at one line are a loop over pieces. Copies of a training loop's batches
    # alternate with other lines or with calls of modules.
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
        # Copies in a forward, and nodes of the graph, belong to one step; so do copies without a
        # module call in between, if others at the line have one. Else they may be the small
        # batches of many steps that call no module.
        together = (
            bool(first.in_forward)
            or len({run[0][1].moment for run in runs}) > 1
            or all(t.node is not None for _, t in group)
        )
        moved = sum(t.nbytes or 0 for _, t in group)
        again = f" ({len(pieces)} such rows)" if len(pieces) > 1 else ""
        yield finding(
            "warning" if together else "info",
            f"{len(group)} copies {first.source} to {first.target} in a row{at(line)} move "
            f"{bytes_text(moved)} in all{again}.",
            cause="many tiny copies",
            advice=f"{'Join' if together else 'If one step makes them, join'} them with "
            "torch.stack or torch.cat, and copy once.",
            **_fields([each for run in pieces for each in run]),
        )


@rule("warning", of=(Transfer,))
def device_sync(reading: Reading) -> Iterator[Finding]:
    """A value is read from a device inside a forward or in a loop, and the program waits for it.

    ## Why it matters

    Kernels of a GPU run asynchronously. Reading a value makes the program wait until all queued
    work is done, so that the GPU is idle while the next step is prepared. Reading every hundredth
    step costs nothing that can be measured.

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

    Logging every so many steps, early stopping, and a check for NaN that must come before the step.

    ## Not detected

    Waits without a read, such as `torch.cuda.synchronize()`.

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
        # Reads by a library outside of a forward are left out, such as those of a GradScaler.
        if not inside and (not first.where or known < MIN_REPEATS or first.library):
            continue
        by = f" by {first.library}" if first.library else ""
        place = f"in the forward of {first.module or 'the model'}" if inside else "in a loop"
        place += f"{at(first.where)}{_times(group)}"
        if _is_size(first):
            advice = "If the size may stay constant, multiply by the mask, or use "
            advice += "torch.where(mask, x, 0)."
            message = f"{_SIZE_READS[first.operation]} {first.label or 'a tensor'}{by} {place}: "
            message += f"each call waits for all queued work of {first.source} to read the size of "
            message += "its result."
        else:
            message = f"{_name_of(group)} is read{by} with {first.operation}() {place}: each read "
            message += f"waits for all queued work of {first.source}."
            if not inside:
                advice = "Keep it a tensor, and read it after the loop or every so many steps."
            elif first.tensor.shape:
                advice = f"Compute on {first.source} in place of reading the tensor."
            else:
                advice = "Keep it a tensor: use torch.where or a mask in place of Python's if."
        yield finding(
            "warning" if inside and not by and not _is_size(first) else "info",
            message,
            cause="a read waits for the device",
            advice=_LIBRARY_ADVICE.get(first.library, "") if by else advice,
            **_fields(group),
        )


@rule("warning", of=(Transfer,))
def copy_in_backward(reading: Reading) -> Iterator[Finding]:
    """A copy inside the graph makes backward copy the gradient back, in every step.

    ## Why it matters

    The copy is an operation of the graph: its backward is another copy, in every step, and both
    wait for the devices.

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

    Pipelines that divide a model between devices, and offloading.

    ## Not detected

    Copies without a gradient.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    nodes = reading.graph.nodes
    inside = [
        (i, t)
        for i, t in enumerate(reading.graph.transfers)
        # Nodes before a cut do not run. Copies by saved-tensor hooks have another node.
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
            f"inside the graph ({moved}), which backward must repeat for the gradient.",
            cause="a copy with a gradient",
            advice={
                "parameter": "Move the model once with model.to(device) before training.",
                "replica": _REPLICA_ADVICE,
                "tensor": "Create the leaf on the device it is used on, with requires_grad=True.",
            }.get(kind, "Keep neighbouring modules on one device where memory allows."),
            where=next((t.where for _, t, _ in group if t.where), ""),
            nodes=tuple(node for node in copies if node is not None),
            transfers=tuple(i for i, _, _ in group),
        )


def _is_used_on_own_device(reading: Reading, leaf: int) -> bool:
    """Return True if a parameter is on an accelerator and also used there."""
    device = reading.graph.nodes[leaf].device
    uses = [reading.graph.nodes[edge.target] for edge in reading.users[leaf]]
    local = (node for node in uses if node.device == device and node.operation != "to_copy")
    return device != "cpu" and any(local)


def _forward(reading: Reading) -> Numbered:
    """Return the transfers of the forward that rules judge, with their indices.

    Left out are moves of a whole model and of its parameters, DataParallel's copies to replicas,
    and copies by saved-tensor hooks such as `torch.autograd.graph.save_on_cpu`.
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
    """Return copies in earlier steps of the same data between the same devices."""
    key = first.data, first.source, first.target
    known = (t for graph in reading.before for t in graph.transfers if t.phase == "forward")
    return [t for t in known if first.data is not None and (t.data, t.source, t.target) == key]


def _is_same_read(one: Transfer, other: Transfer) -> bool:
    """Return True if two steps made the same read."""
    keys = [(each.where, each.operation, each.kind, each.library) for each in (one, other)]
    return keys[0] == keys[1]


def _is_size(transfer: Transfer) -> bool:
    """Return True if only the size of a result was read, as for `x[mask]` or `nonzero`."""
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
        advice=f"Stay on {first.source}: both copies, and waiting for them, are saved.",
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
    """Return the first label of the transfers, or a description of the tensor."""
    return _name(next((t for _, t in group if t.label), group[0][1]))


def _name(transfer: Transfer) -> str:
    return transfer.label or f"a {transfer.tensor._replace(device='')}"


def _prefix(group: Numbered) -> str:
    """Return "x." if one of the tensors has a name."""
    return next((f"{t.label}." for _, t in group if t.label), "")


def _call(transfer: Transfer) -> str:
    if transfer.operation in ("cuda", "cpu"):
        return f"{transfer.operation}()"
    return f'to("{in_code(transfer.target)}")'


def _times(group: Numbered) -> str:
    return f", {len(group)} times" if len(group) > 1 else ""
