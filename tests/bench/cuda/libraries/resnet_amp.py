"""expects: nothing. ResNet-18, channels_last, fp16 and GradScaler, a pinned loader."""

import torch
import torch.nn.functional as F
from bits import DEVICE, done
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

if __name__ == "__main__":
    model = resnet18(num_classes=10).to(DEVICE, memory_format=torch.channels_last)
    data = TensorDataset(torch.randn(128, 3, 64, 64), torch.randint(10, (128,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, pin_memory=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    scaler = torch.amp.GradScaler(DEVICE)
    losses = []
    for images, labels in loader:
        images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.float16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.detach())
    done(losses, model)
