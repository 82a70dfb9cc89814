"""Compare the operations inside a compiled region with those of the eager model.

The expected nodes, lines and modules are those of the eager model.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache

from graphviz_torch import find, record, trace
from graphviz_torch.graph import Graph
from tests.recording.test_compiled import INDUCTOR, nothing_compiled_stays  # noqa: F401

# Of these the backward computes nothing, or the compiler takes them out.
NOTHING = {"AddBackward0", "ExpandBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"}
NOTHING |= {"ViewBackward0", "TBackward0"}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        weights = torch.softmax(q @ q.transpose(-1, -2) / 3, -1)
        return self.out(weights @ x)


class Reader(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Attention() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = x + block(x)
        return self.head(nn.functional.gelu(self.norm(x)))


WORDS = torch.arange(8).view(2, 4)


def recorded(model: Any, named: nn.Module, steps: int = 1, **options: Any) -> Graph:
    for _ in range(steps):
        with record(named, **options) as recording:
            model(WORDS).square().mean().backward()
    recording.graph.check()
    return recording.graph


def inside(graph: Graph) -> list[Any]:
    return [node for node in graph.nodes if node.note == "inside torch.compile"]


def described(nodes: Any) -> Counter[tuple[Any, ...]]:
    """Each with its first output: of others, such as a norm's mean, the region has none."""
    return Counter(
        (node.name, node.module, node.module_class, node.where, node.outputs[0])
        for node in nodes
        if node.name not in NOTHING
    )


@pytest.fixture
def without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor knows no graph. What its compiler has made of C++ stays: that takes the time."""
    for cache, name in ((AOTAutogradCache, "aot"), (FxGraphCache, "fx")):
        monkeypatch.setattr(cache, "_get_tmp_dir", lambda name=name: str(tmp_path / name))


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_a_region_has_the_nodes_of_the_eager_model(backend: str, without_a_cache: None) -> None:
    model = Reader()
    eager = recorded(model, model)
    compiled = recorded(torch.compile(model, backend=backend), model, steps=2)
    expected = [n for n in eager.nodes if n.module_class and not n.leaf]
    assert described(inside(compiled)) == described(expected)
    assert not [found for found in find(compiled) if found.severity != "info"]


def every(nodes: Any) -> Counter[tuple[Any, ...]]:
    """Every one; what is a view without a copy has several names."""
    view = {"UnsafeViewBackward0": "ViewBackward0", "ReshapeAliasBackward0": "ViewBackward0"}
    return Counter(
        (view.get(n.name, n.name), n.module, n.module_class, n.where, n.outputs) for n in nodes
    )


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_one_that_is_compiled_while_recorded_has_every_node_of_the_eager_model(
    backend: str, dynamic: bool | None, without_a_cache: None
) -> None:
    model = Reader(blocks=1 if dynamic else 2)  # symbols take most of the time
    expected = [n for n in recorded(model, model).nodes if n.operation not in ("", "pow", "mean")]
    # The second time, inductor's graph is from its cache on disk.
    for hits in (0, 1) if backend == "inductor" else (0,):
        torch._dynamo.reset()
        counters.clear()
        compiled = recorded(torch.compile(model, backend=backend, dynamic=dynamic), model)
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits
        assert every(inside(compiled)) == every(expected)
        assert [node.order for node in inside(compiled)].count(None) == 0


def test_each_parameter_leads_to_what_its_own_module_does() -> None:
    model = Reader()
    graph = recorded(torch.compile(model, backend="aot_eager"), model)
    leaves = {node.id: node.label.rpartition(".")[0] for node in graph.nodes if node.leaf}
    users = {
        (leaves[e.source], graph.nodes[e.target].module) for e in graph.edges if e.source in leaves
    }
    assert users == {(path, path) for path in leaves.values()}
    [end] = [node for node in graph.nodes if node.note == "torch.compile region"]
    assert [graph.nodes[e.source].module for e in graph.edges if e.target == end.id] == ["head"]
    assert end.grad_outputs[0] is not None
    assert sorted(node.order for node in graph.nodes) == list(range(len(graph.nodes)))


def test_blocks_that_share_their_code_have_their_own_modules() -> None:
    model = Reader()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    modules = Counter(node.module for node in inside(recorded(model, model)))
    assert modules["blocks.0.q"] == modules["blocks.1.q"] > 0
    assert modules["blocks.0.out"] == modules["blocks.1.out"] > 0


def test_a_region_stays_closed_where_that_is_asked() -> None:
    model = Reader()
    graph = recorded(torch.compile(model, backend="aot_eager"), model, compiled="closed")
    assert inside(graph) == []
    with pytest.raises(ValueError, match="open"):
        record(compiled="ajar")  # type: ignore[arg-type]


def test_trace_has_the_nodes_of_autograd_alone() -> None:
    model = Reader()
    y = torch.compile(model, backend="aot_eager")(WORDS)
    assert inside(trace(y)) == []


def test_of_a_region_that_ran_before_the_recording_it_says_why_it_is_closed(
    without_a_cache: None,
) -> None:
    model = nn.Linear(8, 2)
    output = torch.compile(model, backend="aot_eager")(torch.ones(1, 8))
    info = type(output.grad_fn)._forward_cls._lazy_backward_info  # type: ignore[union-attr]
    for node in info.bw_module.graph.nodes:
        node.meta.clear()  # as inductor leaves it
    with record(model) as recording:
        output.sum().backward()
    [region] = [node for node in recording.graph.nodes if "torch.compile region" in node.note]
    assert "ran before the recording" in region.note
