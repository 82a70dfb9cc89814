"""Compare recordings of compiled models with eager ones: their nodes, losses and gradients.

    python -m tests.bench.compiled.nodes                      all models, aot_eager: two minutes
    python -m tests.bench.compiled.nodes --inductor           inductor, cold and warm: half an hour
    python -m tests.bench.compiled.nodes --only gpt2 vit -v   some models, with missing nodes

A row is a model and a backend. It has the share of the nodes in an eager recording that also appear
in a compiled recording, with equal operation, module and line: for a model that is compiled while
it is recorded, and for one that was compiled before. It also has the number of nodes that only the
compiled recording has; the number of graphs that were compiled for the second recording; and
whether loss, gradients and random state are bit-equal to those of the same compiled step without a
recording. "warm" takes the code from inductor's cache on disk; the last column counts the hits in
this cache. Weights are random.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache  # type: ignore[attr-defined]
from torch.utils.checkpoint import checkpoint

from graphviz_torch import record
from graphviz_torch.graph import Graph
from tests.support import models, zoo
from tests.support.models import Swish, known

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = {**SMALL, "num_key_value_heads": 1, "intermediate_size": 16, "head_dim": 4}
WORDS = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
WHISPER = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8}
WHISPER |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16}
WHISPER |= {"decoder_ffn_dim": 16, "max_source_positions": 8, "max_target_positions": 8}

# Operation in a compiled graph -> operation of the same function in an eager graph.
SAME = {"UnsafeView": "View", "ReshapeAlias": "View", "NativeDropout": "Mul"}

Step = Callable[[Any], Tensor]  # takes the model, eager or compiled, and returns the loss


class Custom(nn.Module):
    """A custom autograd function between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(Swish.apply(self.a(x)))


class Breaking(nn.Module):
    """A model with two graph breaks, and therefore three graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        torch._dynamo.graph_break()
        x = self.b(x).sigmoid()
        torch._dynamo.graph_break()
        return self.c(x) * 2


class Autoencoder(nn.Module):
    """A model that draws from a distribution, with gradients through the draw."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        apart = (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        return nn.functional.mse_loss(self.decoder(z), x) + apart


