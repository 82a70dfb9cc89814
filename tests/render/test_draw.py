"""Test `draw_graph`: what it accepts and returns, and that it changes nothing."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import graphviz
import pytest
import torch
from torch import nn

from graphviz_torch import Graph, draw_graph, record, trace
from graphviz_torch.compat import make_dot
from graphviz_torch.render.dot import picture as module
from graphviz_torch.render.dot.layout import LayoutTimeout
from tests.support.models import MLP, ConvNet, worked_example


def labels(picture: Any) -> list[str]:
    return [node.label for node in picture.graph.nodes if node.label]


def test_names_are_the_callers_variables() -> None:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    a = x + 2
    b = a**2
    c = b + 3
    y = c.mean()
    assert labels(draw_graph(y)) == ["x", "a", "b", "c", "y"]
    assert labels(draw_graph(y, names={})) == []
    assert labels(draw_graph(y, names={"in": x, "out": y})) == ["in", "out"]
    assert labels(draw_graph([y, b])) == ["x", "a", "b", "c", "y"]


def test_it_is_a_digraph_whose_source_is_what_is_drawn() -> None:
    picture = draw_graph(worked_example()["y"])
    assert isinstance(picture, graphviz.Digraph)
    assert picture.source.startswith("digraph {")
    assert picture.pipe("dot").decode() == picture.source == str(picture)
    assert picture.copy().source == picture.source
    again = picture.pipe(format="svg", encoding="utf-8")
    assert again == picture.pipe("svg").decode()


def test_at_a_prompt_a_picture_says_its_size_and_how_to_save_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    picture = draw_graph(worked_example()["y"])
    svg = ET.fromstring(picture.pipe("svg", encoding="utf-8"))
    wide, high = (svg.get(side, "").removesuffix("pt") for side in ("width", "height"))
    assert repr(picture) == f'Picture(5 nodes, {wide} x {high} pt; .render("graph.svg") saves it)'

    def late(*_: Any, **__: Any) -> bytes:
        raise LayoutTimeout("dot took too long")

    monkeypatch.setattr(module, "layout", late)
    late_one = draw_graph(worked_example()["y"])
    assert repr(late_one) == "Picture(5 nodes, not drawn: dot took too long)"


def test_every_door_of_a_digraph_that_writes_a_file_is_the_pictures_own_or_not_offered() -> None:
    picture, doors = draw_graph(torch.ones(3, requires_grad=True).sum()), set()
    for name in filter(lambda name: not name.startswith("_"), dir(graphviz.Digraph)):
        module = getattr(getattr(graphviz.Digraph, name), "__module__", "")
        if module in ("graphviz.saving", "graphviz.rendering", "graphviz.unflattening"):
            doors.add(name)
            own = getattr(type(picture), name).__module__ if hasattr(picture, name) else None
            # `view` calls `render`, and nothing else.
            assert own in (None, "graphviz_torch.render.dot.picture") or name == "view"
    assert doors == {"save", "render", "view", "unflatten"}


def test_save_writes_the_text_that_graphviz_would(tmp_path: Path) -> None:
    picture = draw_graph(torch.ones(3, requires_grad=True).sum())
    plain = graphviz.Source(picture.source).save(tmp_path / "plain.gv")
    path = picture.save("own.gv", tmp_path)
    assert path == str(tmp_path / "own.gv")
    assert Path(path).read_text() == Path(plain).read_text() == picture.source
    Path(path).write_text("old")
    picture.save(path, skip_existing=True)
    assert Path(path).read_text() == "old"


def test_save_and_render_make_no_folder(tmp_path: Path) -> None:
    picture, gone = draw_graph(torch.ones(3, requires_grad=True).sum()), tmp_path / "gone"
    for write in (picture.save, picture.render):
        with pytest.raises(FileNotFoundError, match="create it first"):
            write("own.gv", gone)
    assert not gone.exists()


def test_a_notebook_shows_an_svg() -> None:
    y = worked_example()["y"]
    bundle = draw_graph(y)._repr_mimebundle_()
    assert list(bundle) == ["image/svg+xml"]
    assert ET.fromstring(bundle["image/svg+xml"].encode()).tag.endswith("svg")
    assert set(trace(y)._repr_mimebundle_()) == {"image/svg+xml"}
    assert "image/png" in draw_graph(y)._repr_mimebundle_(include=["image/png"])


def test_render_writes_the_picture_and_no_other_file_unless_asked(tmp_path: Path) -> None:
    picture = draw_graph(worked_example()["y"])
    assert picture.render(tmp_path / "mean", format="svg") == str(tmp_path / "mean.svg")
    picture.render("other", tmp_path, format="pdf")
    picture.render(tmp_path / "both", cleanup=False)
    assert (tmp_path / "both").read_text() == picture.source
    picture.render(tmp_path / "picture.png")
    picture.render(outfile=tmp_path / "plain.dot")
    names = {"both", "both.svg", "mean.svg", "other.pdf", "picture.png", "plain.dot"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda y: draw_graph(y).render("a", format="gif"), ValueError, "format='gif' is unknown"),
        (lambda y: draw_graph(y).pipe("docx"), ValueError, "format='docx' is unknown"),
        (lambda y: draw_graph(y).render("no/such/a", format="gif2"), ValueError, "format='gif2'"),
        (lambda y: draw_graph(y).render("no/such/a.svg"), FileNotFoundError, "'no/such' does not"),
        (lambda y: draw_graph(y).render("/", format="svg"), IsADirectoryError, "'/' is a folder"),
        (lambda y: make_dot(y, params=[y]), TypeError, "params is a list without names"),
        (lambda y: make_dot(y, params=MLP().parameters()), TypeError, "without names: pass a dict"),
        (lambda y: make_dot(y, max_attr_chars=0), ValueError, "max_attr_chars=0 leaves nothing"),
        (lambda y: draw_graph(y).attr("edges", color="red"), ValueError, "'edges'"),
        (lambda y: draw_graph(y, theme="neon"), ValueError, "theme='neon' is unknown"),
        (lambda y: draw_graph(y, timeout=-1), ValueError, "timeout=-1 leaves no time"),
        (lambda y: draw_graph(y, torch.ones(1)), TypeError, "only an nn.Module is called"),
        (lambda y: draw_graph("y"), TypeError, "expected a graph, but got a str ('y')"),
        (lambda y: draw_graph([]), TypeError, "expected a graph, but got a list ([])"),
        (lambda y: draw_graph(y.detach()), ValueError, "requires_grad is False"),
        (lambda y: draw_graph(y, names=3), TypeError, "names is an int"),
        (lambda y: draw_graph(MLP().requires_grad_(False), torch.ones(1, 4)), ValueError, "False"),
    ],
)
def test_bad_input_is_refused_and_repeated(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call(worked_example()["y"])


def test_a_recorded_graph_is_drawn_as_it_is_and_an_empty_one_says_that_it_is_empty() -> None:
    with record() as recording:
        worked_example()["y"].backward()
    picture = draw_graph(recording.graph)
    assert picture.graph is recording.graph
    assert "grad [2, 2.667, 3.333]" in picture.pipe("svg").decode()
    assert b"this graph has no nodes" in draw_graph(Graph(())).pipe(format="svg")


def test_a_module_is_called_and_its_modules_are_clusters() -> None:
    picture = draw_graph(MLP(), torch.ones(1, 4))
    assert {node.module for node in picture.graph.nodes} == {"", "fc1", "fc2"}
    assert "<B>fc1 · Linear(4, 8)</B>" in picture.source
    named = draw_graph(MLP(), torch.ones(1, 4), names={})
    assert labels(named) == []


def test_drawing_a_module_leaves_it_and_the_random_state_as_they_were() -> None:
    model = nn.Sequential(ConvNet(), nn.Dropout(0.5), nn.BatchNorm1d(10)).train()
    model[0].norm.eval()
    modes = [m.training for m in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = dict(model.named_buffers())
    state, python = torch.get_rng_state(), random.getstate()
    with torch.no_grad():
        draw_graph(model, torch.ones(2, 3, 8, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "buffer",
    [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.ones(3, device="meta"),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])),
    ],
    ids=("sparse", "csr", "meta", "nested", "jagged", "masked"),
)
def test_a_module_is_drawn_whose_buffer_has_no_memory_to_compare(buffer: torch.Tensor) -> None:
    model = nn.Sequential(nn.Linear(3, 1))
    model.register_buffer("kept", buffer)
    assert len(draw_graph(model, torch.ones(2, 3)).graph.nodes) == 4
    assert model.kept is buffer


def test_a_forward_that_fails_leaves_the_module_as_it_was() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(3, 1))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        draw_graph(model, torch.randn(2, 4))
    assert torch.equal(model[0].running_mean, torch.zeros(4))


def test_auto_carries_both_themes_and_the_others_one() -> None:
    y = worked_example()["y"]
    auto = draw_graph(y, theme="auto").pipe("svg").decode()
    assert "prefers-color-scheme:dark" in auto
    ET.fromstring(auto)
    assert "prefers-color-scheme" not in draw_graph(y).pipe("svg").decode()
    assert "#12161b" in draw_graph(y, theme="dark").pipe("svg").decode()


def test_a_coarser_picture_takes_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.layout
    asked: list[str] = []

    def slow(dot: str, format: str, *, timeout: float) -> bytes:
        asked.append(dot)
        if len(asked) < 3:
            raise LayoutTimeout("too slow")
        return real(dot, format)

    monkeypatch.setattr(module, "layout", slow)
    picture = draw_graph(trace(_long(100), names={}), detail="full")
    first = picture.source
    with pytest.warns(UserWarning, match=r"took too long to lay out\. This one has about 6"):
        drawn = picture.pipe("svg").decode()
    assert "This one has about 6 boxes" in drawn
    assert len(picture.source) < len(first)
    assert picture.pipe("svg").decode() == drawn
    assert len(asked) == 3


def _long(length: int) -> torch.Tensor:
    y = torch.ones((), requires_grad=True)
    choice = random.Random(0).choice
    for _ in range(length):
        y = choice((torch.sin, torch.tanh, torch.exp))(y * 2)
    return y


def test_when_even_the_coarsest_takes_too_long_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds: list[float] = []

    def never(dot: str, format: str, *, timeout: float) -> bytes:
        seconds.append(timeout)
        raise LayoutTimeout("the layout did not end")

    monkeypatch.setattr(module, "layout", never)
    with pytest.raises(LayoutTimeout):
        draw_graph(worked_example()["y"], timeout=8).pipe("svg")
    assert seconds == [4, 2, 8]  # the coarsest is small: a busy machine may be slow with it


def test_make_dot_takes_what_torchviz_took() -> None:
    model = MLP()
    y = model(torch.ones(1, 4)).sum()
    picture = make_dot(y, params=dict(model.named_parameters()))
    assert set(labels(picture)) == {name for name, _ in model.named_parameters()}
    assert set(labels(make_dot(y, params=model.named_parameters()))) == set(labels(picture))
    assert "y" in labels(make_dot(y))


def test_make_dot_shows_attributes_and_saved_tensors_as_torchviz_did() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.pow(2).sum()
    assert "exponent = 2" not in make_dot(y).source
    assert "exponent = 2" in make_dot(y, show_attrs=True).source
    wide = torch.zeros(1, 1, 1, 1, 1, 1, requires_grad=True).permute(5, 4, 3, 2, 1, 0)
    short = make_dot(wide, show_attrs=True, max_attr_chars=4).source
    assert "dims = (5, …" in short
    assert "4, 3" not in short.split("dims = ")[1]
    assert "were not recorded" in make_dot(y, None, False, True).source
    with record() as recording:
        x.pow(2).sum().backward()
    picture = make_dot(recording, show_saved=True)
    assert "saved self f32[3] cpu" in picture.source
    assert picture.graph is recording.graph
    ET.fromstring(picture.pipe("svg"))


def test_what_is_added_to_the_picture_is_in_the_drawing() -> None:
    picture = draw_graph(worked_example()["y"])
    before = picture.pipe("svg").decode()
    picture.graph_attr["bgcolor"] = "#010203"
    picture.node_attr["fontcolor"] = "#040506"
    picture.attr("edge", color="#070809")
    picture.attr(label="my title")
    picture.node("0", color="#0a0b0c")
    picture.node("mine", "added node")
    picture.edge("mine", "0", label="added edge")
    picture.body.append('other [label="from body"]')
    with picture.subgraph(name="cluster_mine") as inner:
        inner.node("within", "in a frame")
    after = picture.pipe("svg").decode()
    said = ["#010203", "#040506", "#070809", "#0a0b0c", "my title", "added node", "added edge"]
    for text in [*said, "from body", "in a frame"]:
        assert text not in before
        assert text in after
    ET.fromstring(after)
    assert picture.copy().source == picture.source == str(picture)


def test_later_attributes_hold_for_what_is_added_next() -> None:
    picture = draw_graph(worked_example()["y"])
    picture.node("mine")
    picture.attr("node", color="#0a0b0c")
    picture.node("yours")
    assert picture.pipe("svg").decode().count("#0a0b0c") == 1


def test_the_size_the_dots_per_inch_and_the_format_are_those_of_the_picture(tmp_path: Path) -> None:
    def pixels(picture: Any) -> tuple[int, int]:
        data = picture.pipe("png")
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")

    y = worked_example()["y"]
    usual = pixels(draw_graph(y))
    fine = draw_graph(y)
    fine.attr(dpi="288")
    assert pixels(fine)[0] == pytest.approx(2 * usual[0], abs=2)
    small = draw_graph(y)
    small.attr(size="1,1")
    assert max(pixels(small)) <= 145
    small.format = "png"
    assert small.render(tmp_path / "small") == str(tmp_path / "small.png")
    assert [path.name for path in tmp_path.iterdir()] == ["small.png"]


def test_a_trace_says_where_record_would_show_more_and_a_recording_has_it() -> None:
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    said = "record() has them"
    assert said in draw_graph((x + 2).sum()).source
    assert said not in draw_graph((x + w).sum()).source
    with record() as recording:
        (x + 2).sum().backward()
    drawn = draw_graph(recording).source
    assert said not in drawn
    assert "add 2<" in drawn
