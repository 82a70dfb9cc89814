"""The gallery: graphs from five nodes to thousands, drawn into a folder.

`python examples/gallery.py [folder]` writes `*.svg` and `index.html` there; "gallery" if not given.
"""

import html
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from graphviz_torch import Graph, draw_graph, find, record, simulate_accelerator


def of_model(model: nn.Module, inputs: Tensor) -> Graph:
    """The graph of one forward and backward."""
    with record(model) as recording:
        y = model(inputs)
        y.sum().backward()
    return recording.graph


class MLP(nn.Module):
    """Two linear modules."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class Block(nn.Module):
    """A pre-norm transformer block, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, count, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, count, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """An embedding, blocks, a norm and a head."""

    def __init__(self, blocks: int, width: int = 16, heads: int = 2, words: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet50(width: int = 8) -> nn.Module:
    """ResNet-50, an eighth as wide."""
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1)))
    inputs = width
    for stage, count in enumerate((3, 4, 6, 3)):
        blocks = nn.Sequential()
        for block in range(count):
            stride = 2 if stage and not block else 1
            blocks.append(Bottleneck(inputs, width << stage, stride))
            inputs = 4 * (width << stage)
        model.add_module(f"layer{stage + 1}", blocks)
    model.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    model.add_module("fc", nn.Linear(inputs, 10))
    return model


class DenseLayer(nn.Module):
    """Joins all features so far and makes a few more."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        return torch.relu(self.conv(torch.cat(features, 1)))


class DenseBlock(nn.Module):
    """Each part reads the outputs of all before it, as in DenseNet."""

    def __init__(self, count: int, width: int = 4) -> None:
        super().__init__()
        self.parts = nn.ModuleList(DenseLayer(width * (i + 1), width) for i in range(count))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for part in self.parts:
            features.append(part(features))
        return torch.cat(features, 1)


def worked_example() -> Graph:
    """y = mean((x + 2)**2 + 3)."""
    with record() as recording:
        x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
        a = x + 2
        b = a**2
        c = b + 3
        y = c.mean()
        y.backward()
    return recording.graph


def two_devices() -> Graph:
    """A model that is cut between two devices."""
    model = nn.ModuleDict({"first": nn.Linear(4, 8), "second": nn.Linear(8, 2)})
    with simulate_accelerator(2) as (one, two), record(model) as recording:
        model["first"].to(one)
        model["second"].to(two)
        x = torch.ones(3, 4, requires_grad=True)
        hidden = torch.relu(model["first"](x.to(one)))
        loss = model["second"](hidden.to(two)).square().mean().cpu()
        loss.backward()
    return recording.graph


def vanishing() -> Graph:
    """Six sigmoids in a row: the gradient vanishes on its way back."""
    parts = [part for _ in range(6) for part in (nn.Linear(8, 8), nn.Sigmoid())]
    return of_model(nn.Sequential(*parts, nn.Linear(8, 1)), torch.randn(16, 8))


def rnn(steps: int = 1000) -> Graph:
    """A cell written by hand and unrolled, no modules."""
    with record() as recording:
        w, u = (nn.Parameter(torch.randn(4, 4) / 2) for _ in range(2))
        x = torch.randn(steps, 1, 4)
        h = torch.zeros(1, 4)
        for step in x:
            h = torch.tanh(step @ u + h @ w)
        h.sum().backward()
    return recording.graph


PAGES: dict[str, tuple[str, Callable[[], Graph], dict[str, object]]] = {
    "worked_example": ("The worked example, with the gradient at every node", worked_example, {}),
    "mlp": ("Two linear modules", lambda: of_model(MLP(), torch.ones(2, 4)), {}),
    "transformer_block": (
        "One transformer block",
        lambda: of_model(Block(16, 2), torch.randn(1, 4, 16)),
        {},
    ),
    "two_devices": ("A model cut between two devices, and what was found", two_devices, {}),
    "vanishing": ("Vanishing gradients", vanishing, {"color_by": "gradient", "direction": "LR"}),
    "gpt2_shape": (
        "48 blocks of a GPT-2 shape: blocks of one structure are drawn once",
        lambda: of_model(GPT(48), torch.arange(8)[None]),
        {},
    ),
    "gpt2_depth": (
        "The same, one level deep",
        lambda: of_model(GPT(48), torch.arange(8)[None]),
        {"depth": 1, "color_by": "saved"},
    ),
    "resnet50": (
        "ResNet-50, by time in backward",
        lambda: of_model(resnet50(), torch.randn(2, 3, 64, 64)),
        {"color_by": "time"},
    ),
    "rnn": ("An RNN cell unrolled 1,000 steps, without modules", rnn, {}),
    "dense_block": (
        "A dense block of 12 convolutions",
        lambda: of_model(DenseBlock(12), torch.randn(1, 4, 8, 8)),
        {},
    ),
}


def main(folder: Path) -> None:
    """Draw all pages into `folder`."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, (title, make, options) in PAGES.items():
        graph = make()
        findings = find(graph) if name == "two_devices" else ()
        picture = draw_graph(graph, theme="auto", findings=findings, **options)
        picture.render(outfile=folder / f"{name}.svg")
        assert (folder / f"{name}.svg").read_text().rstrip().endswith("</svg>")
        parts.append(
            f"<h2>{html.escape(title)}</h2>\n<p>{len(graph.nodes):,} nodes</p>\n"
            f'<img src="{name}.svg" alt="{html.escape(title)}">'
        )
        print(f"{name}.svg: {len(graph.nodes):,} nodes")
    style = "body{font:16px sans-serif;margin:2em;color-scheme:light dark}img{max-width:100%}"
    page = "\n".join(parts)
    head = f'<!doctype html><meta charset="utf-8"><title>Gallery</title><style>{style}</style>'
    (folder / "index.html").write_text(f"{head}\n{page}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery"))
