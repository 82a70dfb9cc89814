"""Encode a graph as the compressed base64 text that the view reads.

The text is compressed by gzip and encoded as base64. The uncompressed bytes are:

- the length of the header (4 bytes, little-endian);
- the header (JSON, UTF-8);
- the columns, one after the other.

A column contains one number for each row (a node, an edge, a group or a gradient) as byte planes:
first the lowest byte of every row's number, then the next byte. Repeated values (texts, tensors,
saved tensors) are stored once in the header, and a column contains their positions there. If a
node's label begins with the path of the node's module, the header contains only the rest of the
label, in a list. A node's scope is left out if it is equal to this path.

The view shows four digits of a number. Measured numbers are therefore stored with a relative error
of at most 1/16,000 (1/2,000,000 in a small graph), and times with at most 1/1,000. With this
encoding, a large graph takes less than 16 bytes per node. In a large graph, the elements of a
gradient are included only if there are few.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from gzip import compress
from operator import attrgetter
from typing import Any

from ...graph import (
    FAILURE_RULES,
    Edge,
    Graph,
    GraphLike,
    ModuleRow,
    Node,
)
from ...graph.collective import by_node
from ...graph.nodes import columns_except, columns_in
from .. import style
from ..collectives import describe_collectives, description
from ..drawing.drawing import Drawing
from ..drawing.level import families_in
from ..drawing.steps import draw_boxes
from ..drawing.values import Open
from ..groups.repeated_blocks import group_repeats
from ..labels import operation_text
from ..rank_chart import has_times, rank_rows, wait_lines
from ..resolve import FindingsLike, graph_and_findings, resolve_findings
from .difference import Difference, difference, title_of
from .node_columns import (
    COARSE,
    TEXTS,
    Columns,
    Table,
    add_gradients,
    add_nodes,
    finite,
    groups_around,
    label,
    with_untracked,
)

_KINDS = ("module", "run", "graph", "chain", "stack", "call")
# In a larger graph, the view itself chooses the groups that are open at first, which is faster than
# the choice for still pictures.
_MAX_NODES_AS_STILL = 2_000
_PANEL = 300  # width of the chart of ranks, in pixels
# Fields of Node without a column of their own. The column of attributes contains them as text.
_BESIDE = columns_except(
    Node, "scope", "where", "note", "saved", "seconds", "module_class", "attributes", "values"
)


def view_payload(
    graph: GraphLike | Difference | Mapping[str, Graph],
    findings: FindingsLike = "auto",
    *,
    title: str = "",
) -> str:
    """Return the graph, its groups and findings as ASCII text for `mount` of the view.

    Args:
        graph: a graph, a tensor or a recording, as in `draw_graph`, or the `diff` of two graphs,
            which are drawn as one. The result of `influences` is accepted as well: the view's
            legend has a button for each of its graphs.
        findings: the findings to show: "auto" for those that `find` reports, a list, or None.
        title: the title of the view; "" uses the names of the outputs.

    Raises:
        ValueError: if `influences` is empty.

    >>> import torch
    >>> y = torch.ones(3, requires_grad=True).sum()
    >>> view_payload(y, title="one sum").isascii()
    True
    """
    lanes: Mapping[str, Graph] = {}
    if isinstance(graph, Mapping):
        if not graph:
            raise ValueError(
                "influences is empty: no experiment could change an input. Pass a "
                "graph, or the influences of another recording."
            )
        lanes, graph = graph, next(iter(graph.values()))
    diff = graph if isinstance(graph, Difference) else None
    if diff is None:
        given, told = graph_and_findings(graph, findings=findings)
    else:
        given, told = diff.union(), resolve_findings(diff, findings)
    base = _with_failed(given)
    paged = diff is None and len(base.nodes) == len(given.nodes) <= _MAX_NODES_AS_STILL
    boxes = draw_boxes(base, told, None if diff is None else diff.marks(), paged=paged)
    single = _single_boxes(boxes)
    hosts = _hosts(boxes, single)
    graph, order = with_untracked(base, hosts)
    columns = Columns()
    header: dict[str, Any] = {
        "title": title or title_of(given if diff is None else diff),
        "style": _style(),
        "count": len(graph.nodes),
        "outputs": graph.outputs,
        "lossScale": finite(graph.step.loss_scale),
        "failure": graph.failure and asdict(graph.failure),
        "failureTold": any(finding.rule in FAILURE_RULES for finding in told),
        "failed": len(base.nodes) > len(given.nodes),
        "tracked": len(base.nodes),
        "places": order,
        "difference": None if diff is None else difference(diff, given),
        "cuts": [asdict(cut) for cut in graph.cuts],
        "findings": [asdict(finding) for finding in told],
        "modules": _modules(graph),
    }
    metas = Table()
    for name in TEXTS:
        header[name] = columns.texts(name, list(map(attrgetter(name), graph.nodes)))
    classes = [getattr(node, "module_class", "") for node in graph.nodes]
    header["moduleClass"] = columns.texts("moduleClass", classes)
    rows, places = _attributes(graph.nodes)
    columns.numbers("attributes", places)
    header["attributes"] = rows
    header["called"] = columns.texts("called", _operation_texts(graph.nodes, places))
    header["label"] = columns.texts(
        "label", [label(node) if node.label else "" for node in graph.nodes]
    )
    scopes = ["" if node.scope == node.module else node.scope for node in graph.nodes]
    header["scope"] = columns.texts("scope", scopes)
    add_nodes(graph, columns, header, metas)
    add_gradients(graph, columns, header, metas)
    moved = [host - node for node, host in enumerate(hosts)]
    shown = [boxes.inner.shown.get(node, node) - node for node in range(len(hosts))]
    items = graph.nodes[len(base.nodes) :]
    columns.signed_numbers("host", [*moved, *(0 for _ in items)])
    columns.numbers("shown", [*shown, *(0 for _ in items)])
    _add_groups(boxes, single, items, paged, columns, header)
    header["transfers"] = [
        asdict(transfer)
        | {"tensor": metas.position(transfer.tensor), "nbytes": transfer.nbytes}
        | {"phase": transfer.phase_text.removeprefix("in ")}
        for transfer in graph.transfers
    ]
    header["collectives"] = [
        {
            "kind": each.kind,
            "nbytes": each.nbytes,
            "node": each.node,
            "module": each.module,
            "text": description(each),
        }
        for each in graph.collectives
    ]
    header["ranks"] = _ranks(graph)
    header["sending"] = {
        node: describe_collectives(sent) for node, sent in by_node(graph.collectives).items()
    }
    header["metas"] = [[*meta, meta.nbytes] for meta in metas.rows]
    header["influences"] = _add_influences(lanes or {"": given}, len(graph.nodes), columns)
    header["columns"] = columns.layout
    text = json.dumps(header, separators=(",", ":"), default=str, allow_nan=False).encode()
    data = struct.pack("<I", len(text)) + text + b"".join(columns.planes)
    return b64encode(compress(data, 4, mtime=0)).decode("ascii")


def _add_influences(lanes: Mapping[str, Graph], count: int, columns: Columns) -> list[str]:
    """Add a column with `Node.influence` for each graph that has such values.

    Args:
        lanes: name -> graph; the graphs differ only in `Node.influence`.
        count: number of rows of a column.
        columns: the columns of the payload.

    Returns:
        The names of the graphs with a column.
    """
    known: dict[str, list[float | None]] = {}
    for name, graph in lanes.items():
        values = [node.influence for node in graph.nodes]
        if any(value is not None for value in values):
            known[name] = values + [None] * (count - len(values))
    for at, values in enumerate(known.values()):
        columns.floats(f"influence{at}", values, COARSE)
    return [*known]


def _ranks(graph: Graph) -> dict[str, Any] | None:
    """Return a chart of the time that ranks spent in collectives, and sentences about waiting.

    The chart is the data URL of an SVG. Return None if the times of fewer than two ranks were
    recorded.
    """
    if not has_times(graph.collectives):
        return None
    image = b64encode(rank_rows(graph.collectives, _PANEL).encode()).decode("ascii")
    return {"image": f"data:image/svg+xml;base64,{image}", "waits": wait_lines(graph.collectives)}


def _attributes(nodes: Sequence[Node]) -> tuple[list[Any], list[int]]:
    """Return the distinct rows of attributes, and for each node the index of its row.

    A row has the attributes that autograd keeps, and the texts of the fields in `_BESIDE`.
    """
    table = Table()
    table.position(())
    read = attrgetter("attributes", *(name for name, _ in _BESIDE))
    known: dict[tuple[Any, ...], int] = {}
    places = []
    for values in map(read, nodes):
        place = known.get(values)
        if place is None:
            attributes, *others = values
            texts = [
                f"{column.title}={text}"
                for (_, column), value in zip(_BESIDE, others, strict=True)
                if (text := column.text(value))
            ]
            place = known[values] = table.position((*attributes, *texts))
        places.append(place)
    return table.rows, places


def _modules(graph: Graph) -> dict[str, list[tuple[str, str]]]:
    """Return module path -> (title, text) of each recorded field of `ModuleRow`.

    A field with the same text for all modules is left out.
    """
    columns = columns_in(ModuleRow, graph.modules).items()
    if not columns:
        return {}
    rows = {
        row.path: [(column.title, column.text(getattr(row, name))) for name, column in columns]
        for row in graph.modules
    }
    return {
        path: said for path, texts in rows.items() if (said := [each for each in texts if each[1]])
    }


def _operation_texts(nodes: Sequence[Node], places: Sequence[int]) -> list[str]:
    """Return the text of each operation, with its distinguishing attributes.

    An operation gets the name of its call if the call created no other operation.

    Args:
        nodes: the nodes.
        places: for each node, the position of its attributes in their table.
    """
    read = attrgetter("operation", "name", "call")
    keys = list(zip(map(read, nodes), places, strict=True))
    texts: dict[tuple[Any, int], str] = {}
    for key, node in dict(zip(keys, nodes, strict=True)).items():
        call = "" if "#" in node.call.rpartition("/")[2] else node.call
        texts[key] = operation_text(node.title, node.attributes, call)
    return list(map(texts.__getitem__, keys))


def _with_failed(graph: Graph) -> Graph:
    """Return the graph with a node for the operation that raised, if its operands are known."""
    failure = graph.failure
    if failure is None or failure.operation in ("", "backward"):
        return graph
    operands = [
        (at, part.node) for at, part in enumerate(failure.operands) if part.node is not None
    ]
    if not operands:
        return graph
    new = len(graph.nodes)
    node = Node(new, failure.operation, (), operation=failure.operation, where=failure.where)
    edges = [Edge(source, new, 0, at) for at, source in operands]
    return replace(graph, nodes=(*graph.nodes, node), edges=(*graph.edges, *edges))


def _single_boxes(boxes: Drawing) -> set[int]:
    """Return the groups that the view draws as a single operation until the user opens them.

    These are the fused groups, and all modules and calls in which only one node has a box. Other
    nodes of such a group, such as the `t` of a linear layer, are written inside this box or drawn
    as an edge.
    """
    groups, folded, nodes = boxes.groups, boxes.inner.folded, boxes.graph.nodes
    assert groups is not None
    found = set(boxes.fused)
    visible = [0] * len(groups.groups)
    opens = set(found)  # the groups in `found`, and all groups that contain one of these
    for part in reversed(groups.groups):  # inner groups first
        hidden = [i for i in part.nodes if i in folded]
        visible[part.id] += len(part.nodes) - len(hidden)
        one = visible[part.id] == 1 and part.id not in opens and part.kind in ("module", "call")
        if one and any(not nodes[i].leaf for i in hidden):
            found.add(part.id)
            opens.add(part.id)
        if part.parent is not None:
            visible[part.parent] += visible[part.id]
            if part.id in opens:
                opens.add(part.parent)
    return found


def _hosts(boxes: Drawing, single: set[int]) -> list[int]:
    """Return, for each node, the node whose box shows it: the node itself if it has a box.

    Operations in a group that is drawn as a single operation have boxes too, which are visible once
    the group is opened.

    Args:
        boxes: the drawing.
        single: the groups that are drawn as a single operation at first.
    """
    inner, groups, nodes = boxes.inner, boxes.groups, boxes.graph.nodes
    assert groups is not None
    folded = set(inner.folded)
    for part in single:
        for number in groups.with_descendants(part):
            own = groups.groups[number].nodes
            folded.difference_update([i for i in own if not nodes[i].leaf])
    hosts = list(range(len(nodes)))
    for node in folded:
        host = node
        while host in folded:
            host = inner.user[host]
        hosts[node] = host
    return hosts


def _add_groups(
    boxes: Drawing,
    single: set[int],
    items: tuple[Node, ...],
    paged: bool,
    columns: Columns,
    header: dict[str, Any],
) -> None:
    """Add the groups to `columns` and `header`.

    Args:
        boxes: the boxes of the default drawing.
        single: groups that are drawn as a single operation at first.
        items: nodes for data, and for calls without an autograd node, which follow the other nodes.
        paged: True to list the groups that are open at first; False to let the view choose them.
        columns, header: the payload's columns and header, which are changed in place.
    """
    tree = boxes.groups
    assert tree is not None
    groups = group_repeats(tree, partial(families_in, boxes))
    of = (*groups.of, *groups_around(groups, items))
    columns.steps("of", [0 if at is None else at + 1 for at in of])
    header["groups"] = len(groups.groups)
    opened = {part.group for part, _, _ in boxes.tree.parts if isinstance(part, Open)}
    paths = {tree.groups[number].path for number in opened if number is not None}
    header["open"] = [one.id for one in groups.groups if one.path in paths] if paged else None
    names = [
        one.name.partition("#")[0] if one.kind == "call" else one.name for one in groups.groups
    ]
    header["groupName"] = columns.texts("groupName", names)
    kinds = [one.module_class if one.kind == "module" else "" for one in groups.groups]
    header["groupClass"] = columns.texts("groupClass", kinds)
    parents = [0 if one.parent is None else one.parent + 1 for one in groups.groups]
    columns.steps("groupParent", parents)
    columns.numbers("groupKind", [_KINDS.index(one.kind) for one in groups.groups])
    columns.steps("groupLike", [one.like for one in groups.groups])
    closed = {tree.groups[number].path for number in single}
    columns.numbers("groupUnit", [int(one.path in closed) for one in groups.groups])


def _style() -> dict[str, Any]:
    return {
        "colors": style.COLORS,
        "scale": style.SCALE,
        "nonfinite": style.NONFINITE,
        "categories": style.CATEGORIES,
    }
