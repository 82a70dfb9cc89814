"""Arguments of a forward that it never reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent


class Swallowing(nn.Linear):
    """A layer that takes any keyword argument and reads none."""

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return super().forward(x)


class Passing(nn.Linear):
    """A layer that uses one of its keyword arguments."""

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return super().forward(x) / kwargs.get("count", 1)


@says("unused-input", "Swallowing", "got count and never reads it")
def a_number_that_the_keyword_arguments_swallow(record: Record) -> None:
    model = Swallowing(4, 1)
    with record(model):
        model(torch.randn(8, 4), count=4).mean().backward()  # cause


@silent("unused-input")
def a_keyword_argument_that_is_read(record: Record) -> None:
    model = Passing(4, 1)
    with record(model):
        model(torch.randn(8, 4), count=4).mean().backward()


@silent("unused-input")
def an_option_that_the_keyword_arguments_swallow(record: Record) -> None:
    model = Swallowing(4, 1)
    with record(model):
        model(torch.randn(8, 4), return_dict=False, mode="train").mean().backward()
