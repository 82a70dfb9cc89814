"""Training with an EMA callback, interrupted after a checkpoint and resumed from it."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class ExponentialMovingAverage:
    def __init__(self, parameters, decay):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in parameters]
        self.collected_params = None

    def update(self, parameters):
        for s, p in zip(self.shadow, parameters):
            s.sub_((1.0 - self.decay) * (s - p.detach()))

    def store(self, parameters):
        self.collected_params = [p.detach().clone() for p in parameters]

    def copy_to(self, parameters):
        for s, p in zip(self.shadow, parameters):
            p.data.copy_(s)

    def restore(self, parameters):
        for c, p in zip(self.collected_params, parameters):
            p.data.copy_(c)

    def state_dict(self):
        return copy.deepcopy({"shadow": self.shadow, "collected": self.collected_params})

    def load_state_dict(self, state):
        self.shadow, self.collected_params = state["shadow"], state["collected"]


class Trainer:
    def __init__(self, model, data, lr=5e-3, decay=0.98):
        self.model, self.data = model, data
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.ema, self.decay, self.to_load = None, decay, None

    def on_fit_start(self):
        if self.ema is None:
            self.ema = ExponentialMovingAverage(self.model.parameters(), self.decay)
        if self.to_load is not None:
            self.ema.load_state_dict(self.to_load)
            self.ema.restore(self.model.parameters())
        self.ema.store(self.model.parameters())
        self.ema.copy_to(self.model.parameters())

    def fit(self, epochs):
        self.on_fit_start()
        x, y = self.data
        for epoch in range(epochs):
            self.ema.restore(self.model.parameters())
            for batch in range(8):
                pick = slice(batch * 16, batch * 16 + 16)
                loss = F.mse_loss(self.model(x[pick]), y[pick])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.ema.update(self.model.parameters())
            self.ema.store(self.model.parameters())
            self.ema.copy_to(self.model.parameters())
            with torch.no_grad():
                val = F.mse_loss(self.model(x), y)
            print(epoch, "train", loss.item(), "val", val.item())
            self.checkpoint = copy.deepcopy({
                "state_dict": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                "ema": self.ema.state_dict()})

    def load(self, checkpoint):
        self.model.load_state_dict(checkpoint["state_dict"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.to_load = checkpoint["ema"]


x = torch.randn(128, 8)
data = x, (x[:, :3].sum(1, keepdim=True)).sin()
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
first = Trainer(model, data)
first.fit(5)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
resumed = Trainer(model, data)
resumed.load(first.checkpoint)
resumed.fit(5)
