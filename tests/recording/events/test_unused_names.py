"""Functions and variables of a script that nothing uses, found in its source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from graphviz_torch.recording.queries.unused_names import _unused_names, unused_values


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


def function(*lines: str) -> str:
    return "\n    ".join(["def f(x):", *lines])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (function("y = g(x)", "y = h(x)", "return y"), [("y", 2, 3)]),
        (function("y = g(x)", "y = h(y)", "return y"), []),
        (function("y = g(x)", "y += h(x)", "return y"), []),
        (function("y = g(x)", "y = h(x)", "return lambda: y"), []),
        (function("y = 0.0", "y = h(x)", "return y"), []),
        (function("_y = g(x)", "_y = h(x)", "return _y"), []),
        (function("y = g(x)", "if x: y = h(x)", "return y"), []),
        (function("y = g(x)", "if x: y = h(x)", "else: y = 1", "return y"), [("y", 2, 3)]),
        (function("y = g(x)", "try: y = h(x)", "except E: pass", "return y"), []),
        (function("y = g(x)", "with c: y = h(x)", "return y"), []),
        (function("y = g(x)", "for i in x: y = h(i)", "return y"), []),
        (function("y = g(x)", "for i in x:", "  y = h(y)", "return y"), []),
        (function("for i in x:", "  y = h(i)", "  print(y)", "  y = g(i)"), [("y", 5, 3)]),
        (function("for i in x:", "  print(y)", "  y = h(i)", "y = 1"), []),
        (function("while x:", "  y = h(x)", "  break", "return y"), []),
        (
            function("while x:", "  y = h(x)", "  if x: continue", "  print(y)", "  y = g(x)"),
            [("y", 6, 3)],
        ),
        (function("y = g(x)", "return x", "print(y)"), [("y", 2, 2)]),
        (function("global y", "y = g(x)", "y = h(x)", "print(y)"), []),
        (function("y = g(x)", "class C: z = y", "y = h(x)", "return y"), []),
        (function("y, z = g(x)", "y = h(x)", "return y, z"), []),
        ("y = g(x)\nprint(y)\ny = h(x)", []),  # whoever runs the script may read it
        ("y = g(x)\ny = h(x)\nprint(y)", [("y", 1, 2)]),
        ("for x in z:\n  y = x[0]\n  train(y)\n  y = scale(y)", [("y", 4, 2)]),
        ("for x in z:\n  y = x[0]\n  train(y)\n  y = scale(y)\ndef f(): return y", []),
        ("for x in z:\n  loss = f(x)\n  step(loss)\nprint(loss)", []),
    ],
)
def test_values_that_are_overwritten_before_they_are_read(
    source: str, found: list[tuple[str, int, int]]
) -> None:
    assert list(map(tuple, unused_values(ast.parse(source)))) == found
