"""Record some steps of a training loop, and log their findings, with one line before the loop."""

import torch

from graphviz_torch.integrations.training import record_steps

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.1)  # the first layer is missing
steps = record_steps(model, every=2, folder="graphs")
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
steps.remove()

print([finding.message for finding in steps.findings])
assert steps.recorded == 2
assert {finding.rule for finding in steps.findings} == {"not-in-optimizer"}
