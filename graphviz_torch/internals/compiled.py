"""Find the backward graph that AOTAutograd created for a region compiled by `torch.compile`.

The class of the region's autograd node has a private attribute that refers to the graph (2.11 to
2.14). When Inductor compiles the graph, in the first backward, it removes source lines and module
names from it. A graph that was loaded from a cache on disk never had them.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule


def is_region(kind: type) -> bool:
    """Return True if `kind` is the autograd node class of code that `torch.compile` compiled."""
    forward: Any = getattr(kind, "_forward_cls", None)
    return (
        kind.__name__ == "CompiledFunctionBackward"
        and forward is not None
        and forward.__module__.startswith("torch.")
    )


def is_compiled(module: Any) -> bool:
    """Return True if `module` is the result of `torch.compile` or was compiled by `Module.compile`.

    Uses `_compiled_call_impl`, which `Module.compile` sets, and the name of the wrapper's class;
    both are private (2.13).
    """
    called = getattr(module, "_compiled_call_impl", None)
    return called is not None or type(module).__name__ == "OptimizedModule"


def backward_graph(kind: type) -> Graph | None:
    """Return the FX graph of a compiled region's backward; None if it is unknown.

    Args:
        kind: the class of the region's autograd node.
    """
    forward: Any = kind._forward_cls  # type: ignore[attr-defined]
    module = getattr(getattr(forward, "_lazy_backward_info", None), "bw_module", None)
    return module.graph if isinstance(module, GraphModule) else None
