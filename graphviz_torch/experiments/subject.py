"""Run a recorded call again, and map its inputs, operators and lines to the recorded graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ..graph import Experiment, Finding, Graph, Severity
from ..graph.text import called_at, users_line
from ..internals.frames import OTHER, OWN, CodePosition, code_owner
from ..internals.replay.call import ModuleCall
from ..internals.replay.side_by_side import ComparisonRun, OperatorPair, run_side_by_side
from ..internals.replay.side_effects import SideEffectError
from ..internals.tensors.pytree import flatten
from ..recording.modules.first_call import Loss, RecordedCall
from ..recording.program.source_lines import lines, short_names
from .comparison import Comparison, Row, readable


class Input(NamedTuple):
    """A tensor among a module's arguments."""

    name: str  # "x", "batch.ids"
    tensor: Tensor


Change = Callable[[list[Input]], Mapping[int, Tensor]]


class Subject:
    """A recorded call that can be run again.

    Args:
        recorded: the call.
        graphs: the recording's graphs.
    """

    def __init__(self, recorded: RecordedCall, graphs: list[Graph]) -> None:
        self.recorded = recorded
        self.call: ModuleCall = recorded.call
        self.losses: tuple[Loss, ...] = recorded.losses
        known = recorded.graph < len(graphs)
        self.graph = graphs[recorded.graph] if known else Graph(())

    @property
    def module(self) -> Module:
        """The module that was called."""
        return self.call.module

    def nonfinite_parameter(self) -> str:
        """Return the name of a used parameter that has NaN or Inf, as "weight", or ""."""
        used = [f".{row.name}" for row in self.graph.parameters if row.node is not None]
        for name, parameter in self.module.named_parameters():
            values = readable(parameter)
            if values is None or not any(each.endswith(f".{name}") for each in used):
                continue
            with suppress(RuntimeError):  # dtypes without `isfinite`
                if not bool(values.isfinite().all()):
                    return name
        return ""

    def inputs(self, args: Any = None, kwargs: Any = None) -> list[Input]:
        """Return the tensors among the arguments of the call, or of a copy of it, each once."""
        args = self.call.args if args is None else args
        kwargs = self.call.kwargs if kwargs is None else kwargs
        found: dict[int, Input] = {}
        for name, value in [
            *zip(_names(self.module, len(args)), args, strict=False),
            *kwargs.items(),
        ]:
            for path, tensor in flatten(value, ask=False):
                dot = "" if not path or path.startswith("[") else "."
                found.setdefault(id(tensor), Input(f"{name}{dot}{path}", tensor))
        return list(found.values())

    def run(
        self,
        compare: Callable[[OperatorPair], bool],
        change: Change | None = None,
        *,
        training: Callable[[Module], bool] | None = None,
        double: bool = False,
        other_seed: int | None = None,
        views: bool = False,
    ) -> ComparisonRun:
        """Run the forward next to a changed version of it."""

        def changed_values(args: Any, kwargs: Any) -> Mapping[int, Tensor]:
            return {} if change is None else change(self.inputs(args, kwargs))

        return run_side_by_side(
            self.call,
            changed_values,
            compare,
            training=training,
            double=double,
            other_seed=other_seed,
            views=views,
        )

    def leaks(
        self, run: ComparisonRun, comparison: Comparison, output: int | None = None
    ) -> tuple[Row, list[Row]] | None:
        """Return where lanes start to mix, if a lane that must not change does in an output.

        Args:
            run: a run with changed lanes.
            comparison: the callback of that run.
            output: index in `RecordedCall.outputs` of the only output that counts.
        """
        outputs = [tensor for _, tensor in flatten(run.output, ask=False)]
        if output is not None:
            outputs = [t for t in outputs if t.is_floating_point() and t.dim() >= 2]
            outputs = outputs[output : output + 1]
        for tensor in outputs:
            other = run.shadows.get(tensor)
            if other is not None and not comparison.keeps_lanes(tensor, other):
                row = comparison.rows.get(run.shadows.maker(tensor))
                if row is not None and row.keeps is False:
                    return comparison.origin(row.number)
        return None

    def inconclusive(self, name: str, changed: str, run: ComparisonRun) -> Experiment | None:
        """Return the experiment's result if the run allows no conclusion, else None."""
        if run.error is not None:
            return Experiment(name, changed, None, reason(run.error, "again"))
        if run.dependent:
            where = self.line(run.depends, run.depends)
            message = "the path through the code depends on these values, so nothing is concluded"
            if run.leaves:
                message = f"{run.leaves}() takes these values out of PyTorch, where nothing follows"
            return Experiment(name, changed, None, message, where=where)
        return None

    def node(self, row: Row, run: ComparisonRun) -> int | None:
        """Return the id of the recorded graph's node that an operator created, or None."""
        if run.nodes != self.recorded.count:
            return None
        return self.recorded.nodes.get(row.node)

    def line(self, place: CodePosition | None, user: CodePosition | None) -> str:
        """Return a code position as text; for a library's, with the user's call."""
        # The default is the user's line that called the module.
        called = lines([user[0].co_filename])(user) if user else self.recorded.where
        if place is None or place == user:
            return called
        return called_at(lines([place[0].co_filename])(place), called)

    def line_of_files(self, found: tuple[tuple[str, int], ...]) -> str:
        """Return the line of a call as `line` does, given the files and lines around it."""
        whose = [(code_owner(file), file, number) for file, number in found]
        names = short_names({file for _, file, _ in whose})
        user = next((f"{names[f]}:{n}" for o, f, n in reversed(whose) if o == OWN), "")
        known = next((f"{names[f]}:{n}" for o, f, n in reversed(whose) if o != OTHER), user)
        user = user or self.recorded.where
        return user if known in ("", user) else called_at(known, user)

    def answer(
        self,
        name: str,
        changed: str,
        message: str,
        row: Row,
        run: ComparisonRun,
        *,
        holds: bool | None = False,
        rule: str = "",
        severity: Severity = "warning",
        advice: str = "",
    ) -> Experiment:
        """Return the experiment's result for a difference at an operator.

        With `rule`, the result has a finding.
        """
        node = self.node(row, run)
        known = self.graph.nodes[node] if node is not None else None
        operation = known.title if known is not None else row.name
        where = known.where if known and known.where else self.line(row.place, row.user_place)
        module = row.module
        text = message.replace("{operation}", operation)
        found = None
        if rule:
            line = users_line(where)
            place = f"{operation} at {line}" if line else operation
            found = Finding(
                rule,
                severity,
                f"{changed[0].upper()}{changed[1:]}: {message.replace('{operation}', place)}.",
                advice,
                where=line,
                nodes=() if node is None else (node,),
            )
        return Experiment(
            name, changed, holds, text, operation, where, module, node, row.change, found
        )


