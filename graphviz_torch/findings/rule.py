"""The table of all rules, and decorators that add a rule to it.

A rule is a function. The function's name is the rule's id, and its docstring is the rule's page.
The first paragraph is the summary; the sections are those of `HEADINGS`, each below a line `##
Heading`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..graph import Finding, Graph, Severity
from ..graph.text import listing, users_line, users_line_first
from .graph_reading import Reading

HEADINGS = (
    "Why it matters",
    "Example",
    "Use instead",
    "When it is intended",
    "Not detected",
    "See also",
)
# The argument of a rule's function. "graph": each graph of a recording. "end": the last graph,
# which has all events of the program. "recording": all graphs of a recording or step; the findings
# apply to all of them. "steps": the graphs of consecutive steps. "ranks": one graph per rank.
Reads = Literal["graph", "end", "recording", "steps", "ranks"]
# Rules of the source "find" are also reported by `run`.
Source = Literal["find", "watch", "experiment", "rehearse"]
Function = Callable[..., Iterable[Finding]]

_COMMANDS: dict[Source, tuple[str, ...]] = {
    "find": ("find", "run"),
    "watch": ("watch",),
    "experiment": ("experiment", "run --experiment"),
    "rehearse": ("rehearse",),
}
_COMMENT = "Write `# gt: ignore[{id}]` at the end of the reported line, or pass `--ignore {id}`"
_SILENCE: dict[Source, str] = {
    "find": f'{_COMMENT}; in Python, call `find(recording, ignore=["{{id}}"])`.',
    "watch": 'Call `watch(model, ignore=["{id}"])`.',
    "experiment": f"{_COMMENT}.",
    "rehearse": "Leave out `--order`.",
}
_SITE = "https://graphviz-torch.github.io/graphviz_torch/findings"
_SECTION = r"(?m)^## (.+)\n+"
_PROGRAM = r"(?ms)^```python\n(.*?)^```$"


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of fault, which has the same id in all functions and commands that report it."""

    id: str
    severity: Severity  # severity of the rule's most severe findings
    sources: tuple[Source, ...]
    advanced: bool  # True if the rule is rarely needed; the index lists such rules last
    function: Callable[..., Any]

    @property
    def family(self) -> str:
        """The name of the rule's file without its suffix, such as "cuts"."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def url(self) -> str:
        """The address of the rule's page."""
        return f"{_SITE}/{self.id}.html"

    @property
    def page(self) -> str:
        """The rule's summary and sections, in Markdown."""
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def summary(self) -> str:
        """The sentence that describes the fault."""
        return " ".join(re.split(_SECTION, self.page)[0].split())

    @property
    def sections(self) -> dict[str, str]:
        """The text of each section, by heading."""
        _, *parts = re.split(_SECTION, self.page)
        return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}

    @property
    def examples(self) -> list[str]:
        """Programs with the fault, one for each of its causes."""
        return re.findall(_PROGRAM, self.sections.get("Example", ""))

    @property
    def repaired_examples(self) -> list[str]:
        """Programs without the fault."""
        return re.findall(_PROGRAM, self.sections.get("Use instead", ""))

    def to_markdown(self, reports: Sequence[str] = ()) -> str:
        """Return the rule's page.

        Args:
            reports: the text to show below each example, in the order of the examples.
        """
        by = listing(f"`{name}`" for source in self.sources for name in _COMMANDS[source])
        worst = self.severity if self.severity == "info" else f"up to {self.severity}"
        parts = [f"# `{self.id}`", f"Severity: {worst}. Reported by {by}.", self.summary]
        sections, texts = self.sections, iter(reports)
        if reports:
            sections["Example"] = re.sub(
                _PROGRAM,
                lambda match: f"{match[0]}\n\n```text\n{next(texts)}\n```",
                sections["Example"],
            )
        for heading in HEADINGS:
            if heading == "Not detected":
                parts += ["## How to silence it", _SILENCE[self.sources[0]].format(id=self.id)]
            if heading in sections:
                parts += [f"## {heading}", sections[heading]]
        return "\n\n".join(parts) + "\n"


