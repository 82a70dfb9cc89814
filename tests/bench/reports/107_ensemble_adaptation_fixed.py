"""Adapt an ensemble of models, each on its own task, by one step of gradient descent."""

import torch
import torch.nn as nn
from torch.func import functional_call, stack_module_state, vmap

torch.manual_seed(0)


class Regressor(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


num_tasks, inner_lr = 5, 0.3
models = [Regressor() for _ in range(num_tasks)]
params, buffers = stack_module_state(models)
loss_fn = nn.MSELoss()


def compute_loss(params, buffers, inputs, outputs):
    preds = functional_call(models[0], (params, buffers), inputs)
    return loss_fn(preds, outputs)


def adapt(params, losses):
    grads = torch.autograd.grad(losses.sum(), list(params.values()), create_graph=True)
    return {name: param - inner_lr * grad for (name, param), grad in zip(params.items(), grads)}


def make_tasks(n=32):
    slope = torch.randn(num_tasks, 1, 2)
    inputs = torch.randn(num_tasks, 2, n, 2)
    outputs = (inputs * slope[:, :, None]).sum(-1, keepdim=True)
    return inputs[:, 0], outputs[:, 0], inputs[:, 1], outputs[:, 1]


optimizer = torch.optim.Adam(params.values(), lr=2e-2)
for step in range(30):
    support_x, support_y, query_x, query_y = make_tasks()
    losses = vmap(compute_loss)(params, buffers, support_x, support_y)
    adapted = adapt(params, losses)
    query_losses = vmap(compute_loss)(adapted, buffers, query_x, query_y)
    meta_loss = query_losses.mean()
    optimizer.zero_grad()
    meta_loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: before the adaptation {losses.mean().item():.4f}, after it {meta_loss.item():.4f}")
