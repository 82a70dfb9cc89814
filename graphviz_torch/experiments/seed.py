"""Find out whether results are random in eval mode: change the random seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..graph import Experiment
from .subject import Subject
from .two_runs import Comparison, OperatorComparison

_SEED = 20_011
_DROPS = ("dropout", "bernoulli")
_ADVICE = (
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
                "seed", changed, message, row, run, rule="random-in-eval-mode", advice=_ADVICE
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
