"""expects: nothing. timm's ViT with mixup, averaged weights, and timm's gradient clipping."""

import timm
import torch
from bits import DEVICE, done
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3

model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=10)
model.to(DEVICE)
average = ModelEmaV3(model, decay=0.9)
mix = Mixup(mixup_alpha=0.2, num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
losses = []
for _ in range(4):
    x = torch.randn(8, 3, 32, 32, device=DEVICE)
    y = torch.randint(10, (8,), device=DEVICE)
    x, target = mix(x, y)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = SoftTargetCrossEntropy()(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
    optimizer.step()
    average.update(model)
    losses.append(loss.detach())
done(losses, model)
