"""What a drawing says, in lines of plain text that every format writes in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..graph import Graph, Node, TensorMeta
from ..graph.terminal import is_shell, option
from ..graph.text import listing
from ..graph.units import bytes_text, seconds_text
from . import labels
from .drawing.drawing import Contents, Drawing, FusedNode, MergedEdge
from .drawing.fused import fused_text
from .groups.size_variants import ADDED_ZERO, differ_in_one_axis
from .ranks.collectives import lines
from .style import role

_MOST_ENTRIES = 8  # places where data enters; of a loop that reads it in every step, the first
# By operation, what a layer keeps of what it reads, and the number of that operand.
_LAYERS = {"addmm": ("mat1", 1), "mm": ("self", 0), "convolution": ("input", 0)}
_MOST_NAMED = 3  # names of what is in a closed group
_LONGEST = 60  # characters of a path that is named


def copies(graph: Graph) -> dict[int, list[str]]:
    """Nodes that copy between devices in forward, and what they say."""
    found: dict[int, list[str]] = {}
    for transfer in graph.transfers:
        if transfer.node is not None and transfer.phase == "forward":
            size = "" if transfer.nbytes is None else f", {bytes_text(transfer.nbytes)}"
            found.setdefault(transfer.node, [f"{transfer.source} → {transfer.target}{size}"])
    return found


def sent(drawing: Drawing, key: int | None) -> list[str]:
    """What a drawn thing says of its collectives; None: those that nothing drawn has."""
    return lines(drawing.collectives[key]) if key in drawing.collectives else []


def senders(drawing: Drawing) -> set[int]:
    """The nodes that are drawn as collectives: the parameters of others are sent."""
    found = set()
    for key, some in drawing.collectives.items():
        if key is not None and key >= 0 and not all(each.parameters for each in some):
            found.add(key)
    return found


def names(drawing: Drawing, node: Node) -> list[str]:
    """What a node is called before its operation: by its caller, and as all of a module."""
    output = drawing.outputs.get(node.id, node.id)
    label = node.label or drawing.graph.nodes[output].label
    found = [label] if label else []
    if node.id in drawing.module_titles:
        title = drawing.module_titles[node.id]
        kind = node.module_class.rpartition("/")[2]
        found = [] if title == label else found
        found.append(labels.classed(title, "" if node.leaf else kind))
    return found


def operation(drawing: Drawing, node: Node) -> str:
    """The operation of a node; "" where its names say what it is: of a module, or of a leaf."""
    if drawing.options["detail"] != "full":
        if node.id in drawing.module_titles and not node.leaf:
            return ""
        if node.leaf and node.label:
            return ""
    return called_by(drawing, node)


def details(drawing: Drawing, node: Node, copied: dict[int, list[str]]) -> list[str]:
    """The small print of a node below its tensor.

    Args:
        copied: what `copies` gives of the graph.
    """
    found = [*copied.get(node.id, ()), *sent(drawing, node.id)]
    found += small_values(drawing, node) + gradients(drawing, node)
    found += [drawing.loop_state[node.id]] if node.id in drawing.loop_state else []
    values, many = drawing.shading.values, drawing.inner.many
    found += [values[node.id]] if node.id in values else []
    found += labels.details(node)
    if node.id in many:
        found.append(f"written inside its {many[node.id]:,} users")
    return found


def tensors(drawing: Drawing, node: Node) -> str:
    """The outputs of a node; with the range of an axis, where what it is drawn for differs."""
    return labels.tensors(*_outputs(drawing, node.id), device=drawing.shows_devices)


def ranged(drawing: Drawing) -> list[int]:
    """The nodes that are drawn for others whose outputs differ in the size of an axis."""
    if not drawing.tree.represented_groups:
        return []
    shown = [
        *drawing.nodes,
        *[unit.node for n in drawing.boxes if (unit := drawing.fused_node(~n))],
    ]
    return [i for i in shown if len(_outputs(drawing, i)) > 1]


def _outputs(drawing: Drawing, node: int) -> dict[labels.Outputs, None]:
    nodes, shown = drawing.graph.nodes, drawing.inner.shown
    alike = drawing.represented_nodes(node, loops=False)
    if len(alike) < 2:
        return {nodes[shown.get(node, node)].outputs: None}
    outputs = [nodes[shown.get(i, i)].outputs for i in alike]
    if len({len(meta.shape) for metas in outputs for meta in metas if meta}) > 1:
        outputs = [nodes[i].outputs for i in alike]  # not each is reshaped
    return dict.fromkeys({id(each): each for each in outputs}.values())  # most are the same


def called_by(drawing: Drawing, node: Node) -> str:
    """An operation with what tells it from another; what only the first step adds is left out."""
    alone = len(drawing.represented_nodes(node.id)) < 2
    attributes = [each for each in node.attributes if alone or each not in ADDED_ZERO]
    call = "" if drawing.options["detail"] == "full" else node.call
    return labels.called(node.title, tuple(attributes), call)


def small_values(drawing: Drawing, node: Node) -> list[str]:
    """Return a line with the values of outputs of few elements, and of those with NaN or Inf.

    Nothing for the steps of a loop, which differ.
    """
    if not node.values or len(drawing.represented_nodes(node.id)) > 1:
        return []
    line = f"value {node.value_text}"
    few = all(len(each or ()) <= labels.FEW for each in node.values)
    return [line] if few or labels.is_spoilt(line) else []


def gradients(drawing: Drawing, node: Node) -> list[str]:
    """A line for each output's gradient; of the steps of a loop with its range over them.

    In short, those of a program without modules have one that have few elements.
    """
    if not node.grad_outputs:
        return []
    if drawing.options["detail"] == "short":
        shown = [stats for stats in node.grad_outputs if stats is not None]
        if drawing.has_modules or not any(map(labels.is_small, shown)):
            return []
    alike = [drawing.graph.nodes[i].grad_outputs for i in drawing.represented_nodes(node.id)]
    if len(alike) < 2:
        return [labels.gradient(stats) for stats in node.grad_outputs if stats is not None]
    said = []
    for column in zip(*alike, strict=False):
        norms = [stats.norm for stats in column if stats is not None]
        if norms:
            low, high = labels.number(min(norms)), labels.number(max(norms))
            said.append(f"grad norm {low}" + (f" to {high}" if high != low else ""))
    return said


def inner_leaf(drawing: Drawing, folded: int) -> tuple[Node, str]:
    """A leaf that is written inside an operation, and its shapes, each after a space.

    Where what hands it on changes its dtype, the shapes end with the new one; where many operations
    use it, they begin with how many.
    """
    nodes, inner = drawing.graph.nodes, drawing.inner
    leaf, last = nodes[inner.leaf(folded)], nodes[folded]
    after = f" ({inner.many[leaf.id]}{labels.TIMES})" if leaf.id in inner.many else ""
    after += "".join([f" {labels.shape(meta)}" for meta in leaf.outputs if meta is not None])
    return leaf, after + labels.cast(leaf.outputs, last.outputs)


def written_inside(drawing: Drawing, node: Node, folded: int) -> str:
    """A leaf with its gradient, in a line inside the operation that uses it."""
    leaf, after = inner_leaf(drawing, folded)
    name = labels.within(node, leaf.label) if leaf.label else role(leaf, (), ())
    return f"{name}{after}{labels.leaf_gradient(leaf)}"


def inner_leaves(drawing: Drawing, node: Node) -> list[int]:
    """The leaves that are written inside an operation, each as what hands it on.

    In short, a module says nothing of its own parameters, but of those of others.
    """
    folded = [edge.source for edge in drawing.inner.inside.get(node.id, ())]
    if not folded or drawing.options["detail"] != "short":
        return folded
    nodes, inner = drawing.graph.nodes, drawing.inner
    return [i for i in folded if _is_foreign(node, nodes[inner.leaf(i)])]


def _is_foreign(node: Node, leaf: Node) -> bool:
    """Does a leaf belong to another module than the operation that reads it?"""
    if not leaf.label:
        return leaf.leaf != "parameter"
    if not node.scope and node.module_class:  # the model's own
        return "." in leaf.label
    return labels.within(node, leaf.label) == leaf.label


def fused_node_lines(drawing: Drawing, number: int, unit: FusedNode) -> tuple[list[str], list[str]]:
    """The lines of a group that is drawn as one operation: names, and the small print."""
    assert drawing.groups is not None
    node = drawing.graph.nodes[unit.node]
    names = [node.label] if node.label not in ("", drawing.title(number)) else []
    part = drawing.groups.groups[number]
    if part.kind == "module":
        names.append(drawing.title_with_class(number))
    elif part.kind == "call":
        names.append(called_by(drawing, node._replace(attributes=())))
    else:
        names.append(fused_text(drawing, unit))
    said = [tensors(drawing, node)]
    said += small_values(drawing, node) + gradients(drawing, node)
    said += [drawing.loop_state[~number]] if ~number in drawing.loop_state else []
    values = drawing.shading.values
    said += [values[~number]] if ~number in values else []
    return names, said + sent(drawing, ~number)


def entries(drawing: Drawing) -> dict[int, list[str]]:
    """What data enters each key: what a model was called with, and needs no gradient.

    Autograd has no node for it. Where an operation kept it for backward, a recording tells. A layer
    that reads what was computed without a gradient reads data, too.
    """
    if drawing.graph.untracked:
        return {}  # boxes of their own say it
    nodes, edges = drawing.graph.nodes, drawing.graph.edges
    given = [
        node.id
        for node in nodes
        for each in node.saved
        if each.kind == "input" or each.name == "target"
    ]
    operands = {
        node.id: operand[1]
        for node in nodes
        if (operand := _LAYERS.get(node.operation)) and operand[0] in [s.name for s in node.saved]
    }
    made = {edge.target for edge in edges if operands.get(edge.target) == edge.input_nr}
    ids = dict.fromkeys(sorted({*given, *(operands.keys() - made)}))
    if not ids:
        return {}
    known: dict[int, set[object]] = {i: set() for i in ids}  # what it reads from nodes
    fed: dict[int, set[int]] = {i: set() for i in ids}  # which of its operands nodes made
    for edge in edges:
        if edge.target in ids:
            known[edge.target].update(nodes[edge.source].outputs)
            fed[edge.target].add(edge.input_nr)
    for cut in drawing.graph.cuts:  # its dashed line leads to where it went on
        for target in ids.keys() & set(cut.after):
            known[target].add(cut.tensor)
    drawn = {*drawing.nodes, *(~number for number in drawing.boxes)}
    found: dict[int, list[str]] = {}
    for i in ids:
        key = drawing.key(i)
        if key not in drawn or (key not in found and len(found) == _MOST_ENTRIES):
            continue
        for text in _read(nodes[i], known[i], fed[i]):
            if text not in found.setdefault(key, []):
                found[key].append(text)
    return {key: texts for key, texts in found.items() if texts}


def _read(node: Node, known: set[object], fed: set[int]) -> list[str]:
    """The data that a node kept.

    Args:
        known: what nodes made for it.
        fed: which of its operands those are: a loss's target is data where it has one, the first.
    """
    found = []
    for saved in node.saved:
        name = "target" if saved.name == "target" else "data"
        operand, place = _LAYERS.get(node.operation, ("", 0))
        computed = saved.name == operand != "" and saved.kind == "activation" and place not in fed
        given = saved.kind == "input" and saved.tensor not in known
        if given or (name == "target" and fed <= {0}) or (computed and saved.tensor not in known):
            found.append(f"{saved.label or name} {labels.shape(saved.tensor)}")
    return found


def box_figures(drawing: Drawing, number: int) -> list[str]:
    """The small print of a closed group: what it makes; on request the figures of all inside."""
    handed = [drawing.loop_state[~number]] if ~number in drawing.loop_state else []
    contents = drawing.contents[number]
    said = _made(drawing, number)
    if drawing.options["detail"] != "short":
        said += _figures(contents, contents.devices)
    else:
        said += [", ".join(contents.devices[:3])] if drawing.shows_devices else []
        said += [drawing.shading.values[~number]] if ~number in drawing.shading.values else []
    return said + _inner_names(drawing, contents) + handed + sent(drawing, ~number)


def _made(drawing: Drawing, number: int) -> list[str]:
    """The tensors that leave a closed group, in a line."""
    metas = drawing.group_outputs.get(~number, {})
    shapes = [labels.shape(meta) for meta in metas]
    return [listing(shapes, _MOST_NAMED)] if shapes else []


def _inner_names(drawing: Drawing, contents: Contents) -> list[str]:
    """The inputs and results in a closed group that have names: outputs of the graph first."""
    outputs = {i for i, _ in drawing.graph.outputs}
    named = [node for node in contents.inside if node.label]
    shown = [node for node in named if node.leaf not in ("parameter", "buffer")]
    shown.sort(key=lambda node: node.id not in outputs)
    known = list(dict.fromkeys(node.label for node in shown))
    return [f"{listing(known, _MOST_NAMED)} inside"] if known else []


def fold_figures(drawing: Drawing, number: int) -> list[str]:
    """The small print of an open group: of one that stands for others, the figures of all."""
    said = sent(drawing, ~number)
    if number not in drawing.contents or drawing.options["detail"] == "short":
        return said
    first, *others = _figures(drawing.contents[number])
    return [line for line in (first, ", ".join(others), *said) if line]


def _figures(contents: Contents, devices: Sequence[str] = ()) -> list[str]:
    says = [f"all {contents.times}: " if contents.times > 1 else ""]
    says[0] += _many(len(contents.inside), "node")
    figures = contents.totals
    if figures.elements:
        says[0] += f", {_many(figures.elements, 'parameter')}"
    says += [", ".join(devices[:3])]
    if figures.gradients is not None:
        low, high = map(labels.number, figures.gradients)
        says.append(f"grad norm {low}" + (f" to {high}" if high != low else ""))
    costs = [f"saved {bytes_text(figures.saved_bytes)}"] if figures.saved_bytes else []
    if figures.seconds is not None:
        costs.append(f"backward {seconds_text(figures.seconds)}")
    return [line for line in (*says, ", ".join(costs)) if line]


def _many(number: int, noun: str) -> str:
    return f"{labels.count(number)} {noun}{'' if number == 1 else 's'}"


def passing(drawing: Drawing, line: MergedEdge) -> str | None:
    """What passes along an edge; None where its source tells."""
    outputs = drawing.graph.nodes[line.edge.source].outputs
    several = line.source >= 0 and len(outputs) > 1
    if line.source < 0 and line.times == 1 and not tells(drawing, line.source):
        meta = drawing.leaving(line.edge)
        return labels.shape(meta) if meta is not None else ""
    if tells(drawing, line.source) and line.times == 1 and not several:
        return None
    if len(line.outputs) > 1:
        metas = [meta for meta in line.outputs if meta is not None]
        around = (*drawing.tree.paths[line.source], ~line.source)
        folded = not drawing.tree.represented_groups.keys().isdisjoint(around)
        if folded and differ_in_one_axis([(meta,) for meta in metas]):
            return f"{labels.shapes(metas)} {labels.TIMES}{line.times}"
        return f"{line.times} tensors"
    return _passing(outputs, line.edge.output_nr, several, line.times)


def tells(drawing: Drawing, key: int) -> bool:
    """Does what is drawn say which tensor it makes: a node, a unit, or a group that makes one?"""
    return (
        key >= 0
        or drawing.fused_node(key) is not None
        or len(drawing.group_outputs.get(key, ())) == 1
    )


@lru_cache(maxsize=4096)
def _passing(
    outputs: tuple[TensorMeta | None, ...], output_nr: int, several: bool, times: int
) -> str:
    """Which output passes, its shape, and how many tensors like it."""
    meta = outputs[output_nr] if output_nr < len(outputs) else None
    parts = [f"[{output_nr}]"] if several and times == 1 else []
    # A node with outputs of one shape says it itself.
    if meta is not None and not (parts and len({*outputs}) == 1):
        parts.append(labels.shape(meta))
    parts += [f"{labels.TIMES}{times}"] if times > 1 else []
    return " ".join(parts)


def far_ends(drawing: Drawing, keys: list[int]) -> str:
    """The far ends of edges that are not drawn, as the drawing itself calls them."""
    called = [
        drawing.title(~key)
        if key < 0
        else f"{drawing.graph.nodes[key].label or drawing.graph.nodes[key].title} #{key}"
        for key in keys
    ]
    return listing(called, last=", ")


def failed_operands(drawing: Drawing) -> list[int]:
    """What went into the operation that ended the recording, and never came to be a node."""
    failure = drawing.graph.failure
    if failure is None or failure.operation in ("", "backward"):
        return []
    keys = (drawing.visible_key(part.node) for part in failure.operands if part.node is not None)
    return [key for key in dict.fromkeys(keys) if key is not None]


def _closed(drawing: Drawing) -> str:
    """How many groups are closed, and how to open the largest."""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    largest = min(drawing.closed_groups, key=lambda number: (-groups[number].size, number))
    path = _inside(drawing, largest)
    shell = is_shell()
    one = (
        option("module", path) if 0 < len(path) <= _LONGEST else "--module" if shell else "module="
    )
    count = len(drawing.closed_groups)
    return f"{count} {'box is' if count == 1 else 'boxes are'} closed ({one} opens one)"


def _inside(drawing: Drawing, number: int) -> str:
    """The path by which to open a group: of a run that of the first module or graph in it."""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    below = [groups[inner] for inner in drawing.groups.with_descendants(number)]
    return next((part.path for part in below if part.kind != "run"), groups[number].path)


def omissions(drawing: Drawing, cuts: int = 0) -> str:
    """What a drawing does not show, such as some cuts, and why an empty one is empty."""
    count = len(drawing.graph.nodes)
    if not count:
        return "this graph has no nodes"
    parts = []
    if drawing.closed_groups:
        parts.append(_closed(drawing))
    if drawing.tree.represented_groups:
        alike = "blocks that differ only in the size of one axis"
        alike = alike if ranged(drawing) else "identical blocks"
        parts.append(f"{alike} are drawn once ({option('detail', 'full')} draws each)")
    if cuts:
        parts.append(f"{cuts:,} {'cut is' if cuts == 1 else 'cuts are'} not drawn")
    return f"{count:,} nodes: {'; '.join(parts)}" if parts else ""
