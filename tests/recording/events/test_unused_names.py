"""Functions and variables of a script that nothing uses, found in its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from graphviz_torch.recording.queries.unused_names import _unused_names


class Average:
    """A class with two methods."""

    def update(self) -> None: ...


class Network(nn.Module):
    """A module with a method."""

    def auxiliary_loss(self) -> None: ...


class Trainer:
    """A class whose subclasses override its methods."""

    def compute_loss(self) -> None: ...


class OwnTrainer(Trainer):
    """A subclass, whose base class calls `compute_loss`."""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class Average:\n    def update(self): pass\nema = Average()", [("update", 2)]),
        ("class Average:\n    def update(self): pass\nema = Average()\nema.update()", []),
        ("class Network:\n    def auxiliary_loss(self): pass", [("auxiliary_loss", 2)]),
        ("class OwnTrainer:\n    def compute_loss(self): pass", []),
        ("def train():\n    x, done = step()\n    return x", [("done", 2)]),
        ("def train():\n    x, done = step()\n    return x[done]", []),
        ("def train():\n    mask = get()\n    return lambda: mask", []),
        ("mask = get()\ndef train():\n    return mask", []),
        ("x, mask = get()\nfor _ in range(3):\n    train(x)", [("mask", 1)]),
        ("def reset_state(): pass\ngetattr(module, 'reset_state')()", []),
        ("def plot_curves(): pass\nfigure = plot()", []),
        ("def fit(x, scheduler):\n    x = get()\n    return x\nfit(1, plan)", [("scheduler", 4)]),
        ("def fit(x, mask):\n    x = get()\n    return x\nfit(1, mask=plan)", [("mask", 4)]),
        ("def fit(x, mask=None):\n    x = get()\n    return x\nfit(1, None)", []),
        ("def fit(x, mask):\n    x = get()\n    return x * mask\nfit(1, plan)", []),
        ("def fit(x, mask):\n    x = get()\n    return lambda: mask\nfit(1, plan)", []),
        ("def fit(x, mask):\n    x = get()\n    return x\nfit(1, plan)\nrun(fit)", []),
        ("def fit(x, mask):\n    return x\nfit(1, plan)", []),
        ("def broken(:", []),
    ],
)
def test_names_that_nothing_uses_are_found(
    source: str, found: list[tuple[str, int]], tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(source)
    variables: dict[str, Any] = {
        "Average": Average,
        "Network": Network,
        "OwnTrainer": OwnTrainer,
        "ema": Average(),
    }
    unused = _unused_names(str(file), variables)
    lines = [(each.event.name, each.place[0].co_firstlineno) for each in unused]
    assert lines == found
