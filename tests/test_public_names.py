"""The public names: what is there, what each loads, and that a saved graph needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import graphviz_torch
from tests.support.models import worked_example

SOURCE = Path(graphviz_torch.__file__)
CORE = 25
HEAVY = ("torch.utils.benchmark", "setuptools", "streamlit", "tensorboard")


def python(code: str, *arguments: str) -> str:
    """What a new interpreter prints."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_every_public_name_exists_and_has_a_docstring_with_an_example() -> None:
    assert not [
        n for n in graphviz_torch.__all__ if ">>>" not in getattr(graphviz_torch, n).__doc__
    ]


def test_the_core_comes_first_and_no_name_stands_twice() -> None:
    names = graphviz_torch.__all__
    assert len(set(names)) == len(names)
    assert names[:5] == ["trace", "record", "Recording", "Graph", "Node"]
    assert names[CORE - 1] == "verify"


def test_what_is_imported_for_type_checkers_is_what_is_handed_on() -> None:
    (block,) = [
        node
        for node in ast.parse(SOURCE.read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    shown = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert shown == graphviz_torch._HOME
    assert sorted(shown) == sorted(graphviz_torch.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error_and_all_are_listed() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tarce'"):
        _ = graphviz_torch.tarce
    assert set(graphviz_torch.__all__) <= set(dir(graphviz_torch))


def test_importing_the_package_loads_no_torch_and_prints_nothing() -> None:
    code = """
        import sys, graphviz_torch
        heavy = ("torch", "numpy", "graphviz", "streamlit", "tensorboard")
        assert not [name for name in heavy if name in sys.modules]
    """
    assert python(code) == ""


def test_using_every_name_loads_nothing_heavy_besides_torch() -> None:
    code = f"""
        import sys, graphviz_torch
        for name in graphviz_torch.__all__:
            getattr(graphviz_torch, name)
        print([name for name in {HEAVY} if name in sys.modules])
    """
    assert python(code) == "[]"


def test_a_saved_graph_is_read_judged_compared_printed_and_drawn_without_torch(
    tmp_path: Path,
) -> None:
    tensors = worked_example()
    with graphviz_torch.record() as recording:
        worked_example()["y"].backward()
    for name, graph in (
        ("trace", graphviz_torch.trace(tensors["y"], names=tensors)),
        ("recording", recording.graph),
    ):
        graph.save(tmp_path / f"{name}.json.gz")
    code = """
        import sys
        sys.modules["torch"] = None  # an import of it raises
        import graphviz_torch as gt
        folder = sys.argv[1]
        a, b = gt.load(f"{folder}/trace.json.gz"), gt.load(f"{folder}/recording.json.gz")
        found = gt.find(b, [a])
        assert "pow" in str(gt.explain(b, 0)) + gt.draw_graph(gt.explain(b, 0)).source
        assert "pow" in gt.to_text(a) and "pow" in str(gt.diff(a, b)) + gt.to_dot(a)
        assert "FLOPs" in str(gt.summary(a)) + gt.summary(b)._repr_html_()
        assert "<html" in gt.to_html(b, findings=found)
        assert gt.draw_graph(a, findings=found).render(outfile=f"{folder}/a.svg")
        assert "image/svg+xml" in a._repr_mimebundle_()
        assert "<iframe" in gt.view_graph(b)._repr_html_()
        gt.to_tensorboard(b, folder)
        gt.to_pbtxt(b, f"{folder}/b.pbtxt")
        gt.save(a, f"{folder}/again.json")
        try:
            gt.find("a.json")
        except TypeError as error:
            print(error)
        from graphviz_torch.integrations.command.main import main
        for command in ("text", "summary", "find", "draw", "html"):
            assert main([command, f"{folder}/recording.json.gz"]) == 0
        assert main(["diff", f"{folder}/trace.json.gz", f"{folder}/recording.json.gz"]) in (0, 1)
    """
    assert "this is a str ('a.json')" in python(code, str(tmp_path))
