"""Test that a program that counts calls of tensor methods gets the same counts when recorded."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C import TensorBase
from torch.nn import functional

from graphviz_torch import find, record
from graphviz_torch.internals.hooks.calls import original_method
from tests.support.processes.forks import forked

NAMES = [
    "abs",
    "backward",
    "clone",
    "contiguous",
    "cpu",
    "detach",
    "isfinite",
    "item",
    "mul",
    "norm",
    "numel",
    "reshape",
    "size",
    "split",
    "sum",
    "to",
    "untyped_storage",
    "view",
    "__add__",
    "__len__",
    "__rsub__",
]
# Python cannot undo this one: torch.tensor() of a list of tensors then asks them for a length.
LASTING = "__getitem__"
# These are not called on a tensor: they make one, or belong to the class.
_OTHERS = set(vars(object)) | {
    LASTING,
    "__torch_function__",
    "__torch_dispatch__",
    "__dir__",
    "_make_dtensor",
}
METHODS = [
    name
    for name in dir(Tensor)
    if callable(getattr(Tensor, name))
    and name not in _OTHERS
    and not isinstance(
        vars(Tensor).get(name, vars(TensorBase).get(name)), (classmethod, staticmethod)
    )
]
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "finite": {"gradients": "finite"},
    "fingerprints": {"fingerprints": True},
    "experiments": {"experiments": True},
}


class Model(nn.Module):
    """Its gradients are large, small, sparse, in another order, views and infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 8, sparse=True)
        self.large = nn.Linear(8, 300)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.table(torch.tensor([0, 1, 1, 2]))
        wide = self.large(out).reshape(2, 2, -1).permute(2, 0, 1)
        kept = out.detach().view(-1).clone()
        return out + wide.sum() * 1e-3 + (1 - kept.norm()) + out.split(4, 1)[0].mean()


def program(model: Model) -> None:
    """Run two training steps with losses, a clip and a NaN, and one step that fails."""
    table = torch.optim.SGD(model.table.parameters(), lr=0.1)
    rest = torch.optim.Adam([*model.body.parameters(), *model.large.parameters()])
    for _ in range(2):
        table.zero_grad()
        rest.zero_grad()
        out = model(torch.ones(4, 8).cumsum(0))
        loss = (
            functional.mse_loss(out[:, :1], torch.ones(4)) + torch.log(functional.relu(out)).sum()
        )
        loss = loss + functional.cross_entropy(out, torch.tensor([0, 1, 2, 3]))
        loss = loss + torch.complex(out, out).abs().mean() + torch.tensor(1.0)
        loss.backward()
        for parameter in rest.param_groups[0]["params"]:
            parameter.grad.nan_to_num_(0, 1, -1)
        nn.utils.clip_grad_norm_(model.large.parameters(), 1.0)
        table.step()
        rest.step()
        loss.item()
    try:
        changed = model(torch.ones(4, 8)).exp()
        changed.add_(1)
        changed.sum().backward()
    except RuntimeError:
        pass


def counted(
    monkeypatch: pytest.MonkeyPatch, names: list[str], options: dict[str, Any] | None
) -> Counter[str]:
    """Calls of the methods by the program, in a recording with these options, or bare."""
    counts: Counter[str] = Counter()

    def patched(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return call

    torch.manual_seed(0)
    model = Model()
    recording = None if options is None else record(model, **options)
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(Tensor, name, patched(name, getattr(Tensor, name)))
        with recording or nullcontext():
            program(model)
        if recording is not None:
            find(recording)
    return counts


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_is_patched_is_called_as_often_as_bare(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = counted(monkeypatch, [name], None)
    assert counted(monkeypatch, [name], {}) == bare


def test_indexing_that_is_patched_is_called_as_often_as_bare_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    text = f"""
import warnings
import pytest
warnings.simplefilter("ignore")
from {__name__} import LASTING, counted
patch = pytest.MonkeyPatch()
print(counted(patch, [LASTING], None)[LASTING], counted(patch, [LASTING], {{}})[LASTING])
"""
    (tmp_path / "counts.py").write_text(text)
    ran = forked("counts.py", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    bare, recorded = map(int, ran.stdout.split())
    assert recorded == bare > 0


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("options", OPTIONS)
def test_no_method_is_called_more_often_whatever_is_noted(
    options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fingerprints are computed with operators, which are methods, too.
    names = [n for n in METHODS if options != "fingerprints" or not n.startswith("__")]
    bare = counted(monkeypatch, names, None)
    assert len(bare) > 20
    assert counted(monkeypatch, names, OPTIONS[options]) - bare == {}


@pytest.mark.parametrize("name", ["detach_", "norm", "backward"])
def test_what_is_told_of_a_patched_method_is_pytorchs_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = getattr(Tensor, name)
    monkeypatch.setattr(Tensor, name, lambda *args: own(*args))
    assert original_method(getattr(Tensor, name)) is own


def test_a_cut_by_a_patched_method_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    detach_ = Tensor.detach_
    monkeypatch.setattr(Tensor, "detach_", lambda self: detach_(self))
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with record(model) as recording:
        hidden = model[0](torch.ones(1, 2)).detach_()
        model[1](hidden).sum().backward()
    assert [cut.how for cut in recording.graph.cuts] == ["detach_"]


def test_a_method_that_a_program_makes_anew_is_what_a_recording_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def doubled(self: Tensor) -> Any:  # as torch asks functions to be written
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(doubled, (self,), self)
        return self * 2

    monkeypatch.setattr(Tensor, "relu", doubled)
    x = torch.full((2,), -1.0, requires_grad=True)
    with record():
        result = x.relu()
        result.sum().backward()
    assert result.tolist() == [-2, -2]
