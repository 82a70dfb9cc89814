"""The table of all rules: those in the files of `rules/`.

Findings of equal severity are sorted by file, first those of `ORDER`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages

from ..graph import Finding, Graph
from . import rules as _rules
from .graph_reading import Reading
from .rule import FINDERS, INDICES, RULES, Reads, Rule, sort_rules

# The files of `rules/` whose findings come before those of other files, in this order.
ORDER = (
    "devices",
    "cuts",
    "leaves",
    "failures",
    "training",
    "clipping",
    "gradient_reads",
    "lost",
    "meaning.roles",
    "paths",
    "terms",
    "freezing",
    "losses",
    "custom_functions",
    "wrong_gradients",
    "func_gradients",
    "first_values",
    "means",
    "loss_weights",
    "overwritten",
    "modes",
    "signs",
    "divergences",
    "scores",
    "noise",
    "adversaries",
    "unchanging",
    "initial_loss",
    "loss_spikes",
    "unused_names",
    "unused_losses",
    "single_rows",
    "same_operands",
    "references",
    "derivatives",
    "cut_derivatives",
    "meaning.views",
    "meaning.normalization",
    "meaning.masks",
    "meaning.batch_as_time",
    "meaning.weights",
    "meaning.targets",
    "meaning.rows",
    "meaning.overlaps",
    "meaning.last_steps",
    "meaning.arguments",
    "meaning.computations",
    "meaning.calls",
    "meaning.layers",
    "meaning.tokens",
    "meaning.results",
    "meaning.schedulers",
    "meaning.optimizers",
    "meaning.optimizer_lines",
    "meaning.rates",
    "meaning.compiled",
    "meaning.arithmetic",
    "silence",
    "constant_gradients",
    "gradient_depth",
    "values",
    "transfers",
    "synchronizations",
    "most_memory",
    "memory",
    "ranks.averages",
    "ranks.collectives",
    "ranks.in_place",
    "ranks.steps_and_ranks",
    "ranks.replicas",
    "weight_averages",
    "watched",
)


def _import_rules() -> list[str]:
    """Import the files of `rules/`, and return their names in the order of the findings."""
    prefix = f"{_rules.__name__}."
    found = {file.name for file in walk_packages(_rules.__path__, prefix) if not file.ispkg}
    first = [prefix + file for file in ORDER]
    return [import_module(file).__name__ for file in (*first, *sorted(found.difference(first)))]


sort_rules(_import_rules())


class Rules(tuple[Rule, ...]):
    """A tuple of rules that prints as a table."""

    def by_id(self, id: str) -> Rule:
        """Return the rule with an id.

        Raises:
            ValueError: if no rule has this id; the message names the most similar id.

        >>> rules().by_id("cut-gradent")
        Traceback (most recent call last):
        ValueError: Unknown rule 'cut-gradent'. Did you mean 'cut-gradient'?
        """
        for rule in self:
            if rule.id == id:
                return rule
        from difflib import get_close_matches  # imported here because the import is slow

        near = get_close_matches(id, [rule.id for rule in self], 1)
        hint = f"Did you mean {near[0]!r}?" if near else "`graphviz-torch rule` lists all rules."
        raise ValueError(f"Unknown rule {id!r}. {hint}")

    def __str__(self) -> str:
        width = max((len(rule.id) for rule in self), default=0)
        return "\n".join(f"{rule.severity:<8}{rule.id:<{width}}  {rule.summary}" for rule in self)

    __repr__ = __str__


def rules() -> Rules:
    """Return all rules: those of `find`, `watch`, `experiment` and `rehearse`.

    >>> rules().by_id("cut-gradient").severity
    'error'
    """
    return Rules(RULES)


def apply(reads: Reads, subject: Reading | Sequence[Graph]) -> Iterator[Finding]:
    """Yield the findings of all rules that read this kind of subject, in the order of the table."""
    kinds = subject.kinds if isinstance(subject, Reading) else ()
    by_kind = INDICES.get(reads, {})
    for index in sorted({i for kind in (None, *kinds) for i in by_kind.get(kind, ())}):
        finder = FINDERS[index]
        for found in finder.function(subject):
            yield replace(found, rule=finder.id)
