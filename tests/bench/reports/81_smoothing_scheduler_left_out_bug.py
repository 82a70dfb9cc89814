"""Train a target classifier with a schedule for the label smoothing."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LabelSmoothingLoss(nn.Module):
    def __init__(self, label_smoothing=0.0):
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits, labels):
        smooth = self.label_smoothing
        log_probs = F.log_softmax(logits, dim=1)
        nll = -log_probs.gather(1, labels[:, None]).squeeze(1)
        return ((1 - smooth) * nll - smooth * log_probs.mean(1)).mean()


class LabelSmoothingScheduler:
    """Raise the smoothing linearly to its final value between two epochs."""

    def __init__(self, criterion, final, start_epoch, end_epoch):
        self.criterion, self.final = criterion, final
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.epoch = 0

    def step(self):
        self.epoch += 1
        progress = (self.epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        self.criterion.label_smoothing = self.final * min(max(progress, 0.0), 1.0)


def fit(model, criterion, optimizer, lr_scheduler, ls_scheduler, epochs=12):
    for epoch in range(epochs):
        order = torch.randperm(len(inputs))
        for batch in order.split(64):
            logits = model(inputs[batch])
            loss = criterion(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        lr_scheduler.step()
        if epoch % 3 == 2:
            with torch.no_grad():
                confidence = model(inputs).softmax(1).max(1).values.mean().item()
            print(epoch, "loss", loss.item(), "confidence", confidence, "smoothing", criterion.label_smoothing)


centres = torch.randn(8, 20)
labels = torch.randint(8, (768,))
inputs = centres[labels] + 0.7 * torch.randn(768, 20)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8))
criterion = LabelSmoothingLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 10], gamma=0.3)
ls_scheduler = LabelSmoothingScheduler(criterion, final=0.2, start_epoch=2, end_epoch=6)
fit(model, criterion, optimizer, lr_scheduler, ls_scheduler)
