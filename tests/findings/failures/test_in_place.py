"""Test findings on a backward that failed because of an in-place change: its node and line.

Two sources give the expected line: the exception that PyTorch raises, and comments in the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import simulate_accelerator
from tests.support.failing import CHANGED, failing, leaf, line
from tests.support.recorded import only

pytestmark = pytest.mark.usefixtures("the_same_numbers")


# Ways to change a tensor `h` in place; what it is called; how the advice begins.
WAYS = {
    "h += 1": ("add_", "Compute a new tensor"),
    "h **= 2": ("pow_", "Compute a new tensor"),
    "h[0] = 1": ("setitem", "Change a copy"),
    "h[:, 0].mul_(2)": ("mul_", "Call clone() on the base tensor"),
    "h.detach().zero_()": ("zero_", "Compute a new tensor"),
    "with torch.no_grad(): h.sub_(1)": ("sub_", "Compute a new tensor"),
    "with torch.no_grad(): torch.add(h, 1, out=h)": ("add(out=)", "Remove the argument out="),
    "F.relu(h, inplace=True)": ("relu(inplace=)", "Use inplace=False"),
    "nn.LeakyReLU(0.1, inplace=True)(h)": ("leaky_relu(inplace=)", "Use inplace=False"),
    "h.masked_fill_(h > 0, 0)": ("masked_fill_", "Change a copy"),
    "nn.init.zeros_(h)": ("zero_", "Compute a new tensor"),
}


@pytest.mark.parametrize("change", WAYS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_the_line_that_changed_what_backward_needs(
    change: str, device: str, tmp_path: Path
) -> None:
    name, advice = WAYS[change]
    file = tmp_path / "change.py"
    file.write_text(f"def change(h):\n    {change}\n")
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with simulate_accelerator() as [accelerator]:
        x = leaf().to(accelerator) if device == "sim" else leaf()

        def program() -> None:
            h = x.exp()  # keeps its result
            names["change"](h)
            h.sum().backward()

        graph = failing(program, CHANGED)
    found = only("changed-in-place", graph)
    assert found.where == "change.py:2"
    assert "needs the original values of a tensor (f32[3, 3] " in found.message
    assert f"), but {name} " in found.message
    assert "at change.py:2 " in found.message
    assert f"exp at {line(program, 'keeps its result')} needs " in found.message
    assert found.advice.startswith(advice)
    if change == "h += 1":  # marked beside what needs it as it was
        marked = {graph.nodes[node].name for node in found.nodes}
        assert marked == {"ExpBackward0", "AddBackward0"}


def test_nobodys_unpacking_is_called_to_find_the_node() -> None:
    unpacked: list[int] = []

    def unpack(packed: tuple[Tensor]) -> Tensor:
        unpacked.append(1)
        return packed[0]

    def program() -> None:
        x = leaf()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor,), unpack):
            y = x.exp().sin()
        z = y.exp()
        z += 1
        z.sum().backward()

    counts = []
    for _ in range(2):
        unpacked.clear()
        with pytest.raises(RuntimeError, match=CHANGED):
            program()
        counts.append(len(unpacked))
        graph = failing(program, CHANGED)
        counts.append(len(unpacked) - counts[-1])
    assert counts[0] == counts[1]
    assert only("changed-in-place", graph)


def test_nothing_of_the_users_runs_to_find_the_node() -> None:
    class Strict(Tensor):
        armed = False

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if cls.armed:
                raise SystemExit(f"{func}")
            return super().__torch_function__(func, types, args, kwargs or {})

    strict = torch.ones(3, 3).as_subclass(Strict)
    y = Tensor.as_subclass(leaf() * strict, Tensor).sum()
    strict.add_(1)
    Strict.armed = True
    assert failing(y.backward, CHANGED, gradients=False, memory=False).failure
