"""Write a graph as a Mermaid flowchart, which GitHub and many wikis render: `to_mermaid`."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any, Final

from ..graph import Graph, GraphLike
from ..graph.text import Text, first_items
from . import group_wording, labels, wording
from .cuts import CutLine, cut_lines
from .dot.legend import picture_notes
from .drawing.drawing import Drawing
from .drawing.level import LIMITS
from .drawing.mark import SEVERITY_SIGNS
from .drawing.steps import draw
from .drawing.values import Box, End, FusedNode, Leaf, Open, Stub
from .options import DrawingOptions, drawing_options
from .resolve import graph_and_marks
from .style import NODE_SHAPES, Role, palette, pick, role

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Mermaid's default limits for the size of a flowchart (`maxTextSize`, `maxEdges`).
MAX_CHARACTERS: Final = 50_000
MAX_EDGES: Final = 500

_MAX_CUTS = 40
_MAX_FINDINGS = 6
_SHAPES: Final[dict[Role, tuple[str, str]]] = {
    "input": ("([", "])"),
    "parameter": ("[(", ")]"),
    "buffer": ("[(", ")]"),
    "operation": ("(", ")"),
    "transfer": ("{{", "}}"),
    "collective": ("[/", "/]"),
    "output": ("[", "]"),
    "group": ("[", "]"),
    "stack": ("[[", "]]"),
}
_SAFE = re.compile(r"[\w .,()\[\]+*/=-]", re.ASCII)
# Mermaid encodes entities with these characters while it parses a text.
_RESERVED = frozenset("ﬂ°¶ß")
# First characters of escaped sequences that Mermaid interprets in labels: $$ (mathematics), \n (new
# line), fa:fa- (icon).
_SPECIAL = re.compile("#36;(?=#36;)|#92;(?=n)|#58;(?=fa-)")
# A zero-width space, inserted into such a sequence so that Mermaid does not interpret it.
_SEPARATOR = "\u200b"


@drawing_options
def to_mermaid(graph: GraphLike, **options: Unpack[DrawingOptions]) -> Text:
    """Return the graph as a Mermaid flowchart, with the same details as `draw_graph`.

    Put the text in a Markdown code block of the language `mermaid`. Unless `depth` is given, the
    flowchart does not exceed GitHub's limits of 500 edges and 50,000 characters. With theme="auto",
    the flowchart sets no colors, so that Mermaid uses those of the page.

    Args:
        graph: a graph, a tensor, or a recording, as in `draw_graph`.
        options: those of `DrawingOptions`.

    Raises:
        TypeError: if `graph` is none of these, or for an unknown option.
        ValueError: for an invalid value of an option, such as a `module` that the graph does not
            have.

    >>> from graphviz_torch.graph import Edge, Graph, Node
    >>> square = Graph((Node(0, "AccumulateGrad", (), "x", leaf="tensor"),
    ...                 Node(1, "PowBackward0", (), "y", "pow")), (Edge(0, 1),), ((1, 0),))
    >>> print(to_mermaid(square, theme="auto", explain=False))
    flowchart TB
    n0(["x<br/>shape not known"])
    n1["y<br/>pow<br/>shape not known"]
    n0 --> n1
    <BLANKLINE>
    """
    graph, options["findings"] = graph_and_marks(graph, findings=options.get("findings", "auto"))
    text = _write(graph, options)
    if options.get("depth") is None:
        for limit in LIMITS:
            if len(text) <= MAX_CHARACTERS and _edges_in(text) <= MAX_EDGES:
                break
            text = _write(graph, {**options, "limit": limit})
    return Text(text)


def _edges_in(text: str) -> int:
    return len(re.findall(r"^\w+ -", text, re.M))


def _write(graph: Graph, options: Any) -> str:
    drawing = draw(graph, options)
    nodes = _Nodes(drawing)
    body = [*nodes.lines(drawing.tree), *nodes.between_ranks()]
    cuts, hidden = cut_lines(drawing, _MAX_CUTS)
    edges = [*_edges(drawing), *_stubs(drawing, {(cut.source, cut.call) for cut in cuts})]
    edges += [_cut(cut, number) for number, cut in enumerate(cuts)]
    edges += _failure(drawing)
    edges += _note(drawing, hidden)
    lines = [f"flowchart {drawing.options['direction']}", *body, *edges, *nodes.styles()]
    return "\n".join(lines) + "\n"


class _Nodes:
    """Writer of the nodes, subgraphs and styles of one drawing."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.outputs = drawing.outputs
        self.copies = wording.transfer_lines(drawing.graph)
        self.senders = wording.senders(drawing)
        self.roles: dict[int, Role] = {}  # key of a written node -> role

    def lines(self, part: Open) -> Iterator[str]:
        """Yield the lines of everything in an open group."""
        framed = part.framed and part.group is not None
        if framed and part.group is not None:
            yield f'subgraph c{part.group}["{_text([self.drawing.title_with_class(part.group)])}"]'
            totals = group_wording.repeat_totals(self.drawing, part.group)
            # The totals are in a node of their own, because other nodes would cover a title of
            # several lines.
            if totals:
                yield f't{part.group}["{_text(totals)}"]'
        for child in part.children:
            if isinstance(child, Open):
                yield from self.lines(child)
            else:
                yield self._line(child)
        if framed:
            yield "end"

    def _line(self, part: Leaf | Box) -> str:
        drawing = self.drawing
        if isinstance(part, Box) and (unit := drawing.fused_node(~part.group)) is not None:
            key, kind = ~part.group, self._fused_role(unit)
            names, small = group_wording.fused_node_lines(drawing, part.group, unit)
            said = [*names, *small]
            for node in [drawing.graph.nodes[i] for i in unit.nodes]:
                inside = wording.inner_leaves(drawing, node)
                said += [wording.written_inside(drawing, node, folded) for folded in inside]
        elif isinstance(part, Box):
            kind = "stack" if part.repeats else "group"
            key = ~part.group
            said = [
                drawing.title_with_class(part.group),
                *group_wording.group_details(drawing, part.group),
            ]
            if drawing.shading.values.get(key) not in (None, *said):
                said.append(drawing.shading.values[key])
        else:
            key, node = part.node, drawing.graph.nodes[part.node]
            kind = role(node, self.outputs, self.copies, self.senders)
            title = wording.operation_text(drawing, node)
            said = [*wording.node_names(drawing, node), *([title] if title else [])]
            said += [wording.tensors(drawing, node), *wording.details(drawing, node, self.copies)]
            inside = wording.inner_leaves(drawing, node)
            said += [wording.written_inside(drawing, node, folded) for folded in inside]
        said += [badge.text for badge in drawing.highlights.badges.get(key, ())]
        self.roles[key] = kind
        before, behind = _SHAPES[self.roles[key]]
        return f'{_id(key)}{before}"{_text(said)}"{behind}'

    def between_ranks(self) -> Iterator[str]:
        """Yield a box with the collectives that no drawn element shows, if there are any."""
        if None in self.drawing.collectives:
            before, behind = _SHAPES["collective"]
            said = [labels.BETWEEN_RANKS, *wording.collective_lines(self.drawing, None)]
            yield f'sent{before}"{_text(said)}"{behind}'

    def _fused_role(self, unit: FusedNode) -> Role:
        return "output" if unit.node in self.outputs else "operation"

    def styles(self) -> Iterator[str]:
        """Yield the colors of the nodes that were written so far."""
        theme = self.drawing.options["theme"]
        if theme == "auto":
            return
        colors = palette(theme)
        for kind in NODE_SHAPES:
            ids = [_id(key) for key, drawn in self.roles.items() if drawn == kind]
            if kind == "collective" and None in self.drawing.collectives:
                ids.append("sent")
            if ids:
                fill, line = colors[kind], colors[f"{kind}_line"]
                yield f"classDef {kind} fill:{fill},stroke:{line},color:{colors['ink']}"
                yield f"class {','.join(ids)} {kind}"
        shading, outlines = self.drawing.shading, self.drawing.highlights.outlines
        for key in self.roles:
            says = []
            fill_pair, ink = shading.fills.get(key), shading.inks.get(key)
            says += [f"fill:{pick(fill_pair, theme)}"] if fill_pair else []
            says += [f"color:{pick(ink, theme)}"] if ink else []
            if key in outlines:
                says += [f"stroke:{colors[outlines[key]]}", "stroke-width:3px"]
            if outlines.get(key) == "removed" or (key in shading.fills and not fill_pair):
                says.append("stroke-dasharray:5 4")
            if says:
                yield f"style {_id(key)} {','.join(says)}"


