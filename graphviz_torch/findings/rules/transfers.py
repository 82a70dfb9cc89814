"""Rules about copies between devices that are unused, repeated, slow or tiny."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ...graph import Finding, Transfer
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key, in_code
from .synchronizations import (
    MIN_REPEATS,
    READS,
    Numbered,
    finding_fields,
    forward_transfers,
    group_name,
    is_size_read,
    name_prefix,
    times_text,
    transfer_name,
)

# Bytes of a large copy. PCIe 3 and 4 copy 12 to 25 GB/s, so 1 MiB takes 0.04 to 0.1 ms, which is as
# long as several kernel launches.
LARGE_COPY = 1 << 20
# Bytes of a tiny copy. Starting a copy takes about 10 us, which is more than 95 % of the time that
# a copy of 4 KiB takes (CUDA C++ Best Practices Guide, "Data Transfer Between Host and Device").
TINY_COPY = 4096
MIN_TINY_COPIES = 16
# If more nodes run on the other device, the copies are not a round trip: the model is divided
# between devices.
MAX_ROUND_TRIP_NODES = 8


@rule("warning", of=(Transfer,))
def unused_copy(reading: Reading) -> Iterator[Finding]:
    """A tensor was copied to a device, but the copy was never used, as in `x.cuda()` without an
    assignment.

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

    A use of the copy after the recorded block is not detected.

    ## See also

    - [torch.Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    - [torch.nn.Module.to](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """
    unused = [
        (i, t)
        for i, t in forward_transfers(reading)
        if t.used is False and t.kind != "DtoH" and not t.library
    ]
    for _, group in group_by_key(((t.where, t.label, t.target), (i, t)) for i, t in unused):
        first, name = group[0][1], group_name(group)
        call = f"{name}.{_call(first)}"
        yield finding(
            "warning",
            f"{name} was copied to {first.target}{at(first.where)}{times_text(group)}, but the "
            "copy was never used.",
            cause="the copy was not kept",
            advice=f"Replace {call} with {name} = {call}{at(first.where)}, because a move "
            "returns the copy."
            if any(t.label for _, t in group)
            else f"Assign the result of {_call(first)}{at(first.where)}, or remove the call.",
            **finding_fields(group),
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
        for i, t in forward_transfers(reading)
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
            f"{group_name(group)} was copied from {first.source} to {first.target} {len(same)} "
            f"times, {bytes_text(extra)} more than one copy needs{at(listing(lines))}.",
            cause="copied repeatedly",
            advice=f"Move {group_name(group)} once, before the loop, and use the copy in the loop.",
            **finding_fields(group),
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
    for i, t in forward_transfers(reading):
        first = outward.pop((t.data, t.target, t.source), None) if t.data is not None else None
        if first is None:
            outward.setdefault((t.data, t.source, t.target), (i, t))
        elif t.operation not in READS or t.operation == "cpu":
            small = (t.nbytes or 0) < LARGE_COPY
            if small and t.library:
                continue  # a library makes both copies
            yield _round_trip(reading, first, (i, t), 0, "info" if small else "warning")
    nodes = reading.graph.nodes
    copies = {t.node: (i, t) for i, t in forward_transfers(reading) if t.node is not None}
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
        w = torch.randn(4_000, device=gpu, requires_grad=True)
        for batch in DataLoader(torch.randn(400, 4_000), batch_size=100):
            x = batch.to(gpu)  # <- reported
            (x @ w).sum().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch.utils.data import DataLoader
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        w = torch.randn(4_000, device=gpu, requires_grad=True)
        for batch in DataLoader(torch.randn(400, 4_000), batch_size=100, pin_memory=True):
            x = batch.to(gpu, non_blocking=True)
            (x @ w).sum().backward()
    ```

    ## When it is intended

    A single copy before training is normal, and has severity info. Pinned memory cannot be swapped
    out, so pin only buffers that are used for copies.

    ## Not detected

    Copies below 1 MiB, and copies from a device to the host, are not reported.

    ## See also

    - [Pinned memory buffers](https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers)
    - [pin_memory and non_blocking](https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    """
    large = [
        (i, t)
        for i, t in forward_transfers(reading)
        if t.kind == "HtoD" and t.pinned is False and (t.nbytes or 0) >= LARGE_COPY
    ]
    for _, group in group_by_key(((t.where, t.label, t.target), (i, t)) for i, t in large):
        first, moved = group[0][1], sum(t.nbytes or 0 for _, t in group)
        yield finding(
            # A single copy may be a part of the setup. Repeated copies at one line move the data of
            # a loop.
            "warning" if first.where and len(group) >= MIN_REPEATS else "info",
            f"{group_name(group)} ({bytes_text(moved)}{times_text(group)}) was copied to "
            f"{first.target} from pageable memory{at(first.where)}.",
            cause="pageable host memory",
            advice="Use DataLoader(pin_memory=True), or pin_memory() once, and "
            f'{name_prefix(group)}to("{in_code(first.target)}", non_blocking=True).',
            **finding_fields(group),
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

    The copies may belong to different batches of a loader, and cannot be joined.

    ## Not detected

    Tiny copies with other copies in between do not count as following each other.

    ## See also

    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    # Consecutive copies at one line come from a loop over parts of the data. The copies of a
    # training loop's batches, in contrast, alternate with copies at other lines or with calls of
    # modules.
    lines: dict[tuple[str, str, str], list[Numbered]] = {}
    for key, run in groupby(forward_transfers(reading), _run_key):
        lines.setdefault(key[:3], []).append(list(run))
    for (line, *_), runs in lines.items():
        pieces = [run for run in map(_tiny, runs) if len(run) >= MIN_TINY_COPIES]
        if not pieces:
            continue
        group = pieces[0]
        first = group[0][1]
        if first.operation in READS or is_size_read(first):
            continue
        if len({t.data for _, t in group} - {None}) == 1:
            continue
        # The copies belong to one step if they are in a forward or are nodes of the graph. The
        # copies also belong to one step if no module call is between them, but one is between other
        # copies of the line. Otherwise the copies may be the small batches of many steps that call
        # no module.
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
            **finding_fields([each for run in pieces for each in run]),
        )


def _run_key(each: tuple[int, Transfer]) -> tuple[str, str, str, int | None]:
    transfer = each[1]
    return transfer.where, transfer.module, transfer.kind, transfer.moment


def _tiny(run: Numbered) -> Numbered:
    return [(i, t) for i, t in run if 0 < (t.nbytes or 0) <= TINY_COPY]


def _copies_in_previous_steps(reading: Reading, first: Transfer) -> list[Transfer]:
    """Return the copies of the same data between the same devices in earlier steps.

    Args:
        reading: the graph.
        first: a copy of this step.
    """
    key = first.data, first.source, first.target
    known = (t for graph in reading.before for t in graph.transfers if t.phase == "forward")
    return [t for t in known if first.data is not None and (t.data, t.source, t.target) == key]


def _data_key(reading: Reading, transfer: Transfer) -> object:
    """Return a key that is equal for copies (between devices) of the same data, or None."""
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
    name = transfer_name(first) if first.label or not edges else reading.call(edges[0].source)
    return finding(
        "warning" if severity == "warning" else "info",
        f"{name} went from {first.source} to {first.target}{at(first.where)} and came back"
        f"{at(last.where)} with {between or 'no'} node{'' if between == 1 else 's'} in between.",
        cause="a round trip",
        advice=f"Stay on {first.source}: both copies, and the time to wait for them, are then "
        "saved.",
        where=first.where,
        nodes=tuple(t.node for t in (first, last) if t.node is not None),
        transfers=(i, j),
    )


def _call(transfer: Transfer) -> str:
    if transfer.operation in ("cuda", "cpu"):
        return f"{transfer.operation}()"
    return f'to("{in_code(transfer.target)}")'
