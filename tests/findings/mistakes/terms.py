"""Terms of a loss that are numbers read of tensors, and numbers that are added on purpose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Program, says, silent

TERM = "trains nothing: kl was cut by item()"


class Coder(nn.Module):
    """As of a VAE: a code with a mean and a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)
        self.weight_of_kl = 0.1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
        code = mean + torch.randn(mean.shape) * (0.5 * log_variance).exp()
        return F.mse_loss(self.decoder(code), x), kl


def on_its_line(error: Any, kl: Any, model: Coder) -> Any:
    return error + 0.1 * kl.item()


def first(error: Any, kl: Any, model: Coder) -> Any:
    return 0.1 * kl.item() + error


def of_a_dict(error: Any, kl: Any, model: Coder) -> Any:
    terms = {"kl": kl.item()}
    return error + terms["kl"]


def of_what_was_detached(error: Any, kl: Any, model: Coder) -> Any:
    return error + kl.detach().item()


def taken_away(error: Any, kl: Any, model: Coder) -> Any:
    return 1.0 - kl.item() - error


def alone(error: Any, kl: Any, model: Coder) -> Any:
    return error + kl.item()


def of_two_lines(error: Any, kl: Any, model: Coder) -> Any:
    return (
        2 * error
        + model.weight_of_kl
        * kl.item()
    )  # fmt: skip


def by_a_variable(error: Any, kl: Any, model: Coder) -> Any:
    number = kl.item()
    beta = 0.1
    return error + beta * number


def added_in_place(error: Any, kl: Any, model: Coder) -> Any:
    loss = error * 1
    loss += 0.1 * kl.item()
    return loss


def as_one_of_three(error: Any, kl: Any, model: Coder) -> Any:
    return error + 0.1 * kl.item() + 0.01 * model.decoder.weight.square().mean()


def telling(terms: Callable[[Any, Any, Coder], Any]) -> Program:
    """A step with a loss that is made so."""

    def program(record: Record) -> None:
        model = Coder()
        with record(model):
            error, kl = model(torch.randn(5, 6))
            terms(error, kl, model).backward()

    program.__name__ = f"number_{terms.__name__}"
    return program


if sys.version_info >= (3, 11):  # before, Python does not tell where in its line an operation is
    for terms in (on_its_line, first, of_two_lines, by_a_variable, added_in_place, as_one_of_three):
        says("constant-term", TERM)(telling(terms))
    says("constant-term", TERM)(telling(taken_away))
for terms in (alone, of_a_dict):
    says("constant-term", TERM)(telling(terms))
says("constant-term", "trains nothing: kl was cut by detach()")(telling(of_what_was_detached))


def constant(error: Any, kl: Any, model: Coder) -> Any:
    print(kl.item())
    return error + kl + 3.0


def scaled_by_it(error: Any, kl: Any, model: Coder) -> Any:
    return error * kl.item() + kl * error.item()


def scaled_and_a_number(error: Any, kl: Any, model: Coder) -> Any:
    return (error + kl) / kl.item() + 3.0


def another_number(error: Any, kl: Any, model: Coder) -> Any:
    number, beta = kl.item(), 0.1
    print(number)
    return error + kl + beta


def summed_for_the_log(error: Any, kl: Any, model: Coder) -> Any:
    total = 0.0
    total += (error + kl.item()).item() + kl.item()
    return error + kl


def logsumexp(record: Record, read: Callable[[Tensor], Any]) -> None:
    """The maximum is taken away and added again: no gradient has to come through it."""
    model = nn.Linear(4, 3)
    with record(model):
        scores = model(torch.randn(4))
        most = read(scores.max())
        ((scores - most).exp().sum().log() + most - scores[1]).backward()


@silent()
def maximum_that_is_a_number(record: Record) -> None:
    logsumexp(record, Tensor.item)


@silent()
def maximum_that_is_detached(record: Record) -> None:
    logsumexp(record, Tensor.detach)


for terms in (constant, scaled_by_it, scaled_and_a_number, another_number, summed_for_the_log):
    silent("constant-term")(telling(terms))
