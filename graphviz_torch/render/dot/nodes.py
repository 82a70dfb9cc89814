"""Write nodes as DOT: operations, leaves and closed groups."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter

from ...graph import Node
from ...graph.column import details, is_recorded
from .. import group_wording, labels, wording
from ..drawing.drawing import Drawing
from ..drawing.values import FusedNode
from ..style import NODE_SHAPES, Role, Theme, palette, pick, role
from . import markup

_COLOR = re.compile(' COLOR="[^"]*"')

# Name of an outline's color -> line style of the outline; all other outlines are solid.
_OUTLINE_STYLES = {"removed": "dashed", "changed": "dotted"}


class Nodes:
    """A writer for the nodes of one drawing. `roles` collects the roles of these nodes."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.theme: Theme = drawing.options["theme"]
        self.colors = palette(self.theme)
        self.outputs = drawing.outputs
        self.copies = wording.transfer_lines(drawing.graph)
        self.senders = wording.senders(drawing)
        self.sent = {
            line for key in drawing.collectives for line in wording.collective_lines(drawing, key)
        }
        # Cached markup of the line that names a leaf inside an operation: (kind of leaf, text after
        # its name) -> (markup before the name, default name, text after the name, closing markup).
        self.inner: dict[tuple[str, str], tuple[str, str, str, str]] = {}
        self.roles: set[Role] = {"collective"} if drawing.collectives else set()

    def lines(self) -> dict[int, str]:
        """Return key -> DOT line, in the order of the drawing."""
        drawing = self.drawing
        nodes, inner = drawing.graph.nodes, drawing.inner.inside
        special = {*self.outputs, *self.copies, *drawing.highlights.badges, *drawing.shading.fills}
        special.update(
            drawing.module_titles, (key for key in drawing.collectives if key is not None)
        )
        special.update(wording.nodes_with_size_range(drawing), drawing.loop_state)
        special.update(drawing.only_first_output)
        names = [name for name, _ in details(Node)]
        read = attrgetter(*names)
        unset = tuple([Node._field_defaults[name] for name in names])
        with_details = [i for i in drawing.nodes if read(nodes[i]) != unset]
        special.update([i for i in with_details if any(map(is_recorded, read(nodes[i])))])
        # Cached labels of operations that show only name and shape. Outputs are compared by
        # identity, because hashing is slow, and equal outputs are mostly one object.
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
        """Return the DOT line of a box with the collectives that no drawn element shows.

        Return [] if there are no such collectives.
        """
        said = wording.collective_lines(self.drawing, None)
        if not said:
            return []
        text = f"<B>{labels.BETWEEN_RANKS}</B><BR/>{markup.SPACE}"
        text += "<BR/>".join(map(self._small, said))
        return [f"\tsent [label=<{text}>{_attributes('collective', self.theme)}]"]

    def _text(self, node: Node) -> str:
        """Return the operation and the outputs of a node."""
        called = wording.operation_text(self.drawing, node)
        outputs = wording.tensors(self.drawing, node)
        return _text(called, bool(node.leaf), outputs, self.theme)

    def _full(self, node: Node) -> str:
        kind = role(node, self.outputs, self.copies, self.senders)
        self.roles.add(kind)
        i = node.id
        names = wording.node_names(self.drawing, node)
        lines = [f"<B>{markup.escape(self._wrap(name))}</B>" for name in names]
        lines.append(self._text(node))
        lines += map(self._small, wording.details(self.drawing, node, self.copies))
        for folded in wording.inner_leaves(self.drawing, node):
            lines[-1] += self._inner(node, folded)
        lines += [*self._badges(i)]
        text = "<BR/>".join(lines)
        attributes = _attributes(kind, self.theme) + self._fill_and_outline(i, kind)
        if node.scope or node.where:
            where = " · ".join([part for part in (node.scope, node.where) if part])
            attributes += f" tooltip={markup.quote(f'{node.title} · {where}')}"
        return f"\t{i} [label=<{self._with_ink(i, text)}>{attributes}]"

    def _small(self, line: str) -> str:
        color = "collective_line" if line in self.sent else "muted"
        color = "error" if labels.is_spoilt(line) else color
        return markup.small(markup.escape(line), self.colors[color])

    def _badges(self, key: int) -> list[str]:
        """Return the lines that findings and differences add to a box."""
        lines = []
        for badge in self.drawing.highlights.badges.get(key, ()):
            text = markup.small(markup.escape(badge.text), self.colors[badge.color])
            lines.append(f"<B>{text}</B>" if badge.strong else text)
        return lines

    def _fill_and_outline(self, key: int, kind: Role) -> str:
        """Return the DOT attributes of a box's fill (by `color_by`) and outline (if marked)."""
        attributes = ""
        shading, marks = self.drawing.shading, self.drawing.highlights
        if key in shading.fills:
            pair = shading.fills[key]
            dashed = f' style="{NODE_SHAPES[kind].style},dashed"'
            attributes = f' fillcolor="{pick(pair, self.theme)}"' if pair else dashed
        color = marks.outlines.get(key)
        if color is not None:
            attributes += f' color="{self.colors[color]}" penwidth=2.5'
            line = _OUTLINE_STYLES.get(color)
            attributes += f' style="rounded,filled,{line}"' if line else ""
        return attributes

    def _with_ink(self, key: int, text: str) -> str:
        """Return the markup of a box's text, recolored if the box has a dark fill."""
        ink = self.drawing.shading.inks.get(key)
        if ink is None:
            return text
        return f'<FONT COLOR="{pick(ink, self.theme)}">{_COLOR.sub("", text)}</FONT>'

    def _inner(self, node: Node, folded: int) -> str:
        """Return the line that names a leaf and its gradient inside the box of an operation.

        Args:
            node: the operation.
            folded: id of the leaf, or of the last view or cast between leaf and operation.
        """
        leaf, after = wording.inner_leaf(self.drawing, folded)
        form = leaf.leaf, after
        parts = self.inner.get(form)
        if parts is None:
            name: str = role(leaf, (), ())
            line = markup.small(f"|{markup.escape(after)}|", self.colors[f"{name}_line"])
            before, _, rest = f"<BR/>{line}".partition("|")
            shapes, _, behind = rest.rpartition("|")
            self.inner[form] = parts = before, name, shapes, behind
        before, unnamed, shapes, behind = parts
        name = unnamed
        if leaf.label:
            name = markup.escape(self._wrap(labels.local_name(node, leaf.label)))
        return f"{before}{name}{shapes}{labels.leaf_gradient(leaf)}{behind}"

    def _fused_node(self, number: int, unit: FusedNode) -> str:
        """Return the DOT line of a fused node."""
        drawing, key = self.drawing, ~number
        assert drawing.groups is not None
        kind: Role = "output" if unit.node in self.outputs else "operation"
        self.roles.add(kind)
        names, said = group_wording.fused_node_lines(drawing, number, unit)
        module = drawing.groups.groups[number].kind == "module"
        *labelled, name = [markup.escape(self._wrap(name)) for name in names]
        lines = [f"<B>{label}</B>" for label in labelled]
        lines.append(f"<B>{name}</B>" if module else name)
        small = [*map(self._small, said)]
        lines.append(f"{markup.SPACE}{small[0]}")
        lines += small[1:]
        for i in unit.nodes:
            node = drawing.graph.nodes[i]
            for folded in wording.inner_leaves(drawing, node):
                lines[-1] += self._inner(node, folded)
        lines += [*self._badges(key)]
        text = self._with_ink(key, "<BR/>".join(lines))
        attributes = _attributes(kind, self.theme) + self._fill_and_outline(key, kind)
        attributes += f" tooltip={markup.quote(drawing.groups.groups[number].path)}"
        return f"\tg{number} [label=<{text}>{attributes}]"

    def _wrap(self, name: str) -> str:
        return labels.wrap_name(name, self.drawing.line_width)

    def _box(self, number: int) -> str:
        drawing = self.drawing
        unit = drawing.fused_node(~number)
        if unit is not None:
            return self._fused_node(number, unit)
        assert drawing.groups is not None
        kind: Role = "stack" if number in drawing.tree.represented_groups else "group"
        self.roles.add(kind)
        small = [*map(self._small, group_wording.group_details(drawing, number))]
        small += self._badges(~number)
        title = f"<B>{markup.escape(self._wrap(drawing.title_with_class(number)))}</B>"
        text = f"{title}<BR/>{markup.SPACE}{'<BR/>'.join(small)}" if small else title
        attributes = _attributes(kind, self.theme) + self._fill_and_outline(~number, kind)
        if group_wording.untracked_call(drawing, number) is not None:
            attributes += ' style="rounded,filled,dashed"'
        attributes += f" tooltip={markup.quote(drawing.groups.groups[number].path)}"
        return f"\tg{number} [label=<{self._with_ink(~number, text)}>{attributes}]"


@lru_cache(maxsize=4096)
def _text(called: str, leaf: bool, outputs: str, theme: Theme) -> str:
    """Return the markup of an operation's name and outputs.

    Args:
        called: name of the operation; "" to write only the outputs.
        leaf: True if the node is a leaf.
        outputs: text of the outputs.
        theme: theme of the drawing.
    """
    muted = palette(theme)["muted"]
    meta = markup.SPACE + markup.small(markup.escape(outputs), muted)
    if not called:
        return meta
    called = markup.escape(called)
    if leaf:
        called = markup.SPACE + markup.small(called, muted)
    return f"{called}<BR/>{meta}"


@lru_cache
def _attributes(kind: Role, theme: Theme) -> str:
    """Return the DOT attributes of a role's nodes that differ from those of operations."""
    if kind == "operation":
        return ""
    form, usual, colors = NODE_SHAPES[kind], NODE_SHAPES["operation"], palette(theme)
    attributes = f' fillcolor="{colors[kind]}" color="{colors[f"{kind}_line"]}"'
    for name in ("shape", "style", "margin", "peripheries"):
        if getattr(form, name) != getattr(usual, name):
            attributes += f' {name}="{getattr(form, name)}"'
    return attributes
