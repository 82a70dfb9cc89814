"""Define `Picture`, the result of every function that draws, for notebooks and files.

The picture of a graph is DOT text, which is laid out within a time limit. A chart or a gradient
flow diagram is SVG text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Final

import graphviz  # type: ignore[import-untyped]

from ...graph import Graph
from ...graph.files.replacement import replacement
from ...graph.units import count_text
from ..style import Theme
from .layout import FORMATS, LayoutError, LayoutTimeout, check_format, finish, layout

# Fraction of the remaining time that a layout gets. After it, a coarser picture is laid out in the
# rest of the time.
_SHARE_PER_TRY = 0.5
# (drawing options, text for the warning) of the coarser pictures to try, in this order.
_COARSER: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"depth": None, "detail": "short"}, "fits a page"),
    ({"depth": None, "detail": "short", "limit": 6}, "has about 6 boxes"),
)


class Picture(graphviz.Digraph):  # type: ignore[misc]
    """A picture. It is a `graphviz.Digraph` that needs no `dot` on the PATH and has a time limit.

    The picture of a graph has the Graph in `graph` and DOT text in `source`. If the layout takes
    too long, a coarser picture is drawn instead, and `source` becomes its DOT text. For a chart or
    a gradient flow diagram, `graph` is None, `source` is SVG, and SVG is the only format.

    Nodes, edges and `body` lines can be added as to any Digraph, and are written after the lines of
    the drawing. `graph_attr`, `node_attr` and `edge_attr` are defaults for the whole drawing. In
    DOT, a node is named by its id in the graph: `picture.node("3", color="red")`.

    >>> import torch
    >>> from graphviz_torch import draw_graph
    >>> from tempfile import TemporaryDirectory
    >>> picture = draw_graph(torch.ones(3, requires_grad=True).sum())
    >>> with TemporaryDirectory() as folder:
    ...     written = picture.render("sum", folder, format="svg")
    >>> written.endswith("sum.svg")
    True
    """

    graph: Graph | None

    def __init__(
        self, graph: Graph, write: Callable[..., str], *, theme: Theme, timeout: float
    ) -> None:
        super().__init__(name="graph", format="svg")
        self.graph = graph
        self.timeout = timeout
        self._write = write
        self._theme = theme
        self._source = write()
        self._drawn: dict[tuple[str, str], bytes] = {}  # (format, source) -> picture

    @classmethod
    def of_svg(cls, svg: str) -> Picture:
        """Return the picture of an SVG text.

        >>> Picture.of_svg('<svg width="20" height="10"></svg>')
        Picture(20 x 10 px; .render("picture.svg") saves it)
        """
        picture = cls(Graph(()), lambda: svg, theme="light", timeout=1.0)
        picture.graph, picture.filename = None, "picture.svg"
        return picture

    def __repr__(self) -> str:
        if self.graph is None:
            size = re.search(r'<svg[^>]* width="([\d.]+)[^>]* height="([\d.]+)', self._source)
            pixels = f"{size[1]} x {size[2]} px; " if size else ""
            return f'Picture({pixels}.render("picture.svg") saves it)'
        nodes = count_text(len(self.graph.nodes), "node")
        try:
            svg = self.pipe("svg", encoding="utf-8")
        except LayoutError as error:
            return f"Picture({nodes}, not drawn: {error})"
        size = re.search(r'<svg width="(\d+)pt" height="(\d+)pt"', str(svg))
        points = f", {size[1]} x {size[2]} pt" if size else ""
        return f'Picture({nodes}{points}; .render("graph.svg") saves it)'

    def __iter__(self, subgraph: bool = False) -> Iterator[str]:
        """Yield the lines of the source."""
        yield from self._complete(self._source).splitlines(keepends=True)

    def copy(self) -> Picture:
        """Return a copy of the picture, with the nodes, edges and attributes added to it."""
        if self.graph is None:
            return Picture.of_svg(self._source)
        other = Picture(self.graph, self._write, theme=self._theme, timeout=self.timeout)
        other.format = self.format
        for name in ("graph_attr", "node_attr", "edge_attr"):
            getattr(other, name).update(getattr(self, name))
        other.body += self.body
        return other

    def attr(self, kw: str | None = None, _attributes: Any = None, **attrs: str) -> None:
        """Set default attributes of the drawing, or of all its nodes or edges.

        As in graphviz, the attributes apply only to later additions if a node, edge or line was
        added to the picture before.

        Args:
            kw: "graph", "node" or "edge"; None for "graph".
            attrs: the attributes.

        Raises:
            ValueError: for another `kw`.
        """
        if self.body or (kw or "graph").lower() not in ("graph", "node", "edge"):
            super().attr(kw, _attributes=_attributes, **attrs)
        else:
            getattr(self, f"{(kw or 'graph').lower()}_attr").update(_attributes or {}, **attrs)

    def subgraph(
        self, graph: graphviz.Digraph | None = None, **options: Any
    ) -> AbstractContextManager[graphviz.Digraph] | None:
        """Add a subgraph: `graph`, or the new Digraph that the returned context manager yields."""
        if graph is not None:
            super().subgraph(graph=graph, **options)
            return None

        @contextmanager
        def new_subgraph() -> Iterator[graphviz.Digraph]:
            inner = graphviz.Digraph(**options)
            yield inner
            self.subgraph(inner)

        return new_subgraph()

    def pipe(
        self, format: str | None = None, *, encoding: str | None = None, **_: Any
    ) -> bytes | str:
        """Return the picture as bytes, or as text if `encoding` is given.

        Raises:
            ValueError: for an unknown format, or for any format but SVG if the picture is SVG.
            LayoutError: if Graphviz is missing or fails, or if even the coarsest picture took too
                long.
        """
        wanted = (format or self.format).lower()
        self._check_format(wanted)
        drawn = self._drawn.get((wanted, self.source))
        if drawn is None:
            drawn = self._draw(wanted)
            self._drawn[wanted, self.source] = drawn
        return drawn if encoding is None else drawn.decode(encoding)

    def render(
        self,
        filename: str | PathLike[str] | None = None,
        directory: str | PathLike[str] | None = None,
        view: bool = False,
        cleanup: bool = True,
        format: str | None = None,
        *,
        outfile: str | PathLike[str] | None = None,
        **_: Any,
    ) -> str:
        """Write the picture to `filename.format`.

        Args:
            filename: the path without the format's suffix; "graph.gv" if None. If `format` is None
                and `filename` ends in a known format's suffix, `filename` is the path of the
                picture.
            directory: the folder of a relative path.
            view: open the picture in the default viewer.
            cleanup: True to write only the picture; False to write the DOT text to `filename` as
                well.
            format: one of svg, png, pdf, jpg, ps, json, xdot, plain, dot, gv.
            outfile: the path of the picture, instead of `filename`.

        Returns:
            The path of the picture.

        Raises:
            ValueError: for an unknown format.
            FileNotFoundError: if the folder does not exist.
            IsADirectoryError: if the path is a folder.
            LayoutError: if Graphviz cannot draw the picture, as for `pipe`.
        """
        given = Path(outfile or filename or "graph.gv")
        ending = given.suffix[1:].lower()
        if outfile is not None or (format is None and filename is not None and ending in FORMATS):
            format = format or ending
            path, cleanup = given, True
        else:
            format = format or self.format
            path = given.parent / f"{given.name}.{format}"
        self._check_format(format)
        folder = Path(directory or "")
        path, source = folder / path, folder / given
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"the folder {str(path.parent)!r} does not exist; create it first."
            )
        for each in (path, source):
            if each.is_dir():
                raise IsADirectoryError(f"{str(each)!r} is a folder; name a file in it.")
        drawn = self.pipe(format)
        assert isinstance(drawn, bytes)
        if not cleanup:
            with replacement(source) as file:
                file.write(self.source.encode())
        with replacement(path) as file:
            file.write(drawn)
        if view:
            graphviz.view(path)
        return str(path)

    def save(
        self,
        filename: str | PathLike[str] | None = None,
        directory: str | PathLike[str] | None = None,
        *,
        skip_existing: bool | None = False,
    ) -> str:
        """Write the source atomically and return its path.

        Args:
            filename: the path. None is "graph.gv", or "picture.svg" for a picture that is SVG.
            directory: the folder of a relative path.
            skip_existing: True to keep an existing file.

        Raises:
            OSError: if the file cannot be written. An existing file is not changed.
        """
        path = Path(directory or self.directory, filename or self.filename)
        if not (skip_existing and path.exists()):
            with replacement(path) as file:
                file.write(self.source.encode())
        return str(path)

    @property
    def unflatten(self) -> Any:
        """Raise AttributeError: the result of graphviz's `unflatten` would not be a `Picture`."""
        raise AttributeError("a Picture has no unflatten: draw a graph with other options instead.")

    def _check_format(self, format: str) -> None:
        check_format(format)
        if self.graph is None and format != "svg":
            raise ValueError(f"format={format!r}: this picture is SVG. Pass format='svg'.")

    def _complete(self, source: str) -> str:
        """Return `source` with the nodes, edges and attributes that were added to the picture.

        Raises:
            ValueError: if the picture is SVG and something was added to it.
        """
        if self.graph is None:
            if self.body:
                raise ValueError("this picture is SVG: no node or edge can be added to it.")
            return source
        defaults = [
            self._attr(kw, self._attr_list(None, kwargs=attributes))
            for kw in ("graph", "node", "edge")
            if (attributes := getattr(self, f"{kw}_attr"))
        ]
        # The default attributes of edges are the last in `source`. The picture's own defaults are
        # inserted after these, so that they override all defaults.
        end = source.index("\n", source.index("\n\tedge [") + 1) + 1
        close = source.rindex("}")
        added = [line if line.endswith("\n") else f"{line}\n" for line in self.body]
        return "".join([source[:end], *defaults, source[end:close], *added, source[close:]])

    def _draw(self, format: str) -> bytes:
        if self.graph is None:
            return self._complete(self._source).encode()
        left = self.timeout
        tries = [self._source, *(None for _ in _COARSER)]
        for step, source in enumerate(tries):
            last = step == len(tries) - 1
            if source is None:
                source = self._write(**_COARSER[step - 1][0], note=self._coarser(step))
            try:
                # The last picture is small. Its layout gets the whole time limit, which it exceeds
                # only on a very busy machine.
                seconds = self.timeout if last else max(left * _SHARE_PER_TRY, 0.5)
                drawn = layout(self._complete(source), format, timeout=seconds)
            except LayoutTimeout:
                if last:
                    raise
                left -= left * _SHARE_PER_TRY
                continue
            if step:
                warnings.warn(
                    f"{self._coarser(step)} Pass timeout= more than {self.timeout:g} "
                    "seconds to draw everything.",
                    stacklevel=4,
                )
                self._source = source
                self._drawn.clear()
            return finish(drawn.decode(), self._theme).encode() if format == "svg" else drawn
        raise AssertionError("the loop returns or raises in its last iteration")

    def _coarser(self, step: int) -> str:
        return (
            "The whole picture took too long to lay out. This one "
            f"{_COARSER[step - 1][1]} and shows the rest as closed groups."
        )
