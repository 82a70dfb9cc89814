"""Programs that follow an advice: a row is a program that, with `followed`, has the change made.

It gives its first loss. Beside them stand programs that cut a gradient on purpose: of those the
fact is told and no advice is given.
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
    learns: tuple[str, ...]  # parameters that have a gradient where it is followed
    same_loss: bool  # is the loss the same then
    rounded: float  # by so much of it, for a dtype of fewer digits
    raises: str | None  # what ends the program that does not follow
    freezes: tuple[str, ...]  # parameters that are not to learn


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
    """Enter a program in the table of advice that is followed."""

    def enter(program: Program) -> Program:
        name = getattr(program, "__name__", "")
        FOLLOWED[name] = Advice(program, rule, says, learns, same_loss, rounded, raises, freezes)
        return program

    return enter


def meant(program: Program) -> Program:
    """Enter a program in the table of those that need no advice."""
    MEANT[getattr(program, "__name__", "")] = program
    return program


def two(body: nn.Module, head: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"body": body, "head": head})
