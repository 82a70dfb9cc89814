"""Train a denoising model with an exponential moving average, validated every few steps."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class EMAModel:
    def __init__(self, parameters, decay=0.99):
        self.decay = decay
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.temp_stored_params = None

    @torch.no_grad()
    def step(self, parameters):
        for s_param, param in zip(self.shadow_params, parameters):
            s_param.sub_((1 - self.decay) * (s_param - param))

    def copy_to(self, parameters):
        for s_param, param in zip(self.shadow_params, parameters):
            param.data.copy_(s_param)

    def store(self, parameters):
        self.temp_stored_params = [param.detach().clone() for param in parameters]

    def restore(self, parameters):
        for c_param, param in zip(self.temp_stored_params, parameters):
            param.data.copy_(c_param)
        self.temp_stored_params = None


class Denoiser(nn.Module):
    def __init__(self, dim=8, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], 1))


mixing = torch.randn(3, 8)


def noised(count):
    x = torch.sin(torch.randn(count, 3) @ mixing)
    noise, t = torch.randn_like(x), torch.rand(count, 1)
    return (1 - t) * x + t * noise, t, noise


@torch.no_grad()
def log_validation(model):
    x_t, t, noise = validation
    return F.mse_loss(model(x_t, t), noise).item()


validation = noised(512)
model = Denoiser()
ema_model = EMAModel(model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for global_step in range(1, 241):
    x_t, t, noise = noised(128)
    loss = F.mse_loss(model(x_t, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema_model.step(model.parameters())
    if global_step % 20 == 0:
        ema_model.store(model.parameters())
        ema_model.copy_to(model.parameters())
        score = log_validation(model)
        ema_model.restore(model.parameters())
        if global_step % 60 == 0:
            print(global_step, "loss", loss.item(), "validation", score)
