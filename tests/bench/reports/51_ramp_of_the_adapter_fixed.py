"""Fine-tune with symmetric low-rank adapters in bfloat16, switched on over a ramp."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class SingLoRA(nn.Module):
    def __init__(self, linear, rank=4, alpha=4.0, ramp_up_steps=0):
        super().__init__()
        self.register_buffer("weight", linear.weight.detach())
        self.register_buffer("bias", linear.bias.detach())
        self.a = nn.Parameter(torch.empty(linear.in_features, rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)
        self.scale, self.ramp_up_steps = alpha / rank, ramp_up_steps
        self.training_step = 0

    def forward(self, x):
        self.training_step += 1
        ramp = min(self.training_step / max(self.ramp_up_steps, 1), 1.0)
        adapted = self.weight + self.scale * ramp * (self.a @ self.a.t())
        return F.linear(x, adapted, self.bias)


class Model(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.first = SingLoRA(nn.Linear(size, size))
        self.second = SingLoRA(nn.Linear(size, size))
        self.register_buffer("head", torch.randn(size, 4) / size**0.5)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) @ self.head


model = Model().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
x = torch.randn(128, 32, dtype=torch.bfloat16)
y = torch.tanh(x[:, :4] + x[:, 4:8])
before = model.first.a.detach().clone()
for step in range(10):
    loss = F.mse_loss(model(x).float(), y.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    changed = (model.first.a != before).float().mean().item()
    print(step, loss.item(), "changed elements", changed)
