"""Names, operations and devices that TensorBoard's Graphs tab draws as they are meant.

The tab takes a node's name for a path, an operation's name for a hint and a device for a pattern;
where one does not fit, nodes, edges or colours vanish without a word. What is mended here is
checked again, on the finished graph, by `lint`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..graph import Graph, Node
from ..render.groups.groups import Groups, group

# First segments that break the page's own JavaScript objects, and the tab's name for its top.
RESERVED = frozenset(
    [
        "__proto__",
        "constructor",
        "toString",
        "toLocaleString",
        "valueOf",
        "hasOwnProperty",
        "isPrototypeOf",
        "propertyIsEnumerable",
        "__defineGetter__",
        "__defineSetter__",
        "__lookupGetter__",
        "__lookupSetter__",
        "length",
        "__root__",
    ]
)
LIBRARY = "__function_library__"  # the tab's own scope for functions
# The tab draws input 0 of these as changed in place.
REFERENCE_OPS = frozenset(
    [
        "Assign",
        "AssignAdd",
        "AssignSub",
        "assign",
        "assign_add",
        "assign_sub",
        "count_up_to",
        "ScatterAdd",
        "ScatterSub",
        "ScatterUpdate",
        "scatter_add",
        "scatter_sub",
        "scatter_update",
    ]
)
SERIES = 5  # this many numbered siblings of one operation are folded into one
LIMIT = 100  # children of one scope; a flat thousand draws as an invisible sliver, 3,000 never
_FEW_OUTPUTS = 10  # more than these go into a scope of their own


@lru_cache(1024)
def segment(text: str) -> str:
    """One part of a path, without the characters that break colours, edges or selection.

    >>> segment("it's 100%"), segment("snow ☃"), segment("")
    ('it_s_100_', 'snow__', '_')
    """
    return re.sub(r"[^\w.\-()\[\],#]", "_", text) or "_"


def operation(text: str) -> str:
    """An operation's name that the tab draws as a plain node.

    >>> operation("ConstantPadNdBackward0"), operation("NoOp"), operation("torch::autograd::Tie")
    ('constantPadNdBackward0', 'NoOp_', 'Tie')
    """
    text = text.rpartition("::")[2].replace("Const", "const") or "_"
    if text == "NoOp" or text in REFERENCE_OPS or re.fullmatch(r"[a-zA-Z]+Summary", text):
        return text + "_"
    return text


def device(label: str) -> str:
    """The tab's form of a device: always with an index; "" where it is not known.

    >>> device("cpu"), device("cuda:1"), device("meta"), device("")
    ('/device:CPU:0', '/device:cuda:1', '/device:meta:0', '')
    """
    kind, _, index = label.partition(":")
    if not kind:
        return ""
    # Upper-case CPU alone: the legend cuts off the characters that all devices share.
    kind = "CPU" if kind == "cpu" else re.sub(r"\W", "_", kind)
    return f"/device:{kind}:{index if index.isdigit() else 0}"


@dataclass
class Scope:
    """The names in use in one scope."""

    path: str = ""
    taken: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> str:
        """A path for `text` in this scope that no other node or scope has: "add", "add(1)"."""
        name = wanted = segment(text)
        if not self.path and (wanted in RESERVED or wanted.startswith(LIBRARY)):
            name = wanted = "_" + wanted
        while name in self.taken:
            count = self.counts[wanted] = self.counts.get(wanted, 0) + 1
            name = f"{wanted}({count})"
        self.taken.add(name)
        return self.path + name


@dataclass(frozen=True)
class Names:
    """The path of each node of a graph, of each of its outputs, and of the backward's scope."""

    nodes: list[str]
    outputs: list[str]
    backward: str


def names(graph: Graph) -> Names:
    """Paths for the Graphs tab: the module's scope, then a short name of the node's own.

    A node is called by its operation and, in brackets, by the caller's name ("mean[y]"); a leaf by
    the caller's name alone. No scope has more than about 100 children.
    """
    groups = group(graph, limit=LIMIT)
    top = Scope()
    backward = top.add("backward")
    scopes = _scopes(groups, top)
    modules = _modules(groups)
    wanted = [
        (top, own_name(node, ()), node.title)
        if of is None
        else (scopes[of], own_name(node, modules[of]), node.title)
        for node, of in zip(graph.nodes, groups.of, strict=True)
    ]
    wanted += _outputs(graph, top)
    paths = [scope.add(text) for scope, text in _without_series(wanted)]
    return Names(paths[: len(graph.nodes)], paths[len(graph.nodes) :], backward)


def own_name(node: Node, modules: Sequence[str]) -> str:
    """What a node is called inside the scope of `modules`: "weight", "addmm", "mean[y]"."""
    if node.title != "AccumulateGrad":
        title = node.title.rpartition("::")[2]
        return f"{title}[{node.label}]" if node.label else title
    parts = node.label.split(".")
    if node.module:  # the caller's name for the whole model may stand before it
        parts = node.label.rpartition(f"{node.module}.")[2].split(".")
    for module in modules:
        if len(parts) > 1 and parts[0] == module:
            parts = parts[1:]
    return ".".join(parts) or node.leaf or "leaf"


def _scopes(groups: Groups, top: Scope) -> list[Scope]:
    scopes: list[Scope] = []
    for entry in groups.groups:  # parents before children
        parent = top if entry.parent is None else scopes[entry.parent]
        scopes.append(Scope(parent.add(entry.name) + "/"))
    return scopes


def _modules(groups: Groups) -> list[tuple[str, ...]]:
    """Of each group the modules around it, outermost first, without the mark of a second call."""
    found: list[tuple[str, ...]] = []
    for entry in groups.groups:  # parents before children
        outer = () if entry.parent is None else found[entry.parent]
        own = (entry.name.partition("#")[0],) if entry.kind == "module" else ()
        found.append(outer + own)
    return found


def _outputs(graph: Graph, top: Scope) -> list[tuple[Scope, str, str]]:
    wanted = [graph.nodes[node].label or "output" for node, _ in graph.outputs]
    if len(wanted) <= _FEW_OUTPUTS:
        return [(top, text, "Output") for text in wanted]
    outside = Scope(top.add("outputs") + "/")
    if len(wanted) <= LIMIT:
        return [(outside, text, "Output") for text in wanted]
    found = []
    for first in range(0, len(wanted), LIMIT):
        part = wanted[first : first + LIMIT]
        inside = Scope(outside.add(f"outputs {first + 1}-{first + len(part)}") + "/")
        found += [(inside, text, "Output") for text in part]
    return found


def _without_series(wanted: Sequence[tuple[Scope, str, str]]) -> list[tuple[Scope, str]]:
    """Scopes and texts, with a "_" behind names such as x1 ... x9 that the tab would fold."""
    families: dict[tuple[str, str, str], dict[int, list[int]]] = {}
    for i, (scope, text, op) in enumerate(wanted):
        match = text[-1:].isdecimal() and re.fullmatch(r"(\D*)(\d+)", text)
        if match:
            family = families.setdefault((scope.path, match[1], op), {})
            family.setdefault(int(match[2]), []).append(i)
    folded: set[int] = set()
    for family in families.values():
        for first in family:
            run = range(first, first + SERIES)
            if all(number in family for number in run):
                folded.update(i for number in run for i in family[number])
    return [
        (scope, text + "_" if i in folded else text) for i, (scope, text, _) in enumerate(wanted)
    ]
