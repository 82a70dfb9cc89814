"""The table of all rules, those in the files of `rules/`, and selections of rules by id.

Findings of equal severity are sorted by file, first those of `ORDER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from typing import Protocol

from ..graph import Finding, Graph
from ..graph.immutable import NamedTuple
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
    "broadcasts",
    "custom_functions",
    "wrong_gradients",
    "written_values",
    "means",
    "loss_weights",
    "modes",
    "signs",
    "divergences",
    "scores",
    "noise",
    "adversaries",
    "unchanging",
    "loss_values",
    "unused_values",
    "meaning.batches",
    "same_operands",
    "derivatives",
    "cut_derivatives",
    "meaning.wrong_axes",
    "meaning.normalization",
    "meaning.masks",
    "meaning.weights",
    "meaning.targets",
    "meaning.overlaps",
    "meaning.sequences",
    "meaning.arguments",
    "meaning.computations",
    "meaning.calls",
    "meaning.shared_weights",
    "meaning.tokens",
    "meaning.schedulers",
    "meaning.optimizers",
    "meaning.parameter_groups",
    "meaning.optimizer_lines",
    "meaning.compiled",
    "meaning.arithmetic",
    "silence",
    "forwards",
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
    "watched_parameters",
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


class Reported(Protocol):
    """A finding of `find`, or a report of `watch`."""

    @property
    def rule(self) -> str:
        """The id of the rule that reports the fault."""


class Selection(NamedTuple):
    """The rules to report: those in `select` that are not in `ignore`."""

    select: frozenset[str] | None  # None: all rules
    ignore: frozenset[str]

    @classmethod
    def create(cls, select: str | Iterable[str] | None, ignore: str | Iterable[str]) -> Selection:
        """Create a selection, and check its ids.

        Raises:
            ValueError: if no rule has one of the ids.
        """
        return cls(None if select is None else _check_ids(select), _check_ids(ignore))

    def includes(self, found: Reported) -> bool:
        """Return True if a finding, or a report of `watch`, is reported."""
        wanted = self.select is None or found.rule in self.select
        return wanted and found.rule not in self.ignore


def _check_ids(ids: str | Iterable[str]) -> frozenset[str]:
    given = [ids] if isinstance(ids, str) else ids
    return frozenset(rules().by_id(id).id for id in given)
