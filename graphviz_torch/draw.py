"""`draw_graph`: the still picture of a graph, for files and notebooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import graphviz  # type: ignore[import-untyped]
import torch

from .graph import Finding, Graph
from .recording.recording import record
from .render.dot.color import ColorBy
from .render.dot.dot import Direction, to_dot
from .render.dot.inline import Parameters
from .render.dot.layout import FORMATS, LayoutTimeout, check_format, layout
from .render.dot.marks import Mark
from .render.dot.visible import LIMIT
from .render.style import Theme, dark_rules
from .tracing.names import Names
from .tracing.tracer import roots, trace

# Seconds for the first try at a layout, of the whole time given; coarser pictures have the rest.
_FIRST_SHARE = 0.5
_COARSER = (250, 60, 20)  # things to show, for each further try


class Picture(graphviz.Digraph):  # type: ignore[misc]
    """A drawn graph: a `graphviz.Digraph` that needs no `dot` on the PATH and always ends.

    `graph` is the Graph, `source` the DOT text of what is drawn. Where a layout takes too long, a
    coarser picture takes its place and `source` follows.
    """

    def __init__(
        self, graph: Graph, write: Callable[..., str], *, theme: Theme, timeout: float
    ) -> None:
        super().__init__(name="graph", format="svg")
        self.graph = graph
        self.timeout = timeout
        self._write = write
        self._theme = theme
        self._source = write()
        self._drawn: dict[str, bytes] = {}

    def __iter__(self, subgraph: bool = False) -> Iterator[str]:
        """The lines of the DOT text."""
        yield from self._source.splitlines(keepends=True)

    def copy(self) -> Picture:
        """Another picture of the same graph."""
        return Picture(self.graph, self._write, theme=self._theme, timeout=self.timeout)

    def pipe(
        self, format: str | None = None, *, encoding: str | None = None, **_: Any
    ) -> bytes | str:
        """The picture as bytes, or as text where an `encoding` is given.

        Raises:
            ValueError: for an unknown format.
            LayoutError: if there is no Graphviz, or even the coarsest picture took too long.
        """
        wanted = (format or self.format).lower()
        check_format(wanted)
        if wanted not in self._drawn:
            self._drawn[wanted] = self._draw(wanted)
        drawn = self._drawn[wanted]
        return drawn if encoding is None else drawn.decode(encoding)

    def render(
        self,
        filename: str | PathLike[str] | None = None,
        directory: str | PathLike[str] | None = None,
        view: bool = False,
        cleanup: bool = False,
        format: str | None = None,
        *,
        outfile: str | PathLike[str] | None = None,
        **_: Any,
    ) -> str:
        """Write the DOT text to `filename` and the picture to `filename.format`.

        Args:
            filename: a path without the format's ending; "graph.gv" if not given. With the ending
                of a known format and no `format`, it is the picture's own path.
            directory: where a relative path starts.
            view: open the picture with the system's viewer.
            cleanup: write the picture only.
            format: one of svg, png, pdf, jpg, ps, json, xdot, plain, dot, gv.
            outfile: the picture's own path, in place of `filename`.

        Returns:
            The path of the picture.

        Raises:
            ValueError: for an unknown format.
            FileNotFoundError: if the folder does not exist.
            IsADirectoryError: if the path is a folder's.
            LayoutError: as `pipe`.
        """
        given = Path(outfile or filename or "graph.gv")
        ending = given.suffix[1:].lower()
        if outfile is not None or (format is None and filename is not None and ending in FORMATS):
            format = format or ending
            path, cleanup = given, True
        else:
            format = format or self.format
            path = given.parent / f"{given.name}.{format}"
        check_format(format)
        folder = Path(directory or "")
        path, source = folder / path, folder / given
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"the folder {str(path.parent)!r} does not exist; make it first."
            )
        for each in (path,) if cleanup else (path, source):
            if each.is_dir():
                raise IsADirectoryError(f"{str(each)!r} is a folder; name a file in it.")
        drawn = self.pipe(format)
        assert isinstance(drawn, bytes)
        if not cleanup:
            source.write_text(self.source, encoding="utf-8")
        path.write_bytes(drawn)
        if view:
            graphviz.view(path)
        return str(path)

    def _draw(self, format: str) -> bytes:
        left = self.timeout
        tries = [self._source, *(None for _ in _COARSER)]
        for step, source in enumerate(tries):
            share = _FIRST_SHARE if step < len(tries) - 1 else 1.0
            if source is None:
                source = self._write(limit=_COARSER[step - 1], note=self._coarser(step))
            try:
                drawn = layout(source, format, timeout=max(left * share, 0.5))
            except LayoutTimeout:
                left -= left * share
                if step == len(tries) - 1:
                    raise
                continue
            if step:
                warnings.warn(
                    f"{self._coarser(step)} Give timeout= more than {self.timeout:g} "
                    "seconds for the whole.",
                    stacklevel=4,
                )
                self._source = source
                self._drawn.clear()
            return self._finish(drawn) if format == "svg" else drawn
        raise AssertionError("the last try returns or raises")

    def _coarser(self, step: int) -> str:
        return (
            "The whole picture took too long to lay out. This one shows about "
            f"{_COARSER[step - 1]} things, the rest in closed groups."
        )

    def _finish(self, drawn: bytes) -> bytes:
        # Graphviz writes the second of two spaces as a no-break space.
        text = drawn.decode().replace("&#160;", " ")
        if self._theme == "auto":
            text = text.replace("<g id=", f"<style>{dark_rules()}</style>\n<g id=", 1)
        return text.encode()


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
    limit: int = LIMIT,
    timeout: float = 10.0,
) -> Picture:
    """The picture of an autograd graph: shown by a notebook, written by `.render(path, format=)`.

    Args:
        target: an output, a nesting of outputs, a `Graph`, or an `nn.Module`, of which one forward
            is run with `inputs`.
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
    graph = _read(target, inputs, names)
    kept = tuple(findings)

    def write(limit: int = limit, note: str = "") -> str:
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


def _read(target: Any, inputs: tuple[Any, ...], names: Names) -> Graph:
    if isinstance(target, torch.nn.Module):
        return _of_module(target, inputs, names)
    if inputs:
        raise TypeError(
            f"draw_graph got inputs for a {type(target).__name__}; only an nn.Module is called. "
            "To draw several outputs, pass them as one list."
        )
    return target if isinstance(target, Graph) else trace(target, names=names)


def _of_module(model: torch.nn.Module, inputs: tuple[Any, ...], names: Names) -> Graph:
    with _undisturbed(model), torch.enable_grad(), record(model, gradients=False) as recording:
        outputs = model(*inputs)
        roots(outputs)  # says what is wrong where there is no graph
        graph = recording.graph
        if names is not None:
            labels = {node.id: node.label for node in trace(outputs, names=names).nodes}
            graph = graph.annotate(label=labels)
    return graph


@contextmanager
def _undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards the model's buffers, its modules' modes and torch's random state are as before."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, value in buffers:
            module._buffers[name] = buffer
            if buffer is not None and value is not None and not torch.equal(buffer, value):
                buffer.data.copy_(value)
