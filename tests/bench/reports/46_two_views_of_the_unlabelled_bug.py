"""Semi-supervised classification: two views of the unlabelled images must agree."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, size=20, hidden=48, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.classifier = nn.Linear(hidden, classes)
        self.auxiliary = nn.Linear(hidden, classes)

    def forward(self, x):
        features = self.body(x)
        return self.classifier(features), features


def strong(x):
    return x + 2.0 * torch.randn_like(x) * (torch.rand_like(x) < 0.5)


def weak(x):
    return x + 0.1 * torch.randn_like(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
teacher = torch.randn(20, 4)
labelled = torch.randn(32, 20)
labels = (labelled @ teacher).argmax(1)
unlabelled = torch.randn(256, 20)
for step in range(40):
    logits_l, feat_l = net(weak(labelled))
    loss_l = F.cross_entropy(logits_l, labels) + F.cross_entropy(net.auxiliary(feat_l), labels)
    batch = unlabelled[torch.randint(256, (64,))]
    logits_u1, feat_u1 = net(weak(batch))
    logits_u2, feat_u2 = net(strong(batch))
    pseudo = logits_u1.detach().softmax(1)
    loss_u = F.cross_entropy(net.auxiliary(feat_u1), pseudo)
    loss = loss_l + loss_u
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        truth = (unlabelled @ teacher).argmax(1)
        apart = F.cross_entropy(net.auxiliary(net(strong(unlabelled))[1]), truth)
    if step % 8 == 7:
        print(step, loss.item(), "loss of the strong view", apart.item())
