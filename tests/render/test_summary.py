"""Compare the FLOPs of summary() with PyTorch's counter, and other figures with the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from graphviz_torch import Graph, load, record, summary, trace
from graphviz_torch.graph import GradientStats, Node, Parameter, TensorMeta
from graphviz_torch.graph.units import number_text
from graphviz_torch.render.labels import TIMES
from tests.support.models import MLP
from tests.support.programs import function
from tests.support.zoo import ZOO, UNet


def convolutions() -> nn.Sequential:
    """In groups, dilated, with strides, and back."""
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2),
        nn.Conv2d(4, 4, (1, 3), dilation=2, padding=1),
    )


def images(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (MLP, images(5, 4)),
    "linear of three dimensions": (lambda: nn.Linear(4, 3), images(2, 5, 4)),
    "convolutions": (convolutions, images(2, 4, 9, 9)),
    "convolution of one dimension": (lambda: nn.Conv1d(3, 8, 5), images(2, 3, 20)),
    "unet": (UNet, images(1, 3, 32, 32)),
    "gru": (lambda: nn.GRU(4, 5), images(3, 2, 4)),
    "gru cell": (lambda: nn.GRUCell(4, 5), images(2, 4)),
    "attention": (lambda: nn.MultiheadAttention(8, 2), images(3, 2, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), images(3, 2, 8)),
    "frozen": (lambda: nn.Sequential(nn.Linear(4, 4), frozen(nn.Conv1d(4, 2, 3))), images(4, 9, 4)),
}


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def total(outputs: Any) -> Tensor:
    return sum(part.sum() for part in outputs) if isinstance(outputs, tuple) else outputs.sum()


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_pytorch_counts(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x = make(), inputs()

    def forward() -> Tensor:
        if isinstance(model, nn.MultiheadAttention):
            return total(model(x, x, x))
        if name == "frozen":
            assert isinstance(model, nn.Sequential)
            return total(model[1](model[0](x).transpose(1, 2)))
        return total(model(x))

    with FlopCounterMode(display=False) as ahead:
        loss = forward()
    with FlopCounterMode(display=False) as back:
        loss.backward()
    with record(model) as recording:
        forward().backward()
    path = recording.graph.save(tmp_path / "graph.json")
    found = summary(load(path)).total
    counted = ahead.get_total_flops(), back.get_total_flops()
    assert (found.flops_forward, found.flops_backward) == counted
    assert found.flops_unknown == 0
    assert counted[0] > 0


def test_attention_in_one_kernel_counts_as_the_products_that_it_is_made_of() -> None:
    query, key = (torch.randn(2, 3, n, 4, requires_grad=True) for n in (7, 5))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(query, key, key)
    found = summary(scaled_dot_product_attention(query, key, key)).total
    assert found.flops_forward == counter.get_total_flops()
    assert found.flops_backward == found.flops_forward * 5 // 2  # three products as one, and two


def test_only_what_backward_computes_counts() -> None:
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    with record() as recording:
        torch.autograd.grad((x @ w).sum(), x)
    found = summary(recording).total
    assert (found.flops_forward, found.flops_backward) == (120, 120)


def test_what_a_custom_function_computes_is_said_not_to_be_known() -> None:
    twice = function(lambda ctx, x: x * 2, lambda ctx, gradient: gradient * 2)
    found = summary(twice.apply(torch.ones(2, requires_grad=True)))
    assert found.total.flops_unknown == 1
    assert "FLOPs of 1 node are not known" in str(found)


def test_shapes_of_a_hostile_file_end_in_no_error() -> None:
    for shape in ((), (-1,), (3,), (2, -1, 4), (2, 3, 4, 5)):
        meta = TensorMeta(shape, "float32", "cpu")
        for operation in ("mm", "addmm", "bmm", "convolution", "scaled_dot_product_attention"):
            node = Node(0, "XBackward0", (meta,), operation=operation, attributes=("groups=no",))
            assert "total" in str(summary(Graph((node,))))


def test_each_module_has_what_the_model_itself_says_of_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), frozen(nn.Linear(8, 2)))
    before = {name: p.detach().norm().item() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model[0].parameters(), 0.5)
    with record(model) as recording:
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    rows = {row["module"]: row for row in summary(recording).rows()}
    assert list(rows) == ["0", "1", "2", ""]
    first = rows["0"]
    assert (first["module_class"], first["output"]) == ("Linear(4, 8)", "f32[3, 8] cpu")
    assert (first["parameters"], first["trainable"], rows["2"]["trainable"]) == (40, 40, 0)
    grads = [p.grad for p in model[0].parameters()]
    norm = torch.cat([g.flatten() for g in grads if g is not None]).norm().item()
    weights = (before["0.weight"] ** 2 + before["0.bias"] ** 2) ** 0.5
    assert first["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert first["gradient_ratio"] == pytest.approx(norm / weights, rel=1e-5)
    assert rows[""]["parameters"] == sum(p.numel() for p in model.parameters())
    assert rows[""]["saved_bytes"] >= first["saved_bytes"] > 0
    assert rows[""]["seconds"] >= first["seconds"] > 0


def test_modules_come_in_the_order_of_the_forward_with_their_calls() -> None:
    model = nn.ModuleDict({"second": nn.Linear(2, 2), "first": nn.Linear(2, 2)})
    with record(model) as recording:
        second, first = model.values()
        second(second(first(torch.ones(1, 2)))).sum().backward()
    found = [(row.module, row.calls) for row in summary(recording).modules]
    assert found == [("first", 1), ("second", 2)]


@pytest.mark.parametrize("name", ["ResNet-18", "T5", "LSTM cell, 30 steps"])
def test_a_table_fits_a_terminal_and_goes_as_deep_as_asked(name: str) -> None:
    graph = ZOO[name]().graph
    found = summary(graph)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40 + 4 + 3  # the titles, the total, two rules; notes
    assert {row.depth for row in summary(graph, depth=1).modules if row.module} == {1}
    assert summary(graph, depth=100).depth == found.deepest


def test_a_traced_graph_has_the_columns_that_are_known() -> None:
    model = MLP()
    found = str(summary(trace(model(torch.ones(2, 4)), names=model)))
    assert found.splitlines()[0].split() == ["module", "output", "params", "FLOPs", "backward"]
    assert "Linear" in found


def test_names_are_escaped_in_a_notebook() -> None:
    meta = TensorMeta((2,), "float32", "cpu")
    node = Node(0, "MulBackward0", (meta,), operation="mul", module="<b>", scope="<b>")
    shown = summary(Graph((node,), outputs=((0, 0),)))._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="pass 1 or more"):
        summary(Graph(()), depth=0)


def test_a_graph_without_a_recorded_model_counts_the_parameters_that_are_in_it() -> None:
    model = nn.Linear(2, 3)
    traced = trace(model(torch.ones(1, 2)).sum(), names=model)
    assert summary(traced).total.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("width", [60, 70, 80])
def test_a_long_name_is_cut_and_the_least_telling_columns_are_left_out(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    model = nn.Sequential()
    model.add_module("a_layer_with_a_name_of_about_fifty_characters_in_all", nn.Linear(2, 3))
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    found = summary(recording)
    wide = found.to_text(wide=True)
    assert "no room" not in wide
    assert "characters_in_all · Linear(2, 3)" in wide
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    text = found.to_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[2].startswith("a_layer_with_a_name_of")
    assert "…" in lines[2]
    columns = lines[0].split()
    assert columns[:3] == ["module", "output", "params"]
    assert "Hidden at " in text
    left_out = text.partition(" columns: ")[2].partition(";")[0].split(", ")
    assert sorted([*columns, *left_out]) == sorted(wide.splitlines()[0].split())
    assert "/weights" in left_out


def test_blocks_that_are_alike_share_a_line_where_there_are_many() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(12)]
    model = nn.Sequential(nn.Linear(3, 4), *blocks)
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    found = summary(recording)
    lines = [line.strip() for line in str(found).splitlines()]
    assert found.depth == 2
    assert lines[3].startswith(f"1 … 12 {TIMES} 12 · Sequential ")
    assert [line.split()[0] for line in lines[4:7]] == ["0", "1", "2"]
    norms = [
        sum(float(p.grad.norm()) ** 2 for p in block.parameters() if p.grad is not None) ** 0.5
        for block in blocks
    ]
    assert f"{number_text(min(norms), 3)} … {number_text(max(norms), 3)}" in lines[3]
    assert len(found.to_text(wide=True).splitlines()) == len(found.modules) + 4 == 53
    assert f"{TIMES} 12" in found._repr_html_()


def test_the_model_itself_has_a_row_where_it_computes() -> None:
    model = nn.LSTM(4, 5)
    with record(model) as recording:
        model(torch.randn(3, 2, 4))[0].sum().backward()
    found = summary(recording)
    [row] = found.modules
    assert (row.module, row.module_class) == ("", "LSTM(4, 5)")
    assert str(row.output) == "f32[3, 2, 5] cpu"
    assert row.parameters == sum(p.numel() for p in model.parameters())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert row.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert row.seconds is not None
    assert found.total.seconds is not None
    assert 0 < row.seconds < found.total.seconds  # the loss is outside
    with record(MLP()) as recording:
        MLP()(torch.ones(1, 4)).sum().backward()
    shown = [line.partition("  ·")[0] for line in str(summary(recording)).splitlines()]
    assert [len(line) - len(line.lstrip()) for line in shown[2:5]] == [0, 2, 2]


def test_a_layer_for_which_torch_has_no_formula_has_at_least_the_flops_of_the_others() -> None:
    model = nn.Sequential(nn.Linear(4, 4), SquaredBilinear(4, 4, 3))
    with record(model) as recording:
        model(torch.randn(5, 4)).sum().backward()
    first, second = (str(summary(recording)).splitlines()[i] for i in (2, 3))
    assert " 160 " in first  # 2 * 5 * 4 * 4
    assert " ≥0 " in second


class SquaredBilinear(nn.Bilinear):
    """A bilinear layer of one input."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x)


