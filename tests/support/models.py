"""Models that several tests share: small models to check by hand, and narrow real models.

An autograd graph has the same nodes and edges at any width. A narrow GPT-2 with 24 layers therefore
has the same graph as the real one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def worked_example(device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return all tensors of `y = mean((x + 2)**2 + 3)`; x.grad is [2, 8/3, 10/3]."""
    x = torch.arange(1, 4, dtype=torch.float32, device=device, requires_grad=True)
    a = x + 2
    b = a**2
    c = b + 3
    return {"x": x, "a": a, "b": b, "c": c, "y": c.mean()}


class MLP(nn.Module):
    """Two linear layers, fc1 and fc2, with a ReLU between them."""

    def __init__(self, inputs: int = 4, hidden: int = 8, outputs: int = 2) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class TiedMLP(nn.Module):
    """A model that calls one linear module twice."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.fc(x)))


class ConvNet(nn.Module):
    """Convolution, batch norm, pooling and a linear layer, for images with three channels."""

    def __init__(self, channels: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.conv(images)))
        return self.head(features.mean(dim=(2, 3)))


class UnrolledRNN(nn.Module):
    """A cell (nn.RNNCell, nn.GRUCell or nn.LSTMCell) that is called once for each time step."""

    def __init__(self, steps: int, width: int = 4, cell: type[nn.Module] = nn.RNNCell) -> None:
        super().__init__()
        self.steps = steps
        self.cell = cell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for _ in range(self.steps):
            state = self.cell(x, state)
        return state[0] if isinstance(state, tuple) else state


class TransformerBlock(nn.Module):
    """Pre-norm attention and MLP with residuals; x is (batch, tokens, width)."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """An embedding, a stack of blocks in `layers`, and a head."""

    def __init__(self, depth: int = 2, width: int = 8, heads: int = 2, words: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions; the output has 4 times `width` channels."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A bottleneck ResNet of depth 50, 101 or 152. The real models have `width` 64."""

    def __init__(self, depth: int = 50, width: int = 4, classes: int = 10) -> None:
        super().__init__()
        counts = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}[depth]
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = width
        stages = []
        for stage, count in enumerate(counts):
            blocks = []
            for block in range(count):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def known(model: str, config: str, **sizes: Any) -> nn.Module:
    """Return a model of the package transformers with random weights.

    Args:
        model: name of the model's class.
        config: name of the configuration's class.
        sizes: arguments of the configuration.
    """
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**sizes))


def gpt2(layers: int = 12, width: int = 16, heads: int = 2, attention: str = "sdpa") -> nn.Module:
    """Return a GPT-2 with random weights, for token ids below 32.

    The real "small" model has 12 layers, "medium" 24.
    """
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": width, "n_layer": layers}
    sizes |= {"n_head": heads, "bos_token_id": 0, "eos_token_id": 0}
    return known("GPT2LMHeadModel", "GPT2Config", **sizes, attn_implementation=attention).eval()


def llama(layers: int = 32, width: int = 16, heads: int = 2, attention: str = "sdpa") -> nn.Module:
    """Return a Llama with random weights, for token ids below 32."""
    sizes = {"vocab_size": 32, "hidden_size": width, "intermediate_size": 2 * width}
    sizes |= {"num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"max_position_embeddings": 32}
    return known("LlamaForCausalLM", "LlamaConfig", **sizes, attn_implementation=attention)


def tokens(count: int = 8, batch: int = 1) -> Tensor:
    """Return token ids for `Transformer`, `gpt2` and `llama`; they are always the same."""
    return (torch.arange(batch * count) % 16).reshape(batch, count)


def dense_block(layers: int, width: int = 1) -> Tensor:
    """Return the output of layers that read all earlier outputs: about layers**2 / 2 edges."""
    features = [torch.ones(1, width, requires_grad=True)]
    for _ in range(layers):
        weight = torch.ones(width * len(features), width, requires_grad=True)
        features.append(torch.cat(features, dim=1) @ weight)
    return torch.cat(features, dim=1).sum()


def chain(length: int) -> Tensor:
    """Return the end of a chain of `length` nodes after a leaf."""
    x = torch.ones((), requires_grad=True)
    y = x
    for _ in range(length):
        y = y * 1.0
    return y


class Swish(torch.autograd.Function):
    """The custom function x * sigmoid(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        [x] = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))
