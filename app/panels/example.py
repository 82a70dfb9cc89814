"""The worked example, and its recording before backward: the first page waits for no job."""

from __future__ import annotations

from pathlib import Path

from graphviz_torch import Graph, load
from graphviz_torch.export import view_payload

from ..expression.grammar import parse
from ..expression.script import expression_script
from ..jobs.values import Choice, Opened, Run

PROGRAM = "a = x + 2\nb = a ** 2\nc = b + 3\ny = mean(c)"
INPUTS = "x = 1, 2, 3"
CHOICE = Choice("expression", "sim1", program=PROGRAM, inputs=INPUTS)
RECORDING = Path(__file__).with_name("example.json")  # `python docs/app_pictures.py` makes it


def forward() -> Run:
    """What running forward gives on a simulated accelerator, as it was recorded."""
    program, _ = parse(PROGRAM).with_copies(["x"])
    script = expression_script(program, INPUTS, CHOICE.device, CHOICE.seed, scalar=True)
    graph = load(RECORDING)
    assert isinstance(graph, Graph)
    return Run(Opened(graph, (), view_payload(graph, ())), "", "", script.shown, script.text)
