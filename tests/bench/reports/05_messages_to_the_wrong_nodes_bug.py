"""A message-passing potential: the energy of small random structures."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Interaction(nn.Module):
    def __init__(self, size, radial=8):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0, 3, radial))
        self.filter = nn.Linear(radial, size)
        self.update = nn.Sequential(nn.Linear(2 * size, size), nn.SiLU())

    def aggregate(self, messages, index, num_nodes):
        out = messages.new_zeros(num_nodes, messages.shape[1])
        return out.index_add(0, index, messages)

    def forward(self, x, edge_index, distance):
        basis = (-((distance[:, None] - self.centers) ** 2)).exp()
        messages = x[edge_index[0]] * self.filter(basis)
        received = self.aggregate(messages, edge_index[0], x.shape[0])
        return x + self.update(torch.cat([x, received], 1))


class Potential(nn.Module):
    def __init__(self, elements=4, size=16):
        super().__init__()
        self.embed = nn.Embedding(elements, size)
        self.layers = nn.ModuleList(Interaction(size) for _ in range(2))
        self.energy = nn.Linear(size, 1)

    def forward(self, species, edge_index, distance):
        x = self.embed(species)
        for layer in self.layers:
            x = layer(x, edge_index, distance)
        return self.energy(x).sum()


model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    species, position = torch.randint(4, (12,)), torch.rand(12, 3) * 3
    distances = torch.cdist(position, position)
    edge_index = ((distances < 1.5) & (distances > 0)).nonzero().T
    target = (species.float() * position[:, 0]).sum() / 10
    energy = model(species, edge_index, distances[edge_index[0], edge_index[1]])
    loss = F.huber_loss(energy, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
