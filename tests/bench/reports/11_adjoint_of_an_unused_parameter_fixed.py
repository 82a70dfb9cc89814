"""A neural ODE trained by the adjoint method."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class VectorField(nn.Module):
    def __init__(self, dim=2, controlled=False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, dim))
        self.control, self.controlled = nn.Linear(dim, dim), controlled

    def forward(self, t, x):
        dx = self.net(x)
        return dx + self.control(x) if self.controlled else dx


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, vf, x, ts, *params):
        ctx.vf, ctx.ts = vf, ts
        with torch.no_grad():
            for t, dt in zip(ts[:-1], ts.diff(), strict=False):
                x = x + dt * vf(t, x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,), params = ctx.saved_tensors, list(ctx.vf.parameters())
        lam, mu = grad, torch.zeros(sum(p.numel() for p in params))
        for t, dt in zip(ctx.ts[1:].flip(0), ctx.ts.diff().flip(0), strict=False):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                dx = ctx.vf(t, x)
                dlam, *dmu = torch.autograd.grad(dx, [x, *params], lam, allow_unused=True)
            dmu = [
                torch.zeros_like(p) if g is None else g for g, p in zip(dmu, params, strict=False)
            ]
            dmu = torch.cat([g.flatten() for g in dmu])
            x, lam, mu = x - dt * dx.detach(), lam + dt * dlam, mu + dt * dmu
        pieces = mu.split([p.numel() for p in params])
        return None, lam, None, *[g.view_as(p) for g, p in zip(pieces, params, strict=False)]


vf = VectorField()
optimizer = torch.optim.Adam(vf.parameters(), lr=1e-2)
ts = torch.linspace(0, 1, 21)
for step in range(4):
    x0 = torch.randn(16, 2)
    x1 = Adjoint.apply(vf, x0, ts, *vf.parameters())
    loss = F.mse_loss(x1, x0.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
