"""Draw the figures of the explanation pages: `python -m docs.figures`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.style import COLORS

IMAGES = Path(__file__).parent / "images"
_FONT = "DejaVu Sans,Verdana,sans-serif"
_INK, _MUTED = COLORS["ink"][0], COLORS["muted"][0]


def _box(name: str, text: str, color: str, **more: str) -> str:
    """Return a DOT node, filled with a color that `draw_graph` uses."""
    fill, line = COLORS[color][0], COLORS[f"{color}_line"][0]
    options = "".join(f' {key}="{value}"' for key, value in more.items())
    return f'"{name}" [label="{text}" fillcolor="{fill}" color="{line}"{options}]'


def _arrow(source: str, target: str, text: str = "", **more: str) -> str:
    options = "".join(f' {key}="{value}"' for key, value in more.items())
    return f'"{source}" -> "{target}" [label="{text}"{options}]'


def _row(*names: str) -> str:
    return "{rank=same; " + "; ".join(f'"{name}"' for name in names) + "}"


def _autograd() -> list[str]:
    """Draw the tensors of a forward pass beside the nodes that autograd creates for them."""
    saved = {"style": "dashed", "color": COLORS["parameter_line"][0], "constraint": "false"}
    backward = {"color": COLORS["input_line"][0], "penwidth": "1.6"}
    return [
        'nodesep="0.9"',
        _box("x", "x\\nrequires_grad=True", "input"),
        _box("a", "a = x + 2", "operation"),
        _box("b", "b = a ** 2", "operation"),
        _box("y", "y = b.mean()", "output"),
        _box("gx", "AccumulateGrad\\nwrites x.grad", "parameter"),
        _box("ga", "AddBackward0\\nsaves nothing", "group"),
        _box("gb", "PowBackward0\\nsaves a", "group"),
        _box("gy", "MeanBackward0\\nsaves the shape of b", "group"),
        *(_row(f"g{each}", each) for each in "xaby"),
        _arrow("x", "a", "  forward"),
        _arrow("a", "b"),
        _arrow("b", "y"),
        _arrow("gx", "ga", dir="back", **backward),
        _arrow("ga", "gb", dir="back", **backward),
        _arrow("gb", "gy", "  backward", dir="back", **backward),
        _arrow("y", "gy", "grad_fn", style="dotted", constraint="false"),
        _arrow("b", "gb", "grad_fn", style="dotted", constraint="false"),
        _arrow("a", "ga", "grad_fn", style="dotted", constraint="false"),
        _arrow("a", "gb", "saved", **saved),
    ]


def _cost() -> list[str]:
    """Draw the phases of a step, and the work that a recording adds to each phase."""
    added = {
        "forward": ("one call for each call into torch", "two hooks for each module"),
        "backward": ("one hook for each node", "one reduction for each gradient, on its device"),
        "end of backward": ("one copy of all statistics to the CPU",),
        "optimizer.step()": ("one call for each parameter",),
    }
    lines = ['ranksep="0.3"', 'nodesep="0.5"']
    for phase, parts in added.items():
        lines.append(_box(phase, phase, "operation", width="1.8", height="0.5"))
        lines.append(_box(f"{phase} added", "\\n".join(parts), "parameter", width="4.3"))
        lines.append(_row(phase, f"{phase} added"))
        lines.append(_arrow(phase, f"{phase} added", style="dashed", dir="none"))
    phases = list(added)
    lines += [_arrow(*pair) for pair in pairwise(phases)]
    return lines


def _rule() -> list[str]:
    """Draw the questions that decide on no finding, a note, a warning or an error."""
    questions = {
        "recorded": "Are the values\\nthat the rule reads recorded?",
        "pattern": "Does the graph have\\nthe pattern of the fault?",
        "meant": "Do healthy programs\\nhave it, too?",
    }
    lines = ['ranksep="0.35"', 'nodesep="0.5"']
    lines += [_box(name, text, "operation") for name, text in questions.items()]
    lines += [
        _box("graph", "Graph", "input"),
        _box("nothing", "no finding", "untracked"),
        _box("note", "note: counted, shown\\nwith --notes", "group"),
        _box("warning", "warning or error:\\nline, cause, repair", "transfer"),
        _arrow("graph", "recorded"),
        _arrow("recorded", "pattern", " yes "),
        _arrow("recorded", "nothing", " no "),
        _arrow("pattern", "nothing", " no "),
        _arrow("pattern", "meant", " yes "),
        _arrow("meant", "note", " often "),
        _arrow("meant", "warning", " hardly ever "),
    ]
    return lines


def _simulated() -> list[str]:
    """Draw a call on a GPU next to the same call on a simulated device."""
    return [
        'ranksep="0.35"',
        'nodesep="0.6"',
        _box("call", "x.to(device)\\nx @ w", "input"),
        _box("queue", "queue of the GPU:\\nthe program goes on", "operation"),
        _box("kernel", "kernel on the GPU,\\nbetween two events", "operation"),
        _box("clock", "a duration,\\nmeasured on the GPU", "output"),
        _box("checks", "simulated device:\\nare all operands on it?", "transfer"),
        _box("cpu", "kernel on the CPU,\\nat once", "transfer"),
        _box("none", "same values, copies, errors;\\nno duration", "untracked"),
        _arrow("call", "queue", " cuda "),
        _arrow("queue", "kernel"),
        _arrow("kernel", "clock"),
        _arrow("call", "checks", " simulated "),
        _arrow("checks", "cpu"),
        _arrow("cpu", "none"),
    ]


FIGURES = {"autograd": _autograd, "cost": _cost, "rule": _rule, "simulated": _simulated}


def figure(name: str) -> str:
    """Return the figure of this name as SVG."""
    font = f'fontname="{_FONT}" fontsize="12"'
    lines = [
        f'graph [{font} bgcolor="transparent" pad="0.1"]',
        f'node [{font} shape="box" style="rounded,filled" fontcolor="{_INK}" margin="0.14,0.08"]',
        f'edge [{font} fontcolor="{_MUTED}" color="{COLORS["edge"][0]}" arrowsize="0.7"]',
        *FIGURES[name](),
    ]
    return layout("digraph {\n" + "\n".join(lines) + "\n}\n").decode()


if __name__ == "__main__":
    for name in FIGURES:
        (IMAGES / f"explained-{name}.svg").write_text(figure(name))
