"""Train a small classifier with 4-bit weights."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
quantized_layers = []


def quantize_tensor(tensor, bitwidth):
    scale = (2 ** (bitwidth - 1) - 1) / tensor.abs().max()
    return torch.round(tensor * scale), scale


def init_quantize_net(net):
    for name, m in net.named_modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            quantized_layers.append(m)


def quantize_layers(bitwidth):
    with torch.no_grad():
        for layer in quantized_layers:
            quantized_w, scale_w = quantize_tensor(layer.weight, bitwidth)
            layer.weight[...] = quantized_w / scale_w


def step_weights(optimizer):
    optimizer.step()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 16, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        x = F.avg_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


images = torch.randn(128, 1, 8, 8)
labels = images.view(128, 1, 2, 4, 2, 4).mean((3, 5)).flatten(1).argmax(1)
model = Net()
init_quantize_net(model)
quantize_layers(4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(150):
    pick = torch.randperm(128)[:64]
    loss = F.cross_entropy(model(images[pick]), labels[pick])
    optimizer.zero_grad()
    loss.backward()
    step_weights(optimizer)
    quantize_layers(4)
    if step % 25 == 0:
        print(step, loss.item())
