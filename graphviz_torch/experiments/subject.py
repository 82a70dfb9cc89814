"""Run a recorded call again with a change, and map operators to nodes of the recorded graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..graph import Experiment, Finding, Graph, Severity
from ..graph.immutable import NamedTuple
from ..graph.text import called_at, users_line
from ..internals.frames import OTHER, OWN, CodePosition, code_owner
from ..internals.replay.call import ModuleCall
from ..internals.replay.sandbox import SideEffectError
from ..internals.replay.side_by_side import ComparisonRun, OperatorPair, run_side_by_side
from ..internals.tensors.pytree import flatten
from ..recording.modules.first_call import Loss, RecordedCall
from ..recording.program.source_lines import lines, short_names
from .two_runs import Comparison, OperatorComparison, readable


class Input(NamedTuple):
    """A tensor in the arguments of a module's call."""

    name: str  # such as "x" or "batch.ids"
    tensor: Tensor


Change = Callable[[list[Input]], Mapping[int, Tensor]]


class Subject:
    """A recorded call that can be run again.

    Args:
        recorded: the recorded call.
        graphs: the graphs of the recording.
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
        """Return the name of a used parameter with NaN or Inf, such as "weight"; "" if none has."""
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
        """Return the tensors in the arguments of the call, each once.

        Args:
            args, kwargs: copies of the arguments; None means the recorded arguments.
        """
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
        """Run the forward together with a changed version of the forward, operator by operator.

        Args:
            compare: called with both results of each operator; returns whether they differ.
            change: function that returns a dict: `id` of an input tensor -> its values in the
                changed version.
            training: returns the training mode of a module; None keeps the recorded modes.
            double: whether the changed version computes in float64.
            other_seed: random seed of the changed version.
            views: whether `compare` is called for views, too.
        """

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
    ) -> tuple[OperatorComparison, list[OperatorComparison]] | None:
        """Return (first operator that mixes lanes, all operators that mix lanes), or None.

        A lane is one sample or one position. The result is None if the outputs differ only in lanes
        that may differ.

        Args:
            run: a run in which some lanes were changed.
            comparison: the callback of that run.
            output: index in `RecordedCall.outputs` of the output to check; None checks all.
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
        """Return an experiment without result if the run failed or took another path, else None."""
        if run.error is not None:
            return Experiment(name, changed, None, reason(run.error, "again"))
        if run.dependent:
            where = self.line(run.depends, run.depends)
            message = "control flow depends on these values, so nothing can be concluded"
            if run.leaves:
                message = f"{run.leaves}() takes these values out of PyTorch: they are not followed"
            return Experiment(name, changed, None, message, where=where)
        return None

    def node(self, row: OperatorComparison, run: ComparisonRun) -> int | None:
        """Return the id of the recorded node that an operator created; None if there is none."""
        if run.nodes != self.recorded.count:
            return None
        return self.recorded.nodes.get(row.node)

    def line(self, place: CodePosition | None, user: CodePosition | None) -> str:
        """Return a code position as text, with the user's line if it is in a library."""
        # If no user's line is given, use the line that called the module.
        called = lines([user[0].co_filename])(user) if user else self.recorded.where
        if place is None or place == user:
            return called
        return called_at(lines([place[0].co_filename])(place), called)

    def line_of_files(self, found: tuple[tuple[str, int], ...]) -> str:
        """Return the text of a code position, as `line` does, from the frames of a call.

        Args:
            found: (file, line number) of each frame, the innermost last.
        """
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
        row: OperatorComparison,
        run: ComparisonRun,
        *,
        holds: bool | None = False,
        rule: str = "",
        severity: Severity = "warning",
        advice: str = "",
    ) -> Experiment:
        """Return the experiment's result for a difference at an operator.

        Args:
            name: name of the experiment.
            changed: description of the change.
            message: the result. The operator's name replaces "{operation}".
            row: the operator.
            run: the run that compared it.
            holds: whether the expectation was met; None if nothing can be concluded.
            rule: rule of the finding; "" if there is no finding.
            severity: severity of the finding.
            advice: advice of the finding.
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
    """Return a text that says why a forward cannot be run.

    Args:
        error: the exception of the forward.
        how: the end of "cannot be run ...": "again" or "with this change".
    """
    if isinstance(error, SideEffectError):
        return f"its forward {error.does}: it is not run again, and nothing can be concluded"
    first_line = next(iter(str(error).splitlines()), "")[:100]
    return f"its forward cannot be run {how}: {type(error).__name__}: {first_line}"


def other_values(tensor: Tensor, dim: int, lanes: range) -> Tensor | None:
    """Return a copy in which some slices along `dim` have the values of other slices.

    Floating-point values also get noise; integers and booleans do not, so that they stay valid.
    Returns None if all slices are equal.

    Args:
        tensor: the tensor to copy.
        dim: the dimension of the samples or positions.
        lanes: indices of the slices to change.
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
