"""What the pages draw from values: the timeline, names that are hostile, numbers with units."""

from __future__ import annotations

import re

import pytest
from streamlit.testing.v1 import AppTest

from app import timeline, words
from app.work import Choice, play
from graphviz_torch import Graph, Node, TensorMeta, Transfer

HOSTILE = "<script>alert(1)</script> \"q\" 'r' \\ **b** [l](javascript:x) $m$ `c` :red[x] ☃\nline"


def drawn(graph: Graph) -> AppTest:
    """The graph as the page Run backward shows it."""

    def page(graph: object) -> None:
        from app.show import show
        from graphviz_torch import find

        show(graph, find(graph), key="test")  # type: ignore[arg-type]

    return AppTest.from_function(page, default_timeout=60, args=(graph,)).run()


def test_the_timeline_has_forward_first_and_backward_in_its_order() -> None:
    run = play(Choice("expression", "sim1", program="y = sum(x * 2)", inputs="x = 1, 2"), True)
    assert run.graph is not None
    steps, copies, left_out = timeline._events(run.graph, None)
    forward = [step["step"] for step in steps if step["phase"] == "forward"]
    backward = sorted((step["step"], step["what"]) for step in steps if step["phase"] == "backward")
    assert max(forward) < min(step for step, _ in backward)
    assert [what for _, what in backward] == ["y", "mul #2", "to_copy #1", "x"]
    assert [(copy["source"], copy["device"]) for copy in copies] == [
        ("cpu", "sim:0"), ("sim:0", "cpu"),
    ]  # fmt: skip
    assert left_out == 0


def test_a_timeline_of_a_large_graph_is_thinned_out_and_says_so() -> None:
    meta = TensorMeta((1,), "float32", "cpu")
    nodes = tuple(Node(i, "AddBackward0", (meta,), order=9_999 - i) for i in range(10_000))
    copy = Transfer("HtoD", "cpu", "cuda:0", meta, "forward")
    steps, copies, left_out = timeline._events(Graph(nodes, transfers=(copy,) * 1_000), None)
    assert len(steps) <= 1_500
    assert len(copies) <= 300
    assert left_out == 20_000 + 1_000 - len(steps) - len(copies)


def test_hostile_names_are_shown_as_text() -> None:
    meta = TensorMeta((2,), "float32", "cpu")
    leaf = Node(0, "AccumulateGrad", (meta,), label=HOSTILE, leaf="tensor", source=HOSTILE)
    user = Node(1, HOSTILE, (meta,), label=HOSTILE, operation=HOSTILE, module=HOSTILE)
    copy = Transfer("HtoD", "cpu", HOSTILE, meta, "forward", node=1, where=HOSTILE, label=HOSTILE)
    app = drawn(Graph((leaf, user), transfers=(copy,)))
    assert not app.exception
    table = app.dataframe[-1].value
    assert table["to"].tolist() == [HOSTILE]
    assert table["line"].tolist() == [HOSTILE]
    for text in [*app.markdown, *app.info, *app.warning, *app.error]:
        assert not re.search(r"(?<!\\)[<$`]\w", text.value)  # each is escaped


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(None, "? B"), (0, "0 B"), (12, "12 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")],
)
def test_a_size_has_its_unit(nbytes: int | None, said: str) -> None:
    assert words.size(nbytes) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "not measured"), (2.5, "2.5 s"), (0.0015, "1.5 ms"), (2e-6, "2 µs")],
)
def test_a_duration_has_its_unit(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


def test_a_count_agrees_with_its_noun() -> None:
    assert words.count(1, "node") == "1 node"
    assert words.count(1200, "node") == "1,200 nodes"
