"""Draw the autograd graph of a PyTorch program, measure its cost, and find mistakes in it.

    from graphviz_torch import draw_graph, find, record

    with record(model) as recording:      # watch one training step
        loss = criterion(model(x), target)
        loss.backward()
    print(find(recording))                # mistakes, with source lines and advice
    draw_graph(recording)                 # a picture; view(recording) is interactive

Record   `record` a block, `trace` a tensor, `watch` a training run,
         `simulate_accelerator` without a GPU, `to_device` with a report of each copy
Look     `draw_graph`, `draw_flow`, `view`, `summary`, `to_text`, `to_html`, `to_tensorboard`
Ask      `find` problems, list `rules`, `explain` a missing gradient, `diff` two graphs
Keep     `save`, `load`
Values   `Graph`, `Recording`, `Finding`, `Picture`

More functions are in submodules:

    graph          the types inside a Graph: Node, Edge, Transfer, Cut, Training
    compare        first_difference of two runs, compare_models
    experiments    re-run a recorded module with one change: leaks, dependence, precision
    distributed    graphs of several ranks, their collectives and charts
    rehearsal      memory and traffic of one of many ranks, without GPUs
    devices        move, measure and compare devices; divide a batch
    checkpoint     save and load a model together with its graph
    export         DOT, Mermaid, NetworkX, Chrome trace, Model Explorer, dicts
    tensorboard    gradients, copies and distributions as scalars and tables
    compat         make_dot, for callers of torchviz
    testing        assertions for tests
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .graph.lazy import lazy_names
from .graph.registry import register_display, register_events, register_reader

__version__ = "1.0.0"

if TYPE_CHECKING:
    from .comparison.diff import diff as diff
    from .devices.moving import to_device as to_device
    from .devices.simulated.accelerator import simulate_accelerator as simulate_accelerator
    from .findings.check import find as find
    from .findings.gradient_path import explain as explain
    from .findings.table import rules as rules
    from .graph import Finding as Finding
    from .graph import Graph as Graph
    from .graph.json import load as load
    from .graph.json import save as save
    from .recording.recording import Recording as Recording
    from .recording.recording import record as record
    from .render.dot.picture import Picture as Picture
    from .render.draw import draw_graph as draw_graph
    from .render.gradient_flow.flow import draw_flow as draw_flow
    from .render.html import to_html as to_html
    from .render.html import view as view
    from .render.summary import summary as summary
    from .render.text import to_text as to_text
    from .tensorboard.watch import watch as watch
    from .tensorboard.writer import to_tensorboard as to_tensorboard
    from .tracing.tracer import trace as trace
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".recording.recording": "record Recording",
            ".tracing.tracer": "trace",
            ".findings.check": "find",
            ".findings.table": "rules",
            ".findings.gradient_path": "explain",
            ".render.draw": "draw_graph",
            ".render.gradient_flow.flow": "draw_flow",
            ".render.html": "view to_html",
            ".render.text": "to_text",
            ".render.summary": "summary",
            ".tensorboard.writer": "to_tensorboard",
            ".tensorboard.watch": "watch",
            ".comparison.diff": "diff",
            ".graph.json": "save load",
            ".devices.simulated.accelerator": "simulate_accelerator",
            ".devices.moving": "to_device",
            ".graph": "Graph Finding",
            ".render.dot.picture": "Picture",
        },
        namespaces="graph compare experiments distributed rehearsal devices checkpoint export "
        "tensorboard compat testing findings integrations tracing",
    )


def _read(value: Any, inputs: tuple[Any, ...], names: Any) -> Any:
    if sys.modules.get("torch") is None:  # without torch, `value` cannot be a tensor
        return None
    from .recording.target import read

    return read(value, inputs, names)


def _display(value: Any, include: Any, exclude: Any) -> dict[str, Any]:
    from .render.draw import draw_graph

    return dict(draw_graph(value)._repr_mimebundle_(include, exclude))


register_reader(_read)
register_display(_display)
register_events(lambda: import_module(".findings.table", __name__))


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%record`: IPython calls this for `%load_ext graphviz_torch`."""
    import_module(".integrations.notebook", __name__).load(shell)
