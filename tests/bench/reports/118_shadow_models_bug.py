"""Train an attack model on the features of a population of points."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
np.random.seed(0)


class InputHandler:
    def __init__(self, population, dataloader_params):
        self.population = population
        self.dataloader_params = dataloader_params

    def get_dataset(self, dataset_indices):
        return Subset(self.population, dataset_indices)

    def get_dataloader(self, dataset_indices, batch_size=None, shuffle=None):
        dataset = self.get_dataset(dataset_indices)
        dataloader_params = self.dataloader_params.copy()
        if batch_size is not None:
            dataloader_params["batch_size"] = batch_size
        if shuffle is not None:
            dataloader_params["shuffle"] = shuffle
        return DataLoader(dataset=dataset, **dataloader_params)

    def get_labels(self, dataset_indices):
        dataloader = self.get_dataloader(dataset_indices)
        all_labels = []
        for _, labels in dataloader:
            all_labels.append(labels.numpy())
        return np.concatenate(all_labels)


class TargetModel(nn.Module):
    def __init__(self, features=20, classes=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x):
        return self.net(x)


def get_signals(model, handler, indices):
    model.eval()
    with torch.no_grad():
        return torch.cat([model(x) for x, _ in handler.get_dataloader(indices, batch_size=64, shuffle=False)])


classes = 4
centers = torch.randn(classes, 20)
labels = torch.randint(0, classes, (600,))
population = TensorDataset(0.7 * centers[labels] + torch.randn(600, 20), labels)
handler = InputHandler(population, {"batch_size": 64, "shuffle": True})

target = TargetModel()
optimizer = torch.optim.Adam(target.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
for epoch in range(6):
    target.train()
    for x, y in handler.get_dataloader(np.arange(300)):
        loss = criterion(target(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"target model: loss {loss.item():.4f}")

audit_indices = np.random.permutation(600)[:400]
signals = get_signals(target, handler, audit_indices)
audit_labels = torch.from_numpy(handler.get_labels(audit_indices))
attack = nn.Sequential(nn.Linear(classes, 32), nn.ReLU(), nn.Linear(32, classes))
attack_optimizer = torch.optim.Adam(attack.parameters(), lr=1e-2)
for step in range(30):
    loss = criterion(attack(signals), audit_labels)
    attack_optimizer.zero_grad()
    loss.backward()
    attack_optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.4f}")
confidence = signals.softmax(1).gather(1, audit_labels[:, None]).mean().item()
print(f"mean confidence of the target model in the labels: {confidence:.3f}")
