"""Read from the graph how nn.DataParallel divides 100 samples in batches of 30.

The script runs on simulated devices and needs no GPU.
"""

import torch

from graphviz_torch import record, simulate_accelerator, trace
from graphviz_torch.devices import batch_division

table = {}
for count in (2, 3, 8):
    with simulate_accelerator(count) as devices:
        model = torch.nn.DataParallel(torch.nn.Linear(5, 2).to(devices[0]), device_ids=devices)
        for batch in torch.randn(100, 5).split(30):
            graph = trace(model(batch.to(devices[0])), names=model)
            table[count, len(batch)] = [size for _, size in batch_division(graph)]

for (count, size), parts in table.items():
    print(f"{size} samples on {count} devices: {parts}")
assert table == {
    (2, 30): [15, 15],
    (2, 10): [5, 5],
    (3, 30): [10, 10, 10],
    (3, 10): [4, 4, 2],
    (8, 30): [4, 4, 4, 4, 4, 4, 4, 2],
    (8, 10): [2, 2, 2, 2, 2],
}

# One step copies the parts of the batch, the parameters and the outputs. Backward copies the
# gradients of all of these.
with simulate_accelerator(3) as devices:
    model = torch.nn.DataParallel(torch.nn.Linear(5, 2).to(devices[0]), device_ids=devices)
    batch = torch.randn(9, 5).to(devices[0])
    with record(model) as recording:
        model(batch).sum().backward()
graph = recording.graph
assert {"BroadcastBackward", "GatherBackward"} <= {node.name for node in graph.nodes}
for transfer in graph.transfers:
    print(transfer.phase, transfer.kind, transfer.source, "->", transfer.target, transfer.nbytes)
forward = [t for t in graph.transfers if t.phase == "forward" and t.target != "sim:0"]
assert sum(t.nbytes for t in forward) == 2 * 4 * (3 * 5 + 2 * 5 + 2)  # part, weight, bias: twice
