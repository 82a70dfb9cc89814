"""Run compiled modules eagerly to see whether the values stay the same."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Experiment
from ..internals.compiled import is_compiled
from ..internals.compiler.region_graph import CompiledOperation
from ..internals.replay.plain import run_plainly
from .comparison import Comparison
from .digits import distance
from .same_values import Part, apart, compared, differ
from .subject import Subject

_ADVICE = "Compile with backend='aot_eager' to see whether the kernels or the graph differ."


def eager(subject: Subject) -> Iterator[Experiment]:
    """Run compiled modules eagerly: the output stays the same."""
    changed = "what was compiled ran eagerly"
    if not any(map(is_compiled, subject.module.modules())):
        yield Experiment("eager", "", None, "nothing of the module is compiled")
        return
    seeds = Comparison()
    subject.run(seeds, other_seed=1)
    if seeds.rows:
        message = "it draws random numbers, and a compiled region draws others"
        yield Experiment("eager", changed, None, message)
        return
    compiled = run_plainly(subject.call, eager=False)
    other = run_plainly(subject.call)
    part = _part(subject) if differ(compiled, other) else None
    yield compared(subject, "eager", changed, compiled, other, "compiled-differs", _ADVICE, part)


def _part(subject: Subject) -> Part | None:
    """Return the first operation inside whose compiled result differs, or None."""
    found: list[tuple[CompiledOperation, float]] = []

    def see(inside: CompiledOperation) -> None:
        if not found and apart(inside.eager, inside.compiled) > 1:
            found.append((inside, distance(inside.compiled, inside.eager)))

    run_plainly(subject.call, inside=see)
    if not found:
        return None
    inside, change = found[0]
    return Part(inside.name, subject.line_of_files(inside.lines), "", change)
