"""expects: nothing. A step captured in a CUDAGraph after a warm-up, and replayed."""

import torch
from bits import DEVICE, done
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=DEVICE == "cuda")
x = torch.randn(16, 32, device=DEVICE)
y = torch.randint(8, (16,), device=DEVICE)


def step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if DEVICE == "cuda":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static = step()
    replay = graph.replay
else:
    static = step()
    replay = step
losses = []
for _ in range(5):
    x.copy_(torch.randn(16, 32, device=DEVICE))
    replay()
    losses.append(static.detach().clone())
done(losses, model)
