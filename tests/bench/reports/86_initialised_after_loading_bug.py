"""Train a segmentation head on a frozen pretrained backbone."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class BaseModule(nn.Module):
    """A module that initialises itself and its children once."""

    def __init__(self):
        super().__init__()
        self._is_init = False

    def init_weights(self):
        if self._is_init:
            return
        for module in self.children():
            if isinstance(module, BaseModule):
                module.init_weights()
            elif isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        self._is_init = True


class VisionBackbone(BaseModule):
    def __init__(self, checkpoint=None, dim=24):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 3, padding=1)
        self.mix = nn.Conv2d(dim, dim, 3, padding=1)
        if checkpoint is not None:
            self.load_state_dict(checkpoint)
            self.requires_grad_(False)

    def forward(self, x):
        return F.relu(self.mix(F.relu(self.stem(x))))


class DecodeHead(BaseModule):
    def __init__(self, dim=24, classes=3):
        super().__init__()
        self.conv_seg = nn.Conv2d(dim, classes, 1)

    def forward(self, x):
        return self.conv_seg(x)


class Segmentor(BaseModule):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.decode_head = DecodeHead()

    def forward(self, x):
        return self.decode_head(self.backbone(x))


class Runner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def train(self, steps):
        model = self.model
        model.init_weights()
        for step in range(steps):
            images, masks = batch(8)
            loss = F.cross_entropy(model(images), masks)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 20 == 19:
                print(step, "loss", loss.item())


def batch(count, size=12):
    images = 0.5 * torch.randn(count, 3, size, size)
    masks = torch.zeros(count, size, size, dtype=torch.long)
    for i in range(count):
        top, left, kind = *torch.randint(size - 5, (2,)).tolist(), int(torch.randint(2, ()))
        area = (slice(top, top + 5), slice(left, left + 5))
        images[(i, kind) + area] += 1.0
        masks[(i,) + area] = 1 + kind
    return images, masks


# the checkpoint of a backbone that was trained before
teacher = nn.ModuleDict({"backbone": VisionBackbone(), "head": nn.Conv2d(24, 3, 1)})
pretraining = torch.optim.Adam(teacher.parameters(), lr=5e-3)
for _ in range(60):
    images, masks = batch(16)
    loss = F.cross_entropy(teacher["head"](teacher["backbone"](images)), masks)
    pretraining.zero_grad()
    loss.backward()
    pretraining.step()
print("pretrained", loss.item())

segmentor = Segmentor(VisionBackbone(checkpoint=teacher["backbone"].state_dict()))
head_optimizer = torch.optim.AdamW(segmentor.decode_head.parameters(), lr=1e-2)
Runner(segmentor, head_optimizer).train(80)