def reason(error: BaseException, how: str) -> str:
    """Return why a forward cannot be run; `how` is "again" or "so"."""
    if isinstance(error, SideEffectError):
        return f"its forward {error.does}, so it is not run again, and nothing is concluded"
    first_line = next(iter(str(error).splitlines()), "")[:100]
    return f"its forward cannot be run {how}: {type(error).__name__}: {first_line}"


def other_values(tensor: Tensor, dim: int, lanes: range) -> Tensor | None:
    """Return a copy in which some lanes of a dimension have their neighbors' values.

    Returns None if all lanes are equal. Floating-point values get noise as well; integers and
    booleans are taken from existing ones.
    """
    other = tensor.detach().clone()
    part = other.narrow(dim, lanes.start, len(lanes))
    size = tensor.shape[dim]
    for shift in range(1, size):
        index = torch.tensor([(i + shift) % size for i in lanes], device=tensor.device)
        found = tensor.detach().index_select(dim, index)
        if tensor.is_floating_point() or tensor.is_complex():
            generator = torch.Generator().manual_seed(0)
            noise = torch.randn(found.shape, generator=generator).to(found.device, found.dtype)
            scale = tensor.detach().abs().float().mean().clamp(min=1e-3).to(found.dtype)
            found = found + 0.3 * scale * noise
        if not torch.equal(found, part):
            part.copy_(found)
            return other
    return None


def _names(module: Module, count: int) -> list[str]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return [f"[{i}]" for i in range(count)]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in plain]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "")
    return [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(count)]
