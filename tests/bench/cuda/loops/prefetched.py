"""expects: nothing. Batches are copied one step ahead, on a stream of their own."""

import torch
from bits import DEVICE, done
from torch import nn

cuda = DEVICE == "cuda"
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
model.append(nn.Linear(16 * 30 * 30, 10)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
batches = [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(6)]
if cuda:
    batches = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
side = torch.cuda.Stream() if cuda else None


def fetch(batch: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    with torch.cuda.stream(side):
        return [one.to(DEVICE, non_blocking=True) for one in batch]


losses = []
ready = fetch(batches[0])
for following in [*batches[1:], None]:
    if side:
        torch.cuda.current_stream().wait_stream(side)
        for one in ready:
            one.record_stream(torch.cuda.current_stream())
    x, y = ready
    if following:
        ready = fetch(following)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
