"""The graph as DOT text: what is visible, and how it looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ..graph import Edge, Finding, Graph, Node
from . import dot_text as say
from .contents import contents
from .dot_legend import WARNINGS, legend
from .dot_shade import ColorBy, shade
from .style import FORMS, GROUNDS, Role, Theme, category, palette, pick, role
from .untangle import untangle
from .visible import Line, Parameters, Visible, visible

Direction = Literal["TB", "BT", "LR", "RL"]
Mark = Literal["added", "removed", "changed"]

FONT = "DejaVu Sans,Verdana,sans-serif"
SIGNS = {"added": "+", "removed": say.MINUS, "changed": "≠"}

_Look = tuple[str, str]  # text and attributes
_Tree = dict["int | str", "_Tree | None"]  # clusters; a line of text holds None


def to_dot(
    graph: Graph,
    *,
    direction: Direction = "TB",
    theme: Theme = "light",
    color_by: ColorBy | None = None,
    parameters: Parameters | None = None,
    depth: int | None = None,
    module: str | None = None,
    fold: bool | None = None,
    findings: Iterable[Finding] = (),
    marks: Mapping[int, Mark] | None = None,
    explain: bool = True,
    limit: int = 1500,
    note: str = "",
) -> str:
    """The graph as DOT text.

    Args:
        direction: where data flows: "TB" is from top to bottom.
        theme: "light", "dark", or "auto" for an SVG that follows its reader's setting.
        color_by: fill nodes by "device", "dtype", "module", "gradient" (norm), "time" (seconds in
            backward) or "saved" (bytes kept for backward) in place of what they are.
        parameters: "fold" writes parameters inside the operation that uses them, "nodes" gives each
            a node; None folds them where modules were recorded or there are many.
        depth: levels of modules to open; None opens what there is room for.
        module: draw the inside of this module only.
        fold: draw blocks of the same structure that follow each other as one; None does so where
            there are more nodes than `limit`.
        findings: what to mark; their messages stand below the picture.
        marks: node id -> "added", "removed" or "changed".
        explain: say below the picture what forms and colours mean.
        limit: with more nodes than this, modules (without them: runs and loops) are drawn closed.
        note: a line to add below the picture.

    Raises:
        ValueError: for an option that is not among those named, or a module not in the graph.

    >>> from graphviz_torch.graph import Graph, Node, TensorMeta
    >>> node = Node(0, "AccumulateGrad", (TensorMeta((3,), "float32", "cpu"),), "x", leaf="tensor")
    >>> "<B>x</B>" in to_dot(Graph((node,)))
    True
    """
    _check("direction", direction, ("TB", "BT", "LR", "RL"))
    _check("theme", theme, ("light", "dark", "auto"))
    _check("parameters", parameters, (None, "fold", "nodes"))
    for mark in (marks or {}).values():
        _check("marks: mark", mark, tuple(SIGNS))
    drawn = visible(
        graph, parameters=parameters, depth=depth, module=module, fold=fold, limit=limit
    )
    untangle(drawn)
    writer = _Writer(graph, drawn, theme, color_by)
    writer.find(findings)
    writer.mark(marks or {})
    return writer.text(direction, explain, note)


def _check(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{option}={value!r} is unknown. Known are {', '.join(map(repr, known))}.")


class _Writer:
    def __init__(
        self, graph: Graph, drawn: Visible, theme: Theme, color_by: ColorBy | None
    ) -> None:
        self.graph = graph
        self.drawn = drawn
        self.theme: Theme = theme
        self.colors = palette(theme)
        tree = drawn.groups
        self.inside = {} if tree is None else {n: contents(graph, tree, n) for n in drawn.boxes}
        keys = [*drawn.nodes, *(~number for number in drawn.boxes)]
        self.shading = shade(graph, self.inside, keys, color_by, theme)
        self.outputs = {node for node, _ in graph.outputs}
        self.transfers = {t.node for t in graph.transfers if t.node is not None}
        self.looks: dict[object, _Look] = {}
        self.roles: dict[Role, None] = {}  # those that were drawn
        self.extra: dict[int, list[str]] = {}  # key -> lines to add
        self.pens: dict[int, str] = {}  # key -> attributes of a marked node
        self.found: list[Finding] = []

    # What is marked

    def find(self, findings: Iterable[Finding]) -> None:
        """Mark the nodes of findings, and keep their messages for the legend."""
        for finding in findings:
            color = self.colors[finding.severity]
            self.found.append(finding)
            for key in dict.fromkeys(map(self._key, finding.nodes)):
                sign = f"{WARNINGS[finding.severity]} {say.escape(finding.rule)}"
                self.extra.setdefault(key, []).append(f"<B>{say.small(sign, color)}</B>")
                self.pens.setdefault(key, f' color="{color}" penwidth=2.5')

    def mark(self, marks: Mapping[int, Mark]) -> None:
        """Mark what differs from another graph."""
        for node, mark in marks.items():
            key = self._key(node)
            sign = f"<B>{say.small(f'{SIGNS[mark]} {mark}', self.colors[mark])}</B>"
            extra = self.extra.setdefault(key, [])
            if sign not in extra:
                extra.append(sign)
            pen = f' color="{self.colors[mark]}" penwidth=2.5'
            self.pens.setdefault(
                key, pen + (' style="rounded,filled,dashed"' if mark == "removed" else "")
            )

    def _key(self, node: int) -> int:
        """The key under which a node is drawn: its own, or that of the closed group around it."""
        tree = self.drawn.groups
        number = tree.of[node] if tree is not None and 0 <= node < len(tree.of) else None
        while tree is not None and number is not None:
            if ~number in self.drawn.home:
                return ~number
            number = tree.groups[number].parent
        return node

    # The parts of the text

    def text(self, direction: Direction, explain: bool, note: str) -> str:
        for key in {key for named in (self.drawn.before, self.drawn.behind) for key in named}:
            if key >= 0 and not self.graph.nodes[key].label:
                self.extra.setdefault(key, []).append(say.small(f"#{key}", self.colors["muted"]))
        lines = self._node_lines()
        body = self._clustered(lines) if self._has_clusters() else list(lines.values())
        body += self._lines()
        notes = [note] if note else []
        table = legend(self.roles, self.colors, self.shading, self.found, notes) if explain else ""
        return "\n".join([*self._head(direction, table), *body, "}", ""])

    def _head(self, direction: Direction, table: str) -> list[str]:
        c = self.colors
        form = FORMS["operation"]
        hard = len(self.drawn.nodes) > 600
        bounds = " nslimit=0.5 nslimit1=0.5 mclimit=0.5" if hard else ""
        label = f" label=<{table}> labelloc=b labeljust=l" if table else ""
        return [
            "digraph {",
            f'\tgraph [rankdir={direction} bgcolor="{c["background"]}" fontname="{FONT}"'
            f' fontsize=10 fontcolor="{c["muted"]}" nodesep=0.22'
            f" ranksep=0.34 pad=0.2{bounds}{label}]",
            f'\tnode [shape={form.shape} style="{form.style}" fillcolor="{c["operation"]}"'
            f' color="{c["operation_line"]}" fontname="{FONT}" fontsize=12'
            f' fontcolor="{c["ink"]}" margin="{form.margin}" height=0.3 width=0.6]',
            f'\tedge [color="{c["edge"]}" arrowsize=0.7 fontname="{FONT}" fontsize=9'
            f' fontcolor="{c["muted"]}"]',
        ]

    def _node_lines(self) -> dict[int, str]:
        nodes, folded, looks = self.graph.nodes, self.drawn.folded, self.looks
        special = bool(self.extra or self.pens or self.shading.fills)
        result: dict[int, str] = {}
        for i in self.drawn.nodes:
            node = nodes[i]
            what = role(node, self.outputs, self.transfers)
            look = looks.get((node[1], node[2], node[4], what))
            if look is None:
                look = self._look(node, what)
            if special or i in folded or node.label or node.grad_outputs or node.source:
                result[i] = self._full(node, look)
            else:
                result[i] = f"\t{i} [label=<{look[0]}>{look[1]}]"
        for number in self.drawn.boxes:
            result[~number] = self._box(number)
        return result

    def _look(self, node: Node, what: Role) -> _Look:
        """Text and attributes that nodes of one operation, output and role have in common."""
        self.roles[what] = None
        meta = say.small(say.escape(say.tensors(node.outputs)), self.colors["muted"])
        form, usual = FORMS[what], FORMS["operation"]
        attributes = ""
        if what != "operation":
            attributes = f' fillcolor="{self.colors[what]}" color="{self.colors[what + "_line"]}"'
            if form.shape != usual.shape:
                attributes += f" shape={form.shape}"
            if form.style != usual.style:
                attributes += f' style="{form.style}"'
            if form.margin != usual.margin:
                attributes += f' margin="{form.margin}"'
            if form.peripheries != usual.peripheries:
                attributes += f" peripheries={form.peripheries}"
        title = say.escape(node.title)
        if node.leaf:
            title = say.small(title, self.colors["muted"])
        look = (f"{title}<BR/>{meta}", attributes)
        self.looks[(node.name, node.outputs, node.operation, what)] = look
        return look

    def _full(self, node: Node, look: _Look) -> str:
        text, attributes = look
        i = node.id
        muted = self.colors["muted"]
        if node.label:
            text = f"<B>{say.escape(node.label)}</B><BR/>{text}"
        more = [
            say.small(say.gradient(stats), muted)
            for stats in node.grad_outputs
            if stats is not None
        ]
        if i in self.shading.values:
            more.append(say.small(self.shading.values[i], muted))
        if node.note:
            more.append(say.small(say.escape(node.note), muted))
        more += [self._leaf_line(node, edge) for edge in self.drawn.folded.get(i, ())]
        more += self.extra.get(i, ())
        attributes += self.shading.fills.get(i, "") + self.pens.get(i, "")
        where = " · ".join(part for part in (node.scope, node.source) if part)
        if where:
            attributes += f" tooltip={say.quote(f'{node.title} · {where}')}"
        return f"\t{i} [label=<{'<BR/>'.join([text, *more])}>{attributes}]"

    def _leaf_line(self, node: Node, edge: Edge) -> str:
        """A leaf written inside the operation that uses it."""
        leaf = self.graph.nodes[edge.source]
        kind = "input" if leaf.leaf == "tensor" else leaf.leaf
        label = say.within(node, leaf.label) or kind
        shapes = " ".join(say.shape(meta) for meta in leaf.outputs if meta is not None)
        uses = self.drawn.users.get(leaf.id)
        shared = f", used {uses}{say.TIMES}" if uses else ""
        return say.small(say.escape(f"{label} {shapes}{shared}"), self.colors[f"{kind}_line"])

    def _box(self, number: int) -> str:
        tree = self.drawn.groups
        assert tree is not None
        self.roles["group"] = None
        part = tree.groups[number]
        figures = self.inside[number]
        says = [f"{say.count(len(figures.nodes))} nodes"]
        if figures.elements:
            says[0] += f", {say.count(figures.elements)} parameters"
        says += [", ".join(figures.devices[:3])]
        says += [self.shading.values.get(~number, "")]
        inside = [say.small(say.escape(text), self.colors["muted"]) for text in says if text]
        inside += self.extra.get(~number, ())
        attributes = f' shape={FORMS["group"].shape} style="{FORMS["group"].style}"'
        attributes += f' fillcolor="{self.colors["group"]}" color="{self.colors["group_line"]}"'
        attributes += self.shading.fills.get(~number, "") + self.pens.get(~number, "")
        attributes += f" tooltip={say.quote(part.path)}"
        text = "<BR/>".join([f"<B>{self._title(number)}</B>", *inside])
        return f"\tg{number} [label=<{text}>{attributes}]"

    def _title(self, number: int) -> str:
        tree, times = self.drawn.groups, self.drawn.times.get(number, 1)
        assert tree is not None
        name = say.escape(tree.groups[number].name)
        if times > 1:
            last = say.escape(tree.groups[self.drawn.last[number]].name)
            return f"{name} … {last} {say.TIMES}{times}"
        return name

    # Clusters

    def _has_clusters(self) -> bool:
        return self.drawn.groups is not None or len(self._devices()) > 1

    def _devices(self) -> list[str]:
        return sorted({self.graph.nodes[i].device for i in self.drawn.nodes} - {""})

    def _clustered(self, lines: dict[int, str]) -> list[str]:
        devices = self._devices()
        top: _Tree = {}
        for key, line in sorted(lines.items(), key=lambda item: self._place(item[0])):
            level = top
            if len(devices) > 1:
                device = self._device(key)
                if device:
                    level = level.setdefault(device, {})  # type: ignore[assignment]
            for number in self._open_around(key):
                level = level.setdefault(number, {})  # type: ignore[assignment]
            level[line] = None
        return self._clusters(top, "", devices, "\t")

    def _place(self, key: int) -> int:
        """Where a key stands in the topological order."""
        tree = self.drawn.groups
        if key >= 0 or tree is None:
            return key
        part = tree.groups[~key]
        while part.children and not part.nodes:
            part = tree.groups[part.children[0]]
        return part.nodes[-1]

    def _open_around(self, key: int) -> list[int]:
        tree = self.drawn.groups
        around: list[int] = []
        number = self.drawn.home.get(key)
        while tree is not None and number is not None:
            around.append(number)
            number = tree.groups[number].parent
        return around[::-1]

    def _device(self, key: int) -> str:
        """The device around a key; none for a copy between two, which stands between them."""
        if key < 0:
            devices = self.inside[~key].devices
            return devices[0] if len(devices) == 1 else ""
        return "" if key in self.transfers else self.graph.nodes[key].device

    def _clusters(self, level: _Tree, name: str, devices: list[str], tab: str) -> list[str]:
        result: list[str] = []
        for entry, inside in level.items():
            if inside is None:
                result.append(tab[1:] + str(entry))
                continue
            if isinstance(entry, int):
                here = f"{name}_{entry}"
                label = self._title(entry)
                look = (self.colors["cluster"], self.colors["cluster_line"])
            else:
                here = f"{name}_d{devices.index(entry)}"
                label = say.escape(entry)
                ground = GROUNDS[category(devices)[entry]]
                look = (pick(ground, self.theme), self.colors["group_line"])
            result.append(f"{tab}subgraph cluster{here} {{")
            result.append(
                f"{tab}\tgraph [label=<<B>{label}</B>> labelloc=t labeljust=l"
                f' style="rounded,filled" fillcolor="{look[0]}" color="{look[1]}"]'
            )
            result += self._clusters(inside, here, devices, tab + "\t")
            result.append(f"{tab}}}")
        return result

    # Edges

    def _lines(self) -> list[str]:
        nodes = self.graph.nodes
        several = {node.id for node in nodes if len(node.outputs) > 1}
        result: list[str] = []
        for source, target, edge, times in self.drawn.lines:
            if source >= 0 and target >= 0 and times == 1 and source not in several:
                result.append(f"\t{source} -> {target}")
            else:
                result.append(self._labelled(Line(source, target, edge, times), source in several))
        for edge in self.drawn.copies:
            result += self._copy(edge)
        for names, arrow in ((self.drawn.before, "from"), (self.drawn.behind, "to")):
            for key, others in names.items():
                result += self._stub(key, others, arrow)
        return result

    def _labelled(self, line: Line, several: bool) -> str:
        ends = f"{_id(line.source)} -> {_id(line.target)}"
        outputs = self.graph.nodes[line.edge.source].outputs
        meta = outputs[line.edge.output_nr] if line.edge.output_nr < len(outputs) else None
        parts = [f"[{line.edge.output_nr}]"] if several and line.times == 1 else []
        parts += [say.shape(meta)] if meta is not None else []
        parts += [f"{say.TIMES}{line.times}"] if line.times > 1 else []
        return f"\t{ends} [label={say.quote(' '.join(parts))}]"

    def _copy(self, edge: Edge) -> list[str]:
        """A leaf with many users, drawn once for this one."""
        leaf = self.graph.nodes[edge.source]
        what = role(leaf, self.outputs, self.transfers)
        look = self.looks.get((leaf.name, leaf.outputs, leaf.operation, what))
        _, attributes = look or self._look(leaf, what)
        uses = say.small(f"used {self.drawn.users[leaf.id]}{say.TIMES}", self.colors["muted"])
        text = f"<B>{say.escape(leaf.label or leaf.title)}</B><BR/>{uses}"
        here = f"c{edge.source}_{edge.target}_{edge.input_nr}"
        return [f"\t{here} [label=<{text}>{attributes}]", f"\t{here} -> {edge.target}"]

    def _stub(self, key: int, others: Sequence[int], arrow: str) -> list[str]:
        """The ends of edges that are not drawn, by name."""
        listed = ", ".join(self._called(other) for other in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        text = say.small(say.escape(f"{arrow} {listed}{more}"), self.colors["muted"])
        here = f"{arrow}{_id(key)}"
        ends = f"{here} -> {_id(key)}" if arrow == "from" else f"{_id(key)} -> {here}"
        return [
            f'\t{here} [label=<{text}> shape=plain style=""]',
            f"\t{ends} [style=dashed arrowsize=0.5]",
        ]

    def _called(self, key: int) -> str:
        tree = self.drawn.groups
        if key < 0 and tree is not None:
            return tree.groups[~key].path
        return say.name(self.graph, key)


def _id(key: int) -> str:
    return str(key) if key >= 0 else f"g{~key}"
