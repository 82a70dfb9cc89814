"""Physics-informed network for the Helmholtz equation in two dimensions."""

import math

import torch
import torch.autograd as autograd
from torch import nn

torch.manual_seed(0)
A1, A2, K = 1, 2, 1.0


def source(x):
    u = torch.sin(A1 * math.pi * x[:, [0]]) * torch.sin(A2 * math.pi * x[:, [1]])
    return (K**2 - (A1 * math.pi) ** 2 - (A2 * math.pi) ** 2) * u


def exact(x):
    return torch.sin(A1 * math.pi * x[:, [0]]) * torch.sin(A2 * math.pi * x[:, [1]])


class Sequentialmodel(nn.Module):
    def __init__(self, layers=(2, 40, 40, 1)):
        super().__init__()
        self.activation = nn.Tanh()
        self.loss_function = nn.MSELoss(reduction="mean")
        self.linears = nn.ModuleList([nn.Linear(layers[i], layers[i + 1]) for i in range(len(layers) - 1)])
        for linear in self.linears:
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x):
        for linear in self.linears[:-1]:
            x = self.activation(linear(x))
        return self.linears[-1](x)

    def loss_BC(self, x, y):
        return self.loss_function(self.forward(x), y)

    def loss_PDE(self, x_to_train_f):
        g = x_to_train_f.clone()
        g.requires_grad = True
        u = self.forward(g)
        u_x = autograd.grad(u, g, torch.ones_like(u), create_graph=True)[0]
        u_x1, u_x2 = u_x[:, [0]], u_x[:, [1]]
        u_xx1 = autograd.grad(u_x1, g, torch.ones_like(u_x1), create_graph=True)[0][:, [0]]
        u_xx2 = autograd.grad(u_x2, g, torch.ones_like(u_x2), create_graph=True)[0][:, [1]]
        f = u_xx1 + u_xx2 + K**2 * u - source(g)
        return self.loss_function(f, torch.zeros_like(f))

    def loss(self, x, y, x_to_train_f):
        return 50 * self.loss_BC(x, y) + self.loss_PDE(x_to_train_f)


side = torch.linspace(-1, 1, 25)[:, None]
ones = torch.ones_like(side)
X_u_train = torch.cat([torch.cat([s, c * ones], 1) for c in (-1, 1) for s in (side,)] + [torch.cat([c * ones, side], 1) for c in (-1, 1)])
u_train = torch.zeros(len(X_u_train), 1)
X_f_train = 2 * torch.rand(400, 2) - 1
test = 2 * torch.rand(500, 2) - 1

PINN = Sequentialmodel()
optimizer = torch.optim.LBFGS(PINN.parameters(), lr=0.8, max_iter=12, history_size=50, line_search_fn="strong_wolfe")
for epoch in range(30):

    def closure():
        optimizer.zero_grad()
        loss = PINN.loss(X_u_train, u_train, X_f_train)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    if epoch % 6 == 0 or epoch == 29:
        with torch.no_grad():
            error = (PINN(test) - exact(test)).norm() / exact(test).norm()
        print(f"epoch {epoch}: loss {loss.item():.4f}, relative error of the solution {error.item():.4f}")
