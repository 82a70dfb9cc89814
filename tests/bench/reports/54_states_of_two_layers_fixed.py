"""Truncated backpropagation through time of a stack of spiking layers."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LeakyLayer(nn.Module):
    def __init__(self, inputs, outputs, decay=0.8):
        super().__init__()
        self.linear, self.recurrent = nn.Linear(inputs, outputs), nn.Linear(outputs, outputs)
        self.decay = decay

    def forward(self, x, voltage):
        current = self.linear(x) + self.recurrent(torch.tanh(voltage))
        return self.decay * voltage + (1 - self.decay) * current


class Network(nn.Module):
    def __init__(self, sizes=(4, 24, 24)):
        super().__init__()
        self.layers = nn.ModuleList(LeakyLayer(a, b) for a, b in itertools.pairwise(sizes))
        self.readout = nn.Linear(sizes[-1], 1)

    def begin(self, batch):
        return [torch.zeros(batch, layer.linear.out_features) for layer in self.layers]

    def forward(self, x, states):
        after = []
        for layer, state in zip(self.layers, states, strict=False):
            state = layer(x, state)
            after.append(state)
            x = torch.tanh(state)
        return self.readout(x), after


network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
signal = torch.randn(128, 16, 4)
target = 0.5 * (signal[..., 0] + signal[..., 1].roll(1, 0))
states = network.begin(16)
for window in range(16):
    losses = []
    for t in range(window * 8, window * 8 + 8):
        output, states = network(signal[t], states)
        losses.append(F.mse_loss(output[:, 0], target[t]))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    states = [state.detach() for state in states]
    print(window, loss.item())
