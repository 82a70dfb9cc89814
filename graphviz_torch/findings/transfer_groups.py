"""Group, name and filter the transfers of a graph for rules about copies and reads."""

from __future__ import annotations

from ..graph import Transfer
from .graph_reading import Reading

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
