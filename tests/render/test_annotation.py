"""Compare the source annotated with results with the shapes that the program computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphviz_torch import Graph, record, trace
from graphviz_torch.export import annotate_source
from graphviz_torch.graph import Node, TensorMeta

PROGRAM = """\
import torch
w = torch.ones(3, 2, requires_grad=True)
x = torch.ones(4, 3)
a, b = (x @ w for _ in range(2))
y = b.relu()
z = (y.detach() + (a * b).sum()).mean()
z.backward()
"""


def ran(folder: Path) -> tuple[Graph, Path]:
    """Return the graph of the program, and its file."""
    file = folder / "program.py"
    file.write_text(PROGRAM)
    with record() as recording:
        exec(compile(PROGRAM, str(file), "exec"), {})
    return recording.graph, file


def test_each_line_shows_what_it_made_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    graph, file = ran(tmp_path)
    rows = annotate_source(graph, file).splitlines()
    assert [row[3:].partition("  # ")[0].rstrip() for row in rows] == PROGRAM.splitlines()
    says = {int(row[:1]): row.partition("  # ")[2] for row in rows if "  # " in row}
    # What line 5 made was cut off, and is not in the graph.
    assert says == {
        4: "mm f32[4, 2] \N{MULTIPLICATION SIGN}2",
        6: "cut by detach; mul f32[4, 2]; sum f32[]; and 2 more",
    }


def test_a_file_that_python_has_read_is_found_by_its_name() -> None:
    with record() as recording:
        (torch.ones(2, requires_grad=True) * 2).sum().backward()
    rows = annotate_source(recording).splitlines()
    [row] = [row for row in rows if "# mul f32[2]; sum f32[]" in row and "rows" not in row]
    assert "requires_grad=True) * 2).sum().backward()" in row


def test_the_line_of_a_library_is_shown_in_the_library(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("def f(x):\n    return x.exp()\n")
    exp = Node(0, "ExpBackward0", (TensorMeta((5,), "float32", "cpu"),), operation="exp")
    graph = Graph((exp._replace(where="modeling.py:2, called at train.py:1"),), (), ((0, 0),))
    text = annotate_source(graph, tmp_path / "modeling.py")
    assert text.splitlines()[1] == "2      return x.exp()  # exp f32[5]"


def test_a_file_in_the_current_folder_comes_before_any_other_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def annotated(source: str) -> str:
        exp = Node(0, "ExpBackward0", (), operation="exp", where=source)
        return annotate_source(Graph((exp,), (), ((0, 0),))).splitlines()[0]

    monkeypatch.chdir(tmp_path)
    # Both names are those of files that Python has read: of PyTorch, and of this package.
    assert "mypy" in annotated("optim/optimizer.py:1")
    with pytest.raises(FileNotFoundError):
        annotated("call_stack.py:1")
    assert "module forwards" in annotated("graphviz_torch/recording/program/call_stack.py:1")
    for name in ("call_stack.py", "optim/optimizer.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x.exp()\n")
        assert annotated(f"{name}:1") == "1  x.exp()  # exp"
    (tmp_path.parent / "outside.py").write_text("secret\n")
    for name in ("../outside.py", str(tmp_path.parent / "outside.py")):
        with pytest.raises(FileNotFoundError):
            annotated(f"{name}:1")


def test_what_cannot_be_shown_says_why(tmp_path: Path) -> None:
    graph = Graph((Node(0, "ExpBackward0", (None,), where="not_written.py:3"),), (), ((0, 0),))
    with pytest.raises(FileNotFoundError, match=r"not_written\.py was not found\. Pass its path"):
        annotate_source(graph)
    with pytest.raises(ValueError, match=r"no node of this graph was created in .*other\.py"):
        annotate_source(graph, tmp_path / "other.py")
    with pytest.raises(ValueError, match="has no source lines"):
        annotate_source(trace(torch.ones(1, requires_grad=True) * 2))


def test_a_line_of_a_million_characters_is_read_once() -> None:
    node = Node(0, "ExpBackward0", (), operation="exp", where="a" * 1_000_000)
    with pytest.raises(ValueError, match="has no source lines"):  # at once, not after an hour
        annotate_source(Graph((node,)))