class Experts(nn.Module):
    """A model whose router chooses two of four experts for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(models.MLP(8, 16, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        mask = torch.zeros(len(x), 4).scatter(1, chosen, weights)
        return sum(mask[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Checkpointed(nn.Module):
    """Two blocks; backward computes the first block again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(models.TransformerBlock() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        return self.blocks[1](x)


def mean(output: Any) -> Tensor:
    return output.float().square().mean()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


ROWS = torch.linspace(-1, 1, 32).view(4, 8)
WORD_IDS = models.tokens()
PICTURES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
SOUND = torch.linspace(-1, 1, 8 * 16).view(1, 8, 16)


def of_rows(model: Any) -> Tensor:
    return mean(model(ROWS))


def of_tokens(model: Any) -> Tensor:
    return mean(model(ROWS.view(2, 2, 8)))


def of_words(model: Any) -> Tensor:
    return mean(model(WORD_IDS))


def of_text(model: Any) -> Tensor:
    return model(WORD_IDS, labels=WORD_IDS).loss


def of_pictures(model: Any) -> Tensor:
    return mean(model(PICTURES))


MODELS: dict[str, tuple[Callable[[], nn.Module], Step]] = {
    "mlp": (lambda: models.MLP(8), of_rows),
    "custom function": (Custom, of_rows),
    "two breaks": (Breaking, of_rows),
    "convnet": (models.ConvNet, of_pictures),
    "resnet": (zoo.ResNet18, of_pictures),
    "unet": (zoo.UNet, of_pictures),
    "lstm": (zoo.Tagger, of_words),
    "lstm cell": (lambda: zoo.CharRNN(6), lambda m: mean(m(ROWS[:, :4]))),
    "autoencoder": (Autoencoder, lambda m: m(ROWS)),
    "experts": (Experts, of_rows),
    "checkpoint": (Checkpointed, of_tokens),
    "encoder": (encoder, of_tokens),
    "gpt2": (lambda: models.gpt2(2), of_text),
    "llama": (lambda: models.llama(2), of_text),
    "bert": (lambda: zoo.bert(2), lambda m: m(WORD_IDS, labels=torch.tensor([1])).loss),
    "t5": (lambda: zoo.t5(2), lambda m: m(input_ids=WORD_IDS, labels=WORD_IDS).loss),
    "vit": (lambda: zoo.vit(2), lambda m: mean(m(PICTURES).logits)),
    "clip": (
        lambda: zoo.clip(2),
        lambda m: m(input_ids=models.tokens(batch=2), pixel_values=PICTURES, return_loss=True).loss,
    ),
    "qwen": (lambda: known("Qwen3ForCausalLM", "Qwen3Config", **GROUPED, **WORDS), of_text),
    "whisper": (
        lambda: known(
            "WhisperForConditionalGeneration", "WhisperConfig", **WHISPER, **WORDS,
            decoder_start_token_id=0,
        ),
        lambda m: m(input_features=SOUND, labels=WORD_IDS).loss,
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """The results of a step."""

    loss: Tensor
    gradients: list[Tensor | None]
    random: Tensor

    def equal(self, other: Outcome) -> bool:
        gradients = zip(self.gradients, other.gradients, strict=True)
        same = all(a is b is None or torch.equal(a, b) for a, b in gradients)  # type: ignore[arg-type]
        return same and self.loss.equal(other.loss) and self.random.equal(other.random)


def described(graph: Graph) -> Counter[tuple[str, ...]]:
    """Return descriptions of the nodes, without leaves and without the compiled regions."""
    return Counter(
        (SAME.get(name := re.sub(r"Backward\d*$", "", node.name), name), node.module, node.where)
        for node in graph.nodes
        if not node.leaf and node.operation != "compiled"
    )


def outcome(model: nn.Module, run: Any, step: Step) -> Outcome:
    model.zero_grad()
    torch.manual_seed(1)
    loss = step(run)
    loss.backward()
    gradients = [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
    return Outcome(loss.detach(), gradients, torch.get_rng_state())


def recorded(model: nn.Module, run: Any, step: Step) -> tuple[Graph, Outcome]:
    with record(model) as recording:
        found = outcome(model, run, step)
    return recording.graph, found


def made(name: str) -> tuple[nn.Module, Step]:
    make, step = MODELS[name]
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    return make().train(), step


class Row(NamedTuple):
    """The recording of one model and backend, compiled before or during the recording."""

    graph: Graph
    same: bool
    compiled: int  # number of graphs compiled for the recording
    hits: int


def while_recorded(name: str, backend: str, bare: Outcome) -> Row:
    model, step = made(name)
    graph, found = recorded(model, torch.compile(model, backend=backend), step)
    return Row(graph, found.equal(bare), 0, counters["aot_autograd"]["autograd_cache_hit"])


def before(name: str, backend: str) -> tuple[Row, Outcome]:
    model, step = made(name)
    run = torch.compile(model, backend=backend)
    outcome(model, run, step)
    bare = outcome(model, run, step)
    graphs = counters["stats"]["unique_graphs"]
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    graph, found = recorded(model, run, step)
    return Row(graph, found.equal(bare), counters["stats"]["unique_graphs"] - graphs, hits), bare


def rows(name: str, backend: str) -> Iterator[tuple[str, Row, Row]]:
    """Yield the backend's kind, the row compiled while recorded, and the row compiled before."""
    cache = fresh_cache if backend == "inductor" else nullcontext
    with cache():
        cold, bare = before(name, backend)
        warm = while_recorded(name, backend, bare)
        if backend == "inductor":
            yield "inductor warm", warm, before(name, backend)[0]
    if backend != "inductor":
        yield backend, warm, cold
        return
    with cache():
        yield "inductor cold", while_recorded(name, backend, bare), cold


def compare(name: str, backend: str, verbose: bool) -> None:
    model, step = made(name)
    eager = described(recorded(model, model, step)[0])
    for kind, *both in rows(name, backend):
        parts = []
        for row in both:
            inside = described(row.graph)
            lacks, extra = eager - inside, inside - eager
            parts.append(f"{(eager & inside).total() / eager.total():7.1%} +{extra.total():<3}")
            if verbose:
                for sign, which in ("-", lacks), ("+", extra):
                    for each, n in which.items():
                        print(f"    {sign} {n} {each}")
        bits = "equal" if all(row.same for row in both) else "DIFFERENT"
        print(
            f"{name:16} {kind:14} {eager.total():5}  {'  '.join(parts)} {both[1].compiled:10}"
            f"  {bits:9} {both[0].hits:4}",
            flush=True,
        )


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("-v", action="store_true")
    parsed = parser.parse_args()
    columns = "nodes  while        before       recompiled  bits      hits"
    print(f"{'model':16} {'backend':14} {columns}")
    for name in parsed.only:
        with quiet():
            compare(name, "inductor" if parsed.inductor else "aot_eager", parsed.v)


if __name__ == "__main__":
    sys.exit(main())
