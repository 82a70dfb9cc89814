"""A first graph: from five lines of PyTorch to a picture with names, shapes and gradients.

Writes `first_graph.svg` into the folder it is started in.
"""

import torch

from graphviz_torch import draw_graph, record

with record() as recording:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    a = x + 2
    b = a**2
    c = b + 3
    y = c.mean()
    y.backward()

picture = draw_graph(recording.graph, theme="auto")
picture.render(outfile="first_graph.svg")

# One node for every autograd node, named as above; data flows from x to y.
assert [node.label for node in picture.graph.nodes] == ["x", "a", "b", "c", "y"]
assert [node.title for node in picture.graph.nodes] == [
    "AccumulateGrad",
    "add",
    "pow",
    "add",
    "mean",
]
assert [(edge.source, edge.target) for edge in picture.graph.edges] == [
    (0, 1),
    (1, 2),
    (2, 3),
    (3, 4),
]

# What reached x in backward is its gradient.
(gradient,) = picture.graph.nodes[0].grad_outputs
assert gradient is not None
assert torch.equal(torch.tensor(gradient.values), x.grad)
assert "grad [2, 2.667, 3.333]" in picture.pipe("svg").decode()

print("first_graph.svg: x.grad =", [round(value, 4) for value in gradient.values])
