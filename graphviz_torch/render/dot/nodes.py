"""Write boxes as DOT: nodes, closed groups, input data, and the operation that raised an exception.

Input data, calls without an autograd node and a failed operation are no nodes of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from functools import lru_cache
from operator import attrgetter

from ...graph import Node
from ...graph.nodes import details, is_recorded
from .. import group_wording, labels, wording
from ..drawing.drawing import Drawing
from ..drawing.mark import SEVERITY_SIGNS
from ..drawing.values import End, FusedNode, Stub
from ..style import NODE_SHAPES, Role, Theme, palette, pick, role
from . import layout
from .layout import dot_id

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
        text = f"<B>{labels.BETWEEN_RANKS}</B><BR/>{layout.SPACE}"
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
        lines = [f"<B>{layout.escape(self._wrap(name))}</B>" for name in names]
        lines.append(self._text(node))
        lines += map(self._small, wording.details(self.drawing, node, self.copies))
        for folded in wording.inner_leaves(self.drawing, node):
            lines[-1] += self._inner(node, folded)
        lines += [*self._badges(i)]
        text = "<BR/>".join(lines)
        attributes = _attributes(kind, self.theme) + self._fill_and_outline(i, kind)
        if node.scope or node.where:
            where = " · ".join([part for part in (node.scope, node.where) if part])
            attributes += f" tooltip={layout.quote(f'{node.title} · {where}')}"
        return f"\t{i} [label=<{self._with_ink(i, text)}>{attributes}]"

    def _small(self, line: str) -> str:
        color = "collective_line" if line in self.sent else "muted"
        color = "error" if labels.is_spoilt(line) else color
        return layout.small(layout.escape(line), self.colors[color])

    def _badges(self, key: int) -> list[str]:
        """Return the lines that findings and differences add to a box."""
        lines = []
        for badge in self.drawing.highlights.badges.get(key, ()):
            text = layout.small(layout.escape(badge.text), self.colors[badge.color])
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
            line = layout.small(f"|{layout.escape(after)}|", self.colors[f"{name}_line"])
            before, _, rest = f"<BR/>{line}".partition("|")
            shapes, _, behind = rest.rpartition("|")
            self.inner[form] = parts = before, name, shapes, behind
        before, unnamed, shapes, behind = parts
        name = unnamed
        if leaf.label:
            name = layout.escape(self._wrap(labels.local_name(node, leaf.label)))
        return f"{before}{name}{shapes}{labels.leaf_gradient(leaf)}{behind}"

    def _fused_node(self, number: int, unit: FusedNode) -> str:
        """Return the DOT line of a fused node."""
        drawing, key = self.drawing, ~number
        assert drawing.groups is not None
        kind: Role = "output" if unit.node in self.outputs else "operation"
        self.roles.add(kind)
        names, said = group_wording.fused_node_lines(drawing, number, unit)
        module = drawing.groups.groups[number].kind == "module"
        *labelled, name = [layout.escape(self._wrap(name)) for name in names]
        lines = [f"<B>{label}</B>" for label in labelled]
        lines.append(f"<B>{name}</B>" if module else name)
        small = [*map(self._small, said)]
        lines.append(f"{layout.SPACE}{small[0]}")
        lines += small[1:]
        for i in unit.nodes:
            node = drawing.graph.nodes[i]
            for folded in wording.inner_leaves(drawing, node):
                lines[-1] += self._inner(node, folded)
        lines += [*self._badges(key)]
        text = self._with_ink(key, "<BR/>".join(lines))
        attributes = _attributes(kind, self.theme) + self._fill_and_outline(key, kind)
        attributes += f" tooltip={layout.quote(drawing.groups.groups[number].path)}"
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
        title = f"<B>{layout.escape(self._wrap(drawing.title_with_class(number)))}</B>"
        text = f"{title}<BR/>{layout.SPACE}{'<BR/>'.join(small)}" if small else title
        attributes = _attributes(kind, self.theme) + self._fill_and_outline(~number, kind)
        if group_wording.untracked_call(drawing, number) is not None:
            attributes += ' style="rounded,filled,dashed"'
        attributes += f" tooltip={layout.quote(drawing.groups.groups[number].path)}"
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
    meta = layout.SPACE + layout.small(layout.escape(outputs), muted)
    if not called:
        return meta
    called = layout.escape(called)
    if leaf:
        called = layout.SPACE + layout.small(called, muted)
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


def data_lines(drawing: Drawing, links: Set[tuple[End, End]] = frozenset()) -> list[str]:
    """Return the DOT lines of data and their edges.

    Args:
        drawing: the drawing.
        links: (source, target) of edges to leave out, because a cut draws them.
    """
    if drawing.graph.untracked:
        return _untracked_lines(drawing, links)
    colors = palette(drawing.options["theme"])
    lines = []
    line = f'color="{colors["edge"]}" penwidth=0.6 arrowsize=0.5'
    for key, texts in wording.data_inputs(drawing).items():
        said = "<BR/>".join(map(layout.escape, (*texts, "no gradient")))
        label = layout.small(said, colors["muted"])
        name = f"data_{dot_id(key)}"
        stub = f'{name} [label=<{label}> shape=plain style=""]'
        frames = drawing.tree.paths[key] if drawing.graph.segments else ()
        # In a joined graph, data is drawn inside the cluster of the backward pass that uses it.
        lines.append(f"\tsubgraph cluster_{frames[0]} {{{stub}}}" if frames else f"\t{stub}")
        lines.append(f"\t{name} -> {dot_id(key)} [{line}]")
    return lines


def _untracked_lines(drawing: Drawing, links: Set[tuple[End, End]]) -> list[str]:
    """Return DOT lines for the entries of `Graph.untracked` and for their edges.

    Each box is inside the clusters of the modules that contain it.
    """
    colors = palette(drawing.options["theme"])
    shown = drawing.stubs
    devices = {meta.device for node in drawing.graph.nodes for meta in node.outputs if meta}
    lines = []
    for stub in shown.stubs:
        small = [layout.small(layout.escape(text), colors["muted"]) for text in stub.details]
        title = layout.escape("\n".join(stub.title_lines))
        form = 'shape=plain style=""'
        if not stub.is_data:
            form = f'shape=box style="rounded,filled,dashed" fillcolor="{colors["group"]}"'
            form += f' color="{colors["cluster_line"]}" fontcolor="{colors["muted"]}"'
        small[:1] = [layout.SPACE + text for text in small[:1]]
        label = "<BR/>".join([f"<B>{title}</B>", *small])
        if stub.listed:
            pairs = [[layout.escape(text) for text in entry] for entry in stub.listed]
            label = "<BR/>".join(
                f"<B>{name}</B> {layout.small(shape, colors['muted'])}" for name, shape in pairs
            )
        text = f"\t{end_id(stub)} [label=<{label}> {form}]"
        for number in reversed(range(len(stub.frames) if len(devices) < 2 else 0)):
            name = "_".join(map(str, stub.frames[: number + 1]))
            text = f"\tsubgraph cluster_{name} {{{text.strip()}}}"
        lines.append(text)
    for source, target in shown.links:
        if (source, target) in links:
            continue
        data = isinstance(source, Stub) and source.is_data
        line = f'color="{colors["edge"]}" penwidth=0.6 arrowsize=0.5' if data else "style=dashed"
        # A call without a node is placed close to its users rather than to its data.
        line += "" if data or not isinstance(source, Stub) else " weight=2"
        lines.append(f"\t{end_id(source)} -> {end_id(target)} [{line}]")
    return lines


def end_id(end: End) -> str:
    """Return the name of a drawn element or of a box in DOT."""
    return f"untracked_{end.position}" if isinstance(end, Stub) else dot_id(end)


def failure_lines(drawing: Drawing) -> Iterator[str]:
    """Yield a dashed node for the operation that raised, below its inputs."""
    failure, sources = drawing.graph.failure, wording.failed_operands(drawing)
    if failure is None or not sources:
        return
    colors = palette(drawing.options["theme"])
    color = colors["error"]
    text = f"{layout.escape(failure.operation)}<BR/>"
    text += layout.small(f"{SEVERITY_SIGNS['error']} {layout.escape(failure.error)}", color)
    text += f"<BR/>{layout.small(layout.escape(failure.where), color)}" if failure.where else ""
    yield (
        f'\tfailed [label=<{text}> style="rounded,dashed" color="{color}" fontcolor="{color}" '
        f"penwidth=2]"
    )
    yield from (f'\t{dot_id(key)} -> failed [style=dashed color="{color}"]' for key in sources)
