"""Test a model: gradients flow, backward copies nothing, and nothing is reported."""

import torch

from graphviz_torch import record
from graphviz_torch.testing import (
    assert_gradients_flow,
    assert_no_findings,
    assert_no_transfers,
    assert_same_graph,
)

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
with record(model) as recording:
    model(torch.randn(16, 4)).square().mean().backward()
assert_gradients_flow(recording, to="0.weight")
assert_no_transfers(recording, phase="backward")
assert_no_findings(recording)
assert recording.graph.parameters
assert_same_graph(recording, recording.graph)  # or compare with a saved file
