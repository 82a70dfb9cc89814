"""Change names so that TensorBoard's Graphs tab draws all nodes, edges and colors.

The Graphs tab parses names of nodes as paths, and gives some operations and devices a special
meaning. If a name is not in the form that the tab expects, nodes, edges or colors silently
disappear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache

from ..graph import Graph, Node
from ..graph.immutable import immutable, mutable
from ..graph.text import printable
from ..render.groups.groups import Group, Groups, group

# Names with which a path must not begin, because they break the page. Most are properties of
# JavaScript objects.
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
LIBRARY = "__function_library__"  # scope in which the Graphs tab shows functions
# Operations whose input 0 the Graphs tab draws as changed in place.
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
# The Graphs tab folds this many or more siblings into one node if their names differ only in a
# number.
SERIES = 5
# Maximum number of children in a scope. The Graphs tab draws 1,000 as a thin line, and never
# finishes drawing 3,000.
LIMIT = 100
_FEW_OUTPUTS = 10  # if there are more outputs, they get a scope of their own


@lru_cache(1024)
def segment(text: str) -> str:
    """Return a text without characters that, in a path, break colors, edges or selection.

    >>> segment("it's 100%"), segment("snow ☃"), segment("")
    ('it_s_100_', 'snow__', '_')
    """
    return re.sub(r"[^\w.\-()\[\],#]", "_", text) or "_"


def operation(text: str) -> str:
    """Return an operation's name, changed if the tab would not draw it as a plain node.

    >>> operation("ConstantPadNdBackward0"), operation("NoOp"), operation("torch::autograd::Tie")
    ('constantPadNdBackward0', 'NoOp_', 'Tie')
    """
    text = printable(text.rpartition("::")[2].replace("Const", "const")) or "_"
    if text == "NoOp" or text in REFERENCE_OPS or re.fullmatch(r"[a-zA-Z]+Summary", text):
        return text + "_"
    return text


def device(label: str) -> str:
    """Return a device's name in the form of the Graphs tab, with an index; "" if it is unknown.

    >>> device("cpu"), device("cuda:1"), device("meta"), device("")
    ('/device:CPU:0', '/device:cuda:1', '/device:meta:0', '')
    """
    kind, _, index = label.partition(":")
    if not kind:
        return ""
    # The legend drops the letters with which all names begin. "CPU" and "cuda" share no letter.
    kind = "CPU" if kind == "cpu" else re.sub(r"\W", "_", kind)
    return f"/device:{kind}:{index if index.isdigit() else 0}"


@mutable(slots=False)
class Scope:
    """A scope of the Graphs tab, with the names that are already in use there."""

    path: str = ""
    taken: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> str:
        """Return a new path for `text` in this scope: "add", then "add(1)" and so on."""
        name = wanted = segment(text)
        if not self.path and (wanted in RESERVED or wanted.startswith(LIBRARY)):
            name = wanted = "_" + wanted
        while name in self.taken:
            count = self.counts[wanted] = self.counts.get(wanted, 0) + 1
            name = f"{wanted}({count})"
        self.taken.add(name)
        return self.path + name


@immutable(slots=False)
class Names:
    """The paths that nodes, outputs and the scope "backward" have in the Graphs tab."""

    nodes: list[str]
    outputs: list[str]
    backward: str


def names(graph: Graph) -> Names:
    """Return the paths of a graph's nodes: the scope of the module, then the node's own name.

    The own name is the operation and, in brackets, the name of the variable ("mean[y]"); for a
    leaf, it is only the name of the variable. No scope has more than about 100 children.
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
    """Return a node's own name, such as "weight", "addmm" or "mean[y]".

    Args:
        node: the node.
        modules: names of the modules around it, outermost first. A leaf's name does not repeat
            them.
    """
    if node.title != "AccumulateGrad":
        title = node.title.rpartition("::")[2]
        return f"{title}[{node.label}]" if node.label else title
    parts = node.label.split(".")
    if node.module:  # the label may begin with the name of the variable for the model
        parts = node.label.rpartition(f"{node.module}.")[2].split(".")
    for module in modules:
        if len(parts) > 1 and parts[0] == module:
            parts = parts[1:]
    return ".".join(parts) or node.leaf or "leaf"


def _scopes(groups: Groups, top: Scope) -> list[Scope]:
    scopes: list[Scope] = []
    for entry in groups.groups:  # parents come before children
        parent = top if entry.parent is None else scopes[entry.parent]
        scopes.append(Scope(parent.add(_scope_name(entry)) + "/"))
    return scopes


def _scope_name(entry: Group) -> str:
    """Return the name of a group's scope. A number, as in `Sequential`, gets a class: "0[Linear]".

    The Graphs tab shows only this name for a scope, and a number alone would say nothing.
    """
    number = entry.name.partition("#")[0]
    kind = entry.module_class.partition("(")[0]
    named = entry.kind != "module" or not number.isdecimal() or not kind
    return entry.name if named else f"{entry.name}[{kind}]"


def _modules(groups: Groups) -> list[tuple[str, ...]]:
    """Return the names of the modules around each group, outermost first, without call numbers."""
    found: list[tuple[str, ...]] = []
    for entry in groups.groups:  # parents come before children
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
    """Return (scope, name) of each node, with "_" added to names that the tab would fold into one.

    Args:
        wanted: scope, name and operation of each node.
    """
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
