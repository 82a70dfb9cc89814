"""Test where two runs first differ: ports and originals, and small programs with one change."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import Graph, draw_graph, record
from graphviz_torch.compare import FirstDifference, first_difference
from graphviz_torch.integrations.command.main import main
from tests.comparison.ports import LENGTH, WORDS, lines, originals, stir


def run(model: Any, *inputs: Any, **keywords: Any) -> Graph:
    """A recorded step with its values."""
    with record(model, fingerprints=True) as recording:
        out = model(*inputs, **keywords)
        scores = out if isinstance(out, Tensor) else out[0]
        generator = torch.Generator().manual_seed(0)
        targets = torch.randint(0, scores.shape[-1], scores.shape[:-1], generator=generator)
        loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten())
        loss.backward()
    return recording.graph


@cache
def beside(name: str, fault: str) -> FirstDifference:
    """Return an original, and its port with a fault."""
    torch.manual_seed(0)
    make, port = originals()[name]
    original = stir(make())
    tokens = torch.randint(1, WORDS, (3, LENGTH))
    keywords = {}
    if name == "BERT":
        tokens[0, 8:] = 0
        keywords["attention_mask"] = (tokens != 0).long()
    return first_difference(run(original, tokens, **keywords), run(port(fault, original), tokens))


FAULTS = [
    ("GPT-2", "epsilon", "another epsilon: 1e-05 before, 0.001 after"),
    ("GPT-2", "GELU", "another approximation of GELU: tanh before, none after"),
    ("GPT-2", "Conv1D", "a transposed weight: blocks.1.proj.weight"),
    ("GPT-2", "mask", "another mask"),
    ("Llama", "rotary order", "other indices or positions"),
    (
        "GPT-2",
        "tied weights",
        "weights that are tied before (transformer.wte.weight) and not after",
    ),
    ("GPT-2", "dropout", "dropout acts after and not before: p=0.1"),
    ("GPT-2", "position offset", "other indices or positions"),
    ("BERT", "padding mask", "another mask or scale"),
    ("BERT", "bias", "a missing bias: encoder.layer.0.attention.output.dense.bias is not added"),
]


@pytest.mark.parametrize(("name", "fault", "kind"), FAULTS)
def test_a_port_is_told_the_line_and_the_kind_of_its_fault(
    name: str, fault: str, kind: str
) -> None:
    found = beside(name, fault)
    assert found.after is not None
    assert found.b.nodes[found.after].where in lines(fault)
    assert found.kind.startswith(kind)
    assert found.equal_to < 1e-4


@pytest.mark.parametrize("name", originals())
def test_a_port_without_a_fault_is_told_equal(name: str) -> None:
    found = beside(name, "")
    assert not found
    assert found.equal > 80
    assert str(found).startswith(("equal to within 1e-", "no difference in "))


def test_the_sentence_says_up_to_where_and_by_how_much() -> None:
    head, *_, after = str(beside("GPT-2", "epsilon")).splitlines()
    assert "up to blocks.1: native_layer_norm (ports.py:" in head
    assert re.search(r"relative difference 0\.00[1-9] there", head)
    assert head.endswith("at the loss")
    assert after.startswith("  after: blocks.1: native_layer_norm (ports.py:")


def step(compute: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> Graph:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 8).to(dtype).requires_grad_()
    weight = (torch.randn(8, 8) / 3).to(dtype).requires_grad_()
    with record(fingerprints=True) as recording:
        compute(x, weight).square().mean().backward()
    return recording.graph


ORDER = torch.tensor([2, 0, 4, 5, 3, 1])
CHANGES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, str]] = {
    "scale": (lambda x, w: (x @ w / 2).tanh() + x, "div", "a scale: times 0.5 after"),
    "scaled weight": (lambda x, w: (x @ (w * 2)).tanh() + x, "mul", "a scale: times 2 after"),
    "transposed": (lambda x, w: (x @ w.t()).tanh() + x, "unsafe_view", "a transposed weight: w"),
    "rows": (lambda x, w: (x @ w)[:, ORDER].tanh() + x, "index", "a permutation of rows"),
    "shift": (
        lambda x, w: (x @ w).roll(2, 1).tanh() + x,
        "roll",
        "a permutation of rows: the same ones in another order along dimension 1, shifted",
    ),
    "columns": (
        lambda x, w: (x @ w)[..., [1, 0, 3, 2, 5, 4, 7, 6]].tanh() + x,
        "index",
        "a permutation of columns: another order along dimension 2",
    ),
    "NaN": (lambda x, w: (x @ w).log().tanh() + x, "log", "NaN or Inf after"),
}


def plain(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh() + x


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_program_is_told_the_place_and_the_kind(change: str) -> None:
    compute, operation, kind = CHANGES[change]
    found = first_difference(step(plain), step(compute))
    assert found.after is not None
    assert found.b.nodes[found.after].operation == operation
    assert found.kind.startswith(kind)


def normed(epsilon: float) -> Callable[[Tensor, Tensor], Tensor]:
    def compute(x: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + epsilon)

    return compute


def activated(approximate: str, weight: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: weight * F.gelu(x @ w, approximate=approximate) + x


def sigmoid_gelu(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    return h * torch.sigmoid(1.702 * h) + x


PAIRS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], str, str]] = {
    "epsilon by hand": (
        normed(1e-6),
        normed(2e-3),
        "add",
        "another epsilon: 1e-06 before, 0.002 after",
    ),
    "GELU by hand": (
        activated("none"),
        sigmoid_gelu,
        "mul",
        "another approximation of GELU: none before, sigmoid after",
    ),
    "GELU that the loss hardly shows": (
        activated("none", 1e-3),
        activated("tanh", 1e-3),
        "gelu",
        "another approximation of GELU: none before, tanh after",
    ),
    "a side of padding": (
        lambda x, w: F.pad(x @ w, (2, 0)).cumsum(-1),
        lambda x, w: F.pad(x @ w, (0, 2)).cumsum(-1),
        "constant_pad_nd",
        "padding on another side",
    ),
    "a weight whose product is small": (
        lambda x, w: x + 1e-4 * (x @ w).tanh(),
        lambda x, w: x + 1e-4 * (x @ w.t()).tanh(),
        "unsafe_view",
        "",
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_two_programs_are_told_the_place_and_the_kind(pair: str) -> None:
    before, after, operation, kind = PAIRS[pair]
    found = first_difference(step(before), step(after))
    assert found.after is not None
    assert found.b.nodes[found.after].operation == operation
    assert found.kind.startswith(kind)


def padded(left: bool) -> Graph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8))
    tokens = torch.zeros(3, 6, dtype=torch.long)
    for row, length in enumerate((6, 4, 3)):
        words = torch.randint(1, 20, (length,))
        tokens[row, 6 - length if left else 0 : 6 if left else length] = words
    with record(model, fingerprints=True) as recording:
        model(tokens).square().mean().backward()
    return recording.graph


def test_padding_on_the_other_side_is_told_as_rows_in_another_order() -> None:
    found = first_difference(padded(left=False), padded(left=True))
    assert found.after is not None
    assert found.b.nodes[found.after].operation == "embedding"
    assert found.kind == (
        "a permutation of rows: the same ones in another order along dimension 1, "
        "within each sample: as padding left and right does"
    )


def test_a_program_is_equal_to_itself() -> None:
    found = first_difference(step(plain), step(plain))
    assert (bool(found), found.equal_to) == (False, 0)


def test_a_program_in_bfloat16_is_equal_up_to_the_rounding_of_bfloat16() -> None:
    found = first_difference(step(plain), step(plain, torch.bfloat16))
    assert not found
    assert 1e-4 < found.equal_to < 5e-2


@cache
def original(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return stir(originals()[name][0]()), torch.randint(1, WORDS, (3, LENGTH))


@pytest.mark.parametrize("name", originals())
@pytest.mark.parametrize("change", ["bfloat16", "float64", "autocast", "attention"])
def test_what_computes_the_same_in_another_way_is_told_equal(name: str, change: str) -> None:
    model, tokens = original(name)
    other: Any = copy.deepcopy(model)
    if change == "attention":
        other.config._attn_implementation = "sdpa"
    elif change != "autocast":
        other = other.to(getattr(torch, change))
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        changed = run(other, tokens)
    assert not first_difference(run(model, tokens), changed)


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("GPT-2", "transformer.h.0.ln_2.weight"),
        ("Llama", "model.layers.1.input_layernorm.weight"),
        ("BERT", "encoder.layer.0.attention.output.LayerNorm.weight"),
    ],
)
def test_a_fault_is_told_from_the_rounding_of_bfloat16(name: str, weight: str) -> None:
    model, tokens = original(name)
    other = copy.deepcopy(model).bfloat16()
    with torch.no_grad():
        other.get_parameter(weight).mul_(3)
    found = first_difference(run(model, tokens), run(other, tokens))
    assert found.kind == f"another weight: {weight} has another value"
    assert found.after is not None
    assert found.b.nodes[found.after].module == weight.rpartition(".")[0]


def test_a_tolerance_of_ones_own_finds_the_rounding() -> None:
    found = first_difference(step(plain), step(plain, torch.bfloat16), tolerance=1e-6)
    assert found


def test_a_compiled_module_is_equal_to_the_eager_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8))
    x = torch.randn(5, 8)
    eager, compiled = run(model, x), run(torch.compile(model, backend="aot_eager"), x)
    assert not first_difference(eager, compiled)
    with torch.no_grad():
        model[2].weight[0] = 5
    found = first_difference(eager, run(torch.compile(model, backend="aot_eager"), x))
    assert found.after is not None
    assert found.b.nodes[found.after].operation == "compiled"


def test_other_weights_are_named() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(5, 8)
    before = run(model, x)
    with torch.no_grad():
        model[2].weight += 0.1
    found = first_difference(before, run(model, x))
    assert found.kind == "another weight: 2.weight has another value"


def test_a_graph_without_values_is_an_error_that_says_what_to_do() -> None:
    with record() as recording:
        torch.ones(3, requires_grad=True).sum().backward()
    with pytest.raises(
        ValueError, match=r"the second graph has no fingerprints.*record\(fingerprints=True\)"
    ):
        first_difference(step(plain), recording)
    with pytest.raises(ValueError, match="tolerance=-1 is not a relative difference"):
        first_difference(step(plain), step(plain), tolerance=-1)


@pytest.mark.parametrize("change", ["NaN", "transposed"])
def test_the_picture_shows_both_with_the_place_marked(change: str) -> None:
    found = first_difference(step(plain), step(CHANGES[change][0]))
    assert "changed" in found.marks().values()
    union = found.union()
    [place] = [node for node, mark in found.marks().items() if mark == "changed"]
    assert union.nodes[place].note == found.kind
    assert found.kind.split(":")[0] in draw_graph(found).source


def test_the_command_tells_the_place_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    for path, compute in zip(paths, (plain, CHANGES["transposed"][0]), strict=True):
        step(compute).save(path)
    names = list(map(str, paths))
    assert main(["diff", "--fingerprints", *names]) == 1
    assert "a transposed weight: weight" in capsys.readouterr().out
    assert main(["diff", "--fingerprints", names[0], names[0]]) == 0
    assert capsys.readouterr().out.startswith("no difference in ")
    assert main(["diff", "--fingerprints", "--format", "json", "--fail-on", "never", *names]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "a transposed weight: weight"


def test_a_loss_that_is_equal_by_chance_does_not_hide_the_result_that_is_not() -> None:
    """The mean does not change where as much is added here as is taken away there."""

    def shifted(shift: Tensor) -> Graph:
        torch.manual_seed(0)
        x = torch.randn(8, requires_grad=True)
        with record(fingerprints=True) as recording:
            y = x * 2 + shift
            (y.mean() * 3).backward()
        return recording.graph

    said = str(first_difference(shifted(torch.zeros(8)), shifted(torch.tensor([1.0, -1.0] * 4))))
    assert [line.split()[:2] for line in said.splitlines() if "f32[8]" in line] == [
        ["before:", "y"],
        ["after:", "y"],
    ]


class Attending(nn.Module):
    """Attention to earlier positions or, with an inverted mask, to later ones."""

    def __init__(self, later: bool) -> None:
        super().__init__()
        self.project, self.head, self.later = nn.Linear(8, 8), nn.Linear(8, 5), later

    def forward(self, x: Tensor) -> Tensor:
        scores = self.project(x) @ x.transpose(1, 2)
        hidden = torch.ones(scores.shape[1:]).tril().bool()
        scores = scores.masked_fill(hidden if self.later else ~hidden, -1e4)
        return self.head(scores.softmax(-1) @ x)


@pytest.mark.parametrize("size", [1.0, 0.01])  # small ones have nearly the same elements
def test_another_mask_is_told_of_attention_that_is_nearly_even(size: float) -> None:
    graphs = []
    for later in (True, False):
        torch.manual_seed(0)
        graphs.append(run(Attending(later), size * torch.randn(2, 16, 8)))
    assert first_difference(*graphs).kind.startswith("another mask")


def test_what_is_told_of_two_programs_that_have_nothing_in_common_is_the_place_alone() -> None:
    torch.manual_seed(0)
    words, images = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4)), nn.Conv1d(3, 4, 1)
    graphs = run(words, torch.randint(0, 9, (2, 7))), run(images, torch.randn(5, 3, 8))
    found = first_difference(*graphs)
    assert (bool(found), found.kind) == (True, "")


def test_what_one_side_alone_computes_has_nothing_of_another_size_beside_it() -> None:
    def summed(scale: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, w: (x @ w if scale == 1 else x @ w * scale).sum(-1)

    found = first_difference(step(summed(1)), step(summed(0.5)))
    assert found.kind == "a scale: times 0.5 after and not before"
    assert found.before is None
    assert "  before:" not in str(found)
