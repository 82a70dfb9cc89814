"""Decorators that declare a rule.

A rule is a function that reads a graph, or an event that reports itself: a class whose method
`report` returns a finding. The name of the function or class is the rule's id, and its docstring is
the rule's page. The first paragraph is the summary; the sections are those of `HEADINGS`, each
below a line `## Heading`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from ..graph import Finding, Severity
from ..graph.immutable import NamedTuple, immutable
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
Declared = TypeVar("Declared", bound=Callable[..., Any])

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


@immutable
class Rule:
    """A kind of fault, which has the same id in all functions and commands that report it."""

    id: str
    severity: Severity  # severity of the rule's most severe findings
    sources: tuple[Source, ...]
    advanced: bool  # True if the rule is rarely needed; the index lists such rules last
    # Ids of rules about causes of the fault. If one of them has a finding, `find` leaves out the
    # findings of this rule.
    caused_by: tuple[str, ...]
    declared: type | Callable[..., Any]  # the class or function whose docstring is the page

    @property
    def family(self) -> str:
        """The name of the rule's file without its suffix, such as "cuts"."""
        return self.declared.__module__.rpartition(".")[2]

    @property
    def url(self) -> str:
        """The address of the rule's page."""
        return f"{_SITE}/{self.id}.html"

    @property
    def page(self) -> str:
        """The rule's summary and sections, in Markdown."""
        return inspect.cleandoc(self.declared.__doc__ or "")

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


class Finder(NamedTuple):
    """A function that `find` calls, and the rule whose findings it yields."""

    id: str
    function: Function
    reads: Reads
    # `find` calls the function only for graphs that contain one of these kinds, or, if the set is
    # empty, for all graphs.
    of: frozenset[type | str]
    module: str  # name of the module that declares the rule


RULES: list[Rule] = []
FINDERS: list[Finder] = []
# Indices in FINDERS, by `reads` and by each kind in `of`. Functions with an empty `of` have the key
# None.
INDICES: dict[Reads, dict[type | str | None, list[int]]] = {}


def rule(
    severity: Severity,
    *,
    reads: Reads = "graph",
    of: Iterable[type | str] = (),
    also: tuple[Source, ...] = (),
    advanced: bool = False,
    caused_by: tuple[str, ...] = (),
) -> Callable[[Declared], Declared]:
    """Declare the decorated function or class as a rule that `find` checks.

    Args:
        severity: the severity of the most severe findings.
        reads: the kind of argument that the function takes. For a class of events: "graph" or
            "end".
        of: a function is called only for graphs that contain one of these kinds: classes of
            events and values, or names of operations and dtypes, as in `Reading.kinds`.
        also: other entry points that report the same fault under the same id.
        advanced: the rule is rarely needed, and the index lists it last.
        caused_by: ids of rules about causes of the fault. If one of them has a finding, the
            findings of this rule are left out.

    Raises:
        ValueError: if `of` is given for a rule that reads several graphs.
    """

    def add(declared: Declared) -> Declared:
        id = _rule_id(declared)
        RULES.append(Rule(id, severity, ("find", *also), advanced, caused_by, declared))
        return finds(id, reads=reads, of=of)(declared)

    return add


def finds(
    id: str, *, reads: Reads = "graph", of: Iterable[type | str] = ()
) -> Callable[[Declared], Declared]:
    """Declare one more function, or class of events, that reports the fault of a rule.

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

    def add(declared: Declared) -> Declared:
        function: Function = declared
        kinds = frozenset(of)
        if isinstance(declared, type):
            function, kinds = partial(_reports, declared), frozenset((declared,))
        finder = Finder(id, function, reads, kinds, declared.__module__)
        _index(finder, len(FINDERS))
        FINDERS.append(finder)
        return declared

    return add


def _reports(kind: type[Any], reading: Reading) -> Iterator[Finding]:
    """Yield the findings of a graph's events of one class."""
    for event in reading.events(kind):
        found = event.report()
        if found is not None:
            yield found


def _rule_id(declared: Callable[..., Any]) -> str:
    """Return the id of a rule: "repeated-batch" for `RepeatedBatch` and for `repeated_batch`."""
    words = re.findall("[A-Z][a-z0-9]*", declared.__name__) or declared.__name__.split("_")
    return "-".join(words).lower()


def external_rule(
    severity: Severity, *sources: Source, advanced: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add a rule that `find` does not report.

    The decorated function consists only of its docstring, which is the rule's page.
    """

    def add(function: Callable[[], None]) -> Callable[[], None]:
        RULES.append(Rule(_rule_id(function), severity, sources, advanced, (), function))
        return function

    return add


def sort_rules(modules: Sequence[str]) -> None:
    """Sort the rules by their modules. The rules of other modules are the last.

    Args:
        modules: the names of modules that have been imported, in order.
    """
    place = {name: i for i, name in enumerate(modules)}
    RULES.sort(key=lambda rule: place.get(rule.declared.__module__, len(place)))
    FINDERS.sort(key=lambda finder: place.get(finder.module, len(place)))
    INDICES.clear()
    for index, finder in enumerate(FINDERS):
        _index(finder, index)


def _index(finder: Finder, index: int) -> None:
    by_kind = INDICES.setdefault(finder.reads, {})
    for kind in finder.of or (None,):
        by_kind.setdefault(kind, []).append(index)


def finding(severity: Severity, message: str, **fields: Any) -> Finding:
    """Return a finding whose texts name the user's own line before lines of libraries.

    `table.apply` sets the finding's rule.
    """
    if "where" in fields:
        fields["where"] = users_line(fields["where"])
    if "advice" in fields:
        fields["advice"] = users_line_first(fields["advice"])
    return Finding("", severity, users_line_first(message), **fields)
