"""expects: nothing. A GAN with two optimizers; the first loss uses detached samples."""

import torch
from bits import DEVICE, done
from torch import nn

maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16)).to(DEVICE)
judge = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(DEVICE)
makes = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
loss_of = nn.BCEWithLogitsLoss()
one, zero = torch.ones(32, 1, device=DEVICE), torch.zeros(32, 1, device=DEVICE)
losses = []
for _ in range(5):
    real = torch.randn(32, 16, device=DEVICE)
    made = maker(torch.randn(32, 8, device=DEVICE))
    judges.zero_grad()
    of_judge = loss_of(judge(real), one) + loss_of(judge(made.detach()), zero)
    of_judge.backward()
    judges.step()
    makes.zero_grad()
    of_maker = loss_of(judge(made), one)
    of_maker.backward()
    makes.step()
    losses += [of_judge.detach(), of_maker.detach()]
done(losses, nn.ModuleList([maker, judge]))
