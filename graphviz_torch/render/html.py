"""A graph as one HTML file with the interactive view, and as a notebook's cell.

The page is complete in itself: its security policy lets it load nothing and run no script but its
own, and every name in it is data that the view puts on the page as text.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from ..graph import Finding, Graph
from .dot import to_dot
from .layout import LayoutError, layout
from .view import view_script, view_style
from .view.payload import view_payload

__all__ = ["notebook", "to_html", "view_payload", "view_script", "view_style"]

_STILL_LIMIT = 250  # things to show
_STILL_SECONDS = 5.0

_MOUNT = """
mount(document.getElementById("view"), document.getElementById("graph").textContent);
"""

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
<div id="view" class="graphviz-torch-view"></div>
<noscript>This view of an autograd graph needs JavaScript.</noscript>
<script type="text/plain" id="graph">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def to_html(
    graph: Graph,
    path: str | Path | None = None,
    *,
    title: str = "Autograd graph",
    findings: Sequence[Finding] = (),
) -> str:
    """One self-contained HTML page with the interactive view of `graph`; written to `path`, if any.

    Raises:
        FileNotFoundError: if the view was never built (see `view_script`).
        OSError: if `path` cannot be written.
    """
    page = _page(graph, title, findings)
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


def notebook(graph: Graph, *, findings: Sequence[Finding] = (), height: int = 560) -> str:
    """HTML for a notebook's cell: the view in a frame of its own, `height` CSS pixels high.

    Where a notebook runs no scripts, a still picture is seen in its place.

    Raises:
        FileNotFoundError: if the view was never built (see `view_script`).
    """
    page = html.escape(_page(graph, "Autograd graph", findings))
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" title="Autograd graph" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
        f"<noscript>{_still(graph)}</noscript>"
    )


def _still(graph: Graph) -> str:
    try:
        picture = layout(to_dot(graph, limit=_STILL_LIMIT), "svg", timeout=_STILL_SECONDS)
    except LayoutError as error:
        return html.escape(f"There is no still picture: {error}")
    data = b64encode(picture).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="Autograd graph">'


def _page(graph: Graph, title: str, findings: Sequence[Finding]) -> str:
    script = view_script() + _MOUNT
    style = view_style()
    policy = (
        f"default-src 'none'; script-src {_allowed(script)}; style-src {_allowed(style)}; "
        "worker-src blob:; img-src data: blob:"
    )
    return _PAGE.format(
        policy=policy,
        title=html.escape(title),
        style=style,
        payload=view_payload(graph, findings, title=title),
        script=script,
    )


def _allowed(text: str) -> str:
    """What a security policy calls an inline script or style of exactly this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
