"""Write a training run to TensorBoard: graphs, gradients and copies of some steps.

Afterwards, start TensorBoard with `tensorboard --logdir runs`.
"""

from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from graphviz_torch import record, simulate_accelerator, to_tensorboard
from graphviz_torch.tensorboard import add_autograd_graph, add_gradients, add_transfers

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = torch.randn(32, 8)

with SummaryWriter("runs/train") as writer, simulate_accelerator() as (device,):
    model.to(device)
    for step in range(30):
        if step % 10:
            loss = (model(data.to(device)) - 1).square().mean()
            loss.backward()
        else:
            with record(model) as recording:
                loss = (model(data.to(device)) - 1).square().mean()
                loss.backward()
            # The tab Graphs shows modules as scopes, shapes on edges, and colors by device or time.
            to_tensorboard(recording.graph, writer, tag="step", step=step, backward=True)
            # Histograms shows the gradient by depth as a ridge plot, Scalars each layer's norm.
            add_gradients(recording, writer, step=step)
            # Text shows the copies between devices.
            add_transfers(recording, writer, step=step)
        optimizer.step()
        optimizer.zero_grad()
    # This graph is not recorded: it contains only what autograd itself stores.
    add_autograd_graph(model(data.to(device)).sum(), writer, tag="traced")

events = EventAccumulator("runs/train").Reload()
assert {"step", "traced", "transfers", "gradient norm by depth"} <= set(events.Tags()["tensors"])
assert [event.step for event in events.Tensors("transfers")] == [0, 10, 20]

# The gradient becomes smaller towards the first layer, as the ridge plot shows.
norms = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
assert norms["gradient norm/0.0"] < norms["gradient norm/5.0"] / 100
print(f"In {Path('runs').absolute()}:", *sorted(events.Tags()["tensors"]), sep="\n  ")
