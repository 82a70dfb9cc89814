"""`draw_graph`: the still picture of a graph, for files and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..graph import Graph, Names, SavedTensor
from ..graph.text import shortened, type_text
from ..graph.units import count_text
from .dot.dot import to_dot
from .dot.picture import Picture
from .options import DrawingOptions, drawing_options
from .resolve import graph_and_findings, graph_and_marks, resolve_findings
from .view.difference import Difference, summed_up

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OF_TWO = frozenset(("add", "sub", "rsub", "mul", "div"))


@drawing_options
def draw_graph(
    target: Any,
    *inputs: Any,
    names: Names = None,
    timeout: float = 10.0,
    **options: Unpack[DrawingOptions],
) -> Picture:
    """The picture of an autograd graph: shown by a notebook, written by `.render(path, format=)`.

    A recording is drawn whole: where several backwards ran, as of a GAN's two losses, each graph
    has a frame under the names of its outputs and their line. Of backwards from the same output and
    line, as in a loop, the last is drawn. `recording.graphs` has each alone.

    Args:
        target: a Graph, a recording, an output, a nesting of outputs, an `nn.Module`, which
            runs one forward with `inputs`, or the `diff` of two graphs, which are drawn as one. A
            program of `torch.export`, and a graph of `torch.fx`, are drawn as they are.
        inputs: what to call the module with.
        names: what to call the tensors, as in `trace`; None reads the caller's variables.
        timeout: seconds for the layout; a coarser picture takes over in time.
        options: those of `DrawingOptions`.

    Raises:
        TypeError: if `target` is none of these, or inputs are given without a module.
        ValueError: if no tensor in it has an autograd graph, or for an unknown option.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = (x * 2).sum()
    >>> [node.label for node in draw_graph(y).graph.nodes]
    ['x', '', 'y']
    """
    if not timeout > 0:
        raise ValueError(f"timeout={timeout} leaves no time for a layout: give seconds above 0.")
    said, marks = "", None
    found = options.get("findings", "auto")
    if isinstance(target, Difference):
        said, marks = summed_up(target), target.marks()
        target, found = target.union(), resolve_findings(target, found)
    graph, options["findings"] = graph_and_marks(target, *inputs, findings=found, names=names)
    graphs = getattr(target, "graphs", None)
    if isinstance(graphs, list) and len(graphs) > 1:
        said = _undrawn_backwards(graph, graphs)
    elif not said and not isinstance(graphs, list) and _lacks_constants(graph):
        said = (
            "What needs no gradient, such as the 2 of x + 2, is not in this graph: record() has it."
        )

    def write(note: str = "", **coarser: Any) -> str:
        both = " ".join(text for text in (said, note) if text)
        settings: Any = {**options, **coarser, "marks": marks}
        return to_dot(graph, note=both, **settings)

    return Picture(graph, write, theme=options.get("theme", "light"), timeout=timeout)


def _undrawn_backwards(graph: Graph, graphs: Sequence[Graph]) -> str:
    """Which backwards of a recording have no frame of their own in its picture."""
    inner = sum(each.step.is_inner_step for each in graphs)
    said = []
    if inner:
        calls = f"{count_text(inner, 'call')} of autograd.grad"
        said.append(f"{calls} {'is' if inner == 1 else 'are'} part of this graph.")
    last = len(graphs) - inner
    if last > 1 and graph is graphs[-1]:
        said.append(f"The last of {last:,} backwards from one line; recording.graphs has each.")
    return " ".join(said)


def _lacks_constants(graph: Graph) -> bool:
    """Was something added or multiplied that a trace of a tensor does not know?"""
    if any(node.where or node.order is not None for node in graph.nodes):
        return False
    reads = Counter([edge.target for edge in graph.edges])
    return any(
        node.operation in _OF_TWO
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
    """The picture of what computed `var`, for callers of torchviz.

    Args:
        var: a tensor, or a list, tuple or dict of tensors; a recording, too.
        params: names of tensors: a dict, or pairs of name and tensor as `named_parameters()` gives.
        show_attrs: write into each node all that autograd keeps of its operation and is not a
            tensor.
        show_saved: write into each node the tensors that it keeps for backward. A recording knows
            them; of a tensor alone they are not read, and the picture says so.
        max_attr_chars: characters of an attribute's value to write.

    Raises:
        TypeError, ValueError: as `draw_graph`, and for `params` without names, or fewer than one
            character.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> "exponent = 2" in make_dot(x**2, show_attrs=True).source
    True
    """
    if max_attr_chars < 1:
        raise ValueError(f"max_attr_chars={max_attr_chars} leaves nothing to show: give 1 or more.")
    try:
        names = None if params is None else dict(params)
    except (TypeError, ValueError):
        raise TypeError(
            f"params is {type_text(params)} that gives no names: pass a dict of tensors by "
            "name, or model.named_parameters()."
        ) from None
    if not show_attrs and not show_saved:
        return draw_graph(var, names=names)
    graph, _ = graph_and_findings(var, names=names)
    lines = {node.id: [node.note] if node.note else [] for node in graph.nodes}
    for node in graph.nodes:
        if show_attrs:
            lines[node.id] += [_shortened(text, max_attr_chars) for text in node.attributes]
        if show_saved:
            lines[node.id] += [_saved(saved) for saved in node.saved]
    noted = [node._replace(note="\n".join(lines[node.id])) for node in graph.nodes]
    unknown = show_saved and not any(node.saved for node in graph.nodes)
    note = "What is saved for backward was not recorded: draw a recording." if unknown else ""
    return _picture(graph, replace(graph, nodes=tuple(noted)), note)


def _shortened(attribute: str, most: int) -> str:
    name, _, value = attribute.partition("=")
    return f"{name} = {shortened(value, most + 1)}"


def _saved(saved: SavedTensor) -> str:
    return f"saved {saved.name or saved.kind} {saved.tensor}"


def _picture(graph: Graph, shown: Graph, note: str) -> Picture:
    def write(note: str = note, **options: Any) -> str:
        return to_dot(shown, note=note, **{"detail": "full", **options})

    return Picture(graph, write, theme="light", timeout=10.0)
