"""Draw the memory that is saved for backward: by module, and the largest tensors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import streamlit as st

from graphviz_torch import Graph

from .. import text
from ..charts import quantity, scale
from ..linked import table
from ..selection import name

_MAX_BARS = 20
_MAX_TENSORS = 50


def draw_memory(graph: Graph, *, key: str) -> None:
    """Draw the bytes saved for backward. A storage that several nodes save counts once."""
    if not any(node.saved for node in graph.nodes):
        st.info("Tensors saved for backward were not recorded.", icon=":material/info:")
        return
    modules: dict[str, int] = defaultdict(int)
    kinds: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        modules[node.module or "outside modules"] += node.saved_bytes
        for saved in node.saved:
            kinds[saved.kind] += saved.nbytes
    parts = [f"**{text.size(nbytes)}** of {kind}s" for kind, nbytes in kinds.items() if nbytes]
    st.markdown("Saved for backward: " + ", ".join(parts) + ".", help=text.SAVED)
    largest = sorted(modules.items(), key=lambda pair: -pair[1])
    bars = [
        {"module": module, "bytes": nbytes, "size": text.size(nbytes)}
        for module, nbytes in largest[:_MAX_BARS]
        if nbytes
    ]
    longest = scale([0, *(nbytes for _, nbytes in largest[:1])])
    module = {"field": "module", "type": "nominal"}
    named: dict[str, Any] = {**module, "sort": None, "title": None, "axis": {"labelLimit": 150}}
    st.vega_lite_chart(
        {
            "data": {"values": bars},
            "height": 40 + 20 * len(bars),
            "mark": {"type": "bar", "color": "#3a94d0", "cornerRadiusEnd": 3},
            "encoding": {
                "x": quantity(
                    "bytes",
                    title="bytes saved",
                    axis={"format": "~s", "tickCount": 4},
                    scale=longest,
                ),
                "y": named,
                "tooltip": [module, {"field": "size", "type": "nominal"}],
            },
        },
        alt="Bytes saved for backward by module",
    )
    if len(largest) > _MAX_BARS:
        st.caption(f"The {_MAX_BARS} largest of {len(largest):,} modules.")
    rows = sorted(
        ((saved, node) for node in graph.nodes for saved in node.saved),
        key=lambda pair: -pair[0].nbytes,
    )[:_MAX_TENSORS]
    st.markdown(f"**Largest saved tensors** (at most {_MAX_TENSORS})")
    table(
        [
            {
                "bytes": (text.size(saved.nbytes), saved.nbytes),
                "tensor": str(saved.tensor),
                "as": saved.name,
                "kind": saved.kind,
                "by": name(node),
                "module": node.module,
                "line": node.where,
            }
            for saved, node in rows
        ],
        [node.id for _, node in rows],
        key=key,
        place="saved",
        label="Largest saved tensors",
    )
