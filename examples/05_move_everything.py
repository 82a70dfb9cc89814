"""Copy all tensors and modules of a program to a device, and print the copies.

The script uses a GPU if there is one, otherwise a simulated GPU.
"""

from contextlib import nullcontext

import torch

from graphviz_torch import record, simulate_accelerator, to_device

gpu = torch.cuda.is_available()
with nullcontext([torch.device("cuda", 0)]) if gpu else simulate_accelerator() as [device]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.arange(12.0).reshape(4, 3)
    batches = {"train": data[:3], "test": data[3:]}  # two views of one tensor
    note = "a string"

    with record(model) as recording:
        globals().update(to_device(globals(), device, report=print))
        loss = model(batches["train"]).square().mean()
        loss.backward()
        optimizer.step()

    assert {model.weight.device, data.device, batches["test"].device, loss.device} == {device}
    data[3] = 0
    assert batches["test"].sum() == 0  # still a view of data
    assert note == "a string"

    # One copy moved `data` with its views, and one copy moved each of the two parameters.
    copies = [transfer for transfer in recording.graph.transfers if transfer.kind == "HtoD"]
    assert sorted(copy.nbytes for copy in copies) == [2 * 4, 6 * 4, 12 * 4]
    for copy in copies:
        print(copy.label, copy.tensor, copy.where)
    assert copies[-1].label == "data"
