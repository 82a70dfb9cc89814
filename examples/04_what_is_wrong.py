"""Find why two layers do not learn, and why a backward fails."""

from contextlib import suppress

import torch
from torch import nn

from graphviz_torch import find, record


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 16)
        self.head = nn.Linear(16, 2)
        self.spare = nn.Linear(16, 2)

    def forward(self, x):
        features = torch.relu(self.encoder(x))
        features = features.detach()
        return self.head(features)


model = Net()
with record(model) as recording:
    loss = model(torch.randn(64, 4)).square().mean()
    loss.backward()

findings = find(recording.graph)
for finding in findings:
    print(f"{finding.severity}: {finding.message}\n    {finding.advice}")

cut, never = sorted(findings, key=lambda finding: finding.rule)[:2]
assert never.message == "spare.weight and spare.bias got no gradient: spare was never called."
assert cut.message.startswith(
    "encoder.weight and encoder.bias got no gradient: features was cut by detach() at "
)
assert cut.where == "04_what_is_wrong.py:20", cut.where

# A model without detach(), in which all layers are used, has no findings.
healthy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
with record(healthy) as recording:
    healthy(torch.randn(64, 4)).square().mean().backward()
assert find(recording.graph) == []


# If backward fails, the finding names the line that caused it, and the program's own names.
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        gate = torch.sigmoid(x)
        y = self.inner(gate)
        gate += 1  # backward needs the earlier values of gate
        return y * gate


model = Gate()
with suppress(RuntimeError), record(model) as recording:  # the recording does not catch the error
    model(torch.randn(8, 4)).sum().backward()

(changed,) = find(recording.graph)
print(f"{changed.severity}: {changed.message}\n    {changed.advice}")
assert changed.where == "04_what_is_wrong.py:56", changed.where
assert changed.message.endswith(
    "addmm in inner at 04_what_is_wrong.py:55 needs the original values of a tensor (f32[8, 4] "
    "cpu), but add_ at 04_what_is_wrong.py:56 (gate += 1) changed it in place."
)
