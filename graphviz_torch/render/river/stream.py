"""What a step's gradient flows through, as plain values: modules, streams between them, and dams.

A module is drawn as one place, at the deepest level that fits a sheet. What computes outside
modules belongs to the place before it where it reads one, and is a place of its own where streams
meet. The gradient of a place is that of its result: autograd adds up what comes from all its users.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from ...graph import Finding, Graph, Parameter
from ...graph.text import listing
from ...graph.units import count_text
from ..cuts import cut_lines
from ..drawing.drawing import Drawing
from ..drawing.steps import draw

State = Literal["learns", "starves", "frozen", ""]
MOST_PLACES: Final = 110  # on a sheet, where no level has some that are easier to read:
_SOME: Final = range(8, 67)
_DEPTHS = (6, 5, 4, 3, 2, 1)
_CALL = re.compile(r"#\d+")  # of a module that is called again
_AGAIN = re.compile(r"'+(?=[.#]|$)")  # of a module that an earlier backward has, too
_NAMES = 1  # of parameters in the sentence
_MOST_DAMS = 12
LEARN_NOTHING: Final = frozenset(  # ids of the rules that say why a parameter learns nothing
    (
        *("cut-gradient", "dropped-gradient", "never-called", "not-in-optimizer"),
        *("not-registered", "unused-result", "zero-gradient"),
    )
)
_MOST_DRY = 8  # places of parameters that the graph does not have


class Tributary(NamedTuple):
    """A parameter."""

    name: str  # without the path of its place
    state: State
    norm: float | None  # of its gradient; None where it got none


class Place(NamedTuple):
    """A module, or an operation outside of modules at which streams meet or end."""

    name: str  # "" where streams only meet
    kind: str  # its class, or its operation
    norm: float | None  # of the gradient of its result; None where none came
    part: str  # the backward that it belongs to, where there are several
    tributaries: tuple[Tributary, ...] = ()
    output: bool = False

    @property
    def state(self) -> State:
        """That of its parameters: one that starves counts first."""
        states = {each.state for each in self.tributaries}
        return next((s for s in ("starves", "learns", "frozen") if s in states), "")


class Stream(NamedTuple):
    """A result that one place hands another."""

    source: int  # number of a place
    target: int
    norm: float | None  # of its gradient, of all users together
    nonfinite: bool = False


class Dam(NamedTuple):
    """A place where the way of the gradient was cut."""

    source: int | None  # what is cut off; None where that is in no graph of the step
    target: int | None
    text: tuple[str, ...]  # how, and file and line
    harmful: bool  # does a finding tell of it


class River(NamedTuple):
    """A step."""

    places: tuple[Place, ...]  # in the order of the forward
    streams: tuple[Stream, ...]
    dams: tuple[Dam, ...]
    sentence: str
    frozen: int  # parameters that require no gradient, beside others that do
    starves: bool  # does any parameter learn nothing


def river_of(graph: Graph, findings: tuple[Finding, ...]) -> River:
    """The places, streams and dams of a graph."""
    drawing, home = _drawing(graph, findings)
    order = [key for key, first in home.items() if key == first]
    number = {key: i for i, key in enumerate(order)}
    streams: dict[tuple[int, int], Stream] = {}
    for line in drawing.all_lines:
        source, target = number[home[line.source]], number[home[line.target]]
        if source == target:
            continue
        norm, nonfinite = _norm_of(graph, line.edge.source, line.edge.output_nr)
        known = streams.get((source, target))
        if known is not None:
            norm, nonfinite = _greater(known.norm, norm), known.nonfinite or nonfinite
        streams[source, target] = Stream(source, target, norm, nonfinite)
    tributaries, dry = _tributaries(drawing, home)
    above = tuple(
        Place(name, "", None, "", tuple(some)) for name, some in [*dry.items()][:_MOST_DRY]
    )
    shift = len(above)
    made = [_place(drawing, home, key, tributaries.get(key, [])) for key in order]
    moved = [s._replace(source=s.source + shift, target=s.target + shift) for s in streams.values()]
    states = [*_states(graph).values()]
    frozen = states.count("frozen")
    return River(
        (*above, *made),
        tuple(sorted(moved)),
        tuple(_dams(drawing, home, number, shift)),
        _sentence(graph, findings),
        frozen if frozen < len(states) else 0,
        "starves" in states,
    )


def state_of(parameter: Parameter, graph: Graph) -> State:
    """Does a parameter learn: did it get a gradient that is not 0, and has an optimizer it."""
    if not parameter.requires_grad:
        return "frozen"
    norm = norm_of(parameter, graph)
    fed = parameter.got_gradient if norm is None else norm != 0
    return "learns" if fed and parameter.in_optimizer is not False else "starves"


def _states(graph: Graph) -> dict[str, State]:
    """By name: of several backwards of a step, one that feeds a parameter is enough."""
    found: dict[str, State] = {}
    for parameter in graph.parameters:
        if found.get(parameter.name) != "learns":
            found[parameter.name] = state_of(parameter, graph)
    return found


def norm_of(parameter: Parameter, graph: Graph) -> float | None:
    """The norm of a parameter's gradient; None where it got none, or that is not known."""
    stats = parameter.grad
    if parameter.node is not None:
        given = [each for each in graph.nodes[parameter.node].grad_outputs if each is not None]
        stats = given[0] if given else stats
    if stats is None:
        return None
    return math.nan if stats.nonfinite else stats.norm


