"""Train a model of which each half is on its own device, with a copy between the halves."""

import torch

from graphviz_torch import draw_graph, record, simulate_accelerator


class Pipeline(torch.nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.encoder = torch.nn.Linear(4, 8).to(first)
        self.decoder = torch.nn.Linear(8, 2).to(second)

    def forward(self, x):
        x = self.encoder(x.to(self.first)).relu()
        return self.decoder(x.to(self.second))


with simulate_accelerator(2) as devices:
    model = Pipeline(*devices)
    with record(model) as recording:
        model(torch.randn(3, 4)).square().mean().backward()

    # For the copy in forward, backward copies as many bytes in the opposite direction.
    between = [t for t in recording.graph.transfers if t.kind == "DtoD"]
    for transfer in between:
        print(transfer.phase, transfer.source, "->", transfer.target, transfer.nbytes, "bytes")
    assert [(t.phase, t.source, t.target, t.nbytes) for t in between] == [
        ("forward", "sim:0", "sim:1", 3 * 8 * 4),
        ("backward", "sim:1", "sim:0", 3 * 8 * 4),
    ]

    # Without the second `.to`, the call fails with the same error as on two GPUs.
    try:
        model.decoder(model.encoder(torch.randn(3, 4).to(devices[0])))
        message = "it runs"
    except RuntimeError as error:
        message = str(error)
    print(message)
    assert "same device, but found at least two devices, sim:1 and sim:0" in message

draw_graph(recording.graph).render("pipeline", format="svg")
