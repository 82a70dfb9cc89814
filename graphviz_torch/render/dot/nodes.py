"""The lines of a DOT text that make nodes: operations, leaves, closed groups."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter

from ...graph import Node
from ...graph.column import details, recorded
from .. import labels, wording
from ..drawing.drawing import Drawing, FusedNode
from ..style import FORMS, Role, Theme, palette, pick, role
from . import markup

_COLOR = re.compile(' COLOR="[^"]*"')

# The outlines that are not drawn through.
_LINES = {"removed": "dashed", "changed": "dotted"}


class Nodes:
    """Writes the nodes of one drawing; afterwards `roles` holds what it drew."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.theme: Theme = drawing.options["theme"]
        self.colors = palette(self.theme)
        self.outputs = drawing.outputs
        self.copies = wording.copies(drawing.graph)
        self.senders = wording.senders(drawing)
        self.sent = {line for key in drawing.collectives for line in wording.sent(drawing, key)}
        # Of lines for leaves inside operations what stands before the name, a name for those that
        # have none, what follows it, and what ends the line: by kind and what follows.
        self.inner: dict[tuple[str, str], tuple[str, str, str, str]] = {}
        self.roles: set[Role] = {"collective"} if drawing.collectives else set()

    def lines(self) -> dict[int, str]:
        """A line of DOT for each key, in the order of the drawing."""
        drawing = self.drawing
        nodes, inner = drawing.graph.nodes, drawing.inner.inside
        special = {*self.outputs, *self.copies, *drawing.highlights.badges, *drawing.shading.fills}
        special.update(
            drawing.module_titles, (key for key in drawing.collectives if key is not None)
        )
        special.update(wording.ranged(drawing), drawing.loop_state)
        names = [name for name, _ in details(Node)]
        read = attrgetter(*names)
        unset = tuple([Node._field_defaults[name] for name in names])  # as of most
        told = [i for i in drawing.nodes if read(nodes[i]) != unset]
        special.update([i for i in told if any(map(recorded, read(nodes[i])))])
        # The text of operations that have no more to say. Outputs go by identity: equal ones are
        # mostly the same, and slow to hash.
        usual: dict[tuple[str, int, tuple[str, ...], str], str] = {}
        result: dict[int, str] = {}
        for i in drawing.nodes:
            node = nodes[i]
            known = node.where or node.grad_outputs or node.values
            if i in special or node.label or node.leaf or known:
                result[i] = self._full(node)
                continue
            kind = node.operation or node.name, id(node.outputs), node.attributes, node.call
            text = usual.get(kind)
            if text is None:
                self.roles.add("operation")
                text = usual[kind] = self._text(node)
            if i in inner:
                for folded in wording.inner_leaves(drawing, node):
                    text += self._inner(node, folded)
            result[i] = f"\t{i} [label=<{text}>]"
        for number in drawing.boxes:
            result[~number] = self._box(number)
        return result

    def between_ranks(self) -> list[str]:
        """A box of its own for the collectives that nothing drawn has."""
        said = wording.sent(self.drawing, None)
        if not said:
            return []
        text = f"<B>{labels.BETWEEN_RANKS}</B><BR/>{markup.SPACE}"
        text += "<BR/>".join(map(self._small, said))
        return [f"\tsent [label=<{text}>{_attributes('collective', self.theme)}]"]

    def _text(self, node: Node) -> str:
        """What every node of an operation and output says."""
        called = wording.operation(self.drawing, node)
        outputs = wording.tensors(self.drawing, node)
        return _text(called, bool(node.leaf), outputs, self.theme)

    def _full(self, node: Node) -> str:
        what = role(node, self.outputs, self.copies, self.senders)
        self.roles.add(what)
        i = node.id
        names = map(labels.wrapped, wording.names(self.drawing, node))
        lines = [f"<B>{markup.escape(name)}</B>" for name in names]
        lines.append(self._text(node))
        lines += map(self._small, wording.details(self.drawing, node, self.copies))
        for folded in wording.inner_leaves(self.drawing, node):
            lines[-1] += self._inner(node, folded)
        lines += [*self._signs(i)]
        text = "<BR/>".join(lines)
        attributes = _attributes(what, self.theme) + self._added(i, what)
        if node.scope or node.where:
            where = " · ".join([part for part in (node.scope, node.where) if part])
            attributes += f" tooltip={markup.quote(f'{node.title} · {where}')}"
        return f"\t{i} [label=<{self._inked(i, text)}>{attributes}]"

    def _small(self, line: str) -> str:
        color = "collective_line" if line in self.sent else "muted"
        color = "error" if labels.is_spoilt(line) else color
        return markup.small(markup.escape(line), self.colors[color])

    def _signs(self, key: int) -> list[str]:
        """The lines that findings and differences add."""
        lines = []
        for sign in self.drawing.highlights.badges.get(key, ()):
            text = markup.small(markup.escape(sign.text), self.colors[sign.color])
            lines.append(f"<B>{text}</B>" if sign.strong else text)
        return lines

    def _added(self, key: int, what: Role) -> str:
        """Attributes for the fill that `color_by` gives, and for what marks the outline."""
        attributes = ""
        shading, marks = self.drawing.shading, self.drawing.highlights
        if key in shading.fills:
            pair = shading.fills[key]
            dashed = f' style="{FORMS[what].style},dashed"'
            attributes = f' fillcolor="{pick(pair, self.theme)}"' if pair else dashed
        color = marks.outlines.get(key)
        if color is not None:
            attributes += f' color="{self.colors[color]}" penwidth=2.5'
            line = _LINES.get(color)
            attributes += f' style="rounded,filled,{line}"' if line else ""
        return attributes

    def _inked(self, key: int, text: str) -> str:
        """The text in the one colour that can be read on its fill, where the usual ones cannot."""
        ink = self.drawing.shading.inks.get(key)
        if ink is None:
            return text
        return f'<FONT COLOR="{pick(ink, self.theme)}">{_COLOR.sub("", text)}</FONT>'

    def _inner(self, node: Node, folded: int) -> str:
        """A leaf with its gradient, in a line inside the operation that uses it."""
        leaf, after = wording.inner_leaf(self.drawing, folded)
        kind = leaf.leaf, after
        parts = self.inner.get(kind)
        if parts is None:
            what: str = role(leaf, (), ())
            line = markup.small(f"|{markup.escape(after)}|", self.colors[f"{what}_line"])
            before, _, rest = f"<BR/>{line}".partition("|")
            shapes, _, behind = rest.rpartition("|")
            self.inner[kind] = parts = before, what, shapes, behind
        before, unnamed, shapes, behind = parts
        name = unnamed
        if leaf.label:
            name = markup.escape(labels.wrapped(labels.within(node, leaf.label)))
        return f"{before}{name}{shapes}{labels.leaf_gradient(leaf)}{behind}"

    def _unit(self, number: int, unit: FusedNode) -> str:
        """A group that is drawn as one operation."""
        drawing, key = self.drawing, ~number
        assert drawing.groups is not None
        what: Role = "output" if unit.node in self.outputs else "operation"
        self.roles.add(what)
        names, said = wording.fused_node_lines(drawing, number, unit)
        module = drawing.groups.groups[number].kind == "module"
        *labelled, name = [markup.escape(labels.wrapped(name)) for name in names]
        lines = [f"<B>{label}</B>" for label in labelled]
        lines.append(f"<B>{name}</B>" if module else name)
        small = [*map(self._small, said)]
        lines.append(f"{markup.SPACE}{small[0]}")
        lines += small[1:]
        for i in unit.nodes:
            node = drawing.graph.nodes[i]
            for folded in wording.inner_leaves(drawing, node):
                lines[-1] += self._inner(node, folded)
        lines += [*self._signs(key)]
        text = self._inked(key, "<BR/>".join(lines))
        attributes = _attributes(what, self.theme) + self._added(key, what)
        attributes += f" tooltip={markup.quote(drawing.groups.groups[number].path)}"
        return f"\tg{number} [label=<{text}>{attributes}]"

    def _box(self, number: int) -> str:
        drawing = self.drawing
        unit = drawing.fused_node(~number)
        if unit is not None:
            return self._unit(number, unit)
        assert drawing.groups is not None
        what: Role = "stack" if number in drawing.tree.represented_groups else "group"
        self.roles.add(what)
        figures = [*map(self._small, wording.box_figures(drawing, number))]
        figures += self._signs(~number)
        title = f"<B>{markup.escape(labels.wrapped(drawing.title_with_class(number)))}</B>"
        text = f"{title}<BR/>{markup.SPACE}{'<BR/>'.join(figures)}" if figures else title
        attributes = _attributes(what, self.theme) + self._added(~number, what)
        attributes += f" tooltip={markup.quote(drawing.groups.groups[number].path)}"
        return f"\tg{number} [label=<{self._inked(~number, text)}>{attributes}]"


@lru_cache(maxsize=4096)
def _text(called: str, leaf: bool, outputs: str, theme: Theme) -> str:
    """What every node of an operation and output says."""
    muted = palette(theme)["muted"]
    meta = markup.SPACE + markup.small(markup.escape(outputs), muted)
    if not called:
        return meta
    called = markup.escape(called)
    if leaf:
        called = markup.SPACE + markup.small(called, muted)
    return f"{called}<BR/>{meta}"


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
