"""Test that PyTorch's fast attention runs inside a recording, and that its cuts are recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphviz_torch import find, record

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")


def layer() -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


MASK = torch.tensor([[False] * 4, [False] * 3 + [True]])
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(),
        lambda model, x: model(x, x, x)[0],
    ),
    "layer": (layer, lambda model, x: model(x)),
    "layers": (lambda: nn.TransformerEncoder(layer(), 2).eval(), lambda model, x: model(x)),
    "layers, with a mask": (
        lambda: nn.TransformerEncoder(layer(), 2).eval(),
        lambda model, x: model(x, src_key_padding_mask=MASK),
    ),
}


class Operators(TorchDispatchMode):
    """A mode that lists the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Passing(TorchFunctionMode):
    """A user's own mode, which changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("frozen", [False, True], ids=["no_grad", "frozen"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_operators_run_and_give_the_same_values(name: str, frozen: bool) -> None:
    make, call = LAYERS[name]
    model, x = make().requires_grad_(not frozen), torch.randn(2, 4, 8)

    def run(*around: Any) -> tuple[list[str], Tensor]:
        contexts = [*around, nullcontext() if frozen else torch.no_grad()]
        with contexts[0], contexts[-1], Operators() as operators:
            return operators.names, call(model, x)

    names, value = run(nullcontext())
    assert any("_fwd" in each or "native_multi_head_attention" in each for each in names)
    for recording in (record(), record(gradients="finite"), record(model, memory=False)):
        inside, seen = run(recording)
        assert inside == names
        assert torch.equal(seen, value)


def test_it_takes_the_other_way_where_it_would_outside() -> None:
    model, x = layer(), torch.randn(2, 4, 8)
    for mode, grad in ((Passing, torch.no_grad), (nullcontext, torch.enable_grad)):
        with mode(), grad(), Operators() as outside:
            model(x)
        with mode(), record(), grad(), Operators() as inside:
            model(x)
        assert inside.names == outside.names


def test_what_no_grad_cut_there_is_told_with_its_line_and_module() -> None:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.TransformerEncoder(layer(), 2).eval(), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.encoder(x)
            return self.head(h).sum()

    model = Probe()
    with record(model) as recording:
        model(torch.randn(2, 4, 8)).backward()
    assert {cut.module for cut in recording.graph.cuts} == {"encoder.layers.0", "encoder.layers.1"}
    (finding,) = find(recording)
    assert (finding.rule, finding.cause) == ("cut-gradient", "cut by torch.no_grad()")
    assert finding.where.startswith("test_fast_paths.py:")


def test_calls_are_seen_again_after_it_also_where_it_raised() -> None:
    model, x = layer(), torch.randn(2, 4, 8)
    weight = torch.ones(8, requires_grad=True)
    with record() as recording:
        with torch.no_grad(), pytest.raises(RuntimeError):
            model(torch.randn(2, 4, 7))
        with torch.no_grad():
            h = model(x)
        (h * weight).sum().backward()
    assert [node.where != "" for node in recording.graph.nodes if not node.leaf] == [True, True]
