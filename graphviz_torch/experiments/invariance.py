"""Find out whether results depend on memory layout, random seed or compilation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Module

from ..graph import Experiment
from ..internals.compiled import is_compiled
from ..internals.compiler.region_graph import CompiledOperation
from ..internals.replay.forward import run_forward
from .divergence import (
    Divergence,
    DivergenceFinder,
    RecordedResults,
    compare_forwards,
    distance,
    outputs_differ,
    scaled_distance,
)
from .subject import Subject
from .two_runs import Comparison, OperatorComparison

_LAYOUT_ADVICE = (
    "Look there for as_strided, a kernel of your own, or an access to the storage: they read "
    "elements in memory order."
)


def memory_order(subject: Subject) -> Iterator[Experiment]:
    """Change the memory layout of the inputs. The output has to stay the same.

    Images become channels last. In other inputs, the last two dimensions are swapped in memory.
    """
    given = subject.inputs()
    ordered = [each for each in given if _other_order(each.tensor) is not None]
    changed = "the inputs have another memory layout"
    if not ordered:
        message = "no floating-point input has two dimensions of more than one element"
        yield Experiment("memory_order", "", None, message)
        return

    def change(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[int, Tensor]:
        found = {}
        for each in subject.inputs(args, kwargs):
            other = _other_order(each.tensor)
            if other is not None:
                found[id(each.tensor)] = other
        return found

    results = RecordedResults()
    first = run_forward(subject.call, training=without_dropout, each=results)
    other = run_forward(subject.call, change, training=without_dropout)
    part = None
    if outputs_differ(first, other):  # a third run finds the operation that differs
        beside = DivergenceFinder(results)
        run_forward(subject.call, change, training=without_dropout, each=beside)
        if beside.part is not None:
            made, size = beside.part
            where = subject.line(made.place, made.user_place)
            part = Divergence(made.name, where, made.module, size, beside.is_random)
    yield compare_forwards(
        subject, "memory_order", changed, first, other, "memory-order", _LAYOUT_ADVICE, part=part
    )


def without_dropout(module: Module) -> bool:
    """Return a module's training mode; False for dropout, whose mask depends on memory layout."""
    return module.training and "dropout" not in type(module).__name__.lower()


def _other_order(tensor: Tensor) -> Tensor | None:
    """Return a copy of a tensor in a different memory layout; None if it has only one layout.

    Images become channels last. In other tensors, the last two dimensions are swapped in memory.
    """
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.is_meta:
        return None
    if min(tensor.shape[-2:]) < 2:
        return None
    plain = tensor.detach()
    if tensor.dim() == 4 and tensor.is_contiguous() and tensor.shape[1] > 1:
        return plain.to(memory_format=torch.channels_last)
    return plain.transpose(-1, -2).contiguous().transpose(-1, -2)


_SEED = 20_011
_DROPS = ("dropout", "bernoulli")
_DROPOUT_ADVICE = (
    "In eval mode, dropout has to be off: pass training=self.training, or use the module "
    "nn.Dropout."
)


def seed(subject: Subject) -> Iterator[Experiment]:
    """Change the random seed. In eval mode, the results have to stay the same.

    In training mode, results of random operations may differ.
    """
    modes = [m.training for m in subject.module.modules()]
    for name in ("training", "eval") if any(modes) else ("eval",):
        changed = f"another seed, in {name} mode"
        comparison = Comparison()
        run = subject.run(
            comparison, training=None if name == "training" else lambda _: False, other_seed=_SEED
        )
        if (unknown := subject.inconclusive("seed", changed, run)) is not None:
            yield unknown
            continue
        rows = [_with_dropout_name(row) for _, row in sorted(comparison.rows.items())]
        first = rows[0] if rows else None
        if first is None and run.draws_in_python:
            message = "it draws numbers from numpy or random, whose seeds are not changed"
            yield Experiment("seed", changed, None, message)
        elif first is None:
            yield Experiment("seed", changed, True, "no result differs")
        elif name == "training":
            message = "results differ from {operation} on"
            yield subject.answer("seed", changed, message, first, run, holds=True)
        elif (row := _first_dropping_row(rows)) is not None:
            message = "results differ, first at {operation}, which drops values"
            yield subject.answer(
                "seed",
                changed,
                message,
                row,
                run,
                rule="random-in-eval-mode",
                advice=_DROPOUT_ADVICE,
            )
        else:
            message = "results differ from {operation} on, which draws random numbers"
            yield subject.answer("seed", changed, message, first, run, holds=None)


def _with_dropout_name(row: OperatorComparison) -> OperatorComparison:
    """Return the row, named after the dropout function that called the operator, if any."""
    return row._replace(name=next((f for f in row.functions if "dropout" in f), row.name))


def _first_dropping_row(rows: Sequence[OperatorComparison]) -> OperatorComparison | None:
    """Return the first random operator that drops values, such as dropout; None if none does."""
    for each in rows:
        if each.is_random and any(
            word in name for name in (each.name, *each.functions) for word in _DROPS
        ):
            return each
    return None


_BACKEND_ADVICE = "Compile with backend='aot_eager' to see whether the kernels or the graph differ."


def eager(subject: Subject) -> Iterator[Experiment]:
    """Run compiled modules eagerly. The output has to stay the same."""
    changed = "compiled modules ran eagerly"
    if not any(map(is_compiled, subject.module.modules())):
        yield Experiment("eager", "", None, "no part of the module is compiled")
        return
    seeds = Comparison()
    subject.run(seeds, other_seed=1)
    if seeds.rows:
        message = "it draws random numbers, and a compiled region draws other ones"
        yield Experiment("eager", changed, None, message)
        return
    compiled = run_forward(subject.call, eager=False)
    other = run_forward(subject.call)
    part = _part(subject) if outputs_differ(compiled, other) else None
    yield compare_forwards(
        subject, "eager", changed, compiled, other, "compiled-differs", _BACKEND_ADVICE, part
    )


def _part(subject: Subject) -> Divergence | None:
    """Return the first operation whose compiled and eager results differ; None if none does."""
    found: list[tuple[CompiledOperation, float]] = []

    def see(inside: CompiledOperation) -> None:
        if not found and scaled_distance(inside.eager, inside.compiled) > 1:
            found.append((inside, distance(inside.compiled, inside.eager)))

    run_forward(subject.call, inside=see)
    if not found:
        return None
    inside, change = found[0]
    return Divergence(inside.name, subject.line_of_files(inside.lines), "", change)
