"""Quantisation-aware training with a schedule for its phases."""

from collections import defaultdict

import torch
from torch import nn
from torch.nn.utils import parametrize

torch.manual_seed(0)


class FakeQuantize(nn.Module):
    def __init__(self, bits=4):
        super().__init__()
        self.limit = 2 ** (bits - 1) - 1
        self.register_buffer("scale", torch.ones(()))
        self.observe, self.quantize = True, False

    def forward(self, w):
        if self.observe:
            self.scale = w.detach().abs().max() / self.limit
        if not self.quantize:
            return w
        q = (w / self.scale).round().clamp(-self.limit, self.limit) * self.scale
        return w + (q - w).detach()


class QATSchedule:
    """Switches the fake-quantizers of each module at given steps."""

    def __init__(self, model, phases):
        self.phases, self.modules = phases, defaultdict(list)
        for name, module in model.named_modules():
            found = [m for m in module.children() if isinstance(m, FakeQuantize)]
            if isinstance(module, parametrize.ParametrizationList):
                name = ".".join(name.split(".")[:-2])
            self.modules[name] += found

    def step(self, number):
        for name, phases in self.phases.items():
            for fake_quant in self.modules[name]:
                for key, value in phases.get(number, {}).items():
                    setattr(fake_quant, key, value)


model = nn.Linear(8, 8)
parametrize.register_parametrization(model, "weight", FakeQuantize())
schedule = QATSchedule(model, {"": {2: {"quantize": True}, 4: {"observe": False}}})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    schedule.step(step)
    x = torch.randn(32, 8)
    loss = (model(x) - x.flip(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "levels", model.weight.unique().numel())
