"""A model with several tasks, each of which has one or more losses."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class HitFilterTask(nn.Module):
    name = "hit_filter"

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Linear(dim, 1)

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def loss(self, outputs, targets):
        return {"hit_bce": F.binary_cross_entropy_with_logits(outputs, targets["hit_valid"])}


class ObjectHitMaskTask(nn.Module):
    name = "track_hit_mask"

    def __init__(self, dim, tracks=3):
        super().__init__()
        self.net = nn.Linear(dim, tracks)

    def forward(self, x):
        return self.net(x)

    def loss(self, outputs, targets):
        probs, mask = outputs.sigmoid(), targets["mask"]
        dice = 1 - (2 * (probs * mask).sum(1) + 1) / (probs.sum(1) + mask.sum(1) + 1)
        return {"mask_bce": F.binary_cross_entropy_with_logits(outputs, mask), "mask_dice": dice.mean()}


class RegressionTask(nn.Module):
    name = "track_regr"

    def __init__(self, dim):
        super().__init__()
        self.pt = nn.Linear(dim, 1)
        self.eta = nn.Linear(dim, 1)

    def forward(self, x):
        pooled = x.mean(1)
        return {"pt": self.pt(pooled).squeeze(-1), "eta": self.eta(pooled).squeeze(-1)}

    def loss(self, outputs, targets):
        return {f"{field}_smooth_l1": F.smooth_l1_loss(outputs[field], targets[field]) for field in ("pt", "eta")}


class MaskFormer(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.tasks = nn.ModuleList([HitFilterTask(dim), ObjectHitMaskTask(dim), RegressionTask(dim)])

    def forward(self, hits):
        x = self.encoder(hits)
        return {"final": {task.name: task(x) for task in self.tasks}}

    def loss(self, outputs, targets):
        return {layer: {task.name: task.loss(out[task.name], targets) for task in self.tasks} for layer, out in outputs.items()}


class ModelWrapper:
    def __init__(self, model):
        self.model = model
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = value.item()

    def log_losses(self, losses, stage):
        total_loss = 0
        for layer_name, layer_losses in losses.items():
            for task_name, task_losses in layer_losses.items():
                for loss_name, loss_value in task_losses.items():
                    self.log(f"{stage}/{layer_name}_{task_name}_{loss_name}", loss_value)
                total_loss += loss_value
        self.log(f"{stage}/loss", total_loss)
        return total_loss


hits = torch.randn(48, 10, 4)
targets = {
    "hit_valid": (hits[..., 0] > 0).float(),
    "mask": F.one_hot(hits[..., 1:].argmax(-1), 3).float(),
    "pt": 3 * hits[..., 0].mean(1) + 2,
    "eta": 3 * hits[..., 3].mean(1),
}
wrapper = ModelWrapper(MaskFormer())
optimizer = torch.optim.AdamW(wrapper.model.parameters(), lr=1e-2)
for step in range(30):
    outputs = wrapper.model(hits)
    total_loss = wrapper.log_losses(wrapper.model.loss(outputs, targets), "train")
    optimizer.zero_grad()
    total_loss.backward()
    optimizer.step()
for name, value in wrapper.logged.items():
    print(f"{name}: {value:.4f}")
