"""Find out whether compiled modules compute the same values as eager ones."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Experiment
from ..internals.compiled import is_compiled
from ..internals.compiler.region_graph import CompiledOperation
from ..internals.replay.forward import run_forward
from .divergence import Divergence, compare_forwards, outputs_differ, scaled_distance
from .precision import distance
from .subject import Subject
from .two_runs import Comparison

_ADVICE = "Compile with backend='aot_eager' to see whether the kernels or the graph differ."


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
        subject, "eager", changed, compiled, other, "compiled-differs", _ADVICE, part
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
