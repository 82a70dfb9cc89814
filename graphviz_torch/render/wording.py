"""Compose the texts of a drawing. Each output format writes them in its own syntax."""

from __future__ import annotations

import re
from functools import lru_cache

from ..graph import Graph, Node, TensorMeta, Transfer
from ..graph.text import listing
from . import labels
from .collectives import describe_collectives
from .drawing.drawing import Drawing
from .drawing.values import MergedEdge
from .groups.isomorphism import ADDED_ZERO, differ_in_one_axis
from .style import role

_MAX_DATA_INPUTS = 8  # data is written at this many elements at most, the first ones
# Operation of a layer -> (autograd's name of the saved input of the layer, its input_nr).
_SAVED_OPERANDS = {"addmm": ("mat1", 1), "mm": ("self", 0), "convolution": ("input", 0)}
_CALL_NUMBER = re.compile(r"#\d+(?=\.|$)")  # "#2" in "cell#2.fc", the second call of "cell"
MAX_NAMES = 3  # maximum number of outputs, or of named results, listed at a closed group


def transfer_lines(graph: Graph) -> dict[int, list[str]]:
    """Return node id -> texts about copies, for nodes that copy between devices in forward."""
    found: dict[int, list[Transfer]] = {}
    for transfer in graph.transfers:
        if transfer.node is not None and transfer.phase == "forward":
            found.setdefault(transfer.node, []).append(transfer)
    return {node: labels.copies(transfers) for node, transfers in found.items()}


def collective_lines(drawing: Drawing, key: int | None) -> list[str]:
    """Return the text of the collectives at a drawn element.

    Args:
        drawing: the drawing.
        key: key of the element; None for the collectives that no drawn element shows.
    """
    return describe_collectives(drawing.collectives[key]) if key in drawing.collectives else []


def senders(drawing: Drawing) -> set[int]:
    """Return the nodes to draw as collectives.

    These nodes have at least one collective that sends something else than parameters.
    """
    found = set()
    for key, some in drawing.collectives.items():
        if key is not None and key >= 0 and not all(each.parameters for each in some):
            found.add(key)
    return found


def node_names(drawing: Drawing, node: Node) -> list[str]:
    """Return the names to write above a node's operation.

    These are the node's label and, if no other node of its module is drawn, the module's title.
    """
    output = drawing.outputs.get(node.id, node.id)
    label = node.label or drawing.graph.nodes[output].label
    found = [label] if label else []
    if node.id in drawing.module_titles:
        title = drawing.module_titles[node.id]
        kind = node.module_class.rpartition("/")[2]
        found = [] if title == label else found
        found.append(labels.with_class(title, "" if node.leaf else kind))
    return found


def operation_text(drawing: Drawing, node: Node) -> str:
    """Return the text of a node's operation; "" if the node's names describe it already."""
    if drawing.options["detail"] != "full":
        if node.id in drawing.module_titles and not node.leaf:
            return ""
        if node.leaf and node.label:
            return ""
    return operation_of_node(drawing, node)


def details(drawing: Drawing, node: Node, copied: dict[int, list[str]]) -> list[str]:
    """Return the lines of small text below a node's tensor: copies, collectives, values, ...

    Args:
        drawing: the drawing.
        node: the node.
        copied: the result of `transfer_lines`.
    """
    found = [*copied.get(node.id, ()), *collective_lines(drawing, node.id)]
    found += small_values(drawing, node) + gradients(drawing, node)
    found += [drawing.loop_state[node.id]] if node.id in drawing.loop_state else []
    values, many = drawing.shading.values, drawing.inner.many
    found += [values[node.id]] if node.id in values else []
    found += labels.details(node)
    if node.id in drawing.module_titles:
        found += frozen_line(drawing, node.module)
    if node.id in many:
        found.append(f"written inside its {many[node.id]:,} users")
    return found


def tensors(drawing: Drawing, node: Node) -> str:
    """Return the text of a node's outputs.

    If the node represents several nodes, a size that differs between these is written as a range.
    """
    return labels.tensors(*_outputs(drawing, node.id), device=drawing.shows_devices)


def nodes_with_size_range(drawing: Drawing) -> list[int]:
    """Return the drawn nodes that represent several nodes with outputs of different sizes."""
    if not drawing.tree.represented_groups:
        return []
    shown = [
        *drawing.nodes,
        *[unit.node for n in drawing.boxes if (unit := drawing.fused_node(~n))],
    ]
    return [i for i in shown if len(_outputs(drawing, i)) > 1]


def _outputs(drawing: Drawing, node: int) -> dict[labels.Outputs, None]:
    shown, outputs_of = drawing.inner.shown, drawing.outputs_of
    alike = drawing.represented_nodes(node, loops=False)
    if len(alike) < 2:
        return {outputs_of(shown.get(node, node)): None}
    outputs = [outputs_of(shown.get(i, i)) for i in alike]
    if len({len(meta.shape) for metas in outputs for meta in metas if meta}) > 1:
        # After some of these nodes, a view changes the number of dimensions, so the shapes before
        # the views are used.
        outputs = [outputs_of(i) for i in alike]
    # Most outputs are one object, so they are compared by `id` first.
    return dict.fromkeys({id(each): each for each in outputs}.values())


