"""Draw a graph as a still picture, for files and notebooks: `draw_graph`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..graph import Graph, Names, SavedTensor
from ..graph.text import shorten, type_text
from ..graph.units import count_text
from .dot.dot import to_dot
from .dot.picture import Picture
from .options import DrawingOptions, drawing_options
from .resolve import graph_and_findings, graph_and_marks, resolve_findings
from .view.difference import Difference, difference_line

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BINARY_OPERATIONS = frozenset(("add", "sub", "rsub", "mul", "div"))


@drawing_options
def draw_graph(
    target: Any,
    *inputs: Any,
    names: Names = None,
    timeout: float = 10.0,
    **options: Unpack[DrawingOptions],
) -> Picture:
    """Return the picture of an autograd graph, for a notebook or for `.render(path)`.

    All backward passes of a recording are drawn. If there are several, such as those of a GAN's two
    losses, each has a frame with its outputs and its source line. Of several passes that began at
    the same output and line, as in a loop, only the last is drawn; `recording.graphs` contains all.

    Args:
        target: a Graph, a recording, an output tensor or nested outputs; an `nn.Module`, which is
            called once with `inputs`; the result of `diff`, whose two graphs are drawn as one; an
            exported program of `torch.export`, or a graph of `torch.fx`.
        inputs: the arguments of the module.
        names: names of tensors, as in `trace`; None uses the names of the caller's variables.
        timeout: seconds for the layout. If the layout takes longer, a coarser picture is drawn.
        options: those of `DrawingOptions`.

    Raises:
        TypeError: if `target` is none of these, for an unknown option, or for inputs without a
            module.
        ValueError: if no tensor has an autograd graph, or for an invalid value of an option.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = (x * 2).sum()
    >>> [node.label for node in draw_graph(y).graph.nodes]
    ['x', '', 'y']
    """
    if not timeout > 0:
        raise ValueError(
            f"timeout={timeout} leaves no time for the layout: pass a positive number of seconds."
        )
    said, marks = "", None
    found = options.get("findings", "auto")
    if isinstance(target, Difference):
        said, marks = difference_line(target), target.marks()
        target, found = target.union(), resolve_findings(target, found)
    graph, options["findings"] = graph_and_marks(target, *inputs, findings=found, names=names)
    graphs = getattr(target, "graphs", None)
    if isinstance(graphs, list) and len(graphs) > 1:
        said = _undrawn_backwards(graph, graphs)
    elif not said and not isinstance(graphs, list) and _lacks_constants(graph):
        said = "Operands without gradient, such as the 2 of x + 2, are missing; record() has them."

    def write(note: str = "", **coarser: Any) -> str:
        both = " ".join(text for text in (said, note) if text)
        settings: Any = {**options, **coarser, "marks": marks}
        return to_dot(graph, note=both, **settings)

    return Picture(graph, write, theme=options.get("theme", "light"), timeout=timeout)


def _undrawn_backwards(graph: Graph, graphs: Sequence[Graph]) -> str:
    """Return a sentence about backward passes that are not drawn; "" if all are drawn."""
    inner = sum(each.step.is_inner_step for each in graphs)
    said = []
    if inner:
        calls = f"{count_text(inner, 'call')} of autograd.grad"
        said.append(f"{calls} {'is' if inner == 1 else 'are'} part of this graph.")
    last = len(graphs) - inner
    if last > 1 and graph is graphs[-1]:
        said.append(
            f"This is the last of {last:,} backwards from one output; recording.graphs has all."
        )
    return " ".join(said)


def _lacks_constants(graph: Graph) -> bool:
    """Return True if a traced graph lacks an operand without gradient, such as the 2 of `x + 2`."""
    if any(node.where or node.order is not None for node in graph.nodes):
        return False
    reads = Counter([edge.target for edge in graph.edges])
    return any(
        node.operation in _BINARY_OPERATIONS
        and reads[node.id] == 1
        and not any(text.startswith("other=") for text in node.attributes)
        for node in graph.nodes
    )


def make_dot(
    var: Any,
    params: Any = None,
    show_attrs: bool = False,
    show_saved: bool = False,
    max_attr_chars: int = 50,
) -> Picture:
    """Return the picture of the computation of `var`, with the arguments of torchviz.

    Args:
        var: a tensor, a list, tuple or dict of tensors, or a recording.
        params: names of tensors: a dict, or pairs as from `named_parameters()`.
        show_attrs: write the attributes that autograd saved for each operation.
        show_saved: write the tensors that each operation saved for backward. Only a recording
            contains these tensors; for any other `var`, a note in the picture says that they are
            missing.
        max_attr_chars: maximum number of characters of an attribute.

    Raises:
        TypeError: if `params` contains no names, and wherever `draw_graph` raises it.
        ValueError: if `max_attr_chars` is less than 1, and wherever `draw_graph` raises it.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> "exponent = 2" in make_dot(x**2, show_attrs=True).source
    True
    """
    if max_attr_chars < 1:
        raise ValueError(f"max_attr_chars={max_attr_chars} leaves nothing to show: pass 1 or more.")
    try:
        names = None if params is None else dict(params)
    except (TypeError, ValueError):
        raise TypeError(
            f"params is {type_text(params)} without names: pass a dict from name to "
            "tensor, or model.named_parameters()."
        ) from None
    if not show_attrs and not show_saved:
        return draw_graph(var, names=names)
    graph, _ = graph_and_findings(var, names=names)
    lines = {node.id: [node.note] if node.note else [] for node in graph.nodes}
    for node in graph.nodes:
        if show_attrs:
            lines[node.id] += [_attribute_text(text, max_attr_chars) for text in node.attributes]
        if show_saved:
            lines[node.id] += [_saved_tensor_text(saved) for saved in node.saved]
    noted = [node._replace(note="\n".join(lines[node.id])) for node in graph.nodes]
    unknown = show_saved and not any(node.saved for node in graph.nodes)
    note = "Tensors saved for backward were not recorded: draw a recording." if unknown else ""
    return _picture(graph, replace(graph, nodes=tuple(noted)), note)


def _attribute_text(attribute: str, most: int) -> str:
    name, _, value = attribute.partition("=")
    return f"{name} = {shorten(value, most + 1)}"


def _saved_tensor_text(saved: SavedTensor) -> str:
    return f"saved {saved.name or saved.kind} {saved.tensor}"


def _picture(graph: Graph, shown: Graph, note: str) -> Picture:
    def write(note: str = note, **options: Any) -> str:
        return to_dot(shown, note=note, **{"detail": "full", **options})

    return Picture(graph, write, theme="light", timeout=10.0)
