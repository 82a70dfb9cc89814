"""What took part in the operation that ended a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from .following import made_by
from .graph import Failure, Operand, TensorMeta
from .metadata import tensor_meta
from .places import Place
from .reading import GradFn


@dataclass(slots=True)
class SeenOperand:
    """A tensor that the failing call was given."""

    label: str
    tensor: TensorMeta
    fn: GradFn | None  # what made it; None where autograd does not know
    output_nr: int = 0
    number: int | None = None  # sequence number of `fn`; None for a leaf
    node: int | None = None  # id of `fn` in the graph up to the failure


@dataclass(slots=True)
class Failed:
    """A call that raised."""

    error: BaseException
    operation: str = ""
    place: Place | None = None
    operands: list[SeenOperand] = field(default_factory=list)

    def value(self, line: Callable[[int], str], where: Callable[[Place | None], str]) -> Failure:
        """The plain value. `line` gives the user's line that made the node with a number."""
        return Failure(
            type(self.error).__name__,
            str(self.error),
            self.operation,
            where(self.place),
            tuple(
                Operand(
                    operand.label,
                    operand.tensor,
                    "" if operand.number is None else line(operand.number),
                    operand.node,
                )
                for operand in self.operands
            ),
        )


def operand(label: str, tensor: Tensor) -> SeenOperand:
    """What is known of a tensor that a failing call was given."""
    meta = tensor_meta(tensor)
    number = None if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
    return SeenOperand(label, meta, made_by(tensor), tensor.output_nr, number)
