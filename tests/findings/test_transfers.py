"""Findings on transfers, on recordings of models with common mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import find, record
from tests.support.models import MLP
from tests.support.recorded import only, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def test_a_tensor_moved_without_assignment_is_found(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        x = torch.randn(64, 4)
        x.to(sim)
        x = x.to(sim)
        model(x).sum().backward()
    found = only("unused-copy", recording.graph)
    assert found.message.startswith("x was copied to sim:0 at test_transfers.py:")
    assert found.advice.startswith('Replace x.to("sim:0") with x = x.to("sim:0")')
    assert len(found.transfers) == 1


def test_a_table_copied_in_every_step_is_found_and_a_batch_is_not(sim: torch.device) -> None:
    model, table = MLP().to(sim), torch.randn(64, 4)
    with record(model) as recording:
        for _ in range(4):
            x = torch.randn(64, 4).to(sim)
            model(x + table.to(sim)).sum().backward()
    found = only("repeated-copy", recording.graph)
    assert found.message.startswith("table was copied from cpu to sim:0 4 times")


def test_an_activation_that_visits_the_cpu_is_a_round_trip(sim: torch.device) -> None:
    class Visit(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            h = h.cpu().relu().to(x.device)
            return self.fc2(h)

    graph = trained(Visit().to(sim), torch.randn(64, 4).to(sim))
    found = only("round-trip", graph)
    assert found.severity == "warning"
    assert found.message.startswith("h went from sim:0 to cpu at ")
    assert "1 node in between" in found.message
    assert only("copy-in-backward", graph).severity == "info"


def test_a_parameter_left_on_the_cpu_is_copied_in_every_step(sim: torch.device) -> None:
    class Left(MLP):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(sim) @ self.fc1.weight.to(sim).t()

    found = only("copy-in-backward", trained(Left(), torch.randn(64, 4)))
    assert found.severity == "warning"
    assert found.message.startswith("fc1.weight: 1 copy between devices inside the graph (128 B)")


def test_a_copy_in_each_forward_is_counted_in_the_last_step_too(sim: torch.device) -> None:
    class Visits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).cpu()

    model = Visits().to(sim)
    with record(model) as recording:
        for _ in range(4):
            model(torch.ones(2, 4, device=sim)).sum().backward()
    assert ", 4 times: " in only("blocking-read", recording.graph).message


def test_a_copy_before_a_cut_is_not_repeated_by_backward(sim: torch.device) -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 4).to(sim)
    with record(nn.ModuleList([encoder, head])) as recording:
        head(encoder(torch.randn(2, 4)).to(sim).detach()).sum().backward()
    found = [f.rule for f in find(recording.graph)]
    assert "cut-gradient" in found
    assert "copy-in-backward" not in found


def test_rows_copied_one_by_one_are_many_tiny_copies(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        rows = [torch.randn(4).to(sim) for _ in range(32)]
        model(torch.stack(rows)).sum().backward()
    found = only("tiny-copies", recording.graph)
    assert found.message.startswith("32 copies cpu to sim:0 in a row")
    assert found.severity == "info"  # 32 steps that call no module look the same
    assert "If they are of one step" in found.advice


def test_rows_copied_one_by_one_in_each_step_are_a_warning(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        for _ in range(2):
            rows = [torch.randn(4).to(sim) for _ in range(32)]
            model(torch.stack(rows)).sum().backward()
    assert only("tiny-copies", recording.graph).severity == "warning"


def test_the_tiny_batch_of_each_of_many_steps_is_not_many_tiny_copies(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        for _ in range(32):
            model(torch.randn(4).to(sim))
        for _ in range(32):
            model.fc1(torch.randn(4).to(sim))  # by another way than the model's forward
        for _ in range(32):
            (model.fc1.weight * torch.randn(4).to(sim)).sum().backward()
    assert not [f for f in find(recording.graph) if f.rule == "tiny-copies"]


def test_pieces_that_one_backward_came_by_are_tiny_copies_of_one_step(sim: torch.device) -> None:
    model = nn.Linear(4, 4)
    with record(model) as recording:
        rows = [row.to(sim) for row in model(torch.randn(32, 4))]
        torch.stack(rows).sum().backward()
    assert only("tiny-copies", recording.graph).severity == "warning"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_large_batch_should_come_from_pinned_memory(sim: torch.device, pinned: bool) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        for _ in range(3):
            batch = torch.randn(100_000, 4)
            batch = batch.pin_memory() if pinned else batch
            model(batch.to(sim, non_blocking=True)).sum().backward()
    found = [f.severity for f in find(recording.graph) if f.rule == "pageable-copy"]
    assert found == ([] if pinned else ["warning"])


def test_a_number_read_in_a_forward_is_a_warning_and_in_a_loop_a_note(sim: torch.device) -> None:
    class Reads(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            return self.fc2(h / h.abs().max().item())

    model = Reads().to(sim)
    losses = []
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.randn(64, 4).to(sim)).sum()
            loss.backward()
            losses.append(loss.item())
    found = {f.severity: f for f in find(recording.graph) if f.rule == "blocking-read"}
    assert set(found) == {"warning", "info"}
    assert "in the forward of the model" in found["warning"].message
    assert found["info"].message.startswith("loss is read with item() in a loop at ")


def test_a_mask_of_the_device_waits_for_it_and_where_with_three_does_not(sim: torch.device) -> None:
    class Masks(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            mask = h > 0
            chosen = h[mask].sum()
            return self.fc2(torch.where(mask, h, 0)) * chosen

    model = Masks().to(sim)
    with record(model) as recording:
        model(torch.randn(64, 4).to(sim)).sum().backward()
    found = only("blocking-read", recording.graph)
    assert found.severity == "info"
    assert found.message.startswith("Indexing with mask in the forward of the model at test_trans")
    assert [recording.graph.transfers[i].node for i in found.transfers] == [None]
    assert "copy-in-backward" not in [f.rule for f in find(recording)]
