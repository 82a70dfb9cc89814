"""A job that runs a model's forward again with one change at a time, and compares the results."""

from __future__ import annotations

import torch

from graphviz_torch import record
from graphviz_torch.experiments import experiment, influences
from graphviz_torch.export import view_payload

from ..models import gallery
from . import devices
from .backward import backward_line, build, with_lines
from .values import Choice, ExperimentResults


def run_experiments(choice: Choice) -> ExperimentResults:
    """Run all experiments on a model, and compute its influence maps.

    Experiments with findings come first.
    """
    with devices.use(choice.device) as found:
        model, loss = build(choice.model, found, choice.seed)
        with record(model, experiments=True) as recording:
            torch.autograd.backward(loss())
        made = sorted(experiment(recording), key=lambda each: each.finding is None)
        reached = influences(recording)
    line = backward_line(gallery.model(choice.model), choice)
    lanes = {name: with_lines(graph, line) for name, graph in reached.items()}
    return ExperimentResults(tuple(made), tuple(lanes), view_payload(lanes) if lanes else "")
