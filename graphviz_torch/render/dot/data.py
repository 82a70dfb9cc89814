"""Draw input data, and calls that have no autograd node, as thin gray boxes and edges."""

from __future__ import annotations

from collections.abc import Set

from .. import wording
from ..drawing.drawing import Drawing
from ..drawing.stubs import End, Stub
from ..style import palette
from . import markup
from .markup import dot_id


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
        said = "<BR/>".join(map(markup.escape, (*texts, "no gradient")))
        label = markup.small(said, colors["muted"])
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
        small = [markup.small(markup.escape(text), colors["muted"]) for text in stub.details]
        title = markup.escape("\n".join(stub.title_lines))
        form = 'shape=plain style=""'
        if not stub.is_data:
            form = f'shape=box style="rounded,filled,dashed" fillcolor="{colors["group"]}"'
            form += f' color="{colors["cluster_line"]}" fontcolor="{colors["muted"]}"'
        small[:1] = [markup.SPACE + text for text in small[:1]]
        label = "<BR/>".join([f"<B>{title}</B>", *small])
        if stub.listed:
            pairs = [[markup.escape(text) for text in entry] for entry in stub.listed]
            label = "<BR/>".join(
                f"<B>{name}</B> {markup.small(shape, colors['muted'])}" for name, shape in pairs
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
