"""Values that are assigned and overwritten before they are read, found in the source."""

from __future__ import annotations

import ast

import pytest

from graphviz_torch.recording.queries.unused_values import unused_values


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
