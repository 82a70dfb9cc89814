"""Keep the module call that `experiment` runs again, and the losses computed after it.

This is the first outermost call of a module with parameters while gradients are enabled. Later
calls of the loss functions of `torch.nn.functional` are kept as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from ...graph import Graph
from ...graph.immutable import immutable
from ...internals.frames import CodePosition, frame_variables
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.replay.call import ModuleCall, has_no_values
from ...internals.tensors.pytree import flatten, tensors
from ..backward import Backward
from ..listener import Listener
from ..program import Program
from ..recorder import Columns

_LOSSES = {
    F.cross_entropy,
    F.nll_loss,
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
    F.poisson_nll_loss,
    F.gaussian_nll_loss,
}
_BY_CLASS = (F.cross_entropy, F.nll_loss)  # losses whose input has the classes in dimension 1
# Classes of sharded modules. Their calls cannot be repeated, since each call gathers parameters.
_DIVIDED = {"FSDPModule", "FullyShardedDataParallel"}
_MAX_OPERAND = 1 << 26  # a loss call with an operand of more bytes is not kept
_MAX_LOSSES = 8


@immutable(slots=False)
class Loss:
    """A recorded call of a loss function."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: CodePosition | None
    # Sums of the loss's input over the classes or the last dimension. Equal sums in the module's
    # output show which of its rows the loss uses.
    rows: Tensor | None


@immutable(slots=False)
class RecordedCall:
    """A recorded module call, with the nodes that it created and its losses."""

    call: ModuleCall
    where: str  # the user's line that called the module
    nodes: dict[int, int]  # index of a node in the order of creation -> node id
    count: int  # number of nodes that the forward created
    graph: int  # index in `Recording.graphs` of the graph with these nodes
    losses: tuple[Loss, ...]
    outputs: tuple[Tensor, ...]  # each floating-point output, summed over the last dimension


class FirstCall(Listener):
    """Listener that keeps the first outermost module call, for `record(experiments=True)`."""

    needs = ("experiments",)

    functions = _LOSSES
    before = frozenset[Any]()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._call: ModuleCall | None = None
        self._place: CodePosition | None = None
        self._depth = 0  # number of module calls that run inside the kept call
        self._open = False  # True while the kept call runs
        self._unfit = False  # True if the first call cannot be repeated
        self._end = -1
        self._nodes: dict[int, dict[int, int]] = {}  # index of a graph -> `RecordedCall.nodes`
        self._losses: list[Loss] = []
        self._outputs: tuple[Tensor, ...] = ()

    def on_module_start(self, event: ModuleBegan) -> None:
        if self._open:
            self._depth += 1
        elif self._call is None and not self._unfit and torch.is_grad_enabled():
            module = event.module
            # DDP's forward prepares a backward, so the wrapped module's call is kept instead.
            if type(module).__name__ == "DistributedDataParallel":
                return
            if next(module.parameters(), None) is not None:
                args, kwargs = frame_variables(event.frame, "args", "kwargs")
                given = event.args if args is None else args
                if (why := _unfit(module, given, kwargs)) != "":
                    self.program.remarks.leave_out(f"experiments: {why}")
                    self._unfit = True
                    return
                self._place = self.program.place(event.frame)
                self._call = ModuleCall.record(module, given, kwargs or {}, sequence_number())
                self._open = True

    def on_module_end(self, event: ModuleEnded) -> None:
        if not self._open:
            return
        if self._depth:
            self._depth -= 1
            return
        self._open, self._end = False, sequence_number()
        found = [t for _, t in flatten(event.output, ask=False) if _has_rows(t)]
        self._outputs = tuple(map(_rows, found))

    def on_call_end(self, event: Called) -> None:
        if self._call is None or len(self._losses) == _MAX_LOSSES:
            return
        kept = [
            TensorBase.detach(value) if isinstance(value, Tensor) else value
            for value in event.args
            if not isinstance(value, Tensor) or value.nbytes <= _MAX_OPERAND
        ]
        if len(kept) < len(event.args):
            return
        kwargs = {
            name: TensorBase.detach(value) if isinstance(value, Tensor) else value
            for name, value in (event.kwargs or {}).items()
        }
        first = next((t for t in [*event.args, *kwargs.values()] if isinstance(t, Tensor)), None)
        rows = None
        if first is not None and _has_rows(first):
            rows = _rows(first, 1 if event.func in _BY_CLASS else -1)
        place = self.program.place(event.frame)
        self._losses.append(Loss(event.func, tuple(kept), kwargs, place, rows))

    def node_columns(self, backward: Backward) -> Columns:
        """Store the ids of the nodes that the call created. The result is empty."""
        if self._call is not None:
            start, end = self._call.start, self._end
            self._nodes[backward.position] = {
                number - start: i
                for i, number in enumerate(backward.numbers)
                if start <= number < end
            }
        return {}

    def on_step_end(self, event: None) -> None:
        self._nodes = {}

    def persistent_state(self, graphs: Sequence[Graph]) -> RecordedCall | None:
        """Return the call, with the node ids from the graph that contains most of its nodes."""
        if self._call is None:
            return None
        position = max(self._nodes, key=lambda key: len(self._nodes[key]), default=0)
        nodes = self._nodes.get(position, {})
        whole = position < len(graphs) and all(
            i < len(graphs[position].nodes) for i in nodes.values()
        )
        return RecordedCall(
            self._call,
            self.program.line()(self._place),
            nodes if whole else {},
            self._end - self._call.start,
            position,
            tuple(self._losses),
            self._outputs,
        )


def _unfit(module: Module, args: Any, kwargs: Any) -> str:
    """Return why the call cannot be repeated; "" if it can be repeated."""
    if {name for m in module.modules() for name in _classes(m)} & _DIVIDED:
        return "the module is sharded across ranks"
    given = [*tensors(args, kwargs), *module.parameters(), *module.buffers()]
    if any(map(has_no_values, given)):
        return "the module has tensors without values (meta, fake, freed)"
    return ""


def _classes(module: Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}


def _has_rows(tensor: Tensor) -> bool:
    return torch.is_floating_point(tensor) and TensorBase.dim(tensor) >= 2 and not tensor.is_meta


def _rows(tensor: Tensor, dim: int = -1) -> Tensor:
    with torch.no_grad():
        return torch.sum(TensorBase.double(TensorBase.detach(tensor)), dim)
