"""FixMatch with mixed precision and gradient clipping."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def consistency_loss(logits_s, logits_w, p_cutoff=0.6):
    pseudo = logits_w.detach().softmax(-1)
    max_probs, max_idx = pseudo.max(-1)
    mask = max_probs.ge(p_cutoff).float()
    return (F.cross_entropy(logits_s, max_idx, reduction="none") * mask).mean(), mask.mean()


class FixMatch:
    def __init__(self, model, clip=1.0, lambda_u=1.0):
        self.model, self.clip, self.lambda_u = model, clip, lambda_u
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 200)

    def train(self, labelled, unlabelled, steps=40):
        scaler = torch.amp.GradScaler("cpu")
        for it in range(steps):
            x_lb, y_lb = labelled()
            x_ulb = unlabelled()
            x_ulb_w = x_ulb + 0.05 * torch.randn_like(x_ulb)
            x_ulb_s = x_ulb + 0.5 * torch.randn_like(x_ulb)
            num_lb = x_lb.shape[0]
            inputs = torch.cat((x_lb, x_ulb_w, x_ulb_s))

            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(inputs).float()
                logits_x_lb = logits[:num_lb]
                logits_x_ulb_w, logits_x_ulb_s = logits[num_lb:].chunk(2)
                sup_loss = F.cross_entropy(logits_x_lb, y_lb)
                unsup_loss, mask = consistency_loss(logits_x_ulb_s, logits_x_ulb_w)
                total_loss = sup_loss + self.lambda_u * unsup_loss

            scaler.scale(total_loss).backward()
            if self.clip > 0:
                scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            scaler.step(self.optimizer)
            scaler.update()
            self.scheduler.step()
            self.model.zero_grad()
            if it % 5 == 0:
                print(it, "sup", sup_loss.item(), "unsup", unsup_loss.item(), mask.item())


centers = torch.randn(4, 10) * 1.5


def labelled():
    y = torch.randint(0, 4, (16,))
    return centers[y] + 0.4 * torch.randn(16, 10), y


def unlabelled():
    y = torch.randint(0, 4, (64,))
    return centers[y] + 0.4 * torch.randn(64, 10)


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
FixMatch(model).train(labelled, unlabelled)
