"""Train a small UNet 3+ to segment discs."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

torch.manual_seed(0)


class ConvBlock(nn.Sequential):
    def __init__(self, in_size, out_size):
        super().__init__(nn.Conv2d(in_size, out_size, 3, padding=1), nn.BatchNorm2d(out_size), nn.ReLU())


class UNet3Plus(nn.Module):
    def __init__(self, n_channels=3, n_classes=1, filters=(8, 16)):
        super().__init__()
        self.n_channels = n_channels
        self.n_classes = n_classes
        self.conv1 = ConvBlock(n_channels, filters[0])
        self.conv2 = ConvBlock(filters[0], filters[1])
        self.h1_Cat_hd1_conv = ConvBlock(filters[0], filters[0])
        self.hd2_UT_hd1_conv = ConvBlock(filters[1], filters[0])
        self.conv1d_1 = ConvBlock(2 * filters[0], filters[0])
        self.outconv1 = nn.Conv2d(filters[0], n_classes, 3, padding=1)

    def forward(self, inputs):
        h1 = self.conv1(inputs)
        h2 = self.conv2(F.max_pool2d(h1, 2))
        h1_Cat_hd1 = self.h1_Cat_hd1_conv(h1)
        hd2_UT_hd1 = self.hd2_UT_hd1_conv(F.interpolate(h2, scale_factor=2, mode="bilinear"))
        hd1 = self.conv1d_1(torch.cat((h1_Cat_hd1, hd2_UT_hd1), 1))
        d1 = self.outconv1(hd1)
        return d1


class BasicDataset(torch.utils.data.Dataset):
    def __init__(self, n=64, size=24):
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        self.items = []
        for _ in range(n):
            cy, cx = torch.randint(4, size - 4, (2,))
            mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < 10).float()[None]
            image = 0.7 * mask + 0.4 * torch.randn(3, size, size)
            self.items.append({"image": image, "mask": mask})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def train_net(net, epochs=4, batch_size=8, lr=3e-3):
    train_loader = torch.utils.data.DataLoader(BasicDataset(), batch_size=batch_size, shuffle=True)
    optimizer = optim.RMSprop(net.parameters(), lr=lr, weight_decay=1e-8)
    if net.n_classes > 1:
        criterion = nn.CrossEntropyLoss()
    else:
        criterion = nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        net.train()
        epoch_loss = 0
        for batch in train_loader:
            imgs = batch["image"]
            true_masks = batch["mask"]
            masks_pred = net(imgs)
            loss = criterion(masks_pred, true_masks)
            epoch_loss += loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"Epoch {epoch + 1}: loss {epoch_loss / len(train_loader):.4f}")


net = UNet3Plus(n_channels=3, n_classes=1)
train_net(net)