def operation_of_node(drawing: Drawing, node: Node) -> str:
    """Return the text of a node's operation, with distinguishing attributes.

    If the node represents several steps of a loop, the text omits a constant 0, which only the
    first step of a sum adds.
    """
    alone = len(drawing.represented_nodes(node.id)) < 2
    attributes = [each for each in node.attributes if alone or each not in ADDED_ZERO]
    call = "" if drawing.options["detail"] == "full" else node.call
    return labels.operation_text(node.title, tuple(attributes), call)


def small_values(drawing: Drawing, node: Node) -> list[str]:
    """Return a line with the values of a node's outputs.

    Return [] if there are many values and all are finite, or if the node represents several nodes,
    which have different values.
    """
    if not node.values or len(drawing.represented_nodes(node.id)) > 1:
        return []
    line = f"value {node.value_text}"
    few = all(len(each or ()) <= labels.MAX_ELEMENTS_SHOWN for each in node.values)
    return [line] if few or labels.is_spoilt(line) else []


def gradients(drawing: Drawing, node: Node) -> list[str]:
    """Return a line for the gradient of each output.

    If the node represents several nodes, the line contains the range of their norms. With
    detail="short", gradients are written only for a program without modules, and only at nodes
    that have a gradient of few elements.
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
    """Return (leaf that is written inside an operation, text after the leaf's name).

    The text contains the number of users (if the leaf has many), the leaf's shapes, and the new
    dtype (if a cast follows the leaf).

    Args:
        drawing: the drawing.
        folded: id of the leaf, or of the last view or cast between leaf and operation.
    """
    nodes, inner = drawing.graph.nodes, drawing.inner
    leaf, last = nodes[inner.leaf(folded)], nodes[folded]
    after = f" ({inner.many[leaf.id]}{labels.TIMES})" if leaf.id in inner.many else ""
    after += "".join([f" {labels.shape(meta)}" for meta in leaf.outputs if meta is not None])
    return leaf, after + labels.cast(leaf.outputs, last.outputs)


def written_inside(drawing: Drawing, node: Node, folded: int) -> str:
    """Return the line that names a leaf and its gradient inside the box of an operation.

    Args:
        drawing: the drawing.
        node: the operation.
        folded: id of the leaf, or of the last view or cast between leaf and operation.
    """
    leaf, after = inner_leaf(drawing, folded)
    name = labels.local_name(node, leaf.label) if leaf.label else role(leaf, (), ())
    return f"{name}{after}{labels.leaf_gradient(leaf)}"


def inner_leaves(drawing: Drawing, node: Node) -> list[int]:
    """Return the ids of the leaves to write inside an operation.

    If views or casts are between a leaf and the operation, the result contains the id of the last
    one instead of the leaf's id. With detail="short", parameters of the operation's own module are
    left out.
    """
    folded = [edge.source for edge in drawing.inner.inside.get(node.id, ())]
    if not folded or drawing.options["detail"] != "short":
        return folded
    nodes, inner = drawing.graph.nodes, drawing.inner
    return [i for i in folded if _is_from_other_module(node, nodes[inner.leaf(i)])]


def _is_from_other_module(node: Node, leaf: Node) -> bool:
    """Return True if a leaf and the operation that uses it belong to different modules."""
    if not leaf.label:
        return leaf.leaf != "parameter"
    if not node.scope and node.module_class:  # an operation directly in the model
        return "." in leaf.label
    return labels.local_name(node, leaf.label) == leaf.label


def frozen_line(drawing: Drawing, module: str) -> list[str]:
    """Return a line with the number of frozen parameters of a module, or [] if it has none."""
    if not drawing.has_frozen:
        return []
    path = _CALL_NUMBER.sub("", module)
    inside = [p for p in drawing.graph.parameters if f"{p.name}.".startswith(f"{path}.")]
    frozen = sum(not p.requires_grad for p in inside)
    if not frozen:
        return []
    all_frozen = frozen == len(inside)
    return ["frozen" if all_frozen else f"{frozen} of {len(inside)} parameters frozen"]


def data_inputs(drawing: Drawing) -> dict[int, list[str]]:
    """Return key of a drawn element -> texts about the data that enters the element.

    Data are inputs and results that need no gradient, for which autograd has no nodes. Their shapes
    are taken from the tensors that operations saved for backward.
    """
    if drawing.graph.untracked:
        return {}  # `Graph.untracked` contains the data, which is drawn from there
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
        if (operand := _SAVED_OPERANDS.get(node.operation))
        and operand[0] in [s.name for s in node.saved]
    }
    made = {edge.target for edge in edges if operands.get(edge.target) == edge.input_nr}
    ids = dict.fromkeys(sorted({*given, *(operands.keys() - made)}))
    if not ids:
        return {}
    # node id -> operands that other nodes computed
    known: dict[int, set[object]] = {i: set() for i in ids}
    fed: dict[int, set[int]] = {i: set() for i in ids}  # node id -> input_nr of these operands
    for edge in edges:
        if edge.target in ids:
            known[edge.target].update(nodes[edge.source].outputs)
            fed[edge.target].add(edge.input_nr)
    for cut in drawing.graph.cuts:  # the line of a cut already shows the detached tensor
        for target in ids.keys() & set(cut.after):
            known[target].add(cut.tensor)
    drawn = {*drawing.nodes, *(~number for number in drawing.boxes)}
    found: dict[int, list[str]] = {}
    for i in ids:
        key = drawing.key(i)
        if key not in drawn or (key not in found and len(found) == _MAX_DATA_INPUTS):
            continue
        for text in _saved_data(nodes[i], known[i], fed[i]):
            if text not in found.setdefault(key, []):
                found[key].append(text)
    return {key: texts for key, texts in found.items() if texts}


def _saved_data(node: Node, known: set[object], fed: set[int]) -> list[str]:
    """Return a text for each saved tensor of a node that is data.

    Args:
        node: the node.
        known: the operands of the node that other nodes computed.
        fed: input_nr of these operands. The target of a loss is data if `fed` has no number but 0.
    """
    found = []
    for saved in node.saved:
        name = "target" if saved.name == "target" else "data"
        operand, place = _SAVED_OPERANDS.get(node.operation, ("", 0))
        computed = saved.name == operand != "" and saved.kind == "activation" and place not in fed
        given = saved.kind == "input" and saved.tensor not in known
        if given or (name == "target" and fed <= {0}) or (computed and saved.tensor not in known):
            found.append(f"{saved.label or name} {labels.shape(saved.tensor)}")
    return found


def edge_label(drawing: Drawing, line: MergedEdge) -> str | None:
    """Return the text of an edge; None if the box of the edge's source contains it already."""
    outputs = drawing.graph.nodes[line.edge.source].outputs
    several = line.source >= 0 and len(drawing.outputs_of(line.edge.source)) > 1
    if line.source < 0 and line.times == 1 and not shows_output(drawing, line.source):
        meta = drawing.leaving(line.edge)
        return labels.shape(meta) if meta is not None else ""
    if shows_output(drawing, line.source) and line.times == 1 and not several:
        return None
    if len(line.outputs) > 1:
        metas = [meta for meta in line.outputs if meta is not None]
        around = (*drawing.tree.paths[line.source], ~line.source)
        folded = not drawing.tree.represented_groups.keys().isdisjoint(around)
        if folded and differ_in_one_axis([(meta,) for meta in metas]):
            return f"{labels.shapes(metas)} {labels.TIMES}{line.times}"
        return f"{line.times} tensors"
    return _edge_label(outputs, line.edge.output_nr, several, line.times)


def shows_output(drawing: Drawing, key: int) -> bool:
    """Return True if an element's box shows the shape of its only output."""
    return (
        key >= 0
        or drawing.fused_node(key) is not None
        or len(drawing.group_outputs.get(key, ())) == 1
    )


@lru_cache(maxsize=4096)
def _edge_label(
    outputs: tuple[TensorMeta | None, ...], output_nr: int, several: bool, times: int
) -> str:
    """Return the text on an edge.

    Args:
        outputs: outputs of the edge's source.
        output_nr: index in `outputs` of the edge's tensor.
        several: True to write `output_nr`, because the source has several outputs.
        times: number of tensors that the edge represents.
    """
    meta = outputs[output_nr] if output_nr < len(outputs) else None
    parts = [f"[{output_nr}]"] if several and times == 1 else []
    # If all outputs have the same shape, the node's box shows it.
    if meta is not None and not (parts and len({*outputs}) == 1):
        parts.append(labels.shape(meta))
    parts += [f"{labels.TIMES}{times}"] if times > 1 else []
    return " ".join(parts)


def stub_text(drawing: Drawing, keys: list[int]) -> str:
    """Return the text that replaces undrawn edges at one of their ends.

    Args:
        drawing: the drawing.
        keys: keys or node ids of the other ends, which the text names.
    """
    called = [
        drawing.title(~key)
        if key < 0
        else f"{drawing.graph.nodes[key].label or drawing.graph.nodes[key].title} #{key}"
        for key in keys
    ]
    return listing(called, last=", ")


def failed_operands(drawing: Drawing) -> list[int]:
    """Return the keys of the operands of the operation that raised, which has no node."""
    failure = drawing.graph.failure
    if failure is None or failure.operation in ("", "backward"):
        return []
    keys = (drawing.visible_key(part.node) for part in failure.operands if part.node is not None)
    return [key for key in dict.fromkeys(keys) if key is not None]
