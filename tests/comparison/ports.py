"""Ports of models of transformers, written by hand, with the same weights and one fault each.

The faulty line ends with a comment that names the fault: `# fault: epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 32, 4, 2, 61, 12


def lines(fault: str) -> set[str]:
    """Return the faulty line in this file: "ports.py:41"."""
    text = Path(__file__).read_text().splitlines()
    return {f"ports.py:{i}" for i, line in enumerate(text, 1) if line.endswith(f"# fault: {fault}")}


class GPT2Block(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj, self.fc = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        eps = 1e-3 if self.fault == "epsilon" else 1e-5
        h = F.layer_norm(x, (WIDTH,), self.ln_1.weight, self.ln_1.bias, eps)  # fault: epsilon
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(h).split(WIDTH, -1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        mask = torch.ones(length, length, dtype=torch.bool).tril(int(self.fault == "mask"))
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)  # fault: mask
        h = (weights @ v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.proj(h)  # fault: Conv1D
        h = self.fc(self.ln_2(x))
        h = F.gelu(h, approximate="none" if self.fault == "GELU" else "tanh")  # fault: GELU
        h = self.out(h)
        h = F.dropout(h, 0.1, self.fault == "dropout")  # fault: dropout
        return x + h


class GPT2(nn.Module):
    """GPT-2's language model, a port of `transformers.GPT2LMHeadModel`."""

    def __init__(self, fault: str, original: Any) -> None:
        super().__init__()
        self.fault = fault
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = nn.ModuleList(GPT2Block(fault if i else "") for i in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self._load(original.transformer)

    def _load(self, original: Any) -> None:
        with torch.no_grad():
            self.wte.weight.copy_(original.wte.weight)
            self.wpe.weight.copy_(original.wpe.weight)
            if self.fault != "tied weights":
                self.head.weight = self.wte.weight
            for mine, theirs in zip(self.blocks, original.h, strict=True):
                for name in ("ln_1", "ln_2"):
                    getattr(mine, name).load_state_dict(getattr(theirs, name).state_dict())
                pairs = ((mine.qkv, theirs.attn.c_attn), (mine.proj, theirs.attn.c_proj))
                for one, other in (
                    *pairs,
                    (mine.fc, theirs.mlp.c_fc),
                    (mine.out, theirs.mlp.c_proj),
                ):
                    one.weight.copy_(other.weight.T)
                    one.bias.copy_(other.bias)
            if self.fault == "Conv1D":
                self.blocks[1].proj.weight.copy_(original.h[1].attn.c_proj.weight)
            self.ln_f.load_state_dict(original.ln_f.state_dict())

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]) + (self.fault == "position offset")
        x = self.wte(tokens) + self.wpe(places)  # fault: position offset
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))  # fault: tied weights


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class LlamaLayer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm_1, self.norm_2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.fault == "rotary order":  # pairs of neighbours, where the weights are for halves
            half = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)  # fault: rotary order
            return x * cos + half * sin
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        h = self.norm_1(x)
        q, k, v = (
            part(h).view(batch, length, HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Llama's language model, a port of `transformers.LlamaForCausalLM`."""

    def __init__(self, fault: str, original: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer(fault) for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, WORDS, bias=False)
        names = {"model.embed_tokens": "embedding", "model.layers": "layers", "model.norm": "norm"}
        names |= {"input_layernorm": "norm_1", "post_attention_layernorm": "norm_2"}
        names |= {f"self_attn.{one}_proj": one for one in "qkvo"} | {"lm_head": "head"}
        names |= {f"mlp.{one}_proj": one for one in ("gate", "up", "down")}
        state = {}
        for name, value in original.state_dict().items():
            for theirs, mine in names.items():
                name = name.replace(theirs, mine)
            state[name] = value
        self.load_state_dict(state)

    def forward(self, tokens: Tensor) -> Tensor:
        size = WIDTH // HEADS
        rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(tokens.shape[1])[:, None] * rates
        cos, sin = (torch.cat((one, one), -1) for one in (angles.cos(), angles.sin()))
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class BertLayer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH, 1e-12), nn.LayerNorm(WIDTH, 1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        given = None if self.fault == "padding mask" else mask
        h = F.scaled_dot_product_attention(q, k, v, given)  # fault: padding mask
        h = h.transpose(1, 2).reshape(batch, length, WIDTH)
        h = F.linear(h, self.o.weight, self.bias())  # fault: bias
        x = self.norm_1(h + x)
        return self.norm_2(self.out(F.gelu(self.fc(x))) + x)

    def bias(self) -> Tensor | None:
        return None if self.fault == "bias" else self.o.bias


class Bert(nn.Module):
    """The encoder of BERT, a port of `transformers.BertModel`."""

    def __init__(self, fault: str, original: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
        self.kinds, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, 1e-12)
        self.layers = nn.ModuleList(BertLayer(fault) for _ in range(LAYERS))
        with torch.no_grad():
            theirs = original.embeddings
            pairs = [(self.words, theirs.word_embeddings), (self.norm, theirs.LayerNorm)]
            pairs += [(self.places, theirs.position_embeddings)]
            pairs += [(self.kinds, theirs.token_type_embeddings)]
            for mine, layer in zip(self.layers, original.encoder.layer, strict=True):
                heads, output = layer.attention.self, layer.attention.output
                pairs += [(mine.q, heads.query), (mine.k, heads.key), (mine.v, heads.value)]
                pairs += [(mine.o, output.dense), (mine.norm_1, output.LayerNorm)]
                pairs += [(mine.fc, layer.intermediate.dense), (mine.out, layer.output.dense)]
                pairs += [(mine.norm_2, layer.output.LayerNorm)]
            for one, other in pairs:
                one.load_state_dict(other.state_dict())

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        x = self.words(tokens) + self.kinds(torch.zeros_like(tokens)) + self.places(places)
        x, mask = self.norm(x), (tokens != 0)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return x


def stir(model: nn.Module) -> nn.Module:
    """Set biases to values other than 0, and norm weights to values other than 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def originals() -> dict[str, tuple[Callable[[], Any], type[Any]]]:
    """Return for each port, by name, a function that creates the original, and the port."""
    small = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0}

    def gpt2() -> Any:
        config = GPT2Config(
            n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, n_positions=2 * LENGTH, **small
        )
        config._attn_implementation = "eager"
        return GPT2LMHeadModel(config)

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}

    def llama() -> Any:
        config = LlamaConfig(
            **sizes,
            intermediate_size=2 * WIDTH,
            tie_word_embeddings=False,
            rms_norm_eps=1e-6,
            **small,
        )
        return LlamaForCausalLM(config)

    def bert() -> Any:
        config = BertConfig(
            **sizes,
            intermediate_size=4 * WIDTH,
            vocab_size=WORDS,
            max_position_embeddings=2 * LENGTH,
            type_vocab_size=2,
        )
        return BertModel(config, add_pooling_layer=False)

    return {"GPT-2": (gpt2, GPT2), "Llama": (llama, Llama), "BERT": (bert, Bert)}
