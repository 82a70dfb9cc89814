"""Test gradients and transfers over steps with TensorBoard's own readers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from graphviz_torch.graph import (
    Collective,
    Edge,
    Finding,
    GradientStats,
    Graph,
    Node,
    Step,
    TensorMeta,
    Transfer,
)
from graphviz_torch.integrations import training
from graphviz_torch.recording.recording import record
from graphviz_torch.render.style import COLORS
from graphviz_torch.tensorboard import module_norms, scalars
from graphviz_torch.tensorboard import scalars as steps
from graphviz_torch.tensorboard.scalars import depth_dot
from tests.support.models import MLP

pytest.importorskip("tensorboard")
from tensorboard import plugin_util
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

HALF = TensorMeta((128, 128), "float16", "sim:0")


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()


def test_norms_are_those_of_the_parameters_by_module_first_layer_first() -> None:
    torch.manual_seed(0)
    model = MLP()
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    norms = steps.gradient_norms(recording.graph)
    assert list(norms) == ["fc1", "fc2"]
    for name, norm in norms.items():
        grads = [p.grad.flatten() for p in model.get_submodule(name).parameters()]
        assert norm == pytest.approx(torch.cat(grads).norm().item(), rel=1e-5)


def leaves(*stats: GradientStats, scale: float | None = None) -> Graph:
    meta = TensorMeta((2,), "float32", "cpu")
    nodes = [
        Node(i, "AccumulateGrad", (meta,), f"fc{i}.w", leaf="parameter", grad_outputs=(entry,))
        for i, entry in enumerate(stats)
    ]
    last = Node(len(nodes), "CatBackward0", (meta,))
    return Graph(
        (*nodes, last),
        tuple(Edge(n.id, last.id, 0, n.id) for n in nodes),
        step=Step(loss_scale=scale),
    )


def test_nan_and_inf_stay_what_they_are_and_a_loss_scale_is_taken_out() -> None:
    plain = GradientStats(8.0, 8.0, 0.0, 0.0)
    broken = GradientStats(1.0, 1.0, 0.0, 0.0, nan=1)
    huge = GradientStats(1.0, 1.0, 0.0, 0.0, inf=1)
    norms = steps.gradient_norms(leaves(plain, broken, huge, scale=4.0))
    assert norms["fc0"] == 2.0
    assert math.isnan(norms["fc1"])
    assert math.isinf(norms["fc2"])


def test_scalars_and_the_ridge_read_back(tmp_path: Path) -> None:
    for step in (0, 10):
        norms = {"first": 2.0 + step, "second": math.nan, "third": 0.5}
        steps.add_gradients(norms, tmp_path, step=step)
    events = read(tmp_path)
    assert [(e.step, e.value) for e in events.Scalars("gradient norm/first")] == [(0, 2), (10, 12)]
    assert math.isnan(events.Scalars("gradient norm/second")[0].value)
    ridge = events.Tensors("gradient norm by depth")
    assert [event.step for event in ridge] == [0, 10]
    assert make_ndarray(ridge[1].tensor_proto).tolist() == [[0, 1, 12], [1, 2, 0], [2, 3, 0.5]]
    metadata = events.SummaryMetadata("gradient norm by depth")
    assert metadata.plugin_data.plugin_name == "histograms"
    assert metadata.summary_description == "Layers: 0: `first`, 1: `second`, 2: `third`"


def test_a_distribution_has_the_buckets_that_torch_counted(tmp_path: Path) -> None:
    counts, edges = torch.histogram(torch.tensor([0.0, 1.0, 1.0, 2.0]), bins=2)
    steps.add_distribution(tmp_path, "fc.weight", edges.tolist(), counts.tolist(), step=3)
    (event,) = read(tmp_path).Tensors("gradient/fc.weight")
    assert make_ndarray(event.tensor_proto).tolist() == [[0, 1, 1], [1, 2, 3]]
    with pytest.raises(ValueError, match=r"fc\.weight: 2 edges and 2 counts"):
        steps.add_distribution(tmp_path, "fc.weight", [0, 1], [1, 1], step=0)


def test_no_gradient_is_refused_and_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no gradient was recorded: run backward inside"):
        steps.add_gradients(Graph(()), tmp_path, step=0)


def moved(**changes: object) -> Transfer:
    values = {"kind": "HtoD", "source": "cpu", "target": "sim:0", "tensor": HALF, "operation": "to"}
    return Transfer(**(values | {"phase": "forward", "where": "train.py:4"} | changes))  # type: ignore[arg-type]


def test_transfers_of_one_line_are_one_row_with_their_total() -> None:
    graph = Graph((), transfers=(moved(seconds=1e-3), moved(seconds=2e-3), moved(phase="backward")))
    lines = scalars.transfers_markdown(graph).splitlines()
    assert lines[:3] == [
        "- **HtoD**: 3 copies, 96.0 KiB",
        "",
        "|copy|phase|tensor|copies|bytes|ms|how|where|",
    ]
    rows = [line for line in lines if line.startswith("|HtoD")]
    assert rows == [
        r"|HtoD cpu → sim:0|forward|f16\[128, 128\] sim:0|2|64.0 KiB|3|to|train.py:4|",
        r"|HtoD cpu → sim:0|backward|f16\[128, 128\] sim:0|1|32.0 KiB||to|train.py:4|",
    ]


def test_findings_about_transfers_stand_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("round-trip", "warning", "x goes there and back.", "Keep it.", transfers=(0,))
    other = Finding("cut", "error", "No transfer.")
    monkeypatch.setattr(scalars, "find", lambda graph: [finding, other])
    text = scalars.transfers_markdown(Graph((), transfers=(moved(),)))
    assert "- **warning**: x goes there and back. Keep it." in text
    assert "No transfer." not in text


def test_hostile_text_shows_as_it_is_in_the_text_tab() -> None:
    label = "a|b<script>`*_[x](y)#\\&amp;☃"
    html = plugin_util.markdown_to_safe_html(
        scalars.transfers_markdown(Graph((), transfers=(moved(label=label),)))
    )
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<td>{escaped}: f16[128, 128] sim:0</td>".replace("|", "&#124;") in html.replace(
        "|", "&#124;"
    )


def test_a_long_table_ends_with_a_row_that_counts_the_rest() -> None:
    many = tuple(moved(where=f"train.py:{i}") for i in range(700))
    text = scalars.transfers_markdown(Graph((), transfers=many))
    assert text.count("|HtoD") == 500
    assert text.endswith("And 200 copies more, 6.3 MiB.")


def test_collectives_are_a_table_below_the_copies() -> None:
    sent = Collective("all_reduce", 2048, "float32", 2, group="dp", phase="backward", module="fc")
    graph = Graph((), transfers=(moved(),), collectives=(sent, sent, replace(sent, kind="barrier")))
    copies, _, rest = scalars.transfers_markdown(graph).partition("- **all_reduce**: ")
    assert "|HtoD" in copies
    assert rest.splitlines() == [
        "2 times, 4.0 KiB given",
        "- **barrier**: 1 time, 2.0 KiB given",
        "",
        "|collective|phase|times|bytes|group|of|where|",
        "|---|---|---|---|---|---|---|",
        "|all_reduce|backward|2|4.0 KiB|dp, 2 ranks||fc|",
        "|barrier|backward|1|2.0 KiB|dp, 2 ranks||fc|",
    ]


def test_each_step_is_an_entry_of_the_text_tab(tmp_path: Path) -> None:
    for step in (1, 2):
        steps.add_transfers(Graph((), transfers=(moved(),)), tmp_path, step=step)
    events = read(tmp_path)
    assert [event.step for event in events.Tensors("transfers")] == [1, 2]
    assert events.SummaryMetadata("transfers").plugin_data.plugin_name == "text"


def test_a_step_is_one_picture_by_depth_and_a_layout_of_charts_over_the_steps(
    tmp_path: Path,
) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(14)))
    with SummaryWriter(str(tmp_path)) as writer:
        for step in (0, 1):
            with record(model) as recording:
                model(torch.ones(2, 3)).sum().backward()
            steps.add_gradients(recording, writer, step=step)
    events = read(tmp_path)
    first, second = events.Images("gradient norm of each layer")
    assert (first.step, second.step) == (0, 1)
    with Image.open(BytesIO(first.encoded_image_string)) as picture:
        assert picture.size == (first.width, first.height)
    layout = layout_pb2.Layout.FromString(
        make_ndarray(events.Tensors("custom_scalars__config__")[0].tensor_proto).item()
    )
    (category,) = layout.category
    tags = events.Tags()["scalars"]
    drawn = {
        chart.title: {
            tag for pattern in chart.multiline.tag for tag in tags if re.match(pattern, tag)
        }
        for chart in category.chart
    }
    whole = drawn.pop("12 of 14 layers, first to last")
    assert {"gradient norm/0", "gradient norm/13"} < whole
    assert len(whole) == 12
    assert set().union(*drawn.values()) == set(tags)


def test_the_first_step_of_a_directory_and_a_tag_makes_no_card_of_one_point(
    tmp_path: Path,
) -> None:
    for _ in range(2):  # the same step again is not a second step
        steps.add_gradients({f"layer{i}": 1.0 for i in range(76)}, tmp_path / "a", step=7)
    tags = read(tmp_path / "a").Tags()
    assert tags["scalars"] == []
    assert tags["images"] == ["gradient norm of each layer"]
    assert tags["tensors"] == ["gradient norm by depth"]
    steps.add_gradients({"fc": 1.0}, tmp_path / "b", step=8)
    steps.add_gradients({"fc": 1.0}, tmp_path / "b", step=9, tag="other")
    assert read(tmp_path / "b").Tags()["scalars"] == []


def test_a_layer_that_comes_later_is_in_the_charts_too(tmp_path: Path) -> None:
    for step, layers in enumerate(["a", "a", "ab", "ab"]):
        steps.add_gradients(dict.fromkeys(layers, 1.0), tmp_path, step=step)
    events = read(tmp_path)
    layouts = [
        layout_pb2.Layout.FromString(make_ndarray(event.tensor_proto).item())
        for event in events.Tensors("custom_scalars__config__")
    ]
    tags = [[len(chart.multiline.tag) for chart in layout.category[0].chart] for layout in layouts]
    assert tags == [[1], [2]]
    assert [event.step for event in events.Scalars("gradient norm/a")] == [0, 1, 2, 3]
    assert [event.step for event in events.Scalars("gradient norm/b")] == [2, 3]


def test_bars_are_as_long_as_the_logarithm_of_the_norm() -> None:
    norms = {"a<b": 1e-4, "mid": 1e-2, "last": 1.0, "zero": 0.0, "bad": math.nan}
    dot = depth_dot(norms, "step 0")
    first, middle, last = (int(width) for width in re.findall(r'WIDTH="(\d+)" HEIGHT="10" BG', dot))
    assert middle - first == pytest.approx(last - middle, abs=1)
    assert "a&lt;b" in dot
    assert dot.count(COLORS["error"][0]) == 2


def test_without_graphviz_the_numbers_are_written_and_the_picture_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHVIZ_DOT", str(tmp_path / "no-such-dot"))
    with pytest.warns(RuntimeWarning, match="cannot draw the picture"):
        steps.add_gradients({"fc": 1.0}, tmp_path, step=0)
    events = read(tmp_path)
    assert make_ndarray(events.Tensors("gradient norm by depth")[0].tensor_proto)[0, 2] == 1
    assert events.Tags()["images"] == []


@pytest.mark.parametrize("weight", [2.0, math.inf, math.nan])
@pytest.mark.parametrize("bias", [3.0, math.inf, math.nan])
def test_a_module_has_pytorchs_norm_wherever_it_is_written(weight: float, bias: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with record(model) as recording:
        (model[0].weight * weight + model[0].bias[:, None] * bias).sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    written = [
        steps.gradient_norms(recording.graph),
        training.gradient_norms(recording.graph),
        module_norms.gradient_norms(model),
    ]
    assert written == [{"0": pytest.approx(norm, nan_ok=True)}] * 3
