"""Test the public names: which exist, what each imports, and that saved graphs need no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import graphviz_torch
from tests.support.models import worked_example

ROOT = "graphviz_torch"
NAMESPACES = [
    "checkpoint",
    "compare",
    "compat",
    "devices",
    "distributed",
    "experiments",
    "export",
    "graph",
    "integrations",
    "rehearsal",
    "tensorboard",
    "testing",
    "tracing",
]
MODULES = [ROOT, *(f"{ROOT}.{name}" for name in NAMESPACES)]
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


def test_the_root_has_what_most_programs_need_and_the_namespaces() -> None:
    assert len(graphviz_torch.__all__) <= 22
    assert set(dir(graphviz_torch)) == {*graphviz_torch.__all__, *NAMESPACES, "findings"}


@pytest.mark.parametrize("path", MODULES)
def test_every_public_function_and_class_has_a_docstring_with_an_example(path: str) -> None:
    module = import_module(path)
    values = {name: getattr(module, name) for name in module.__all__}
    documented = {
        name: value.__doc__ or ""
        for name, value in values.items()
        if isinstance(value, FunctionType | type) and (value.__module__ or "").startswith(ROOT)
    }
    assert len(set(module.__all__)) == len(module.__all__)
    assert documented
    missing = [name for name, doc in documented.items() if ">>>" not in doc]
    assert path.endswith(("graph", "testing")) or not missing


@pytest.mark.parametrize("path", [path for path in MODULES if not path.endswith("testing")])
def test_type_checkers_see_the_names_that_are_loaded(path: str) -> None:
    module = import_module(path)
    (block,) = [
        node
        for node in ast.parse(Path(str(module.__file__)).read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    shown = {
        alias.asname: "." * node.level + (node.module or "")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(map(str, shown)) == sorted(module.__all__)
    for name, home in shown.items():
        loaded = getattr(import_module(home, module.__package__), str(name))
        assert getattr(module, str(name)) is loaded


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tarce'"):
        _ = graphviz_torch.tarce


def test_importing_the_package_loads_no_torch_and_prints_nothing() -> None:
    code = """
        import sys, graphviz_torch
        heavy = ("torch", "numpy", "graphviz", "streamlit", "tensorboard")
        assert not [name for name in heavy if name in sys.modules]
    """
    assert python(code) == ""


def test_using_every_name_loads_nothing_heavy_besides_torch() -> None:
    code = f"""
        import sys, importlib
        for path in {MODULES}:
            module = importlib.import_module(path)
            for name in module.__all__:
                getattr(module, name)
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
        assert "pow" in gt.to_text(a) and "pow" in str(gt.diff(a, b)) + gt.export.to_dot(a)
        assert "FLOPs" in str(gt.summary(a)) + gt.summary(b)._repr_html_()
        assert "<html" in gt.to_html(b, findings=found)
        assert gt.draw_graph(a, findings=found).render(outfile=f"{folder}/a.svg")
        assert "image/svg+xml" in a._repr_mimebundle_()
        assert "<iframe" in gt.view(b)._repr_html_()
        gt.to_tensorboard(b, folder)
        gt.export.to_pbtxt(b, f"{folder}/b.pbtxt")
        gt.save(a, f"{folder}/again.json")
        try:
            gt.find("a.json")
        except TypeError as error:
            print(error)
        from graphviz_torch.integrations.command.main import main
        for command in ("export --to text", "summary", "find", "draw", "export --to html"):
            assert main([*command.split(), f"{folder}/recording.json.gz"]) == 0
        assert main(["diff", f"{folder}/trace.json.gz", f"{folder}/recording.json.gz"]) in (0, 1)
    """
    assert "but got a str ('a.json')" in python(code, str(tmp_path))
