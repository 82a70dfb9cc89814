"""What a recording of a compiled model knows of eager's nodes: the part with module and line.

    python -m tests.recording.compiled.grid                  all models, aot_eager: a minute
    python -m tests.recording.compiled.grid --inductor       inductor, cold and warm, too
    python -m tests.recording.compiled.grid --only gpt2 -v   one model; and what it lacks

Printed for each model: the part of the eager recording's nodes that a recording has, too, with the
same operation, module and line: one that compiles the model, and one of a model compiled before.
After "+" comes how many nodes it has that eager does not, and at last how many graphs the second
one compiled, where it is not 0.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from graphviz_torch import record
from graphviz_torch.graph import Graph
from tests.support import models
from tests.support.models import known

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
T5 = {"vocab_size": 32, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
MIXTRAL = {"num_key_value_heads": 1, "intermediate_size": 16, "num_local_experts": 4}
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 3, "intermediate_size": 16}

# What dynamo runs for the same function of the program's.
SAME = {"UnsafeView": "View", "ReshapeAlias": "View", "NativeDropout": "Mul"}

Step = Callable[[Any], Tensor]  # takes the model, as it is or compiled, and gives the loss


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        [x] = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


class Custom(nn.Module):
    """A function of its own between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(Swish.apply(self.a(x)))


class Breaking(nn.Module):
    """Two breaks: three graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        torch._dynamo.graph_break()
        x = self.b(x).sigmoid()
        torch._dynamo.graph_break()
        return self.c(x) * 2


def mean(output: Any) -> Tensor:
    return output.float().square().mean()


def of_words(**more: Any) -> Step:
    words = models.tokens()
    return lambda model: mean(model(words, **more)[0])


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


ROWS = torch.linspace(-1, 1, 32).view(4, 8)
PICTURES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)

MODELS: dict[str, tuple[Callable[[], nn.Module], Step]] = {
    "mlp": (lambda: models.MLP(8), lambda m: mean(m(ROWS))),
    "custom function": (Custom, lambda m: mean(m(ROWS))),
    "two breaks": (Breaking, lambda m: mean(m(ROWS))),
    "convnet": (models.ConvNet, lambda m: mean(m(PICTURES))),
    "encoder": (encoder, lambda m: mean(m(ROWS.view(2, 2, 8)))),
    "gpt2": (lambda: models.gpt2(2), of_words()),
    "llama": (lambda: models.llama(2), of_words()),
    "bert": (
        lambda: known("BertModel", "BertConfig", **SMALL, **WORDS, intermediate_size=16),
        of_words(),
    ),
    "t5": (
        lambda: known("T5ForConditionalGeneration", "T5Config", **T5),
        lambda m: mean(m(input_ids=models.tokens(), decoder_input_ids=models.tokens(4))[0]),
    ),
    "vit": (
        lambda: known("ViTModel", "ViTConfig", **SMALL, **IMAGES),
        lambda m: mean(m(PICTURES)[0]),
    ),
}


def described(graph: Graph) -> Counter[tuple[str, ...]]:
    """The nodes, but those of leaves and of the regions themselves."""
    return Counter(
        (SAME.get(name := re.sub(r"Backward\d*$", "", node.name), name), node.module, node.source)
        for node in graph.nodes
        if not node.leaf and node.operation != "compiled"
    )


def recorded(model: nn.Module, run: Any, step: Step) -> Graph:
    with record(model) as recording:
        step(run).backward()
    return recording.graph


def in_parts(model: nn.Module, backend: str) -> nn.Module:
    for layer in model.layers:  # type: ignore[union-attr]
        layer.compile(backend=backend)
    return model


def ways(name: str, backend: str) -> dict[str, Callable[[nn.Module], Any]]:
    found = {name: lambda model: torch.compile(model, backend=backend)}
    if name == "encoder":
        found[f"{name}, by layer"] = lambda model: in_parts(model, backend)
    return found


def compare(name: str, backend: str, verbose: bool) -> None:
    make, step = MODELS[name]
    for title, compiled in ways(name, backend).items():
        found = []
        torch.manual_seed(0)
        model = make().train()
        eager = described(recorded(model, model, step))
        for before in (False, True):
            torch._dynamo.reset()
            counters.clear()
            torch.manual_seed(0)
            model = make().train()
            run = compiled(model)
            for _ in range(2 * before):
                step(run).backward()
            graphs = counters["stats"]["unique_graphs"]
            inside = described(recorded(model, run, step))
            more = counters["stats"]["unique_graphs"] - graphs if before else 0
            lacks, extra = eager - inside, inside - eager
            same = (eager & inside).total() / eager.total()
            found.append(f"{same:7.1%} +{extra.total():<3} {more or ''}")
            if verbose:
                for sign, which in ("-", lacks), ("+", extra):
                    for row, n in which.items():
                        print(f"    {sign} {n} {row}")
        print(f"{title:20} {eager.total():4}  {'  '.join(found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("-v", action="store_true")
    parsed = parser.parse_args()
    print(f"{'model':20} nodes   while it is compiled, compiled before")
    for backend in ("aot_eager", "inductor cold", "inductor warm")[: 3 if parsed.inductor else 1]:
        print(backend)
        for name in parsed.only:
            compare(name, backend.split()[0], parsed.v)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
