"""Train an ensemble in one batched call: vmap over stacked weights."""

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

torch.manual_seed(0)


class Regressor(nn.Module):
    def __init__(self, size=8, hidden=32):
        super().__init__()
        self.first, self.second = nn.Linear(size, hidden), nn.Linear(hidden, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).squeeze(-1)


def stack_state(models):
    names = [name for name, _ in models[0].named_parameters()]
    return {
        name: torch.stack([model.get_parameter(name) for model in models]).detach().requires_grad_()
        for name in names
    }


models = [Regressor() for _ in range(5)]
skeleton = Regressor().to("meta")
params = stack_state(models)
optimizer = torch.optim.Adam(params.values(), lr=1e-2)


def predict(params, x):
    return functional_call(skeleton, params, (x,))


x = torch.randn(128, 8)
y = torch.sin(x[:, 0]) + x[:, 1]
for step in range(10):
    outputs = vmap(predict, in_dims=(0, None))(params, x)
    loss = F.mse_loss(outputs, y.expand_as(outputs))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