def test_the_gradient_of_a_part_is_said_to_be_one_until_the_ranks_put_it_together() -> None:
    meta = TensorMeta((4, 4), "float32", "cpu")
    part = GradientStats(3.0, 1.0, 0.0, 0.0, extent="local part")
    leaf = Node(
        0, "AccumulateGrad", (meta,), "fc.weight", grad_outputs=(part,), leaf="parameter", order=0
    )
    mine = Parameter("fc.weight", meta, True, 0, grad=part, shard=0, shard_count=2)
    whole = replace(mine, grad=GradientStats(5.0, 1.0, 0.0, 0.0), shard_count=1)
    local, merged = (
        summary(Graph((leaf,), outputs=((0, 0),), parameters=(each,))) for each in (mine, whole)
    )
    assert local.total.gradient_norm == 3.0
    said = "gradient: the norm for 1 parameter is of this process's shard only"
    assert said in str(local)
    assert merged.total.gradient_norm == 5.0
    assert "part" not in str(merged)


def test_a_module_without_an_operation_in_the_graph_has_no_number_of_flops() -> None:
    frozen, head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)
    with record() as recording:
        head(frozen(torch.ones(2, 3))).sum().backward()
    heading, _, head_row, frozen_row, *_ = str(summary(recording)).splitlines()
    end = heading.index("FLOPs") + len("FLOPs")
    assert head_row[:end].split()[-1] == "12"  # 2 * 2 * 3 * 1
    assert frozen_row[:end].split() == ["frozen", "12", "0"]  # parameters, trainable
