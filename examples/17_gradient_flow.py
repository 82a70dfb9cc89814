"""Draw the gradient flow of a step with a mistake, and of the step without it.

The script writes `gradient_flow.svg` to the current folder.
"""

import torch
from torch import Tensor, nn

from graphviz_torch import Recording, draw_flow, record


class Net(nn.Module):
    """Six blocks with skip connections. `cut=True` adds the mistake: a detach() between blocks."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.embed = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).relu()
        for number, block in enumerate(self.blocks):
            if self.cut and number == 3:
                x = x.detach()
            x = x + block(x).relu()
        return self.head(x)


def step(cut: bool) -> tuple[Net, Recording]:
    """Record a training step; return the model and the recording."""
    torch.manual_seed(0)
    model = Net(cut)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record(model) as recording:
        loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.arange(8) % 4)
        loss.backward()
        optimizer.step()
    return model, recording


if __name__ == "__main__":
    wrong, before = step(cut=True)
    right, after = step(cut=False)
    draw_flow(before, after).render("gradient_flow.svg")

    starving = [name for name, p in wrong.named_parameters() if p.grad is None]
    assert len(starving) == 8  # those of the first layer and of three blocks
    assert "8 of 16 parameters learn nothing: 17_gradient_flow.py:" in draw_flow(before).source
    assert all(p.grad is not None for p in right.parameters())
    assert "All 16 parameters learn." in draw_flow(after).source