def _edges(drawing: Drawing) -> Iterator[str]:
    for line in drawing.all_edges:
        label = wording.edge_label(drawing, line)
        between = f'-->|"{_text([label])}"|' if label else "-->"
        yield f"{_id(line.source)} {between} {_id(line.target)}"


def _stubs(drawing: Drawing, cuts: Container[tuple[End | None, End | None]]) -> Iterator[str]:
    """Yield boxes for data, and boxes that name the undrawn ends of edges.

    Edges that `cuts` contains are left out.
    """
    for key, texts in wording.data_inputs(drawing).items():
        yield f'data_{_id(key)}["{_text([*texts, "no gradient"])}"]'
        yield f"data_{_id(key)} -.-> {_id(key)}"
    untracked = drawing.stubs
    for stub in untracked.stubs:
        shape = '["{}"]' if stub.is_data else '("{}")'
        yield _id(stub) + shape.format(_text(stub.lines))
    links = [link for link in untracked.links if link not in cuts]
    yield from (f"{_id(source)} -.-> {_id(target)}" for source, target in links)
    for key, others in drawing.named_sources.items():
        name = _id(key)
        yield f'from_{name}["{_text([f"from {wording.stub_text(drawing, others)}"])}"]'
        yield f"from_{name} -.-> {name}"
    for key, others in drawing.named_targets.items():
        name = _id(key)
        yield f'to_{name}["{_text([f"to {wording.stub_text(drawing, others)}"])}"]'
        yield f"{name} -.-> to_{name}"


