"""List the operators of collectives, with the kind and the argument positions of each.

The names of operators and arguments are private (2.8 to 2.15).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from ....graph import CollectiveKind

# Operator names by namespace.
_KINDS: dict[str, dict[str, CollectiveKind]] = {
    "c10d": {
        "allreduce_": "all_reduce",
        "allreduce_coalesced_": "all_reduce",
        "allgather_": "all_gather",
        "_allgather_base_": "all_gather",
        "allgather_coalesced_": "all_gather",
        "allgather_into_tensor_coalesced_": "all_gather",
        "reduce_scatter_": "reduce_scatter",
        "_reduce_scatter_base_": "reduce_scatter",
        "reduce_scatter_tensor_coalesced_": "reduce_scatter",
        "alltoall_": "all_to_all",
        "alltoall_base_": "all_to_all",
        "broadcast_": "broadcast",
        "reduce_": "reduce",
        "gather_": "gather",
        "scatter_": "scatter",
        "send": "send",
        "recv_": "recv",
        "recv_any_source_": "recv",
        "barrier": "barrier",
        "monitored_barrier_": "barrier",
    },
    "_c10d_functional": {
        "all_reduce": "all_reduce",
        "all_reduce_": "all_reduce",
        "all_reduce_coalesced": "all_reduce",
        "all_reduce_coalesced_": "all_reduce",
        "all_gather_into_tensor": "all_gather",
        "all_gather_into_tensor_out": "all_gather",
        "all_gather_into_tensor_coalesced": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "reduce_scatter_tensor_out": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
        "all_to_all_single": "all_to_all",
        "broadcast": "broadcast",
        "broadcast_": "broadcast",
        "isend": "send",
        "irecv": "recv",
    },
    "_dtensor": {"shard_dim_alltoall": "all_to_all"},
    "symm_mem": {
        "one_shot_all_reduce": "all_reduce",
        "one_shot_all_reduce_copy": "all_reduce",
        "two_shot_all_reduce_": "all_reduce",
        "multimem_all_reduce_": "all_reduce",
        "multimem_one_shot_all_reduce": "all_reduce",
        "_low_contention_all_gather": "all_gather",
        "_low_contention_reduce_scatter": "reduce_scatter",
        "fused_all_gather_matmul": "all_gather",
        "fused_matmul_reduce_scatter": "reduce_scatter",
        "all_to_all_vdev": "all_to_all",
    },
}
WAIT = "_c10d_functional::wait_tensor"
# Names of the operators' arguments: inputs, process group, and peer.
_INPUTS: tuple[str, ...] = (
    "input_tensors",
    "input_tensor",
    "input_list",
    "inputs",
    "input",
    "tensors",
    "tensor",
)
_INPUTS += ("symm_buffer", "A")
_GROUPS = ("process_group", "group_name")
_PEERS = ("root_rank", "src", "dst")


@cache
def kinds() -> dict[str, CollectiveKind]:
    """Return the kind of each operator that exists in this version of PyTorch, by operator name."""
    known = {
        f"{namespace}::{name}": kind
        for namespace, kinds in _KINDS.items()
        for name, kind in kinds.items()
    }
    return {name: kind for name, kind in known.items() if _schema(name) is not None}


def _schema(operator: str) -> Any:
    return next(iter(torch._C._jit_get_schemas_for_operator(operator)), None)


class Arguments(NamedTuple):
    """The positions of an operator's arguments; None if the operator has no such argument."""

    inputs: int
    group: int
    asynchronous: int | None
    peer: int | None


@cache
def arguments(operator: str) -> Arguments:
    """Return the positions of an operator's arguments, given the operator's name."""
    names = [argument.name for argument in _schema(operator).arguments]

    def place(wanted: tuple[str, ...]) -> int | None:
        return next((names.index(name) for name in wanted if name in names), None)

    inputs, group = place(_INPUTS), place(_GROUPS)
    assert inputs is not None, operator
    assert group is not None, operator
    return Arguments(inputs, group, place(("async_op",)), place(_PEERS))
