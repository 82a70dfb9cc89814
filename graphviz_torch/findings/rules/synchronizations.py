"""Rules about reads and copies that make the CPU wait for a device."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding, Transfer
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key

# Copies of one tensor that are reported. Two copies may have different purposes.
MIN_REPEATS = 3
READS = ("item", "tolist", "numpy", "cpu", "bool", "__bool__", "float", "int", "print")
# Calls that read the size of their result from the device, because the size depends on values.
SIZE_READS = {
    "getitem": "Indexing with",
    "setitem": "Writing to elements selected by",
    "masked_select": "masked_select() with",
    "nonzero": "nonzero() of",
    "where": "where() of",
    "argwhere": "argwhere() of",
    "unique": "unique() of",
    "unique_consecutive": "unique_consecutive() of",
}
Numbered = list[tuple[int, Transfer]]  # transfers with their indices in the graph


def forward_transfers(reading: Reading) -> Numbered:
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


def is_size_read(transfer: Transfer) -> bool:
    """Return True if only the size of a result was read, as in `x[mask]` or `nonzero`."""
    integer = transfer.tensor.dtype in ("int32", "int64") and not transfer.tensor.shape
    return transfer.kind == "DtoH" and integer and transfer.operation in SIZE_READS


def finding_fields(group: Numbered) -> dict[str, object]:
    """Return the fields of a finding about these transfers: line, nodes and indices."""
    return {
        "where": group[0][1].where,
        "nodes": tuple(dict.fromkeys(t.node for _, t in group if t.node is not None)),
        "transfers": tuple(i for i, _ in group),
    }


def group_name(group: Numbered) -> str:
    """Return the first label of the transferred tensors, or a description such as "a f32[8, 4]"."""
    return transfer_name(next((t for _, t in group if t.label), group[0][1]))


def transfer_name(transfer: Transfer) -> str:
    """Return the label of the transferred tensor, or a description such as "a f32[8, 4]"."""
    return transfer.label or f"a {transfer.tensor._replace(device='')}"


def name_prefix(group: Numbered) -> str:
    """Return the first label with a dot, such as "x."; "" if no tensor has a label."""
    return next((f"{t.label}." for _, t in group if t.label), "")


def times_text(group: Numbered) -> str:
    """Return ", 3 times" for three transfers; "" for one."""
    return f", {len(group)} times" if len(group) > 1 else ""


_LIBRARY_ADVICE = {  # module of a library -> advice on the reads in this module
    "torch.distributions.distribution": "Create the distribution with validate_args=False: it "
    "then does not check its values.",
}
# Nodes of DataParallel, which copies the parameters to its replicas in every step.
_REPLICATED = ("Broadcast", "Gather", "Scatter")
_REPLICA_ADVICE = (
    "These are replicas, copied in each forward: DistributedDataParallel keeps one on each device."
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

    Occasional logging, early stopping, and a check for NaN before the step need the value.

    ## Not detected

    Waiting without a read, such as `torch.cuda.synchronize()`, is not reported.

    ## See also

    - [CUDA semantics: asynchronous execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    - [Performance tuning guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html)
    """
    reads = [
        (i, t)
        for i, t in forward_transfers(reading)
        if t.kind == "DtoH" and not t.non_blocking and (t.operation in READS or is_size_read(t))
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
        place += f"{at(first.where)}{times_text(group)}"
        if is_size_read(first):
            advice = "If the result may keep its size, multiply by the mask, or use "
            advice += "torch.where(mask, x, 0)."
            message = f"{SIZE_READS[first.operation]} {first.label or 'a tensor'}{by} {place}: "
            message += "to read the size of its result, each call waits for all queued work of "
            message += f"{first.source}."
        else:
            message = (
                f"{group_name(group)} is read{by} with {first.operation}() {place}: each read "
            )
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
            "warning" if inside and not by and not is_size_read(first) else "info",
            message,
            cause="a read waits for the device",
            advice=_LIBRARY_ADVICE.get(first.library, "") if by else advice,
            **finding_fields(group),
        )


@rule("warning", of=(Transfer,))
def copy_in_backward(reading: Reading) -> Iterator[Finding]:
    """A copy between devices is a part of the graph, so backward copies the gradient back in every
    step.

    ## Why it matters

    The backward of a copy is another copy, in the other direction. Both copies cost time in every
    step, and wait for the devices.

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
        # If a copy is upstream of a cut, its node does not run in backward. If saved-tensor hooks
        # make a copy, its node is another operation.
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
            f"inside the graph ({moved}). Backward copies the gradients back.",
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


def _is_same_read(one: Transfer, other: Transfer) -> bool:
    """Return True if two copies come from one call at one source line, in different steps."""
    keys = [(each.where, each.operation, each.kind, each.library) for each in (one, other)]
    return keys[0] == keys[1]
