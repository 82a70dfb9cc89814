"""CLIP with a SimCLR loss between two augmentations of each image."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        layers = nn.Linear(3 * 64, 64), nn.ReLU(), nn.Linear(64, size)
        self.image = nn.Sequential(nn.Flatten(), *layers)
        self.text = nn.EmbeddingBag(50, size)
        self.ssl_head = nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, size))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, view1, view2, text):
        image = self.image(torch.cat([view1, view2]))
        return {"image": image, "ssl": self.ssl_head(image), "text": self.text(text)}


def simclr(a, b, temperature=0.1):
    a, b, n = F.normalize(a, dim=-1), F.normalize(b, dim=-1), len(a)
    labels, mask = torch.arange(n), torch.eye(n) * 1e9
    ab, aa, bb = a @ b.T / temperature, a @ a.T / temperature, b @ b.T / temperature
    loss_a = F.cross_entropy(torch.cat([ab, aa - mask], 1), labels)
    loss_b = F.cross_entropy(torch.cat([ab.T, bb - mask], 1), labels)
    return (loss_a + loss_b) / 2


def clip(image, text, scale):
    image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
    logits, labels = scale.exp() * image @ text.T, torch.arange(len(text))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(5):
    images, text = torch.rand(16, 3, 8, 8), torch.randint(50, (16, 6))
    view1 = images + 0.1 * torch.randn_like(images)
    view2 = images.flip(-1) + 0.1 * torch.randn_like(images)
    out, n = model(view1, view2, text), len(text)
    embed1 = out["ssl"][:n]
    embed2 = out["ssl"][n:]
    ssl_loss = simclr(embed1, embed2)
    clip_loss = clip(out["image"][:n], out["text"], model.logit_scale)
    clip_loss = clip_loss + clip(out["image"][n:], out["text"], model.logit_scale)
    loss = 0.5 * clip_loss + ssl_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "ssl", ssl_loss.item())
