"""Test that functions and the command line have the same drawing options."""

from __future__ import annotations

import inspect

import pytest

from graphviz_torch import draw_graph
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.integrations.command.main import parser
from graphviz_torch.integrations.command.options import first_clauses, shell_text
from graphviz_torch.render.options import OPTIONS


@pytest.mark.parametrize("function", [draw_graph, to_dot, to_mermaid])
def test_signature_and_docstring_show_every_option(function: object) -> None:
    keywords = inspect.signature(function).parameters  # type: ignore[arg-type]
    said = " ".join((inspect.getdoc(function) or "").split())
    for name, (option, hint) in OPTIONS.items():
        assert keywords[name].default == option.default
        assert keywords[name].annotation == hint
        assert f"{name}: {option.meaning}" in said
    assert "options" not in keywords


def test_the_command_line_has_what_can_be_written_on_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parser("draw").parse_args(["draw", "--help"])
    said = "".join(capsys.readouterr().out.split())
    for name, (option, _) in OPTIONS.items():
        if name != "findings":
            flag = "--" + name.replace("_", "-")
            assert flag in said
            assert "".join(first_clauses(shell_text(option.meaning, flag)).split()) in said
