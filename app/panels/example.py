"""The worked example of the first page. Its recording is stored, so that no job has to run."""

from __future__ import annotations

from pathlib import Path

from graphviz_torch import Graph, load
from graphviz_torch.export import view_payload

from ..expression.grammar import parse
from ..expression.script import expression_script
from ..jobs.values import Choice, OpenedGraph, Run

PROGRAM = "a = x + 2\nb = a ** 2\nc = b + 3\ny = mean(c)"
INPUTS = "x = 1, 2, 3"
CHOICE = Choice("expression", "sim1", program=PROGRAM, inputs=INPUTS)
RECORDING = Path(__file__).with_name("example.json")  # written by `python docs/app_pictures.py`


def forward() -> Run:
    """Return the stored forward of the example on a simulated accelerator."""
    program, _ = parse(PROGRAM).with_copies(["x"])
    script = expression_script(program, INPUTS, CHOICE.device, CHOICE.seed, scalar=True)
    graph = load(RECORDING)
    assert isinstance(graph, Graph)
    return Run(
        OpenedGraph(graph, (), view_payload(graph, ())), "", "", script.page_lines, script.text
    )
