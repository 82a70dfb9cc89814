"""Solve a Poisson problem with weights that equalize the gradient norms of the losses."""

import math

import torch
from torch import nn

torch.manual_seed(0)


class FeedForward(nn.Sequential):
    def __init__(self, inputs=1, hidden=24):
        super().__init__(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))


class SelfAdaptiveWeighting:
    def __init__(self, update_every_n_epochs=1):
        self.update_every_n_epochs = update_every_n_epochs
        self.solver = None
        self.saved = {}

    def weights_update(self, losses):
        losses_norm = {}
        for condition, loss in losses.items():
            loss.backward(retain_graph=True)
            grads = torch.cat([p.grad.flatten() for p in self.solver.model.parameters()])
            losses_norm[condition] = grads.norm()
        return {condition: sum(losses_norm.values()) / losses_norm[condition] for condition in losses}

    def aggregate(self, losses):
        if self.solver.current_epoch % self.update_every_n_epochs == 0:
            self.saved = {k: v.item() for k, v in self.weights_update(losses).items()}
        return sum(self.saved[condition] * loss for condition, loss in losses.items())


class PINN:
    def __init__(self, model, weighting):
        self.model = model
        self.weighting = weighting
        self.weighting.solver = self
        self.current_epoch = 0
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def laplacian(self, x):
        u = self.model(x)
        (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        return torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)[0]

    def optimization_cycle(self):
        x = torch.rand(64, 1, requires_grad=True)
        forcing = math.pi**2 * torch.sin(math.pi * x)
        boundary = torch.tensor([[0.0], [1.0]])
        return {
            "g": self.model(boundary).square().mean(),
            "D": (self.laplacian(x) + forcing).square().mean(),
        }

    def training_step(self):
        losses = self.optimization_cycle()
        loss = self.weighting.aggregate(losses)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.current_epoch += 1
        return losses


solver = PINN(FeedForward(), SelfAdaptiveWeighting())
for epoch in range(30):
    losses = solver.training_step()
    if epoch % 5 == 0 or epoch == 29:
        weights = ", ".join(f"{k} {v:.2f}" for k, v in solver.weighting.saved.items())
        print(f"epoch {epoch}: D {losses['D'].item():.3f}, g {losses['g'].item():.5f}, weights {weights}")

for condition, loss in solver.optimization_cycle().items():
    grads = torch.autograd.grad(loss, list(solver.model.parameters()), allow_unused=True)
    norm = torch.cat([g.flatten() for g in grads if g is not None]).norm().item()
    print(f"{condition}: gradient norm {norm:.3f}, weighted {solver.weighting.saved[condition] * norm:.3f}")
