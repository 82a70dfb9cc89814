"""Bugs from public threads, written by an author who had not seen the other sets.

The cause and line of each were written down before its author saw the findings of `find`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"


def mlp(*sizes: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def trained(record: Record, parts: dict[str, nn.Module], loss: Callable[[], Tensor]) -> None:
    """Two steps of an optimizer that holds all."""
    model = nn.ModuleDict(parts)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()


@reported(
    GITHUB + "lucidrains/CoCa-pytorch/issues/6",
    cause="The extractor keeps a detached clone of what the image encoder made.",
    words=r"detach",
)
def extractor_that_detaches(record: Record) -> None:
    image, head, kept = mlp(6, 8), nn.Linear(8, 3), []
    image[0].register_forward_hook(lambda m, i, out: kept.append(out.clone().detach()))  # cause

    def loss() -> Tensor:
        image(torch.randn(16, 6))
        return F.cross_entropy(head(kept.pop()), torch.randint(3, (16,)))

    trained(record, {"image": image, "head": head}, loss)


@reported(
    GITHUB + "speechbrain/speechbrain/issues/1396",
    cause="The features are detached before the encoder, so the input gets no gradient.",
    words=r"detach",
)
def features_detached_before_the_encoder(record: Record) -> None:
    filters, encoder = nn.Linear(16, 8), mlp(8, 4)
    encoder.requires_grad_(False)
    with record(nn.ModuleDict({"filters": filters, "encoder": encoder})):
        wave = torch.randn(4, 16, requires_grad=True)
        feats = filters(wave)
        x = encoder(feats.detach())  # cause
        loss = (x - torch.zeros(4, 4, requires_grad=True)).square().mean()
        loss.backward()


@reported(
    GITHUB + "rll-research/cic/issues/5",
    cause="The observations are encoded under no_grad, so the encoder is never trained.",
    words=r"no_grad",
)
def observations_encoded_under_no_grad(record: Record) -> None:
    encoder, critic = mlp(6, 8), nn.Linear(8, 1)

    def loss() -> Tensor:
        with torch.no_grad():
            obs = encoder(torch.randn(16, 6))  # cause
        return (critic(obs) - torch.randn(16, 1)).square().mean()

    trained(record, {"encoder": encoder, "critic": critic}, loss)


@reported(
    GITHUB + "dragen1860/IntroVAE-Pytorch/issues/3",
    cause="The generated image is detached in the step that is to train the decoder.",
    words=r"detach",
)
def image_detached_in_the_decoders_step(record: Record) -> None:
    encoder, decoder = mlp(6, 4), mlp(4, 6)
    optimizer = Adam(decoder.parameters())
    with record(nn.ModuleDict({"encoder": encoder, "decoder": decoder})):
        x = torch.randn(8, 6)
        xp = decoder(torch.randn(8, 4))
        adversarial = encoder(xp.detach()).square().mean()  # cause
        optimizer.zero_grad()
        (F.mse_loss(decoder(encoder(x).detach()), x) + adversarial).backward()
        optimizer.step()


@reported(
    GITHUB + "asyml/texar-pytorch/issues/72",
    cause="The layers to merge are in a plain list.",
    words=r"plain list|not registered",
)
def layers_to_merge_in_a_list(record: Record) -> None:
    class Merge(nn.Module):
        def __init__(self, layers: list[nn.Module]) -> None:
            super().__init__()
            self._layers = layers  # cause

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([layer(x) for layer in self._layers], 1)  # cause

    merge, head = Merge([nn.Linear(6, 4), nn.Linear(6, 4)]), nn.Linear(8, 1)
    trained(
        record,
        {"merge": merge, "head": head},
        lambda: head(merge(torch.randn(8, 6))).square().mean(),
    )


@reported(
    GITHUB + "awslabs/graphstorm/pull/1382",
    cause="Gradients are clipped after the step that used them.",
    words=r"after the step",
)
def clipped_when_the_step_is_over(record: Record) -> None:
    model = mlp(6, 1)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            clip_grad_norm_(model.parameters(), 1.0)  # cause


@reported(
    GITHUB + "simchowitzlabpublic/nano-world-model/pull/22",
    cause="Gradients are clipped in the training step, before backward makes them.",
    words=r"clip.*(earl|no gradient|backward runs later|before)",
)
def clipped_in_the_training_step(record: Record) -> None:
    model = mlp(6, 1)
    optimizer = Adam(model.parameters())

    def training_step() -> Tensor:
        loss = model(torch.randn(8, 6)).square().mean()
        clip_grad_norm_(model.parameters(), 1.0)  # cause
        return loss

    with record(model):
        for _ in range(3):
            loss = training_step()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "swarmapytorch/book_DeepLearning_in_PyTorch_Source/issues/8",
    cause="log_softmax runs over the samples (dim=0), not over the classes.",
    words=r"over the (samples|batch)|dim(ension)? ?=? ?0|dimension",
)
def log_softmax_over_the_samples(record: Record) -> None:
    model = mlp(6, 8)
    head = nn.Linear(8, 4)

    def loss() -> Tensor:
        x = F.log_softmax(head(model(torch.randn(16, 6))), dim=0)  # cause
        return F.nll_loss(x, torch.randint(4, (16,)))

    trained(record, {"model": model, "head": head}, loss)


@reported(
    GITHUB + "IBM/aihwkit/issues/446",
    cause="The gradients are not cleared between the steps.",
    words=r"clear|used the gradients",
)
def example_without_zero_grad(record: Record) -> None:
    model, x, y = nn.Linear(4, 2), torch.rand(3, 4), torch.rand(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()  # cause


@reported(
    GITHUB + "richzhang/PerceptualSimilarity/issues/69",
    cause="The small number is added after the square root, whose slope at 0 is infinite.",
    words=r"sqrt",
)
def small_number_outside_the_root(record: Record) -> None:
    features = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU())

    def loss() -> Tensor:
        feats = features(torch.zeros(2, 3, 4, 4))
        factor = torch.sqrt(torch.sum(feats**2, dim=1, keepdim=True))  # cause
        return (feats / (factor + 1e-10)).square().mean()

    trained(record, {"features": features}, loss)


@reported(
    GITHUB + "keras-team/keras/issues/23075",
    cause="rsqrt of a zero is Inf; the minimum after it mends the value, not the gradient.",
    words=r"rsqrt",
)
def inverse_norm_mended_by_a_minimum(record: Record) -> None:
    layer = nn.Linear(4, 4, bias=False)

    def loss() -> Tensor:
        x = layer(torch.cat([torch.zeros(1, 4), torch.randn(3, 4)]))
        inverse = torch.rsqrt(x.square().sum(1, keepdim=True))  # cause
        return (x * inverse.clamp(max=1e12)).sum(1).square().mean()

    trained(record, {"layer": layer}, loss)


@reported(
    GITHUB + "pyg-team/pytorch_geometric/pull/2917",
    cause="The variance of a graph with one value is 0, and so is the root's input.",
    words=r"sqrt",
)
def deviation_of_equal_values(record: Record) -> None:
    layer = nn.Linear(4, 4)

    def loss() -> Tensor:
        x = layer(torch.ones(3, 4))
        var = (x - x.mean(0)).square().mean(0)
        return ((x - x.mean(0)) / (var.sqrt() + 1e-5)).sum()  # cause

    trained(record, {"layer": layer}, loss)


@reported(
    GITHUB + "jokester-zzz/SSA-SC/issues/2",
    cause="The sums of the losses by name are sums of tensors, each with its graph.",
    words=r"history|alive|grows",
)
def losses_by_name_that_are_tensors(record: Record) -> None:
    model = mlp(6, 2)
    optimizer = Adam(model.parameters())
    with record(model):
        total: dict[str, Tensor | float] = {"complete": 0.0, "class": 0.0}
        for _ in range(5):
            out = model(torch.randn(8, 6))
            loss = {"complete": out[:, 0].square().mean(), "class": out[:, 1].abs().mean()}
            optimizer.zero_grad()
            (loss["complete"] + loss["class"]).backward()
            optimizer.step()
            for key in total:
                total[key] = total[key] + loss[key]  # cause


@reported(
    GITHUB + "hustzxd/EfficientPyTorch/issues/1",
    cause="The convolutions were replaced after the optimizer was made.",
    words=r"replaced|No optimizer updates",
)
def convolutions_replaced_after_the_optimizer(record: Record) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    for name, part in model.named_children():
        if isinstance(part, nn.Conv2d):
            setattr(model, name, nn.Conv2d(1, 4, 3))  # cause
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 1, 4, 4)), torch.randint(2, (4,))).backward()
            optimizer.step()  # cause
