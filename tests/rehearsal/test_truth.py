"""Compare a rehearsal with real ranks, counted without graphviz_torch: equal to the byte."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from graphviz_torch.rehearsal import rehearse
from tests.rehearsal.truth import MODULE, cell_row, told
from tests.support.processes import cells
from tests.support.processes.launch import launched
from tests.support.processes.trainings import TRAININGS, train

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WAYS = "DDP", "FSDP2", "FSDP2, checkpointing", "HSDP", "TP", "SP", "TP + FSDP2"
WAYS += "FSDP2, bf16", "FSDP2, tied weights"


CELLS = [*cells.cells()][::4] + [*cells.cells()][2::8]  # of each way, and of each variant
DOCS = Path(__file__).parents[2] / "docs" / "rehearsal.md"


@pytest.fixture(scope="module")
def gloo() -> dict[str, list[dict[str, Any]]]:
    """The memory and messages of two ranks over gloo."""
    return launched(MODULE, *WAYS, ranks=2)


@pytest.fixture(scope="module")
def allocated() -> dict[str, int]:
    """The peak memory of real tensors, with collectives that copy nothing."""
    return launched(MODULE, "fake", "2", *WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_each_number_is_that_of_real_ranks(
    way: str, gloo: dict[str, list[dict[str, Any]]], allocated: dict[str, int]
) -> None:
    mine = told(rehearse(partial(train, TRAININGS[way]), ranks=2))
    peak = mine.pop("peak")
    real = dict(gloo[way][0])
    del real["peak"]  # gloo's own copies are among it
    assert mine == real
    assert real["sent"]
    assert abs(peak / allocated[way] - 1) < 0.05


@pytest.fixture(scope="module")
def combined() -> dict[str, dict[str, Any]]:
    """What real tensors take, of trainings that combine precision, variant and optimizer."""
    return launched(cells.__name__, "fake", "4", *CELLS)


@pytest.mark.parametrize("cell", CELLS)
def test_each_combination_is_true_whatever_its_device_is_called(
    cell: str, combined: dict[str, dict[str, Any]]
) -> None:
    row = cell_row(cell, combined[cell])
    assert row in DOCS.read_text().splitlines()
    _, _, *same, cpu, cuda, _ = row.split("|")
    assert {each.strip() for each in same} == {"="}
    assert all(abs(float(peak.strip("% "))) < 1 for peak in (cpu, cuda) if peak.strip())


def test_what_saved_tensors_are_moved_to_is_not_the_device() -> None:
    rows, width, layers = 2048, 256, 12

    def trained(*, moved: bool) -> None:
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            x = torch.ones(rows, width, device="cuda")
            with torch.autograd.graph.save_on_cpu() if moved else nullcontext():
                loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    kept, moved = (rehearse(partial(trained, moved=each)) for each in (False, True))
    one, weights = rows * width * 4, layers * (width + 1) * width * 4
    assert kept.activations_bytes == (layers - 1) * one  # the first's is the program's
    assert kept.peak_bytes > weights + layers * one
    # Its input, a layer's input that came back, two gradients on their way, and a result of one.
    assert moved.peak_bytes <= 2 * weights + 5 * one
