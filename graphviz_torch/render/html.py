"""Show a graph interactively: `to_html` writes an HTML file, `view` is for notebooks.

The page is self-contained. Its content security policy forbids loading files and running other
scripts. The view inserts names from the graph as text, never as HTML.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

from ..graph import Finding, Graph, GraphLike
from ..graph.files.replacement import replacement
from ..graph.text import printable, type_text
from ..graph.units import count_text
from .dot.dot import to_dot
from .dot.layout import LayoutError, layout
from .options import Mark
from .resolve import FindingsLike, graph_and_findings, resolve_findings
from .view import view_script, view_style
from .view.difference import Difference, title_of
from .view.payload import view_payload

_STILL_TIMEOUT = 5.0  # seconds for the layout of the still picture
_FRAME_HEIGHT = 640  # CSS pixels

_MOUNT = """
mount(document.getElementById("view"), document.getElementById("graph").textContent, {page: true});
"""

# Text that a page shows if scripts are disabled. It is not needed in a notebook, where a still
# picture is behind the frame with the page.
_NO_SCRIPT = "<noscript>This view of an autograd graph needs JavaScript.</noscript>"
_NO_SCRIPT_FRAMED = ""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="view" class="graphviz-torch-view"></main>
{without}
<script type="text/plain" id="graph">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def to_html(
    graph: GraphLike | Difference | Mapping[str, Graph],
    path: str | Path | None = None,
    *,
    inputs: Sequence[Any] = (),
    title: str = "",
    findings: FindingsLike = "auto",
) -> Page:
    """Return a self-contained HTML page with the interactive view of `graph`.

    The page is also written to `path`, if given. A notebook shows the returned page as the view.

    Args:
        graph: any target of `draw_graph`, such as a graph, a recording, a tensor, a module (called
            once with `inputs`) or the `diff` of two graphs (drawn as one). The result of
            `influences` is accepted as well: the legend has a button for each of its graphs.
        path: the file to write; None writes no file.
        inputs: the arguments of the module.
        title: the title of the page; "" uses the names of the outputs.
        findings: the findings to show: "auto" for those that `find` reports, a list, or None.

    Raises:
        TypeError: if `graph` is none of these, or `path` is not a path.
        FileNotFoundError: if the bundle of the view is missing (see `view_script`).
        OSError: if `path` cannot be written.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> page = to_html((x * 2).sum())
    >>> "<html" in page
    True
    """
    if path is not None and not isinstance(path, str | PathLike):
        raise TypeError(
            f"path is {type_text(path)}, not a path to write the page to. A module's arguments "
            "go to inputs: to_html(model, inputs=(x,))."
        )
    if isinstance(graph, Mapping):
        page = _page(graph, title, findings)
    else:
        shown, found = _graph_and_findings(graph, inputs, findings)
        page = _page(shown, title, found)
    if path is not None:
        with replacement(path) as file:
            file.write(page.encode())
    return Page(page)


class Page(str):
    """The text of an HTML page, which a notebook shows in a frame.

    >>> Page("<!doctype html>...")
    Page(18 characters; to_html(graph, "graph.html") writes it)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f'Page({len(self):,} characters; to_html(graph, "graph.html") writes it)'

    def _repr_html_(self) -> str:
        return _frame(self, _FRAME_HEIGHT)


class NotebookView:
    """The interactive view of a graph, which a notebook cell shows as its value."""

    def __init__(self, graph: Graph | Difference, findings: Sequence[Finding], height: int) -> None:
        self.graph = graph.union() if isinstance(graph, Difference) else graph
        self._marks = graph.marks() if isinstance(graph, Difference) else {}
        self._shown = graph
        self._findings = tuple(findings)
        self._height = height

    def __repr__(self) -> str:
        nodes = count_text(len(self.graph.nodes), "node")
        return f'NotebookView({nodes}; a notebook shows it, to_html(graph, "graph.html") saves it)'

    def _repr_html_(self) -> str:
        page = _page(self._shown, "", self._findings, _NO_SCRIPT_FRAMED)
        return _frame(page, self._height, _still_picture(self.graph, self._findings, self._marks))


def view(
    graph: GraphLike | Difference,
    *inputs: Any,
    findings: FindingsLike = "auto",
    height: int = _FRAME_HEIGHT,
) -> NotebookView:
    """Return the interactive view of a graph, for a notebook cell to show.

    The view needs no network and no extension. A notebook that runs no scripts shows a still
    picture.

    Args:
        graph, inputs: as in `draw_graph`.
        findings: as in `to_html`.
        height: height of the view in CSS pixels.

    Raises:
        TypeError: for a `graph` that `draw_graph` does not accept.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> view = view((x * 2).sum())
    >>> "<iframe" in view._repr_html_()
    True
    """
    return NotebookView(*_graph_and_findings(graph, inputs, findings), height)


def _frame(page: str, height: int, still: str = "") -> str:
    """Return HTML with a page in a frame, in front of a still picture of the graph.

    The still picture is visible if the notebook removes frames or does not run scripts.

    Args:
        page: the text of the page.
        height: height of the frame in CSS pixels.
        still: HTML of the still picture.
    """
    return (
        f'<div style="position: relative; height: {height}px; overflow: hidden">{still}'
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" '
        f'title="Autograd graph" style="position: absolute; top: 0; left: 0; width: 100%; '
        f'height: {height}px; border: 0"></iframe></div>'
    )


def _graph_and_findings(
    graph: GraphLike | Difference, inputs: Sequence[Any], findings: FindingsLike
) -> tuple[Graph | Difference, tuple[Finding, ...]]:
    """Return the graph or diff to show, and the findings to show with it."""
    if inputs or not isinstance(graph, Difference):
        return graph_and_findings(graph, *inputs, findings=findings)
    return graph, resolve_findings(graph, findings)


def _still_picture(graph: Graph, findings: Sequence[Finding], marks: Mapping[int, Mark]) -> str:
    try:
        settings: Any = {"findings": findings, "marks": marks}
        text = to_dot(graph, **settings)
        picture = layout(text, "svg", timeout=_STILL_TIMEOUT)
    except LayoutError as error:
        return html.escape(f"There is no still picture: {error}")
    data = b64encode(picture).decode()
    return (
        f'<img src="data:image/svg+xml;base64,{data}" alt="Autograd graph" '
        'style="display: block; margin: auto; max-width: 100%; height: 100%; object-fit: contain">'
    )


def _page(
    graph: Graph | Difference | Mapping[str, Graph],
    title: str,
    findings: FindingsLike,
    without: str = _NO_SCRIPT,
) -> str:
    if not title and not isinstance(graph, Mapping):
        title = title_of(graph)
    title = title or "influence"
    return _PAGE.format(
        policy=_content_security_policy(),
        title=html.escape(printable(title)),
        style=view_style(),
        without=without,
        payload=view_payload(graph, findings, title=title),
        script=view_script() + _MOUNT,
    )


@cache
def _content_security_policy() -> str:
    """Return the policy of a page, which allows only the page's own script and style."""
    script, style = _csp_hash(view_script() + _MOUNT), _csp_hash(view_style())
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; "
        "worker-src blob:; img-src data: blob:"
    )


def _csp_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
