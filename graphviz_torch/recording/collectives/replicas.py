"""Compute checksums of parameters and buffers, to check that ranks have equal copies.

Which ranks should have equal copies depends on the tensor:

    plain tensor     all ranks
    parameter in DDP all ranks of the wrapper's process group, unless the wrapper ignores it
    DTensor          the ranks along the mesh dimensions on which the DTensor is replicated

Tensors that only one rank has, buffers outside of the state dict, and buffers that DDP broadcasts
are left out. Checksums are computed when the first backward begins and at the end of each step.
They are compared when the graphs of several ranks are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ...graph import Graph
from ...graph import Replica as Value
from ...graph.immutable import NamedTuple
from ...internals.sharding import replica_ranks
from ...internals.tensors.memory import PLAIN
from ...internals.tensors.reductions import Checksums
from ...internals.tensors.references import instances_of, subclasses_of
from ..backward import Backward
from ..listener import BackwardBegan, Listener, StepValues
from ..program import Program
from ..resolver import Resolver

_MAX_CHECKSUMS = 8  # number of checksums kept per tensor: half are the earliest, half the latest


class _ReplicatedTensor(NamedTuple):
    """A tensor that should be equal on several ranks."""

    tensor: Tensor
    kind: Any
    ranks: tuple[int, ...]
    wrapper: str


class Replicas(Listener):
    """Listener that records checksums of tensors that should be equal on several ranks."""

    needs = ("every_call", "with_gradients", "is_distributed")

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # (number of the step, name of a tensor -> checksum). The first item was computed before
        # the first step, all others at the end of a step.
        self._summed: list[tuple[int, dict[str, int]]] = []
        self._now: tuple[int, dict[str, int]] | None = None
        self._found: dict[str, _ReplicatedTensor] = {}
        self._last = -1  # index of this step's last backward
        self._ddp_guarantees: tuple[frozenset[int], dict[int, tuple[int, ...]], set[int]] | None = (
            None
        )

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Compute checksums before the first step of the run."""
        if not self._summed and dist.is_initialized():
            self._summed.append((self.program.step, self._sums()))

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        """Compute checksums at the end of a step."""
        if self._summed and backwards and dist.is_initialized():
            self._now, self._last = (self.program.step, self._sums()), backwards[-1].position

    def on_step_end(self, event: None) -> None:
        if self._now is not None:
            self._summed.append(self._now)
            del self._summed[_MAX_CHECKSUMS // 2 : -(_MAX_CHECKSUMS // 2)]
        self._now, self._found = None, {}

    def step_values(self, resolver: Resolver) -> StepValues:
        if self._now is None or resolver.backward.position != self._last:
            return {}
        moments = [*self._summed, self._now]
        found = tuple(
            Value(name, copy.kind, copy.ranks, copy.wrapper, tuple(s.get(name) for _, s in moments))
            for name, copy in self._found.items()
        )
        summed = tuple(number for number, _ in moments)
        return {"replicas": found, "checksum_steps": summed}

    def close(self) -> None:
        self._found, self._ddp_guarantees = {}, None

    def _sums(self) -> dict[str, int]:
        self._found = self._replicas()
        sums = Checksums({name: each.tensor for name, each in self._found.items()})
        return sums.fetch()

    def _replicas(self) -> dict[str, _ReplicatedTensor]:
        """Return the tensors that should be equal on other ranks, by name."""
        table, found = self.program.table, {}
        everybody = tuple(range(dist.get_world_size()))
        promised, broadcast = self._ddp_guaranteed()
        for name, tensor in table.listed_parameters():
            if type(tensor) in PLAIN:
                ranks = promised.get(id(tensor))
                wrapper = "" if ranks is None else DistributedDataParallel.__name__
                found[name] = _ReplicatedTensor(tensor, "parameter", ranks or everybody, wrapper)
            elif len(ranks := replica_ranks(tensor)) > 1:
                found[name] = _ReplicatedTensor(tensor, "parameter", ranks, "DTensor")
        for module, path in table.called_modules():
            for name, buffer in module._buffers.items():
                local = name in module._non_persistent_buffers_set
                if buffer is None or local or type(buffer) not in PLAIN or id(buffer) in broadcast:
                    continue
                found.setdefault(
                    f"{path}.{name}" if path else name,
                    _ReplicatedTensor(buffer, "buffer", everybody, ""),
                )
        return {name: each for name, each in found.items() if len(each.ranks) > 1}

    def _ddp_guaranteed(self) -> tuple[dict[int, tuple[int, ...]], set[int]]:
        """Return the parameters that DDP keeps equal, and the buffers that DDP broadcasts.

        The first value has the ranks with equal copies, by id() of the parameter. The second has
        the id() of each buffer. Both are cached until the parameters change.
        """
        known = frozenset(id(tensor) for _, tensor in self.program.table.listed_parameters())
        if self._ddp_guarantees is None or self._ddp_guarantees[0] != known:
            promised: dict[int, tuple[int, ...]] = {}
            broadcast: set[int] = set()
            for wrapper in instances_of(subclasses_of(DistributedDataParallel)):
                try:
                    ranks = tuple(dist.get_process_group_ranks(wrapper.process_group))
                except Exception:  # the process group was destroyed
                    continue
                ignored = wrapper.parameters_to_ignore
                if not _uses_local_sgd(wrapper):
                    named = wrapper.module.named_parameters()
                    promised |= {id(p): ranks for name, p in named if name not in ignored}
                if wrapper.broadcast_buffers:
                    buffers = wrapper.module.named_buffers()
                    broadcast |= {id(buffer) for name, buffer in buffers if name not in ignored}
            self._ddp_guarantees = known, promised, broadcast
        return self._ddp_guarantees[1:]


def _uses_local_sgd(wrapper: Any) -> bool:
    """Return True if the wrapper averages weights instead of gradients (local SGD)."""
    hooks = getattr(wrapper, "_comm_hooks", ())
    return any("localSGD" in getattr(hook, "__name__", "") for hook, _ in hooks)
