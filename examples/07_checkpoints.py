"""Save a model on one device, load it on another, and check that both compute the same."""

import torch

from graphviz_torch import load, simulate_accelerator, trace
from graphviz_torch.checkpoint import graph_path_for, load_checkpoint, save_checkpoint
from graphviz_torch.compare import compare_models


def build(width=8):
    return torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
    )


with simulate_accelerator() as [device]:
    model = build().to(device)
    x = torch.randn(5, 4)
    graph = trace(model(x.to(device)), names=model)
    path = save_checkpoint({"model": model, "epoch": 3}, "run.pt", graph=graph)

    restored = build()  # on the CPU
    checkpoint = load_checkpoint(path, {"model": restored}, report=print)
    assert checkpoint["epoch"] == 3
    assert load(graph_path_for(path)) == graph

    result = compare_models(model, restored, x)
    print(result)
    assert result

    with torch.no_grad():
        restored[2].weight[0, 0] += 1
    result = compare_models(model, restored, x)
    print(result)
    assert result.graph.nodes[result.first.node].label == "2.weight"

# A file that does not fit the model changes nothing, and the error gives the reason.
try:
    load_checkpoint(path, {"model": build(width=16)})
    message = "it fits"
except ValueError as error:
    message = str(error)
print(message)
assert "of another shape: model.0.weight is f32[8, 4] cpu in the file" in message
