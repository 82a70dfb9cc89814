"""Rules about shapes that broadcast by accident."""

from __future__ import annotations

from ...graph import Finding, Operand
from ...graph.events import Event
from ...graph.immutable import immutable
from ..rule import finding, rule
from ..words import at


@rule("warning")
@immutable
class AccidentalBroadcast(Event):
    """An operation probably combined the wrong elements: it broadcast shapes (N, 1) and (N,) to (N,
    N), a loss broadcast (N, 1) with (N, k), or a value per row was combined with the columns.

    ## Why it matters

    The difference of tensors with shapes (N, 1) and (N,) is a matrix of all pairs. The mean of this
    matrix is a valid loss, so no error is raised, and the model learns to predict the mean of
    all targets.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        y, target = model(torch.randn(8, 4)), torch.randn(8)
        loss = (y - target).square().mean()  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        y, target = model(torch.randn(8, 4)).squeeze(-1), torch.randn(8)
        loss = (y - target).square().mean()
        loss.backward()
    ```

    ## When it is intended

    Distances between all pairs are computed this way. Write both new axes, as in `a[:, None] -
    b[None, :]`: then nothing is reported. A mask such as `torch.arange(N) < lengths` compares
    integers by their order, and is not reported.

    ## Not detected

    Broadcasts of other shapes, such as (N, C) with (C,), are not reported. Neither is a matrix that
    equals its transpose, such as the adjacency matrix of an undirected graph.

    ## See also

    - [Broadcasting semantics](https://docs.pytorch.org/docs/stable/notes/broadcasting.html)
    - [MSELoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html)
    """

    # The shapes of the operands are (N, 1) and (N,); (N, 1, 1) and (N, k); in a loss, (N, 1) and
    # (N, k); or (N, N) and (N,), if the vector is a reduction of the matrix's rows.
    operation: str = ""  # "sub"
    operands: tuple[Operand, ...] = ()

    def report(self) -> Finding | None:
        if len(self.operands) != 2 or not all(o.tensor.shape for o in self.operands):
            return None
        one, other = self.operands
        names = [
            f"{o.label} {list(o.tensor.shape)}" if o.label else f"{list(o.tensor.shape)}"
            for o in (one, other)
        ]
        if len(one.tensor.shape) == len(other.tensor.shape):
            columns = max(one.tensor.shape[-1], other.tensor.shape[-1])
            return finding(
                "warning",
                f"{self.operation}{at(self.where)} broadcast {names[0]} with {names[1]}: each "
                f"value of one is compared with {columns} values of the other.",
                cause="broadcast of (N, 1) with (N, k)",
                advice="Give both tensors the same shape: reduce the wider one, for example "
                "with sum(1, keepdim=True), or expand the other one.",
                where=self.where,
                nodes=self.nodes,
            )
        wide, narrow = sorted(self.operands, key=lambda o: -len(o.tensor.shape))
        size = wide.tensor.shape[0]
        if size == wide.tensor.shape[-1]:
            return self._wrong_axis(wide, narrow, names)
        if len(wide.tensor.shape) > 2:
            made = [size, *narrow.tensor.shape]
            ones = ", ".join(["1"] * (len(wide.tensor.shape) - 2))
            return finding(
                "warning",
                f"{self.operation}{at(self.where)} broadcast {names[0]} with {names[1]} to "
                f"{made}: each sample is paired with every other.",
                cause="broadcast of (N, 1, 1) with (N, k)",
                advice=f"Give {wide.label or 'the first'} the shape [{size}, {ones}], or keep the "
                f"axis that {narrow.label or 'the other'} lost, with keepdim=True.",
                where=self.where,
                nodes=self.nodes,
            )
        name = wide.label or "the tensor of shape [N, 1]"
        return finding(
            "warning",
            f"{self.operation}{at(self.where)} broadcast {names[0]} with {names[1]} to "
            f"[{size}, {size}]: each element of one is paired with every element of the other.",
            cause="broadcast of (N, 1) with (N,)",
            advice=f"Call squeeze(-1) on {name}, so that both shapes are [{size}].",
            where=self.where,
            nodes=self.nodes,
        )

    def _wrong_axis(self, wide: Operand, narrow: Operand, names: list[str]) -> Finding:
        """Return the finding about values per row that were combined with a matrix's columns."""
        return finding(
            "warning",
            f"{self.operation}{at(self.where)} broadcast {names[0]} with {names[1]}: "
            f"{narrow.label or 'the vector'} was reduced over the last axis of "
            f"{wide.label or 'the matrix'}, and is paired with the columns instead of the rows.",
            cause="a reduction without keepdim",
            advice="Pass keepdim=True to the reduction.",
            where=self.where,
            nodes=self.nodes,
        )
