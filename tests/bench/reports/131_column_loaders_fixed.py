"""Columns of one dataset come from pipelines of their own and are read side by side."""

import random

import torch
from torch import nn
from torch.nn import functional as F

random.seed(0)
torch.manual_seed(0)


def pick(buf, rng):
    k = rng.randint(0, len(buf) - 1)
    sample, buf[k] = buf[k], buf[-1]
    buf.pop()
    return sample


def _shuffle(data, bufsize=1000, initial=100, rng=None, seed=None):
    if rng is None:
        rng = random.Random(seed if seed is not None else random.getrandbits(64))
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= bufsize:
            yield pick(buf, rng)
    while buf:
        yield pick(buf, rng)


class Pipeline:
    def __init__(self, source, *stages):
        self.source, self.stages = source, stages

    def compose(self, stage):
        return Pipeline(self.source, *self.stages, stage)

    def shuffle(self, size, **kw):
        return self.compose(lambda data: _shuffle(data, size, **kw))

    def batched(self, size):
        def stage(data):
            batch = []
            for sample in data:
                batch.append(sample)
                if len(batch) == size:
                    yield torch.stack(batch)
                    batch = []
        return self.compose(stage)

    def __iter__(self):
        data = iter(self.source)
        for stage in self.stages:
            data = stage(data)
        return iter(data)


images = torch.randn(512, 12)
targets = torch.tanh(images[:, :4].sum(1, keepdim=True)) + 0.5 * images[:, 5:6]
rank = 0
loaders = [Pipeline(col).shuffle(25, seed=rank).batched(32) for col in (images, targets)]

model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    for x, y in zip(*loaders):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