def _sentence(graph: Graph, findings: Iterable[Finding]) -> str:
    """What learns, and by which line the rest does not, or else what that is."""
    states = _states(graph)
    parameters = [name for name, state in states.items() if state != "frozen"]
    names = [name for name in parameters if states[name] == "starves"]
    if not parameters:
        none = "No parameters were recorded: record(model) watches those of a model."
        return "All parameters are frozen." if graph.parameters else none
    if not names:
        one = len(parameters) == 1
        return "The parameter learns." if one else f"All {len(parameters):,} parameters learn."
    lines = dict.fromkeys(f.where for f in findings if f.where and _tells_of(f, {*names}, graph))
    where = listing(lines) if lines else listing(names, _NAMES)
    verb = "learns" if len(names) == 1 else "learn"
    count = f"{len(names):,} of {count_text(len(parameters), 'parameter')}"
    return f"{count} {verb} nothing: {where}"


def _tells_of(finding: Finding, names: set[str], graph: Graph) -> bool:
    """Does a finding say why one of these parameters learns nothing?

    Its nodes say so; of a parameter that the graph does not have, its name in the message.
    """
    if finding.rule not in LEARN_NOTHING:
        return False
    known = [parameter for parameter in graph.parameters if parameter.name in names]
    if any(parameter.node in finding.nodes for parameter in known):
        return True
    absent = [parameter.name for parameter in known if parameter.node is None]
    return bool(absent) and bool(_whole(absent).search(finding.message))


def _whole(names: Iterable[str]) -> re.Pattern[str]:
    """Any of the names, none as a part of a longer one."""
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w|\.\w)")


def _drawing(graph: Graph, findings: tuple[Finding, ...]) -> tuple[Drawing, dict[int, int]]:
    """The deepest level of modules whose places fit a sheet, and those.

    Where none fits, as in a loop of many steps, all calls of a module are one place.
    """
    tried: list[Drawing] = []
    found: list[dict[int, int]] = []
    for depth in _DEPTHS:
        options = {"depth": depth, "fold": False, "parameters": "fold", "findings": findings}
        tried.append(draw(graph, options))  # type: ignore[arg-type]
        found.append(_places(tried[-1]))
        if len(set(found[-1].values())) in _SOME:
            return tried[-1], found[-1]
    for drawing, places in zip(tried, found, strict=True):
        if len(set(places.values())) <= MOST_PLACES:
            return drawing, places
    for drawing in tried:
        places = _calls_together(drawing, _places(drawing))
        if len(set(places.values())) <= MOST_PLACES:
            break
    return drawing, places


def _calls_together(drawing: Drawing, home: dict[int, int]) -> dict[int, int]:
    """The places with all calls of a module as the first, and what lies between as one."""
    first: dict[str, int] = {}
    for key in dict.fromkeys(home.values()):
        path = _module(drawing, key)
        name = _CALL.sub("", path) if path else f" {_kind(drawing, key)}"
        first.setdefault(name, key)
        home = {k: first[name] if v == key else v for k, v in home.items()}
    return home


def _kind(drawing: Drawing, key: int) -> str:
    """The operation of a node; the group of anything else."""
    return drawing.graph.nodes[key].title if key >= 0 else str(key)


def _places(drawing: Drawing) -> dict[int, int]:
    """By key, in their order, the place that it belongs to, as its first key."""
    sources: dict[int, dict[int, None]] = defaultdict(dict)
    for source, target in drawing.ends:
        sources[target][source] = None
    outputs = {drawing.key(node) for node, _ in drawing.graph.outputs}
    order = _ordered(drawing, sources)
    home: dict[int, int] = {}
    for key in order:
        before = {home[source] for source in sources[key] if source in home}
        module = _module(drawing, key)
        joins = len(before) == 1 and key not in outputs and not _leaf(drawing, key)
        if joins and (not module or _module(drawing, next(iter(before))) == module):
            home[key] = next(iter(before))
        else:
            home[key] = key
    return home


def _ordered(drawing: Drawing, sources: dict[int, dict[int, None]]) -> list[int]:
    """The keys, sources first as far as closed groups make no circle."""
    keys = sorted([*drawing.nodes, *(~n for n in drawing.boxes)], key=drawing.place)
    done: dict[int, None] = {}
    for key in keys:
        stack = [key]
        opened: set[int] = set()
        while stack:
            top = stack[-1]
            rest = [s for s in sources[top] if s not in done and s not in opened]
            if top in opened or not rest:
                stack.pop()
                done[top] = None
            opened.add(top)
            stack += sorted(rest, key=drawing.place, reverse=True) if top not in done else []
    return list(done)


