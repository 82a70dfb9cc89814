"""What runs in a job's process: a model's step, and its forward again with one thing changed."""

from __future__ import annotations

import torch

from graphviz_torch import record
from graphviz_torch.experiments import experiment, influences
from graphviz_torch.export import view_payload

from ..models import gallery
from . import devices
from .backward import backward_line, build, with_lines
from .values import Answers, Choice


def answers(choice: Choice) -> Answers:
    """Every experiment on the model of this choice, those with a finding first; and influences."""
    with devices.use(choice.device) as found:
        model, loss = build(choice.model, found, choice.seed)
        with record(model, experiments=True) as recording:
            torch.autograd.backward(loss())
        made = sorted(experiment(recording), key=lambda each: each.finding is None)
        reached = influences(recording)
    line = backward_line(gallery.model(choice.model), choice)
    lanes = {name: with_lines(graph, line) for name, graph in reached.items()}
    return Answers(tuple(made), tuple(lanes), view_payload(lanes) if lanes else "")
