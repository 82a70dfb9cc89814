"""Append rows of backwards and optimizer steps to the log.

This listener also runs with gradients="finite", because an optimizer step shows that the program
trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ...findings.rules.meaning.calls import RetainedBy
from ...findings.rules.training import DiscardedGradients
from ...graph.events import GradientClearing
from ...internals.frames import user_frame
from ...internals.functions import BATCH_NORM, DROPOUT
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.references import Ref
from ..listener import BackwardEnded, Listener, Resumed
from ..optimizer_log import learning_rate
from ..program import Program
from ..program.parameters import ParameterTable
from ..program.rows import BackwardRow, GraphRow, GroupRow, ResumeRow, StepEndRow, StepRow

# Keys that optimizers and schedulers of PyTorch add to the options of a parameter group.
_GROUP_KEYS = frozenset(
    ("params", "param_names", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
)


class Steps(Listener):
    """Listener that appends rows of backwards and optimizer steps."""

    needs = ()

    sees_later_steps = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._known: dict[int, Ref] = {}  # the parameters in rows, by id()

    def on_backward_end(self, event: BackwardEnded) -> None:
        backward, call, program = event.backward, event.backward.call, self.program
        by: RetainedBy = "create_graph" if call.creates else "retain_graph"
        kept = by if call.retains and not backward.failed else None
        numbers = [backward.numbers[node] for node, _ in backward.reading.ends]
        roots = tuple([number for number in numbers if number >= 0])
        row = GraphRow(call.place, backward.numbers, backward.ran, roots, kept, call.step)
        program.log.append(row)
        if not call.accumulates or backward.failed:
            return
        parameters = program.table.by_id()
        reached = frozenset(backward.reached & parameters.keys())
        known = self._known
        new = [key for key in reached if key not in known or known[key]() is None]
        known |= {key: Ref(parameters[key]) for key in new}
        if len(known) > 2 * len(parameters):
            self._known = {key: ref for key, ref in known.items() if ref() is not None}
        shards: list[int] = []
        if len(reached) < len(backward.reached):
            # `fully_shard` copies gradients of unsharded parameters to the shards, which the graph
            # does not contain. A shard has a new gradient that it has not used yet.
            shards = [key for key, each in parameters.items() if hasattr(each, "_local_tensor")]
        program.log.append(
            BackwardRow(
                call.place,
                roots,
                backward.reached,
                reached,
                frozenset(new),
                frozenset(shards),
                call.loss_scale is not None,
                layers_in_eval_mode(program.table) if program.options.every_call else (),
            )
        )

    def on_optimizer_step_start(self, event: Stepping) -> None:
        optimizer, program = event.optimizer, self.program
        record = program.steps.log.get(optimizer)
        if record is None:
            return
        parameters, groups = parameters_of(optimizer), optimizer.param_groups
        keys = frozenset(map(id, parameters))
        has_copies = program.steps.parameters(optimizer) is None
        foreign = frozenset() if has_copies else keys - program.table.own_ids()
        if len(foreign) < len(keys):  # the optimizer also updates parameters of the model
            # Only leaves are checked, because PyTorch warns when `.grad` of a non-leaf is read.
            leaves = [p for p in parameters if id(p) in foreign and p.is_leaf]
            foreign = frozenset(id(p) for p in leaves if p.grad is None)
        has_gradients = any(p.grad is not None for p in parameters if p.is_leaf)
        program.log.append(
            StepRow(
                record.number,
                program.optimizer_name(optimizer, user_frame(event.frame)),
                program.place(event.frame),
                record.steps,
                keys,
                has_copies,
                len(foreign),
                tuple(
                    GroupRow(len(group["params"]), rate, _has_own_options(group, optimizer))
                    for group, rate in zip(groups, record.rates, strict=False)
                ),
                any(group.get("maximize") is True for group in groups),
                bool(program.changes.read),
                record.computes,
                has_gradients,
                () if has_gradients else self._learning(parameters),
                program.identities.number(parameters[0]) if parameters else 0,
                record.had_state,
                _is_scheduled(optimizer),
                learning_rate(vars(optimizer)) if _is_of_torch(optimizer) else None,
                learning_rate(getattr(optimizer, "defaults", {})),
            )
        )

    def on_optimizer_step_end(self, event: Stepped) -> None:
        record = self.program.steps.log.get(event.optimizer)
        if record is not None:
            parameters = parameters_of(event.optimizer)
            first = self.program.identities.number(parameters[0]) if parameters else 0
            self.program.log.append(StepEndRow(first, record.keeps_state))

    def on_resume(self, event: Resumed) -> None:
        """Append a row for the pause, during which the program may have used any gradient.

        This method is also called after the replay of a CUDA graph, because earlier backwards may
        have been the graph's warm-up.
        """
        self.program.log.append(ResumeRow())
        self.program.log.read()
        self.events.forget(GradientClearing, DiscardedGradients)

    def _learning(self, parameters: Sequence[Tensor]) -> tuple[int, ...]:
        """Return those of an optimizer's parameters that a module has and that require a gradient.

        Args:
            parameters: the parameters.
        """
        own = self.program.table.every()
        return tuple([id(p) for p in parameters if p.requires_grad and id(p) in own])


def _is_scheduled(optimizer: Optimizer) -> bool:
    """Return True if the optimizer has a scheduler, which sets a private attribute (2.13)."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def _is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.")


def _has_own_options(group: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Return True if a parameter group has options that PyTorch does not give it."""
    return not group.keys() <= optimizer.defaults.keys() | _GROUP_KEYS


def layers_in_eval_mode(table: ParameterTable) -> tuple[tuple[str, str], ...]:
    """Return path and class of the layers in eval mode, if the model and all its layers are in it.

    Layers that were not called, and layers of modules that do not learn, are left out. The result
    is () for a model in train mode, also if the program froze its batch norm layers on purpose.
    """
    every = table.modules()
    kinds = {type(module) for module, _ in every}
    kinds = {kind for kind in kinds if issubclass(kind, (DROPOUT, BATCH_NORM))}
    layers = []  # called layers that would return different results in train mode
    for module, path in every if kinds else ():
        if type(module) not in kinds:
            continue
        acts = isinstance(module, DROPOUT) and module.p > 0
        acts = acts or (isinstance(module, BATCH_NORM) and module.track_running_stats)
        if acts and table.ran(path):
            layers.append((path, module))
    if not layers:
        return ()
    training = [path for module, path in every if _is_in_train_mode(module)]
    if any(not t or f"{path}.".startswith(f"{t}.") for path, _ in layers for t in training):
        return ()
    return tuple([(path, type(module).__name__) for path, module in layers if table.learns(module)])


def _is_in_train_mode(module: Module) -> bool:
    """Return True if a module is in train mode, or has no `training` attribute."""
    return bool(getattr(module, "training", True))
