"""Test what pages draw from values: timelines, hostile names, numbers with units."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from streamlit.runtime.backend_operation_handler import DeferredFileHandler
from streamlit.runtime.media_file_storage import MediaFileStorageError
from streamlit.testing.v1 import AppTest

from app.jobs import recordings
from app.jobs.backward import play
from app.jobs.job import JobError
from app.jobs.values import Choice, OpenedGraph
from app.panels import figures, recording, text, timeline
from graphviz_torch import Graph, record, simulate_accelerator, trace
from graphviz_torch.graph import GradientStats, Node, TensorMeta, Transfer
from tests.support.app_pages import column
from tests.support.app_pages import drawn as data

HOSTILE = "<script>alert(1)</script> \"q\" 'r' \\ **b** [l](javascript:x) $m$ `c` :red[x] ☃\nline"


def drawn(graph: Graph) -> AppTest:
    """Return the graph as the page Run backward shows it."""

    def page(graph: object) -> None:
        from app.jobs.backward import open_graph
        from app.panels.figures import draw_findings
        from app.panels.program import draw_program
        from app.panels.recording import show

        shown = open_graph(graph)  # type: ignore[arg-type]
        draw_program((), shown.graph, key="test", ran=True)
        draw_findings(shown.findings)
        show(shown, key="test")

    return AppTest.from_function(page, default_timeout=60, args=(graph,)).run()


def test_the_timeline_has_forward_first_and_backward_in_its_order() -> None:
    run = play(Choice("expression", "sim1", program="y = sum(x * 2)", inputs="x = 1, 2"), True)
    assert run.opened is not None
    steps, copies, left_out = timeline.events(run.opened.graph)
    forward = [step["step"] for step in steps if step["phase"] == "forward"]
    backward = sorted(
        (step["step"], step["label"]) for step in steps if step["phase"] == "backward"
    )
    assert max(forward) < min(step for step, _ in backward)
    assert [says.split(",")[0] for _, says in backward] == ["y", "mul #2", "x_there", "x"]
    assert [(copy["source"], copy["device"]) for copy in copies] == [
        ("cpu", "sim:0"), ("sim:0", "cpu"),
    ]  # fmt: skip
    assert left_out == 0


def test_a_copy_after_backward_is_after_it_in_the_timeline_and_in_the_summary() -> None:
    model = torch.nn.Linear(2, 1)
    with simulate_accelerator(name="cuda"), record(model) as recording:
        model.cuda()
        loss = model(torch.ones(3, 2).cuda()).sum()
        loss.backward()
        loss.item()
    steps, copies, _ = timeline.events(recording.graph)
    assert [copy["source"] for copy in copies] == ["cpu", "cpu", "cpu", "sim cuda:0"]
    places = [copy["step"] for copy in copies]
    assert places[2] < min(step["step"] for step in steps)
    assert max(step["step"] for step in steps) < places[3]
    assert figures.copies(recording.graph) == (
        "**3 copies** in forward (36 B), **1 copy** after backward (4 B)."
    )


def test_a_timeline_of_a_large_graph_is_thinned_out_and_says_so() -> None:
    meta = TensorMeta((1,), "float32", "cpu")
    nodes = tuple(Node(i, "AddBackward0", (meta,), order=9_999 - i) for i in range(10_000))
    copy = Transfer("HtoD", "cpu", "cuda:0", meta, "forward")
    steps, copies, left_out = timeline.events(Graph(nodes, transfers=(copy,) * 1_000))
    assert len(steps) <= 600
    assert len(copies) <= 200
    assert left_out == 20_000 + 1_000 - len(steps) - len(copies)


def test_hostile_names_are_shown_as_text() -> None:
    meta = TensorMeta((2,), "float32", "cpu")
    leaf = Node(0, "AccumulateGrad", (meta,), label=HOSTILE, leaf="tensor", where=HOSTILE)
    user = Node(1, HOSTILE, (meta,), label=HOSTILE, operation=HOSTILE, module=HOSTILE)
    copy = Transfer("HtoD", "cpu", HOSTILE, meta, "forward", node=1, where=HOSTILE, label=HOSTILE)
    app = drawn(Graph((leaf, user), transfers=(copy,)))
    assert not app.exception
    assert column(app, "test transfers", "from → to") == [f"cpu → {HOSTILE}"]
    assert column(app, "test transfers", "line") == [HOSTILE]
    titles = [expander.label for expander in app.expander]
    for said in [*(e.value for e in [*app.markdown, *app.info, *app.warning, *app.error]), *titles]:
        assert not re.search(r"(?<!\\)[<$`]\w", said)  # each is escaped


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((), "x.grad = 0"),
        ((2,), "x.grad = [0, 1]"),
        ((2, 2), "x.grad = [[0, 1], [2, 3]]"),
        ((2, 1, 2), "x.grad = [[[0, 1]], [[2, 3]]]"),
        ((2, -1), "x.grad = [0, 1, 2]"),
        ((0, 2), "x.grad = 0"),
    ],
)
def test_a_small_gradient_is_spelled_out_in_its_shape(shape: tuple[int, ...], said: str) -> None:
    meta = TensorMeta(shape, "float32", "cpu")
    values = tuple(float(i) for i in range(sum(map(str.isdigit, said))))
    stats = GradientStats(0.0, 3.0, 0.0, 0.0, values=values, tensor=meta)
    leaf = Node(0, "AccumulateGrad", (meta,), label="x", leaf="tensor", grad_outputs=(stats,))
    assert [line["text"] for line in data(drawn(Graph((leaf,))), "test program")["lines"]] == [said]


def test_only_a_graph_whose_backward_was_recorded_is_said_to_have_no_copies() -> None:
    stayed, unknown = "None: every tensor stayed", "Copies were not recorded."
    traced = trace(torch.ones(2, requires_grad=True).sum())
    ran = play(Choice("expression", "cpu", program="y = sum(x)", inputs="x = 1, 2"), True).opened
    assert ran is not None
    for graph, said, unsaid in [(traced, unknown, stayed), (ran.graph, stayed, unknown)]:
        shown = "\n".join(each.value for each in drawn(graph).markdown)
        assert said in shown
        assert unsaid not in shown


def test_a_download_that_fails_leaves_one_line_in_the_log_without_a_path_or_a_stack(
    monkeypatch: pytest.MonkeyPatch, logged: Callable[..., list[logging.LogRecord]]
) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise JobError("LayoutError", "the graph cannot be drawn")

    def execute(_: str) -> bytes:
        try:
            return recording._to_format(OpenedGraph(Graph(()), (), ""), "SVG")
        except JobError as error:
            raise MediaFileStorageError(f"Callable execution failed: {error}") from error

    monkeypatch.setattr(recording, "run", refuse)
    manager: Any = SimpleNamespace(execute_deferred=execute)
    asked: Any = SimpleNamespace(request_id="1", deferred_file=SimpleNamespace(file_id="a"))
    records = logged("streamlit.runtime.backend_operation_handler")
    answer = asyncio.run(DeferredFileHandler(lambda: manager).handle(asked, "session"))
    assert "/" not in (answer.error_msg or "/")
    [record] = records
    assert record.exc_info is None
    assert record.getMessage() == "No file for a visitor: the graph cannot be drawn"


def test_an_empty_recording_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    Graph(()).save(path)
    with pytest.raises(ValueError, match=r"mine\.json is an empty recording"):
        recordings.read(path.read_bytes(), "mine.json")


@pytest.mark.parametrize(
    ("write", "value", "said"),
    [
        (text.size, None, "? B"),
        (text.size, 0, "0 B"),
        (text.size, 12, "12 B"),
        (text.size, 1536, "1.5 KiB"),
        (text.size, 8448, "8.3 KiB"),  # 8.25: as the view beside it rounds
        (text.size, 5 << 30, "5.0 GiB"),
        (text.duration, None, "not measured"),
        (text.duration, 2.5, "2.5 s"),
        (text.duration, 0.0015, "1.5 ms"),
        (text.duration, 2e-6, "2 µs"),
        (text.short, 0, "0"),
        (text.short, 999, "999"),
        (text.short, 1020, "1.02 k"),
        (text.short, 999_600, "1 M"),
        (text.short, 2e13, "20 T"),
        (partial(text.count, thing="node"), 1, "1 node"),
        (partial(text.count, thing="node"), 1200, "1,200 nodes"),
    ],
)
def test_a_number_has_its_unit(
    write: Callable[[float | None], str], value: float | None, said: str
) -> None:
    assert write(value) == said
