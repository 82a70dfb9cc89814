"""Measure drawing as DOT and as SVG, compared with torchviz on the same graphs.

`python -m tests.bench.bench_draw [WORKLOAD ...]` prints a table. A DOT time is the median of
interleaved rounds, without the first. "whole" draws all nodes, as torchviz does; by default, equal
blocks are folded. Both layouts are made by the same Graphviz, which is stopped after 60 seconds.
All times are CPU seconds, including child processes, because other processes affect them less.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from graphviz_torch import draw_graph, record, trace
from graphviz_torch.export import to_dot
from graphviz_torch.render.dot.layout import LayoutTimeout, layout
from graphviz_torch.render.dot.picture import Picture
from tests.support.models import ResNet, chain, dense_block, gpt2, llama, tokens

STOP = 60.0
ROUNDS = 9


def rnn(steps: int) -> torch.Tensor:
    """Return the loss of a hand-written RNN cell, unrolled: each step uses its three parameters."""
    u, w = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    b = torch.nn.Parameter(torch.zeros(4))
    x = torch.randn(steps, 1, 4, requires_grad=True)
    h = torch.zeros(1, 4)
    for t in range(steps):
        h = torch.tanh(x[t] @ u + h @ w + b)
    return h.sum()


def bert(layers: int = 12, width: int = 16) -> torch.nn.Module:
    """Return a narrow BERT-base encoder with random weights, for token ids below 32."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=32,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * width,
        max_position_embeddings=32,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def images() -> torch.Tensor:
    return torch.randn(1, 3, 64, 64)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], torch.Tensor]]] = {
    "ResNet-50": (lambda: ResNet(50), images),
    "ResNet-152": (lambda: ResNet(152), images),
    "GPT-2 small": (lambda: gpt2(12), tokens),
    "GPT-2 medium": (lambda: gpt2(24), tokens),
    "BERT": (bert, tokens),
    "Llama-32": (lambda: llama(32), tokens),
}
OUTPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "RNN-50": lambda: rnn(50),
    "RNN-1000": lambda: rnn(1000),
    "dense-33": lambda: dense_block(33),
    "dense-300": lambda: dense_block(300),
    "chain 1k": lambda: chain(1_000),
    "chain 10k": lambda: chain(10_000),
    "chain 100k": lambda: chain(100_000),
}


def outputs(name: str) -> torch.Tensor:
    if name in OUTPUTS:
        return OUTPUTS[name]()
    model, inputs = (make() for make in MODELS[name])
    found = model(inputs)
    for name in ("logits", "last_hidden_state"):
        found = getattr(found, name, found)
    return found


def seconds(call: Callable[[], Any]) -> float:
    """Return the CPU time of a call, including child processes that have ended."""

    def used() -> float:
        times = os.times()
        return time.process_time() + times.children_user + times.children_system

    start = used()
    call()
    return used() - start


def torchviz_dot(y: torch.Tensor) -> str:
    from torchviz import make_dot

    return make_dot(y).source


def drawn(picture: Picture) -> str:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        took = seconds(lambda: picture.pipe("svg"))
    return f"{took:.2f}{' coarser' if said else ''}"


def peer_drawn(y: torch.Tensor) -> str:
    try:
        source = torchviz_dot(y)
        return f"{seconds(lambda: layout(source, timeout=STOP)):.2f}"
    except LayoutTimeout:
        return f"> {STOP:.0f}"
    except RecursionError:
        return "RecursionError"


def row(name: str) -> list[str]:
    y = outputs(name)
    graph = trace(y, names={})
    ours: list[float] = []
    whole: list[float] = []
    write: list[float] = []
    theirs: list[float] = []
    for _ in range((ROUNDS if len(graph.nodes) < 20_000 else 2) + 1):
        ours.append(seconds(lambda: to_dot(trace(y, names={}))))
        whole.append(seconds(lambda: to_dot(trace(y, names={}), fold=False, limit=sys.maxsize)))
        write.append(seconds(lambda: to_dot(graph)))
        try:
            theirs.append(seconds(lambda: torchviz_dot(y)))
        except RecursionError:
            theirs.append(float("nan"))
    a, all_of_it, b, c = (median(times[1:]) for times in (ours, whole, write, theirs))
    per_node = f"{b / len(graph.nodes) * 1e6:.1f}"
    figures = [f"{a:.4f}", per_node, f"{all_of_it:.4f}", f"{c:.4f}"]
    figures += [f"{c / a:.1f}", f"{c / all_of_it:.1f}"]
    modules = "-"
    if name in MODELS:
        model, inputs = (make() for make in MODELS[name])
        with record(model, gradients=False) as recording:
            model(inputs)
        modules = drawn(draw_graph(recording.graph))
    flat = drawn(draw_graph(graph))
    sizes = [f"{len(graph.nodes):,}", f"{len(graph.edges):,}"]
    return [name, *sizes, *figures, flat, modules, peer_drawn(y)]


def main(names: list[str]) -> None:
    """Print the table."""
    torch.manual_seed(0)
    head = ["graph", "nodes", "edges", "trace+DOT", "DOT us/node", "whole", "torchviz DOT"]
    head += ["ratio", "ratio whole"]
    head += ["SVG", "SVG, modules", "torchviz SVG"]
    print(" | ".join(head))
    for name in names or [*MODELS, *OUTPUTS]:
        print(" | ".join(row(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