def _failure(drawing: Drawing) -> Iterator[str]:
    failure, sources = drawing.graph.failure, wording.failed_operands(drawing)
    if failure is not None and sources:
        said = [failure.operation, f"{SEVERITY_SIGNS['error']} {failure.error}", failure.where]
        yield f'failed("{_text([line for line in said if line])}")'
        yield from (f"{_id(key)} -.-> failed" for key in sources)


def _cut(cut: CutLine, number: int) -> str:
    text = _text(list(cut.text))
    if cut.source is None:
        return f'cut{number}["{text}"] -.- {_id(cut.key)}'
    if cut.target is None:
        return f'{_id(cut.key)} -.- cut{number}["{text}"]'
    return f'{_id(cut.source)} -.-|"{text}"| {_id(cut.call or cut.target)}'


def _note(drawing: Drawing, hidden_cuts: int) -> Iterator[str]:
    """Yield a node with the findings and a sentence on everything that the flowchart omits."""
    if not drawing.options["explain"]:
        return
    found = drawing.findings
    said = [f"{SEVERITY_SIGNS[f.severity]} {f.message}" for f in found]
    said = first_items(said, _MAX_FINDINGS, "and {:,} more findings")
    said += picture_notes(drawing, hidden_cuts)
    if said:
        yield f'note["{_text(said)}"]'


def _id(end: End) -> str:
    if isinstance(end, Stub):
        return f"u{end.position}"
    return f"n{end}" if end >= 0 else f"g{~end}"


def _text(lines: list[Any]) -> str:
    """Join lines, and escape them for a quoted Mermaid string."""
    text = "<br/>".join("".join(map(_letter, labels.clip(str(line)))) for line in lines)
    return _SPECIAL.sub(rf"\g<0>{_SEPARATOR}", text)


def _letter(letter: str) -> str:
    if _SAFE.match(letter):
        return letter
    if letter == "\n":
        return "\N{SYMBOL FOR LINE FEED}"
    plain = letter.isprintable() and not letter.isascii() and letter not in _RESERVED
    return letter if plain else f"#{ord(letter)};"
