"""Select the rules that a report includes, by id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from .table import rules


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
