"""`draw_graph`: the still picture of a graph, for files and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..graph import Finding, Names, graph_of
from .dot.color import ColorBy
from .dot.dot import Direction, to_dot
from .dot.marks import Mark
from .dot.picture import Picture
from .drawing.inline import Parameters
from .style import Theme


def draw_graph(
    target: Any,
    *inputs: Any,
    names: Names = None,
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
    limit: int | None = None,
    timeout: float = 10.0,
) -> Picture:
    """The picture of an autograd graph: shown by a notebook, written by `.render(path, format=)`.

    Args:
        target: a Graph, a recording, an output, a nesting of outputs, or an `nn.Module`, which
            runs one forward with `inputs`.
        inputs: what to call the module with.
        names: what to call the tensors, as in `trace`; None reads the caller's variables.
        timeout: seconds for the layout; a coarser picture takes over in time.
        direction, theme, color_by, parameters, depth, module, fold: as in `to_dot`.
        findings, marks, explain, limit: as in `to_dot`.

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
    graph = graph_of(target, *inputs, names=names)
    kept = tuple(findings)

    def write(limit: int | None = limit, note: str = "") -> str:
        return to_dot(
            graph,
            direction=direction,
            theme=theme,
            color_by=color_by,
            parameters=parameters,
            depth=depth,
            module=module,
            fold=fold,
            findings=kept,
            marks=marks,
            explain=explain,
            limit=limit,
            note=note,
        )

    return Picture(graph, write, theme=theme, timeout=timeout)


def make_dot(var: Any, params: Any = None) -> Picture:
    """The picture of what computed `var`, for callers of torchviz.

    Args:
        var: a tensor, or a list, tuple or dict of tensors.
        params: names of tensors: a dict, or pairs of name and tensor as `named_parameters()` gives.

    Raises:
        TypeError, ValueError: as `draw_graph`, and for `params` without names.
    """
    try:
        names = None if params is None else dict(params)
    except (TypeError, ValueError):
        raise TypeError(
            f"params is a {type(params).__name__} that gives no names: pass a dict of tensors by "
            "name, or model.named_parameters()."
        ) from None
    return draw_graph(var, names=names)
