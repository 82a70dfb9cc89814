"""Imitation learning on a mixture of datasets sampled anew in each epoch."""

import hashlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class MixtureDataset(Dataset):
    def __init__(self, lengths=(300, 100, 50), size=16, seed=0):
        generator = torch.Generator().manual_seed(1)
        self.data = [torch.randn(n, 8, generator=generator) for n in lengths]
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        key = f"{self.epoch}-{index}-{self.seed}".encode()
        number = int(hashlib.sha256(key).hexdigest()[:12], 16)
        part = self.data[number % len(self.data)]
        row = (number // 7) % len(part)
        return part[row, :6], part[row, 6:]


def main():
    dataset = MixtureDataset()
    loader = DataLoader(dataset, batch_size=8, num_workers=1, persistent_workers=True)
    policy = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    seen = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for states, actions in loader:
            seen.append(states)
            loss = F.smooth_l1_loss(policy(states), actions)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item(), states.sum().item())
    return seen


if __name__ == "__main__":
    seen = main()
