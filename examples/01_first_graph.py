"""Record five lines of PyTorch, and draw a picture with names, shapes and gradients.

The script writes `first_graph.svg` to the current folder.
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

# The picture has a box for each autograd node, with the name of its result; data flows from x to y.
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

# The recorded gradient of x equals `x.grad`.
(gradient,) = picture.graph.nodes[0].grad_outputs
assert gradient is not None
assert torch.equal(torch.tensor(gradient.values), x.grad)
assert "grad [2, 2.667, 3.333]" in picture.pipe("svg").decode()

print("first_graph.svg: x.grad =", [round(value, 4) for value in gradient.values])