def _module(drawing: Drawing, key: int) -> str:
    """The module of what is drawn: its group's name; "" outside of modules."""
    groups = drawing.groups
    if groups is None:
        return ""
    number: int | None = ~key if key < 0 else drawing.tree.homes.get(key)
    while number is not None and groups.groups[number].kind not in ("module", "graph"):
        number = groups.groups[number].parent
    if number is None or groups.groups[number].kind == "graph":
        return ""
    inner = groups.groups[number]
    # An operation of a module that has modules inside stands between these.
    outer = key >= 0 and any(groups.groups[c].kind == "module" for c in inner.children)
    return "" if outer else inner.path


def _leaf(drawing: Drawing, key: int) -> bool:
    return key >= 0 and bool(drawing.graph.nodes[key].leaf)


def _place(drawing: Drawing, home: dict[int, int], key: int, tributaries: list[Tributary]) -> Place:
    graph = drawing.graph
    members = [each for each, first in home.items() if first == key]
    ends = {node for node, _ in graph.outputs if drawing.key(node) in members}
    made = {
        (line.edge.source, line.edge.output_nr)
        for line in drawing.all_lines
        if line.source in members and line.target not in members
    }
    norms = [_norm_of(graph, node, nr)[0] for node, nr in (*made, *((end, 0) for end in ends))]
    norm = None
    for each in norms:
        norm = _greater(norm, each)
    path = _module(drawing, key)
    named = next((graph.nodes[node] for node in sorted(ends)), None)
    part = _part(drawing, key)
    if path and drawing.groups is not None:
        group = next(g for g in drawing.groups.groups if g.path == path)
        shown = _AGAIN.sub("", path.removeprefix(f"{part}.")) if part else path
        return Place(shown, group.module_class, norm, part, tuple(tributaries), bool(ends))
    node = named or (graph.nodes[key] if key >= 0 else None)
    if node is None:
        return Place(drawing.title(~key), "", norm, part, tuple(tributaries), bool(ends))
    meets = len({source for source, target in drawing.ends if target == key}) > 1
    name = node.label or ("" if meets and not tributaries else node.title)
    return Place(name, node.title, norm, part, tuple(tributaries), bool(ends))


def _part(drawing: Drawing, key: int) -> str:
    """The title of the backward around a key, where a step has several."""
    if drawing.groups is None or not drawing.graph.parts:
        return ""
    number: int | None = ~key if key < 0 else drawing.tree.homes.get(key)
    around = drawing.groups.around(number)
    return drawing.groups.groups[around[-1]].name if around else ""


def _tributaries(
    drawing: Drawing, home: dict[int, int]
) -> tuple[dict[int, list[Tributary]], dict[str, list[Tributary]]]:
    """The parameters by place, and by module those that the graph does not have."""
    found: dict[int, list[Tributary]] = defaultdict(list)
    paths = {_CALL.sub("", _module(drawing, first)): first for first in reversed([*home.values()])}
    dry: dict[str, list[Tributary]] = defaultdict(list)
    graph = drawing.graph
    for p in graph.parameters:
        state, norm = state_of(p, graph), norm_of(p, graph)
        key = None if p.node is None else drawing.key(p.node)
        path, _, name = p.name.rpartition(".")
        if key not in home:  # beside others of its module
            key = paths.get(path) if path else None
        if key in home:
            found[home[key]].append(Tributary(name, state, norm))
        else:
            dry[path or p.name].append(Tributary(name, state, norm))
    return found, dict(_together(dry))


def _together(dry: dict[str, list[Tributary]]) -> Iterator[tuple[str, list[Tributary]]]:
    """Modules as few as a sheet has room for: by ever shorter paths."""
    for parts in (8, 4, 3, 2, 1):
        merged: dict[str, list[Tributary]] = defaultdict(list)
        for path, some in dry.items():
            merged[".".join(path.split(".")[:parts])] += some
        if len(merged) <= _MOST_DRY:
            break
    yield from merged.items()


def _dams(
    drawing: Drawing, home: dict[int, int], number: dict[int, int], shift: int
) -> Iterator[Dam]:
    lines, _ = cut_lines(drawing, _MOST_DAMS)
    known = set()
    for line in lines:
        ends = [
            None if key is None or key not in home else number[home[key]] + shift
            for key in (line.source, line.target)
        ]
        if ends[0] == ends[1] or (*ends, line.text) in known:
            continue
        known.add((*ends, line.text))
        yield Dam(ends[0], ends[1], line.text, line.color in ("error", "warning"))


def _norm_of(graph: Graph, node: int, output_nr: int) -> tuple[float | None, bool]:
    stats = graph.nodes[node].grad_outputs
    given = stats[output_nr] if output_nr < len(stats) else None
    return (None, False) if given is None else (given.norm, bool(given.nonfinite))


def _greater(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)
