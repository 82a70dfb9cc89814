"""Model-agnostic meta-learning of sine waves."""

import copy

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)


class MetaModel(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


class MAML:
    def __init__(self, model, inner_lr=0.05, outer_lr=3e-3, inner_steps=2):
        self.model = model
        self.inner_lr = inner_lr
        self.inner_steps = inner_steps
        self.criterion = nn.MSELoss()
        self.meta_optimizer = torch.optim.Adam(self.model.parameters(), lr=outer_lr)

    def inner_update(self, model, support_x, support_y):
        weights = dict(model.named_parameters())
        for _ in range(self.inner_steps):
            loss = self.criterion(functional_call(model, weights, support_x), support_y)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - self.inner_lr * grad for (name, w), grad in zip(weights.items(), grads)}
        return lambda x: functional_call(model, weights, x)

    def outer_update(self, meta_loss):
        self.meta_optimizer.zero_grad()
        meta_loss.backward()
        self.meta_optimizer.step()

    def meta_train_step(self, tasks):
        meta_loss = 0.0
        for support_x, support_y, query_x, query_y in tasks:
            adapted_model = self.inner_update(self.model, support_x, support_y)
            pred = adapted_model(query_x)
            task_loss = self.criterion(pred, query_y)
            meta_loss += task_loss
        meta_loss = meta_loss / len(tasks)
        self.outer_update(meta_loss)
        return meta_loss.item()


def sample_task(n=20):
    amplitude, phase = 0.5 + torch.rand(1), 0.5 * torch.rand(1)
    x = 6 * torch.rand(2, n, 1) - 3
    y = amplitude * torch.sin(x + phase)
    return x[0], y[0], x[1], y[1]


model = MetaModel()
start = copy.deepcopy(model.state_dict())
maml = MAML(model)
for iteration in range(30):
    meta_loss = maml.meta_train_step([sample_task() for _ in range(8)])
    if iteration % 5 == 0 or iteration == 29:
        print(f"iteration {iteration}: meta loss {meta_loss:.4f}")
moved = max((v - start[k]).abs().max().item() for k, v in model.state_dict().items())
print(f"largest change of the meta-model: {moved:.4f}")
