"""Few-shot segmentation that weighs the shots by a small learned layer."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
SHOTS = 5


class FewShot(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down_query = nn.Conv2d(3, width, 3, padding=1)
        self.down_supp = nn.Conv2d(3, width, 3, padding=1)
        self.query_merge = nn.Conv2d(2 * width, width, 1)
        self.gram_merge = nn.Conv2d(2, 1, 1)
        self.kshot_rw = nn.Sequential(nn.Conv2d(SHOTS, 2, 1), nn.ReLU(), nn.Conv2d(2, SHOTS, 1))
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, query, support, mask):
        batch = len(query)
        features = F.relu(self.down_query(query))
        supported = F.relu(self.down_supp(support.flatten(0, 1))).view(
            batch, SHOTS, -1, *query.shape[2:]
        )
        prototypes = (supported * mask).sum((3, 4)) / mask.sum((3, 4)).clamp(min=1)
        estimates = (prototypes - features.mean((2, 3))[:, None]).norm(dim=2)[..., None, None]
        weights = self.kshot_rw(estimates).softmax(1)
        prototype = (weights[..., 0] * prototypes).sum(1)[..., None, None].expand_as(features)
        merged = F.relu(self.query_merge(torch.cat([features, prototype], 1)))
        estimate = (weights * estimates).sum(1, True).expand(-1, 1, *query.shape[2:])
        return self.gram_merge(torch.cat([self.out(merged), estimate], 1))

    def get_optim(self, lr):
        return torch.optim.AdamW(
            [
                {"params": self.down_supp.parameters(), "lr": lr * 10},
                {"params": self.down_query.parameters(), "lr": lr * 10},
                {"params": self.query_merge.parameters(), "lr": lr * 10},
                {"params": self.gram_merge.parameters(), "lr": lr * 10},
                {"params": self.kshot_rw.parameters(), "lr": lr * 10},
                {"params": self.out.parameters(), "lr": lr * 10},
            ],
            lr=lr,
        )


model = FewShot()
optimizer = model.get_optim(1e-3)
start = model.kshot_rw[0].weight.detach().clone()
for step in range(8):
    colour = torch.rand(8, 1, 3, 1, 1)
    mask = (torch.rand(8, SHOTS, 1, 10, 10) < 0.3).float()
    support = colour * mask + 0.3 * torch.randn(8, SHOTS, 3, 10, 10)
    truth = (torch.rand(8, 1, 10, 10) < 0.3).float()
    query = colour[:, 0] * truth + 0.1 * torch.randn(8, 3, 10, 10)
    loss = F.binary_cross_entropy_with_logits(model(query, support, mask), truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    moved = (model.kshot_rw[0].weight - start).abs().max().item()
    print(step, loss.item(), "kshot_rw moved by", moved)
