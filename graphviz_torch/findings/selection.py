"""The rules that a report includes, by id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from .rule import rules


class Reported(Protocol):
    """A finding, or a report of `watch`."""

    @property
    def rule(self) -> str:
        """The id of its rule."""


class Selection(NamedTuple):
    """Which findings are reported: those of the selected rules, less those of the ignored ones."""

    select: frozenset[str] | None  # None: all rules
    ignore: frozenset[str]

    @classmethod
    def of(cls, select: str | Iterable[str] | None, ignore: str | Iterable[str]) -> Selection:
        """Check the ids.

        Raises:
            ValueError: if an id is not a rule's.
        """
        return cls(None if select is None else _checked(select), _checked(ignore))

    def includes(self, found: Reported) -> bool:
        """True if the finding, or report of `watch`, is reported."""
        wanted = self.select is None or found.rule in self.select
        return wanted and found.rule not in self.ignore


def _checked(ids: str | Iterable[str]) -> frozenset[str]:
    given = [ids] if isinstance(ids, str) else ids
    return frozenset(rules().named(id).id for id in given)
