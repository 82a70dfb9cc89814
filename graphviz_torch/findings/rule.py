"""What a rule is, and the table of all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..graph import Finding, Graph, Severity
from ..graph.text import users_line
from .graph_reading import Reading

# "graph": one graph; "end": the last graph of a recording, with all that the program did;
# "steps": the graphs of consecutive steps; "ranks": one graph per rank.
Reads = Literal["graph", "end", "steps", "ranks"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named function that reads graphs and yields findings."""

    id: str
    sentence: str
    reads: Reads
    of: frozenset[type | str]
    find: Callable[..., Iterable[Finding]]


RULES: list[Rule] = []
# By what is read, the places in RULES by what they are of; by None, of those that are always asked.
_PLACES: dict[Reads, dict[type | str | None, list[int]]] = {}


def rule(
    reads: Reads = "graph", *, of: Iterable[type | str] = ()
) -> Callable[[Callable[..., Iterable[Finding]]], Callable[..., Iterable[Finding]]]:
    """Add a function to the table of rules: its name is the id, its docstring the sentence.

    Args:
        reads: what it is given.
        of: the rule finds nothing in a graph without any of these, and is not asked there. Classes
            of events and values, names of operations and dtypes, as in `Reading.kinds`.
    """

    if of and reads not in ("graph", "end"):
        raise ValueError(f"a rule that reads {reads} is asked always: it has no kinds")

    def add(find: Callable[..., Iterable[Finding]]) -> Callable[..., Iterable[Finding]]:
        sentence = " ".join((find.__doc__ or "").split())
        name = find.__name__.replace("_", "-")
        RULES.append(Rule(name, sentence, reads, frozenset(of), find))
        places = _PLACES.setdefault(reads, {})
        for kind in RULES[-1].of or (None,):
            places.setdefault(kind, []).append(len(RULES) - 1)
        return find

    return add


def apply(reads: Reads, subject: Reading | Sequence[Graph]) -> Iterator[Finding]:
    """What every rule of one kind finds, in the order of the table."""
    kinds = subject.kinds if isinstance(subject, Reading) else ()
    places = _PLACES.get(reads, {})
    for place in sorted({place for kind in (None, *kinds) for place in places.get(kind, ())}):
        for found in RULES[place].find(subject):
            yield replace(found, rule=RULES[place].id)


def finding(severity: Severity, message: str, **fields: Any) -> Finding:
    """A finding whose rule id is filled in by `apply`; of two lines it is at the user's."""
    if "where" in fields:
        fields["where"] = users_line(fields["where"])
    return Finding("", severity, message, **fields)
