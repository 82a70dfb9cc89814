"""expects: nothing. Forward and backward captured in a CUDAGraph; the optimizer steps outside."""

import torch
from bits import DEVICE, done
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(16, 32, device=DEVICE)
y = torch.randint(8, (16,), device=DEVICE)


def gradients() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


losses, graph = [], None
if DEVICE == "cuda":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            losses.append(gradients().detach())
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static = gradients()
for _ in range(5):
    x.copy_(torch.randn(16, 32, device=DEVICE))
    if graph is None:
        static = gradients()
    else:
        graph.replay()
    optimizer.step()
    losses.append(static.detach().clone())
done(losses, model)
