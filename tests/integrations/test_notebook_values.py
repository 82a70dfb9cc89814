"""Test how IPython shows each value that a public function returns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.formatters import DisplayFormatter

from graphviz_torch import (
    draw_flow,
    draw_graph,
    explain,
    find,
    record,
    summary,
    to_html,
    to_text,
    view,
)
from graphviz_torch.checkpoint import compare_checkpoint
from graphviz_torch.compare import compare_models
from graphviz_torch.devices import compare_devices, measure_bandwidth
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.rehearsal import draw_memory, rehearse


@pytest.fixture(scope="module")
def model() -> Any:
    return torch.nn.Linear(3, 1)


@pytest.fixture(scope="module")
def recording(model: Any) -> Any:
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    return recording


def shown(value: Any) -> dict[str, Any]:
    data, _ = DisplayFormatter().format(value)
    return dict(data)


PICTURES: dict[str, Callable[[Any], Any]] = {
    "draw_graph": draw_graph,
    "draw_flow": draw_flow,
    "a recording": lambda recording: recording,
    "a graph": lambda recording: recording.graph,
    "draw_memory": lambda _: draw_memory(rehearse(lambda: torch.ones(2, requires_grad=True) * 2)),
    "plot": lambda _: compare_devices("matmul", devices=["cpu"], sizes=[8], seconds=0.001).plot(),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_shown(name: str, recording: Any) -> None:
    data = shown(PICTURES[name](recording))
    assert data["image/svg+xml"].rstrip().endswith("</svg>")
    assert len(data["text/plain"]) < 200


@pytest.mark.parametrize("make", [view, to_html])
def test_a_page_is_the_interactive_view_and_loads_nothing(
    make: Callable[[Any], Any], recording: Any
) -> None:
    data = shown(make(recording))
    [frame] = re.findall(r"<iframe srcdoc=.*?</iframe>", data["text/html"], re.S)
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert "default-src 'none'" in frame.replace("&#x27;", "'")
    assert not re.findall(r"(?:src|href)=(?:&quot;|\")(?!data:)", data["text/html"])
    assert len(data["text/plain"]) < 200


def test_a_page_is_text_where_it_is_written(recording: Any, tmp_path: Path) -> None:
    page = to_html(recording, tmp_path / "graph.html")
    assert (tmp_path / "graph.html").read_text() == page
    assert page.startswith("<!doctype html>")


TEXTS: dict[str, Callable[[Any, Any], Any]] = {
    "to_text": lambda recording, _: to_text(recording),
    "to_mermaid": lambda recording, _: to_mermaid(recording),
    "to_dot": lambda recording, _: to_dot(recording),
    "find": lambda recording, _: find(recording),
    "summary": lambda recording, _: summary(recording),
    "explain": lambda recording, _: explain(recording),
    "rehearse": lambda _, model: rehearse(lambda: model(torch.ones(2, 3)).sum().backward()),
    "compare_models": lambda _, model: compare_models(model, model, torch.ones(2, 3)),
    "compare_devices": lambda *_: compare_devices(
        "matmul", devices=["cpu"], sizes=[8], seconds=0.001
    ),
    "measure_bandwidth": lambda *_: measure_bandwidth("cpu"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_or_a_table_is_printed_line_by_line(name: str, recording: Any, model: Any) -> None:
    value = TEXTS[name](recording, model)
    assert shown(value)["text/plain"] == str(value)
    assert "\\n" not in str(value)


def test_a_comparison_with_a_state_is_printed(model: Any) -> None:
    found = compare_checkpoint(model, torch.nn.Linear(2, 1).state_dict())
    assert shown(found)["text/plain"] == str(found)
    assert "of another shape: weight" in str(found)


def test_a_diagram_is_a_picture_too_and_is_saved_as_svg_alone(
    recording: Any, tmp_path: Path
) -> None:
    flow = draw_flow(recording)
    assert type(flow) is type(draw_graph(recording))
    path = Path(flow.render(tmp_path / "flow.svg"))
    assert path.read_text() == flow.source == flow.pipe().decode()
    with pytest.raises(ValueError, match="this picture is SVG"):
        flow.render(tmp_path / "flow.png")
