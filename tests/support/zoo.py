"""Steps of well-known models, narrow and with random weights, for tests of default pictures.

A narrow model has the same nodes and edges as the real one. Each entry of `ZOO` is a function that
records one forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.recording.recording import Recording

from .models import MLP, ResNet, gpt2, known, llama, tokens


class BasicBlock(nn.Module):
    """ResNet's block of two convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """A ResNet-18: four stages of two blocks."""

    def __init__(self, width: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = width
        for stage in range(4):
            after = width << stage
            blocks = BasicBlock(inputs, after, 2 if stage else 1), BasicBlock(after, after, 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = after
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DenseLayer(nn.Module):
    """Two convolutions over the features of all earlier layers."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(torch.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(torch.relu(self.norm2(x)))


class DenseBlock(nn.Module):
    """Layers that each read the outputs of all earlier layers."""

    def __init__(self, layers: int, inputs: int, growth: int) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"denselayer{i + 1}", DenseLayer(inputs + i * growth, growth))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.children():
            features.append(layer(features))
        return torch.cat(features, 1)


class Transition(nn.Sequential):
    """A layer that halves the number of features and the size of the image."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(inputs), nn.ReLU()
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2, 2)


class DenseNet121(nn.Module):
    """A DenseNet-121: four dense blocks with transitions between them."""

    def __init__(
        self,
        growth: int = 2,
        classes: int = 10,
        layers: tuple[int, ...] = (6, 12, 24, 16),
    ) -> None:
        super().__init__()
        count = 2 * growth
        self.features = nn.Sequential()
        self.features.conv0 = nn.Conv2d(3, count, 7, 2, padding=3, bias=False)
        self.features.norm0, self.features.relu0 = nn.BatchNorm2d(count), nn.ReLU()
        self.features.pool0 = nn.MaxPool2d(3, 2, padding=1)
        for i, depth in enumerate(layers, 1):
            self.features.add_module(f"denseblock{i}", DenseBlock(depth, count, growth))
            count += depth * growth
            if i < len(layers):
                self.features.add_module(f"transition{i}", Transition(count))
                count //= 2
        self.features.norm5 = nn.BatchNorm2d(count)
        self.classifier = nn.Linear(count, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.features(images)).mean((2, 3)))


class DoubleConv(nn.Sequential):
    """Two convolutions, each with a norm and a ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(
            *(nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        )


class UNet(nn.Module):
    """A U-Net: four levels down, four levels up, and connections between them."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        widths = [width << i for i in range(5)]
        self.inc = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(DoubleConv(a, 2 * a) for a in widths[:4])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in widths[3::-1])
        self.conv = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[3::-1])
        self.outc = nn.Conv2d(width, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.inc(images)]
        for down in self.down:
            levels.append(down(self.pool(levels[-1])))
        x = levels.pop()
        for up, conv in zip(self.up, self.conv, strict=True):
            x = conv(torch.cat([levels.pop(), up(x)], 1))
        return self.outc(x)


class Tagger(nn.Module):
    """An LSTM that labels each word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.drop(self.lstm(self.embed(words))[0]))


class CharRNN(nn.Module):
    """An LSTM cell called once for each character."""

    def __init__(self, steps: int = 30) -> None:
        super().__init__()
        self.steps = steps
        self.cell = nn.LSTMCell(4, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        losses = []
        for _ in range(self.steps):
            state = self.cell(x, state)
            losses.append(self.head(state[0]).square().mean())
        return torch.stack(losses)


SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 64}
IMAGES = {"image_size": 32, "patch_size": 16}


def bert(layers: int = 12) -> nn.Module:
    """Return a BERT base with a head for two classes."""
    words = {"vocab_size": 32, "max_position_embeddings": 32}
    sizes = {**SMALL, **words, "num_hidden_layers": layers}
    return known("BertForSequenceClassification", "BertConfig", **sizes)


def t5(layers: int = 6) -> nn.Module:
    """Return a T5 small."""
    sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": layers}
    sizes |= {"num_heads": 2, "decoder_start_token_id": 0}
    return known("T5ForConditionalGeneration", "T5Config", **sizes)


def vit(layers: int = 12) -> nn.Module:
    """Return a ViT base."""
    sizes = {**SMALL, **IMAGES, "num_hidden_layers": layers}
    return known("ViTForImageClassification", "ViTConfig", **sizes)


def clip(layers: int = 12) -> nn.Module:
    """Return a CLIP model: one tower for text and one for images."""
    common = SMALL | {"intermediate_size": 32, "num_hidden_layers": layers}
    text = {**common, "vocab_size": 32, "eos_token_id": 15, "bos_token_id": 0}
    towers = {"text_config": text, "vision_config": {**common, **IMAGES}}
    return known("CLIPModel", "CLIPConfig", **towers, projection_dim=8)


def step(model: nn.Module, *inputs: Any, loss: Callable[[Any], Tensor], **named: Any) -> Recording:
    """Record one forward and backward of a model."""
    with record(model) as recording:
        loss(model(*inputs, **named)).backward()
    return recording


def gan() -> Recording:
    """Record a step of a GAN: two losses, two optimizers."""
    generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8), nn.Tanh())
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    real, noise = torch.randn(8, 8), torch.randn(8, 4)
    judge = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    with record(nn.ModuleDict({"generator": generator, "critic": critic})) as recording:
        fake = generator(noise)
        critic_loss = judge(critic(real), ones) + judge(critic(fake.detach()), zeros)
        of_critic.zero_grad()
        critic_loss.backward()
        of_critic.step()
        generator_loss = judge(critic(fake), ones)
        of_generator.zero_grad()
        generator_loss.backward()
        of_generator.step()
    return recording


def _mean(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


def _logits(outputs: Any) -> Tensor:
    return outputs.logits.square().mean()


def _images() -> Tensor:
    return torch.randn(2, 3, 32, 32)


ZOO: dict[str, Callable[[], Recording]] = {
    "MLP": lambda: step(MLP(), torch.randn(4, 4), loss=_mean),
    "ResNet-18": lambda: step(ResNet18(), _images(), loss=_mean),
    "ResNet-50": lambda: step(ResNet(50), _images(), loss=_mean),
    "DenseNet-121": lambda: step(DenseNet121(), torch.randn(2, 3, 64, 64), loss=_mean),
    "UNet": lambda: step(UNet(), _images(), loss=_mean),
    "GPT-2": lambda: step(gpt2(12), tokens(), loss=lambda out: out.loss, labels=tokens()),
    "BERT": lambda: step(bert(), tokens(), loss=lambda out: out.loss, labels=torch.tensor([1])),
    "T5": lambda: step(t5(), tokens(), loss=lambda out: out.loss, labels=tokens()),
    "Llama": lambda: step(llama(32), tokens(), loss=lambda out: out.loss, labels=tokens()),
    "ViT": lambda: step(vit(), _images(), loss=_logits),
    "CLIP": lambda: step(
        clip(),
        loss=lambda out: out.loss,
        input_ids=tokens(batch=2),
        pixel_values=_images(),
        return_loss=True,
    ),
    "LSTM": lambda: step(Tagger(), tokens(), loss=_mean),
    "LSTM cell, 30 steps": lambda: step(CharRNN(), torch.randn(2, 4), loss=_mean),
    "GAN step": gan,
}
