"""Copy data to a device and back; the graph shows each copy, its direction and its bytes.

The script uses a GPU if there is one, otherwise a simulated GPU, which computes the same values.
It writes `moving_to_a_device.svg` to the current folder.
"""

from contextlib import nullcontext

import torch

from graphviz_torch import draw_graph, record, simulate_accelerator, to_text

found = nullcontext([torch.device("cuda")]) if torch.cuda.is_available() else simulate_accelerator()
with found as (device,), record() as recording:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    there = x.to(device)
    a = (there + 2) ** 2
    back = a.cpu()
    y = back.mean()
    y.backward()

graph = recording.graph
draw_graph(graph, theme="auto").render(outfile="moving_to_a_device.svg")
print(to_text(graph))

# Forward has two copies. Backward copies the gradient back through both.
assert [(t.kind, t.phase) for t in graph.transfers] == [
    ("HtoD", "forward"),
    ("DtoH", "forward"),
    ("HtoD", "backward"),
    ("DtoH", "backward"),
]
assert [t.nbytes for t in graph.transfers] == [12, 12, 12, 12]
assert x.grad is not None
assert torch.allclose(x.grad, 2 * (x.detach() + 2) / 3)
