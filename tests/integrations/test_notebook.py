"""Test `%load_ext graphviz_torch` and `%%record` in IPython's own shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

CELL = """\
x = torch.ones(2, 3)
hidden = model[0](x).detach()
loss = model[1](hidden).sum()
loss.backward()
"""


@pytest.fixture
def shell() -> Iterator[Any]:
    """Return an IPython shell with a model of two layers."""
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(colors="NoColor")
    made.run_cell("import torch; a, b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)")
    made.run_cell("model = torch.nn.Sequential(a, b)\n%load_ext graphviz_torch")
    yield made
    InteractiveShell.clear_instance()


def test_a_recorded_cell_shows_findings_and_graph_and_leaves_its_variables(shell: Any) -> None:
    shell.run_cell("%%record model\n" + CELL)
    shown = shell.user_ns["_"]
    said = " ".join(repr(shown).split())
    assert "0.weight and 0.bias got no gradient: a result was cut by detach()" in said
    assert "<iframe" in shown._repr_html_()
    labels = {node.label for node in shown.graph.nodes}
    assert {"1.weight", "1.bias", "loss"} <= labels
    assert shell.user_ns["loss"].shape == ()


def test_an_error_in_the_cell_is_shown_as_without_and_explained(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("%%record\ny = a(torch.ones(3)).exp()\ny += 1\ny.sum().backward()")
    assert "modified by an inplace operation" in capsys.readouterr().out
    assert [finding.rule for finding in shell.user_ns["_"].findings] == ["changed-in-place"]


def test_a_line_of_a_cell_has_the_numbers_on_the_screen(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("pass", store_history=True)
    shell.run_cell("%%record model\n" + CELL, store_history=True)
    shown = shell.user_ns["_"]
    assert """\
 --> In[2]:3
  |
3 | hidden = model[0](x).detach()
  |                      ^^^^^^
""" in repr(shown)
    assert "<pre> --&gt; In[2]:3\n" in shown._repr_html_()
    step = "with record() as r:\n    torch.ones(2, requires_grad=True).sum().backward()"
    shell.run_cell(
        "from graphviz_torch import record\n"
        f"from graphviz_torch.export import annotate_source\n{step}",
        store_history=True,
    )
    shell.run_cell("print(annotate_source(r))", store_history=True)
    assert (
        "4      torch.ones(2, requires_grad=True).sum().backward()  # sum"
        in capsys.readouterr().out
    )


def test_an_unknown_model_is_named(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert not shell.run_cell("%%record modle\n1").success
    assert "there is no variable modle" in capsys.readouterr().out
