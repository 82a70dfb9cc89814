"""Write a graph in the formats of other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph.lazy import lazy_names

if TYPE_CHECKING:
    from .integrations.exporters import to_chrome_trace as to_chrome_trace
    from .integrations.exporters import to_dict as to_dict
    from .integrations.exporters import to_model_explorer as to_model_explorer
    from .integrations.exporters import to_networkx as to_networkx
    from .render.annotation import annotate_source as annotate_source
    from .render.dot.dot import to_dot as to_dot
    from .render.html import to_html as to_html
    from .render.mermaid import to_mermaid as to_mermaid
    from .render.summary import Summary as Summary
    from .render.text import to_text as to_text
    from .render.view import view_script as view_script
    from .render.view.payload import view_payload as view_payload
    from .tensorboard.writer import to_pbtxt as to_pbtxt
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".render.dot.dot": "to_dot",
            ".render.mermaid": "to_mermaid",
            ".render.html": "to_html",
            ".render.text": "to_text",
            ".render.summary": "Summary",
            ".tensorboard.writer": "to_pbtxt",
            ".render.annotation": "annotate_source",
            ".render.view.payload": "view_payload",
            ".render.view": "view_script",
            ".integrations.exporters": "to_dict to_networkx to_chrome_trace to_model_explorer",
        },
    )
