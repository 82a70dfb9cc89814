"""Eager for compiled: the same values come out."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Experiment
from ..internals.compiled import is_compiled
from ..internals.replay.plain import run_plainly
from .comparison import Comparison
from .same_values import compared
from .subject import Subject


def eager(subject: Subject) -> Iterator[Experiment]:
    """What torch.compile made, run eagerly: the output is the same."""
    changed = "what was compiled ran eagerly"
    if not any(map(is_compiled, subject.module.modules())):
        yield Experiment("eager", changed, None, "nothing of it is compiled")
        return
    seeds = Comparison()
    subject.run(seeds, other_seed=1)
    if seeds.rows:
        message = "it draws random numbers, and a compiled region draws others"
        yield Experiment("eager", changed, None, message)
        return
    compiled = run_plainly(subject.call, eager=False)
    other = run_plainly(subject.call)
    advice = "Compile with backend='aot_eager' to see whether the kernels or the graph differ."
    yield compared(subject, "eager", changed, compiled, other, "compiled-differs", advice)
