"""ReLU linear attention over image tokens in mixed precision."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LiteAttention(nn.Module):
    def __init__(self, width, dim=8, eps=1e-5):
        super().__init__()
        self.qkv = nn.Conv2d(width, 3 * dim, 1, bias=False)
        self.proj = nn.Conv2d(dim, width, 1)
        self.dim, self.eps = dim, eps

    def forward(self, x):
        b, _, h, w = x.shape
        qkv = self.qkv(x).flatten(2)
        qkv = qkv.float()
        with torch.autocast("cpu", enabled=False):
            q, k, v = qkv.chunk(3, dim=1)
            q, k = q.relu(), k.relu()
            v = F.pad(v, (0, 0, 0, 1), value=1.0)
            vk = v @ k.mT
            out = vk @ q
            out = out[:, :-1] / (out[:, -1:] + self.eps)
        return x + self.proj(out.view(b, self.dim, h, w))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.attention = LiteAttention(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.attention(self.stem(x).relu()).mean((2, 3)))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(4):
    images, labels = torch.randn(4, 3, 32, 32) * 30, torch.randint(4, (4,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item(), "scale", scaler.get_scale())
