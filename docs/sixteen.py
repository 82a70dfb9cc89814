"""Draw sixteen training steps at the width of a README: `python -m docs.sixteen FOLDER`.

Run it in a checkout. Each step is drawn without options. The script writes a PNG of each picture
into the folder, scaled as in a README, and prints its size and the height of its smallest text.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from graphviz_torch import draw_graph, record
from graphviz_torch.render.dot.layout import layout
from tests.support.models import MLP, known
from tests.support.zoo import ResNet18

from .sheet_models import MoE

WIDTH, HEIGHT = 830, 1500  # pixels: a README's column, one and a half screens
SMALLEST = 9.0  # pixels; smaller text is hard to read
_SMALL_PRINT = 9.5 * 4 / 3  # pixels of the smallest text in a picture that is not scaled
Recording = Any


def _ids(batch: int = 2, length: int = 16) -> Tensor:
    return torch.randint(0, 100, (batch, length))


def worked_example() -> Recording:
    """Record two inputs and three operations."""
    with record() as recording:
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        a = x + 2
        b = a**2
        c = b + 3
        y = c.mean()
        y.backward()
    return recording


def mlp() -> Recording:
    """Record a perceptron with a cross entropy."""
    model, x, target = MLP(), torch.randn(4, 4), torch.tensor([0, 1, 0, 1])
    with record(model) as recording:
        loss = F.cross_entropy(model(x).repeat(1, 2), target)
        loss.backward()
    return recording


def resnet() -> Recording:
    """Record ResNet-18 on images."""
    model, images, labels = ResNet18(), torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    with record(model) as recording:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
    return recording


class DoubleConv(nn.Sequential):
    """Two convolutions, each with a ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(
            *(nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
        )


class UNet(nn.Module):
    """A U-Net of three levels, with skip connections that `cat` joins."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.enc3 = DoubleConv(3, 4), DoubleConv(4, 8), DoubleConv(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.dec2 = nn.ConvTranspose2d(16, 8, 2, 2), DoubleConv(16, 8)
        self.dec1, self.out = DoubleConv(12, 4), nn.Conv2d(4, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        one = self.enc1(image)
        two = self.enc2(self.pool(one))
        x = self.enc3(self.pool(two))
        x = self.dec2(torch.cat([two, self.up2(x)], 1))
        x = F.interpolate(x, scale_factor=2)
        return self.out(self.dec1(torch.cat([one, x], 1)))


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the Dice loss: 1 minus twice the overlap, divided by the sum."""
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


def unet() -> Recording:
    """Record a U-Net with two losses, one of which the program defines itself."""
    model, image, mask = UNet(), torch.randn(2, 3, 32, 32), torch.rand(2, 1, 32, 32).round()
    with record(model) as recording:
        logits = model(image)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + dice_loss(logits, mask)
        loss.backward()
    return recording


def gpt2() -> Recording:
    """Record a GPT-2 of four layers that returns its loss."""
    model = known("GPT2LMHeadModel", "GPT2Config", n_layer=4, n_embd=64, n_head=4, vocab_size=500)
    ids = _ids()
    with record(model) as recording:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
    return recording


def bert(layers: int = 3, **sizes: Any) -> nn.Module:
    """Return a BERT for classification."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, **sizes}
    sizes |= {"num_hidden_layers": layers, "vocab_size": 200}
    return known("BertForSequenceClassification", "BertConfig", **sizes)


def frozen_bert() -> Recording:
    """Record a BERT of three layers with frozen embeddings."""
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    input_ids, labels = _ids(), torch.tensor([0, 1])
    attention_mask = torch.ones_like(input_ids)
    with record(model) as recording:
        loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss
        loss.backward()
    return recording


def t5() -> Recording:
    """Record a T5 of two layers."""
    sizes = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2}
    sizes |= {"num_heads": 4, "decoder_start_token_id": 0}
    model = known("T5ForConditionalGeneration", "T5Config", **sizes)
    input_ids, labels = _ids(), _ids(2, 8)
    with record(model) as recording:
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
    return recording


class CharLSTM(nn.Module):
    """An LSTM written out: forty steps of one cell."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        self.embed, self.gates = nn.Embedding(32, 8), nn.Linear(8 + hidden, 4 * hidden)
        self.head = nn.Linear(hidden, 32)

    def forward(self, chars: Tensor) -> Tensor:
        h = c = torch.zeros(len(chars), self.hidden)
        outputs = []
        for step in self.embed(chars).unbind(1):
            i, f, g, o = self.gates(torch.cat([step, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(self.head(h))
        return torch.stack(outputs, 1)


def lstm() -> Recording:
    """Record forty time steps of an LSTM."""
    model, text = CharLSTM(), torch.randint(0, 32, (2, 41))
    with record(model) as recording:
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
    return recording


def gan() -> Recording:
    """Record a step of a GAN: of the discriminator and of the generator."""
    G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    bce = nn.BCEWithLogitsLoss()
    opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
    real, z = torch.randn(8, 8), torch.randn(8, 4)
    with record() as recording:
        fake = G(z)
        d_loss = bce(D(real), torch.ones(8, 1)) + bce(D(fake.detach()), torch.zeros(8, 1))
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = bce(D(fake), torch.ones(8, 1))
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
    return recording


class VAE(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.mu, self.logvar = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        eps = torch.randn_like(mu)
        return self.decoder(mu + eps * (0.5 * logvar).exp()), mu, logvar


def kl_divergence(mu: Tensor, logvar: Tensor) -> Tensor:
    """Return the KL divergence of the encoder's normal distribution from the standard one."""
    return -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()


def vae() -> Recording:
    """Record a variational autoencoder with both terms of its loss."""
    model, x = VAE(), torch.rand(8, 16)
    with record(model) as recording:
        recon, mu, logvar = model(x)
        loss = F.binary_cross_entropy_with_logits(recon, x) + kl_divergence(mu, logvar)
        loss.backward()
    return recording


def moe() -> Recording:
    """Record a mixture of four experts."""
    model, x, target = MoE(), torch.randn(32, 8), torch.randint(0, 3, (32,))
    with record(model) as recording:
        loss = F.cross_entropy(model(x), target)
        loss.backward()
    return recording


class Denoiser(nn.Module):
    """A network that predicts the noise in a sample at a time step."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(100, 32)
        self.inp, self.mid, self.out = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, xt: Tensor, t: Tensor) -> Tensor:
        return self.out(F.silu(self.mid(F.silu(self.inp(xt) + self.time(t)))))


def diffusion() -> Recording:
    """Record a training step of a diffusion model."""
    model, x0, t = Denoiser(), torch.randn(8, 16), torch.randint(0, 100, (8,))
    alpha_bar = (1 - torch.linspace(1e-4, 0.02, 100)).cumprod(0)[t][:, None]
    with record(model) as recording:
        eps = torch.randn_like(x0)
        xt = alpha_bar.sqrt() * x0 + (1 - alpha_bar).sqrt() * eps
        loss = F.mse_loss(model(xt, t), eps)
        loss.backward()
    return recording


class Siamese(nn.Module):
    """One encoder for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(8 * 36, 32)),
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        one, two = F.normalize(self.encoder(a), dim=1), F.normalize(self.encoder(b), dim=1)
        return (one * two).sum(1)


def siamese() -> Recording:
    """Record a siamese network, which predicts whether two images are similar."""
    model, same = Siamese(), torch.tensor([1.0, 0.0])
    images = torch.randn(2, 1, 28, 28), torch.randn(2, 1, 28, 28)
    with record(model) as recording:
        loss = F.binary_cross_entropy_with_logits(model(*images) / 0.1, same)
        loss.backward()
    return recording


class Coupling(nn.Module):
    """A coupling layer: one half of the features scales and shifts the other half."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.half = width // 2
        self.net = nn.Sequential(nn.Linear(self.half, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, two = x.chunk(2, 1)
        scale, shift = self.net(one).chunk(2, 1)
        scale = scale.tanh()
        return torch.cat([two * scale.exp() + shift, one], 1), scale.sum(1)


class Flow(nn.Module):
    """A normalizing flow."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Coupling() for _ in range(4))

    def log_prob(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for step in self.steps:
            x, change = step(x)
            total = total + change
        return -0.5 * (x**2).sum(1) - 2 * 1.8379 + total

    def forward(self, x: Tensor) -> Tensor:
        return self.log_prob(x)


def flow() -> Recording:
    """Record the likelihood of a normalizing flow."""
    model, data = Flow(), torch.randn(16, 4)
    with record(model) as recording:
        loss = -model(data).mean()
        loss.backward()
    return recording


class Attention(nn.Module):
    """Multi-head attention as libraries write it: heads are split by hand."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            to(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for to in (self.to_q, self.to_k, self.to_v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(out.transpose(1, 2).flatten(2))


class Layers(nn.Module):
    """Alternating attention and feed-forward layers, each with a norm before and a sum after it."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            self.layers.append(nn.ModuleList([nn.LayerNorm(dim), Attention(dim)]))
            self.layers.append(nn.ModuleList([nn.LayerNorm(dim), ff]))
        self.final_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        for norm, block in self.layers:  # type: ignore[misc]
            x = x + block(norm(x))
        return self.final_norm(x)


class TransformerWrapper(nn.Module):
    """A transformer from tokens to logits."""

    def __init__(self, tokens: int = 100, dim: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.token_emb, self.pos_emb = nn.Embedding(tokens, dim), nn.Embedding(64, dim)
        self.attn_layers, self.to_logits = Layers(dim, depth), nn.Linear(dim, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1])) * 32**-0.5
        return self.to_logits(self.attn_layers(x))


class AutoregressiveWrapper(nn.Module):
    """A wrapper that computes the loss of a network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        inputs, target = x[:, :-1], x[:, 1:]
        logits = self.net(inputs)
        losses = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        mask = (target != 0).float()
        loss = (losses * mask).sum() / mask.sum()
        return loss + 1e-4 * logits.logsumexp(-1).square().mean()


def x_transformer() -> Recording:
    """Record a transformer as x-transformers writes it: a wrapper computes the loss."""
    model, x = AutoregressiveWrapper(TransformerWrapper()), _ids(2, 17)
    with record(model) as recording:
        loss = model(x)
        loss.backward()
    return recording


class LoRA(nn.Module):
    """A frozen linear layer, and two small layers whose result is added."""

    def __init__(self, base_layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * 2.0


def lora() -> Recording:
    """Record a BERT with LoRA adapters for queries and values."""
    model = bert(2)
    model.bert.requires_grad_(False)
    for layer in model.bert.encoder.layer:
        own = layer.attention.self
        own.query, own.value = LoRA(own.query), LoRA(own.value)
    input_ids, labels = _ids(), torch.tensor([0, 1])
    with record(model) as recording:
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
    return recording


PROGRAMS: dict[str, Callable[[], Recording]] = {
    "worked_example": worked_example,
    "mlp": mlp,
    "resnet18": resnet,
    "unet": unet,
    "gpt2": gpt2,
    "bert_frozen": frozen_bert,
    "t5": t5,
    "lstm40": lstm,
    "gan": gan,
    "vae": vae,
    "moe": moe,
    "diffusion": diffusion,
    "siamese": siamese,
    "flow": flow,
    "x_transformer": x_transformer,
    "lora": lora,
}


def size_and_text(svg: str) -> tuple[float, float, float]:
    """Return width and height of a picture, and the height of its smallest text on a page.

    All are in pixels. The size is that of the picture before Graphviz scaled it.
    """
    points = re.search(r'<svg width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    scale = re.search(r'transform="scale\(([\d.]+)', svg)
    assert points is not None
    factor = 4 / 3 / (float(scale[1]) if scale else 1)
    width, height = float(points[1]) * factor, float(points[2]) * factor
    return width, height, min(1, WIDTH / width, HEIGHT / height) * _SMALL_PRINT


def main(folder: Path, names: list[str]) -> None:
    """Write a picture of each program, and print the sizes of the picture and of its text."""
    folder.mkdir(exist_ok=True, parents=True)
    fits = 0
    for name in names or PROGRAMS:
        torch.manual_seed(0)
        dot = draw_graph(PROGRAMS[name]()).source
        width, height, text = size_and_text(layout(dot, "svg").decode())
        fits += text >= SMALLEST
        print(f"{name:15} {width:5.0f} x {height:5.0f} px, text {text:4.1f} px", flush=True)
        picture = Image.open(io.BytesIO(layout(dot, "png"))).convert("RGB")
        wide = min(WIDTH, round(width))
        picture.resize((wide, round(height * wide / width)), Image.Resampling.LANCZOS).save(
            folder / f"{name}.png"
        )
    print(f"{fits} of {len(names or PROGRAMS)} can be read on a page of {WIDTH} x {HEIGHT} px")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
