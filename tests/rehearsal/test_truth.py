"""A rehearsal against real ranks, counted without graphviz_torch: equal to the byte."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from graphviz_torch import rehearse
from tests.rehearsal.truth import MODULE, told
from tests.support.processes.launch import launched
from tests.support.processes.trainings import TRAININGS, train

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WAYS = "DDP", "FSDP2", "FSDP2, checkpointing", "HSDP", "TP", "SP", "TP + FSDP2"
WAYS += "FSDP2, bf16", "FSDP2, tied weights"


@pytest.fixture(scope="module")
def gloo() -> dict[str, list[dict[str, Any]]]:
    """What two ranks on gloo have and send."""
    return launched(MODULE, *WAYS, ranks=2)


@pytest.fixture(scope="module")
def allocated() -> dict[str, int]:
    """The peak of real tensors, with collectives that copy nothing."""
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
