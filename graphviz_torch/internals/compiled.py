"""The graph by which `torch.compile` runs the backward of a region, as AOTAutograd wrote it.

Private: the class of the region's node leads to it (2.11 to 2.14). Inductor takes the lines and
modules from it when it compiles it, which is in the first backward; one that came from a cache on
disk never had them.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule


def is_region(kind: type) -> bool:
    """Are the nodes of this class regions that torch.compile made."""
    forward: Any = getattr(kind, "_forward_cls", None)
    return (
        kind.__name__ == "CompiledFunctionBackward"
        and forward is not None
        and forward.__module__.startswith("torch.")
    )


def is_compiled(module: Any) -> bool:
    """Is a module what `torch.compile` made, or compiled in place.

    Private: `_compiled_call_impl`, of `Module.compile`, and the name of the wrapper's class (2.13).
    """
    called = getattr(module, "_compiled_call_impl", None)
    return called is not None or type(module).__name__ == "OptimizedModule"


def backward_graph(kind: type) -> Graph | None:
    """The graph of the backward of a region, by the class of its node; None where there is none."""
    forward: Any = kind._forward_cls  # type: ignore[attr-defined]
    module = getattr(getattr(forward, "_lazy_backward_info", None), "bw_module", None)
    return module.graph if isinstance(module, GraphModule) else None
