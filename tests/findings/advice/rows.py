"""Two tables of programs, by which `test_advice.py` checks that the advice of a finding helps.

Each file of this folder adds programs about one subject. The files are found by the test.

    FOLLOWED    programs with a fault. A program takes `record` and `followed`: called with
                `followed=True`, it contains the change that the finding's advice describes. It
                returns the loss of its first step.
    MEANT       programs that cut a gradient on purpose. Their findings have no advice.

A rule needs a row if its advice is code to write, so that the test shows that the code works. A
program in `mistakes/` with the argument `followed` is such a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Program = Callable[..., Tensor]


@dataclass(frozen=True)
class Advice:
    """A program, and the rule whose advice it can follow."""

    program: Program  # takes `record` and `followed`
    rule: str
    says: str  # a part of the advice
    learns: tuple[str, ...]  # parameters that get a gradient if the advice is followed
    same_loss: bool  # True if the loss is the same with and without the change
    rounded: float  # relative difference within which two losses count as the same
    raises: str | None  # pattern of the exception that ends the program without the change
    freezes: tuple[str, ...]  # parameters that may lose their gradient if the advice is followed


FOLLOWED: dict[str, Advice] = {}
MEANT: dict[str, Program] = {}


def follows(
    rule: str,
    says: str,
    *learns: str,
    same_loss: bool = True,
    rounded: float = 1e-6,
    raises: str | None = None,
    freezes: tuple[str, ...] = (),
) -> Callable[[Program], Program]:
    """Return a decorator that adds a program with these fields of `Advice` to `FOLLOWED`."""

    def enter(program: Program) -> Program:
        name = getattr(program, "__name__", "")
        FOLLOWED[name] = Advice(program, rule, says, learns, same_loss, rounded, raises, freezes)
        return program

    return enter


def meant(program: Program) -> Program:
    """Add a program to `MEANT`."""
    MEANT[getattr(program, "__name__", "")] = program
    return program


def two(body: nn.Module, head: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"body": body, "head": head})
