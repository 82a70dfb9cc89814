"""The lines of a DOT text that make nodes: operations, leaves, closed groups."""

from __future__ import annotations

import re

from ..graph import Edge, Graph, Node
from . import dot_text as say
from .contents import Contents
from .dot_marks import Marks
from .dot_shade import Shading
from .style import FORMS, Role, role
from .visible import Visible

_Look = tuple[str, str]  # text and attributes
_COLOR = re.compile(' COLOR="[^"]*"')


class Nodes:
    """Writes the nodes of one drawing; afterwards `roles` holds what it drew."""

    def __init__(
        self,
        graph: Graph,
        drawn: Visible,
        inside: dict[int, Contents],
        colors: dict[str, str],
        shading: Shading,
        marks: Marks,
    ) -> None:
        self.graph = graph
        self.drawn = drawn
        self.inside = inside
        self.colors = colors
        self.shading = shading
        self.marks = marks
        self.outputs = {node for node, _ in graph.outputs}
        self.transfers = _transfers(graph)
        self.looks: dict[tuple[object, ...], _Look] = {}
        # Opening, kind and end of the line for a leaf inside its operation.
        self.inner: dict[tuple[object, ...], tuple[str, str, str]] = {}
        self.roles: set[Role] = set()

    def lines(self) -> dict[int, str]:
        """A line of DOT for each key, in the order of the drawing."""
        nodes, folded, looks = self.graph.nodes, self.drawn.folded, self.looks
        special = bool(self.marks.lines or self.shading.fills)
        ends = {*self.outputs, *self.transfers}
        result: dict[int, str] = {}
        for i in self.drawn.nodes:
            node = nodes[i]
            what: Role = "operation"
            if node[5] or i in ends:
                what = role(node, self.outputs, self.transfers)
            look = looks.get((node[1], node[2], node[4], what))
            if look is None:
                look = self.look(node, what)
            if special or node[3] or node[5] or i in ends or node[8] or node[9] or node[11]:
                result[i] = self._full(node, look)
            elif i in folded:
                lines = "<BR/>".join([self._inner_leaf(node, edge) for edge in folded[i]])
                result[i] = f"\t{i} [label=<{look[0]}<BR/>{lines}>{look[1]}]"
            else:
                result[i] = f"\t{i} [label=<{look[0]}>{look[1]}]"
        for number in self.drawn.boxes:
            result[~number] = self._box(number)
        return result

    def look(self, node: Node, what: Role) -> _Look:
        """Text and attributes that nodes of one operation, output and role have in common."""
        key = (node.name, node.outputs, node.operation, what)
        if key in self.looks:
            return self.looks[key]
        self.roles.add(what)
        title = say.escape(node.title)
        if node.leaf:
            title = say.SPACE + say.small(title, self.colors["muted"])
        meta = say.small(say.escape(say.tensors(node.outputs)), self.colors["muted"])
        self.looks[key] = look = (f"{title}<BR/>{say.SPACE}{meta}", self._attributes(what))
        return look

    def _attributes(self, what: Role) -> str:
        if what == "operation":
            return ""
        form, usual = FORMS[what], FORMS["operation"]
        attributes = f' fillcolor="{self.colors[what]}" color="{self.colors[f"{what}_line"]}"'
        for name in ("shape", "style", "margin", "peripheries"):
            if getattr(form, name) != getattr(usual, name):
                attributes += f' {name}="{getattr(form, name)}"'
        return attributes

    def _full(self, node: Node, look: _Look) -> str:
        text, attributes = look
        i = node.id
        muted = self.colors["muted"]
        if node.label:
            text = f"<B>{say.escape(node.label)}</B><BR/>{text}"
        more = [self.transfers[i]] if i in self.transfers else []
        more += [say.gradient(stats) for stats in node.grad_outputs if stats is not None]
        more += [self.shading.values[i]] if i in self.shading.values else []
        more += [node.note] if node.note else []
        if i in self.drawn.users:
            more.append(f"written inside its {self.drawn.users[i]:,} users")
        text = "<BR/>".join(
            [
                text,
                *(say.small(say.escape(line), muted) for line in more),
                *(self._inner_leaf(node, edge) for edge in self.drawn.folded.get(i, ())),
                *self.marks.lines.get(i, ()),
            ]
        )
        attributes += self.shading.fills.get(i, "") + self.marks.pens.get(i, "")
        where = " · ".join(part for part in (node.scope, node.source) if part)
        if where:
            attributes += f" tooltip={say.quote(f'{node.title} · {where}')}"
        return f"\t{i} [label=<{self._inked(i, text)}>{attributes}]"

    def _inked(self, key: int, text: str) -> str:
        """The text in the one colour that can be read on its fill, where the usual ones cannot."""
        ink = self.shading.inks.get(key)
        return text if ink is None else f'<FONT COLOR="{ink}">{_COLOR.sub("", text)}</FONT>'

    def _inner_leaf(self, node: Node, edge: Edge) -> str:
        """A leaf written inside the operation that uses it."""
        leaf = self.graph.nodes[edge[0]]
        parts = self.inner.get((leaf[2], leaf[5]))
        if parts is None:
            kind: str = role(leaf, (), ())
            shapes = " ".join(say.shape(meta) for meta in leaf.outputs if meta is not None)
            opening, end = say.small("|", self.colors[f"{kind}_line"]).split("|")
            self.inner[(leaf[2], leaf[5])] = parts = (opening, kind, f" {shapes}{end}")
        opening, unnamed, end = parts
        label = say.escape(say.within(node, leaf[3])) if leaf[3] else unnamed
        if edge[0] in self.drawn.users:
            label += f" ({self.drawn.users[edge[0]]}{say.TIMES})"
        return f"{opening}{label}{end}"

    def _box(self, number: int) -> str:
        tree = self.drawn.groups
        assert tree is not None
        self.roles.add("group")
        figures = self.inside[number]
        says = [f"{say.count(len(figures.nodes))} nodes"]
        if figures.elements:
            says[0] += f", {say.count(figures.elements)} parameters"
        says += [", ".join(figures.devices[:3]), self.shading.values.get(~number, "")]
        text = "<BR/>".join(
            [
                f"<B>{say.escape(self.drawn.title(number))}</B>",
                *(say.small(say.escape(line), self.colors["muted"]) for line in says if line),
                *self.marks.lines.get(~number, ()),
            ]
        )
        attributes = self._attributes("group")
        attributes += self.shading.fills.get(~number, "") + self.marks.pens.get(~number, "")
        attributes += f" tooltip={say.quote(tree.groups[number].path)}"
        return f"\tg{number} [label=<{self._inked(~number, text)}>{attributes}]"


def _transfers(graph: Graph) -> dict[int, str]:
    """Nodes that copy between devices in forward, and what they say of it."""
    found: dict[int, str] = {}
    for transfer in graph.transfers:
        if transfer.node is not None and transfer.phase == "forward":
            size = "" if transfer.nbytes is None else f", {say.nbytes(transfer.nbytes)}"
            found.setdefault(transfer.node, f"{transfer.source} → {transfer.target}{size}")
    return found
