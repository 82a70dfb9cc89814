"""The lines of a DOT text that make nodes: operations, leaves, closed groups."""

from __future__ import annotations

import re
from functools import lru_cache

from ...graph import Graph, Node
from ...graph.units import bytes_text, seconds_text
from .. import labels
from ..drawing.contents import Contents
from ..drawing.visible import Visible
from ..style import FORMS, Role, Theme, palette, role
from . import markup
from .color import Shading
from .marks import Marks

_Look = tuple[str, str]  # text and attributes
_COLOR = re.compile(' COLOR="[^"]*"')


class Nodes:
    """Writes the nodes of one drawing; afterwards `roles` holds what it drew."""

    def __init__(
        self,
        graph: Graph,
        drawn: Visible,
        inside: dict[int, Contents],
        theme: Theme,
        shading: Shading,
        marks: Marks,
    ) -> None:
        self.graph = graph
        self.drawn = drawn
        self.inside = inside
        self.theme: Theme = theme
        self.colors = palette(theme)
        self.shading = shading
        self.marks = marks
        self.outputs = {node for node, _ in graph.outputs}
        self.transfers = _transfers(graph)
        # Of lines for leaves inside operations what stands before the name, a name for those that
        # have none, and what stands behind: by kind, outputs and what follows the name. Outputs go
        # by identity here and below: equal ones are mostly the same, and slow to hash.
        self.inner: dict[tuple[str, int, str], tuple[str, str, str]] = {}
        self.roles: set[Role] = set()

    def lines(self) -> dict[int, str]:
        """A line of DOT for each key, in the order of the drawing."""
        nodes, inner = self.graph.nodes, self.drawn.inner.inside
        special = {*self.outputs, *self.transfers, *self.marks.lines, *self.shading.fills}
        special.update(self.drawn.alone)
        usual: dict[
            tuple[str, int, tuple[str, ...]], str
        ] = {}  # text of operations that have no more to say
        result: dict[int, str] = {}
        for i in self.drawn.nodes:
            node = nodes[i]
            if (
                i in special
                or node.label
                or node.leaf
                or node.source
                or node.note
                or node.grad_outputs
            ):
                result[i] = self._full(node)
                continue
            kind = node.operation or node.name, id(node.outputs), node.attributes
            text = usual.get(kind)
            if text is None:
                text = usual[kind] = self._look(node, "operation")[0]
            if i in inner:
                for edge in inner[i]:
                    text += self._inner(node, edge.source)
            result[i] = f"\t{i} [label=<{text}>]"
        for number in self.drawn.boxes:
            result[~number] = self._box(number)
        return result

    def _look(self, node: Node, what: Role) -> _Look:
        """Text and attributes that nodes of one operation, output and role have in common."""
        self.roles.add(what)
        title = markup.escape(node.title + labels.telling(node.title, node.attributes))
        if node.leaf:
            title = markup.SPACE + markup.small(title, self.colors["muted"])
        meta = markup.small(markup.escape(labels.tensors(node.outputs)), self.colors["muted"])
        return f"{title}<BR/>{markup.SPACE}{meta}", _attributes(what, self.theme)

    def _full(self, node: Node) -> str:
        text, attributes = self._look(node, role(node, self.outputs, self.transfers))
        i = node.id
        muted = self.colors["muted"]
        if i in self.drawn.alone:
            name = self.drawn.alone[i]
            kind = node.module_class.rpartition("/")[2]
            name += f" · {kind}" if kind and not node.leaf else ""
            text = f"<B>{markup.escape(name)}</B><BR/>{text}"
        if node.label:
            text = f"<B>{markup.escape(node.label)}</B><BR/>{text}"
        more = [self.transfers[i]] if i in self.transfers else []
        more += [labels.gradient(stats) for stats in node.grad_outputs if stats is not None]
        more += [self.shading.values[i]] if i in self.shading.values else []
        more += node.note.splitlines()
        if i in self.drawn.inner.many:
            more.append(f"written inside its {self.drawn.inner.many[i]:,} users")
        text = "<BR/>".join([text, *(markup.small(markup.escape(line), muted) for line in more)])
        for edge in self.drawn.inner.inside.get(i, ()):
            text += self._inner(node, edge.source)
        text = "<BR/>".join([text, *self.marks.lines.get(i, ())])
        attributes += self.shading.fills.get(i, "") + self.marks.pens.get(i, "")
        where = " · ".join(part for part in (node.scope, node.source) if part)
        if where:
            attributes += f" tooltip={markup.quote(f'{node.title} · {where}')}"
        return f"\t{i} [label=<{self._inked(i, text)}>{attributes}]"

    def _inked(self, key: int, text: str) -> str:
        """The text in the one colour that can be read on its fill, where the usual ones cannot."""
        ink = self.shading.inks.get(key)
        return text if ink is None else f'<FONT COLOR="{ink}">{_COLOR.sub("", text)}</FONT>'

    def _inner(self, node: Node, folded: int) -> str:
        """A leaf, and what carries it, in a line inside the operation that uses it."""
        nodes, inner = self.graph.nodes, self.drawn.inner
        leaf = last = nodes[folded]
        after = ""  # the name
        if folded in inner.carried:
            chain = inner.chain(folded)
            leaf = nodes[chain[-1]]
            after = "".join([f".{nodes[i].operation}" for i in chain[-2::-1]])
        if leaf.id in inner.many:
            after += f" ({inner.many[leaf.id]}{labels.TIMES})"
        _, _, _, name, _, kind, *_ = leaf
        parts = self.inner.get((kind, id(last[2]), after))
        if parts is None:
            what: str = role(leaf, (), ())
            shapes = "".join(
                [f" {labels.shape(meta)}" for meta in last.outputs if meta is not None]
            )
            line = markup.small(
                f"|{markup.escape(f'{after}{shapes}')}", self.colors[f"{what}_line"]
            )
            before, behind = f"<BR/>{line}".split("|")
            self.inner[kind, id(last[2]), after] = parts = before, what, behind
        before, unnamed, behind = parts
        name = markup.escape(labels.within(node, name)) if name else unnamed
        return f"{before}{name}{behind}"

    def _box(self, number: int) -> str:
        tree = self.drawn.groups
        assert tree is not None
        self.roles.add("group")
        figures = self.inside[number]
        says = [f"{labels.count(len(figures.nodes))} nodes"]
        if figures.elements:
            says[0] += f", {labels.count(figures.elements)} parameters"
        says += [", ".join(figures.devices[:3])]
        if figures.gradients is not None:
            low, high = map(labels.number, figures.gradients)
            says.append(f"grad norm {low}" + (f" to {high}" if high != low else ""))
        if figures.saved_bytes:
            says.append(f"saved {bytes_text(figures.saved_bytes)}")
        if figures.seconds is not None:
            says[-1] += f", backward {seconds_text(figures.seconds)}"
        text = "<BR/>".join(
            [
                f"<B>{markup.escape(self.drawn.described(number, self.graph))}</B>",
                # A first line of its own holds the small print off the title.
                *(markup.small(markup.escape(line), self.colors["muted"]) for line in says if line),
                *self.marks.lines.get(~number, ()),
            ]
        )
        attributes = _attributes("group", self.theme)
        attributes += self.shading.fills.get(~number, "") + self.marks.pens.get(~number, "")
        attributes += f" tooltip={markup.quote(tree.groups[number].path)}"
        return f"\tg{number} [label=<{self._inked(~number, text)}>{attributes}]"


@lru_cache
def _attributes(what: Role, theme: Theme) -> str:
    """What sets a role apart from an operation, in DOT."""
    if what == "operation":
        return ""
    form, usual, colors = FORMS[what], FORMS["operation"], palette(theme)
    attributes = f' fillcolor="{colors[what]}" color="{colors[f"{what}_line"]}"'
    for name in ("shape", "style", "margin", "peripheries"):
        if getattr(form, name) != getattr(usual, name):
            attributes += f' {name}="{getattr(form, name)}"'
    return attributes


def _transfers(graph: Graph) -> dict[int, str]:
    """Nodes that copy between devices in forward, and what they say of it."""
    found: dict[int, str] = {}
    for transfer in graph.transfers:
        if transfer.node is not None and transfer.phase == "forward":
            size = "" if transfer.nbytes is None else f", {bytes_text(transfer.nbytes)}"
            found.setdefault(transfer.node, f"{transfer.source} → {transfer.target}{size}")
    return found
