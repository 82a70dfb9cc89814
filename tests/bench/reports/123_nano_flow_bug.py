"""A small rectified flow: train the velocity, then sample from noise."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def append_dims(t, dims):
    return t.reshape(*t.shape, *((1,) * dims))


class Model(nn.Module):
    def __init__(self, dim=2, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, dim),
        )

    def forward(self, x, times):
        return self.net(torch.cat([x, times[:, None]], -1))


class NanoFlow(nn.Module):
    def __init__(self, model, times_cond_kwarg="times", data_shape=None):
        super().__init__()
        self.model = model
        self.times_cond_kwarg = times_cond_kwarg
        self.data_shape = data_shape

    @torch.no_grad()
    def sample(self, steps=16, batch_size=1):
        denoised = torch.randn((batch_size, *self.data_shape))
        times = torch.linspace(0., 1., steps + 1)[:-1]
        delta = 1. / steps
        for time in times:
            time_kwarg = {self.times_cond_kwarg: time.expand(batch_size)}
            pred_flow = self.model(denoised, **time_kwarg)
            denoised = denoised + delta * pred_flow
        return denoised

    def forward(self, data):
        shape, ndim = data.shape, data.ndim
        self.data_shape = self.data_shape or shape[1:]
        times = torch.rand(shape[0])
        noise = torch.randn_like(data)
        flow = data - noise

        padded_times = append_dims(times, ndim - 1)
        noised_data = noise * padded_times + data * (1. - padded_times)

        time_kwarg = {self.times_cond_kwarg: times}
        pred_flow = self.model(noised_data, **time_kwarg)
        return F.mse_loss(flow, pred_flow)


nano_flow = NanoFlow(Model())
optimizer = torch.optim.Adam(nano_flow.parameters(), lr=3e-3)
for step in range(200):
    angle = torch.rand(256) * 6.2832
    data = (3 + 0.1 * torch.randn(256, 1)) * torch.stack([angle.cos(), angle.sin()], -1)
    loss = nano_flow(data)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(step, loss.item())

sampled = nano_flow.sample(batch_size=256)
radius = sampled.norm(dim=-1)
print("data radius 3, sampled radius", radius.mean().item(), "+-", radius.std().item())
