"""Mistakes with devices: superfluous copies, and operands on different devices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Program, says, silent
from tests.support.models import MLP


@says(
    "unused-copy",
    "x was copied to sim:0 at {cause}",
    advice='Replace x.to("sim:0") with x = x.to("sim:0")',
)
def tensor_moved_without_assignment(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = MLP().to(sim)
        with record(model):
            x = torch.randn(64, 4)
            x.to(sim)  # cause
            x = x.to(sim)
            model(x).sum().backward()


@says("repeated-copy", "table was copied from cpu to sim:0 4 times")
def table_copied_in_every_step(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model, table = MLP().to(sim), torch.randn(64, 4)
        with record(model):
            for _ in range(4):
                x = torch.randn(64, 4).to(sim)
                model(x + table.to(sim)).sum().backward()  # cause


class Visit(MLP):
    """An MLP whose activation visits the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        h = h.cpu().relu().to(x.device)
        return self.fc2(h)


def visit(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = Visit().to(sim)
        with record(model):
            model(torch.randn(64, 4).to(sim)).sum().backward()


@says("round-trip", "h went from sim:0 to cpu at ", "1 node in between", severity="warning")
def activation_that_visits_the_cpu(record: Record) -> None:
    visit(record)


@says("copy-in-backward", severity="info")
def gradient_that_visits_the_cpu(record: Record) -> None:
    visit(record)


@says(
    "copy-in-backward",
    "fc1.weight: 1 copy between devices inside the graph (128 B)",
    severity="warning",
)
def parameter_left_on_the_cpu(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = MLP()
        with record(model):
            (torch.randn(64, 4).to(sim) @ model.fc1.weight.to(sim).t()).sum().backward()


@says("copy-in-backward", "fc1.weight: 1 copy between devices", severity="warning")
def parameter_left_on_another_accelerator(record: Record) -> None:
    with simulate_accelerator(2) as (first, second):
        model = MLP().to(first)
        with record(model):
            (torch.randn(64, 4).to(second) @ model.fc1.weight.to(second).t()).sum().backward()


@says("device-sync", ", 4 times: ")
def result_copied_in_each_forward(record: Record) -> None:
    class Returns(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).cpu()

    with simulate_accelerator() as [sim]:
        model = nn.Sequential(Returns(4, 4)).to(sim)
        with record(model):
            for _ in range(4):
                model(torch.ones(2, 4, device=sim)).sum().backward()


@says("cut-gradient")
@silent("copy-in-backward")
def copy_before_a_cut(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        encoder, head = nn.Linear(4, 4), nn.Linear(4, 4).to(sim)
        with record(nn.ModuleList([encoder, head])):
            head(encoder(torch.randn(2, 4)).to(sim).detach()).sum().backward()  # cause


def rows_copied(steps: int) -> Program:
    def program(record: Record) -> None:
        with simulate_accelerator() as [sim]:
            model = MLP().to(sim)
            with record(model):
                for _ in range(steps):
                    rows = [torch.randn(4).to(sim) for _ in range(32)]
                    model(torch.stack(rows)).sum().backward()

    program.__name__ = f"rows_copied_in_{steps}_steps"
    return program


# Of one step: 32 steps that call no module look the same.
says(
    "tiny-copies",
    "32 copies from cpu to sim:0 in a row",
    severity="info",
    advice="If one step makes them",
)(rows_copied(1))
says("tiny-copies", severity="warning")(rows_copied(2))


@says("tiny-copies", severity="warning")
def rows_copied_on_the_way_of_one_backward(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = nn.Linear(4, 4)
        with record(model):
            rows = [row.to(sim) for row in model(torch.randn(32, 4))]
            torch.stack(rows).sum().backward()


@silent("tiny-copies")
def tiny_batch_of_each_of_many_steps(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = MLP().to(sim)
        with record(model):
            for _ in range(32):
                model(torch.randn(4).to(sim))
            for _ in range(32):
                model.fc1(torch.randn(4).to(sim))  # by another way than the model's forward
            for _ in range(32):
                (model.fc1.weight * torch.randn(4).to(sim)).sum().backward()


def large_batches(pinned: bool) -> Program:
    def program(record: Record) -> None:
        with simulate_accelerator() as [sim]:
            model = MLP().to(sim)
            with record(model):
                for _ in range(3):
                    batch = torch.randn(100_000, 4)
                    batch = batch.pin_memory() if pinned else batch
                    model(batch.to(sim, non_blocking=True)).sum().backward()

    program.__name__ = "large_batches_" + ("pinned" if pinned else "pageable")
    return program


says("pageable-copy", severity="warning")(large_batches(False))
silent("pageable-copy")(large_batches(True))


@says("mixed-devices", "x on cpu", "fc1.weight on sim:0")
def batch_left_on_the_cpu(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = nn.Sequential()
        model.fc1 = nn.Linear(4, 2).to(sim)
        with record(model):
            x = torch.randn(64, 4)
            model(x)  # cause


@says("mixed-devices", advice='Move all tensors to one device: the model, with model.to("sim:0")')
def model_left_on_the_cpu(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model = nn.Linear(4, 4)
        with record(model):
            model(torch.ones(2, 4, device=sim))


@says("mixed-devices", "self.pos on cpu", advice='self.register_buffer("pos", ...)')
def attribute_that_is_not_a_buffer(record: Record) -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos = torch.ones(4)  # to() leaves it where it is

        def forward(self, x: Tensor) -> Tensor:
            return x + self.pos  # cause

    with simulate_accelerator() as [sim]:
        model = Placed().to(sim)
        with record(model):
            model(torch.ones(2, 4, device=sim))


@says("mixed-devices", "batch['y'] on cpu", advice="""batch['y'] = batch['y'].to("sim:0")""")
def entry_left_on_the_cpu(record: Record) -> None:
    with simulate_accelerator() as [sim]:
        model, batch = nn.Linear(4, 4).to(sim), {"y": torch.ones(2, 4)}
        with record(model):
            model(torch.ones(2, 4, device=sim)) - batch["y"]  # cause


@says("exception", "f32[3, 5] cpu", raises="shapes cannot be multiplied")
def batch_of_another_width(record: Record) -> None:
    model = nn.Linear(4, 2)
    with record(model):
        model(torch.randn(3, 5))  # cause


@says("device-sync", "in the forward of the model", severity="warning")
def number_read_in_a_forward(record: Record) -> None:
    class Reads(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            return self.fc2(h / h.abs().max().item())  # cause

    with simulate_accelerator() as [sim]:
        model = Reads().to(sim)
        with record(model):
            for _ in range(4):
                model(torch.randn(64, 4).to(sim)).sum().backward()


@says("device-sync", "loss is read with item() in a loop at {cause}", severity="info")
def loss_read_in_a_loop(record: Record) -> None:
    losses = []
    with simulate_accelerator() as [sim]:
        model = MLP().to(sim)
        with record(model):
            for _ in range(4):
                loss = model(torch.randn(64, 4).to(sim)).sum()
                loss.backward()
                losses.append(loss.item())  # cause


@says("device-sync", "Indexing with mask in the forward of the model at ", severity="info")
@silent("copy-in-backward")
def mask_of_the_device_and_where_with_three(record: Record) -> None:
    class Masks(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            mask = h > 0
            chosen = h[mask].sum()  # cause
            return self.fc2(torch.where(mask, h, 0)) * chosen

    with simulate_accelerator() as [sim]:
        model = Masks().to(sim)
        with record(model):
            model(torch.randn(64, 4).to(sim)).sum().backward()
