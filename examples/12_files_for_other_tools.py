"""Export the graph to networkx, GraphML, Model Explorer, Perfetto and JSON."""

import json

import networkx
import torch

from graphviz_torch import record
from graphviz_torch.export import to_chrome_trace, to_dict, to_model_explorer, to_networkx

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
with record(model) as recording:
    model(torch.randn(16, 4)).square().mean().backward()

network = to_networkx(recording)
networkx.write_graphml(network, "step.graphml")
assert networkx.is_directed_acyclic_graph(network)
print(to_model_explorer(recording, "step.json"))  # view it: model-explorer step.json
assert to_chrome_trace(recording, "trace.json")["traceEvents"]  # open it in ui.perfetto.dev
assert json.dumps(to_dict(recording)).startswith('{"format": "graphviz_torch rows"')