class Rules(tuple[Rule, ...]):
    """A tuple of rules that prints as a table."""

    def by_id(self, id: str) -> Rule:
        """Return the rule with an id.

        Raises:
            ValueError: if no rule has this id; the message names the most similar id.

        >>> rules().by_id("cut-gradent")
        Traceback (most recent call last):
        ValueError: There is no rule 'cut-gradent'. Did you mean 'cut-gradient'?
        """
        for rule in self:
            if rule.id == id:
                return rule
        from difflib import get_close_matches  # imported here because the import is slow

        near = get_close_matches(id, [rule.id for rule in self], 1)
        hint = f"Did you mean {near[0]!r}?" if near else "`graphviz-torch rule` lists all rules."
        raise ValueError(f"There is no rule {id!r}. {hint}")

    def __str__(self) -> str:
        width = max((len(rule.id) for rule in self), default=0)
        return "\n".join(f"{rule.severity:<8}{rule.id:<{width}}  {rule.summary}" for rule in self)

    __repr__ = __str__


class Finder(NamedTuple):
    """A function that `find` calls, and the rule whose findings it yields."""

    id: str
    function: Function
    reads: Reads
    # `find` calls the function only for graphs that contain one of these kinds, or, if the set is
    # empty, for all graphs.
    of: frozenset[type | str]


RULES: list[Rule] = []
FINDERS: list[Finder] = []
# Indices in FINDERS, by `reads` and by each kind in `of`. Functions with an empty `of` have the key
# None.
_INDICES: dict[Reads, dict[type | str | None, list[int]]] = {}


def rule(
    severity: Severity,
    *,
    reads: Reads = "graph",
    of: Iterable[type | str] = (),
    also: tuple[Source, ...] = (),
    advanced: bool = False,
) -> Callable[[Function], Function]:
    """Add the decorated function to the table of rules, as a rule that `find` checks.

    Args:
        severity: the severity of the most severe findings that the function yields.
        reads: the kind of argument that the function takes.
        of: the function is called only for graphs that contain one of these kinds: classes of
            events and values, or names of operations and dtypes, as in `Reading.kinds`.
        also: other entry points that report the same fault under the same id.
        advanced: the rule is rarely needed, and the index lists it last.

    Raises:
        ValueError: if `of` is given for a rule that reads several graphs.
    """

    def add(function: Function) -> Function:
        id = function.__name__.replace("_", "-")
        RULES.append(Rule(id, severity, ("find", *also), advanced, function))
        return finds(id, reads=reads, of=of)(function)

    return add


def finds(
    id: str, *, reads: Reads = "graph", of: Iterable[type | str] = ()
) -> Callable[[Function], Function]:
    """Register the decorated function as one more function that reports the fault of a rule.

    Args:
        id: the id of the rule.
        reads: the kind of argument that the function takes.
        of: the kinds that a graph must contain, as for `rule`.

    Raises:
        ValueError: if `of` is given for a function that reads several graphs.
    """
    if of and reads not in ("graph", "end"):
        raise ValueError(
            f"a rule with reads={reads!r} gets all graphs, whatever they contain: remove `of`"
        )

    def add(function: Function) -> Function:
        kinds = frozenset(of)
        by_kind = _INDICES.setdefault(reads, {})
        for kind in kinds or (None,):
            by_kind.setdefault(kind, []).append(len(FINDERS))
        FINDERS.append(Finder(id, function, reads, kinds))
        return function

    return add


def external_rule(
    severity: Severity, *sources: Source, advanced: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add a rule that `find` does not report.

    The decorated function consists only of its docstring, which is the rule's page.
    """

    def add(function: Callable[[], None]) -> Callable[[], None]:
        id = function.__name__.replace("_", "-")
        RULES.append(Rule(id, severity, sources, advanced, function))
        return function

    return add


def rules() -> Rules:
    """Return all rules: those of `find`, `watch`, `experiment` and `rehearse`.

    >>> rules().by_id("cut-gradient").severity
    'error'
    """
    return Rules(RULES)


def rules_called() -> int:
    """Return the number of rules that `find` runs."""
    return sum("find" in rule.sources for rule in RULES)


def apply(reads: Reads, subject: Reading | Sequence[Graph]) -> Iterator[Finding]:
    """Yield the findings of all rules that read this kind of subject, in the order of the table."""
    kinds = subject.kinds if isinstance(subject, Reading) else ()
    by_kind = _INDICES.get(reads, {})
    for index in sorted({i for kind in (None, *kinds) for i in by_kind.get(kind, ())}):
        finder = FINDERS[index]
        for found in finder.function(subject):
            yield replace(found, rule=finder.id)


def finding(severity: Severity, message: str, **fields: Any) -> Finding:
    """Return a finding whose texts name the user's own line before lines of libraries.

    `apply` sets the finding's rule.
    """
    if "where" in fields:
        fields["where"] = users_line(fields["where"])
    if "advice" in fields:
        fields["advice"] = users_line_first(fields["advice"])
    return Finding("", severity, users_line_first(message), **fields)
