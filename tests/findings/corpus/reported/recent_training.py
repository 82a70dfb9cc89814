"""Bugs of loops, optimizers and data reported since 2023, written before rules on them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.findings.corpus.cases import Record, reported, step
from tests.findings.corpus.models import mlp

GITHUB = "https://github.com/"

# --- clipping ------------------------------------------------------------------------------------


@reported(
    GITHUB + "PixArt-alpha/PixArt-alpha/pull/160",
    cause="filter() is used up by the optimizer, so clipping gets no parameter.",
    words=r"no (parameters?|gradients?)|empty|used up|exhausted|generator",
)
def parameters_to_clip_are_used_up(record: Record, repaired: bool = False) -> None:
    model = mlp(6, 1)
    layers: Iterable[Tensor] = filter(lambda p: p.requires_grad, model.parameters())  # cause
    if repaired:
        layers = list(layers)
    optimizer = AdamW(layers)
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            clip_grad_norm_(layers, 1.0)  # cause
            optimizer.step()


@reported(
    GITHUB + "pytorch/torchtitan/pull/1258",
    cause="The helper reads the generator of parameters twice; the second time it is empty.",
    words=r"no (parameters?|gradients?)|empty|used up|exhausted|generator",
)
def helper_that_reads_a_generator_twice(record: Record, repaired: bool = False) -> None:
    def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
        if repaired:
            parameters = list(parameters)
        grads = [p.grad for p in parameters if p.grad is not None]
        total = torch.nn.utils.get_total_norm(grads)
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)  # cause
        return total

    model = mlp(6, 1)
    optimizer = AdamW(model.parameters())
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            (100 * model(torch.randn(8, 6))).square().mean().backward()
            clip_grad_norm(model.parameters(), 1.0)  # cause
            optimizer.step()


@reported(
    GITHUB + "OPTML-Group/Unlearn-Saliency/issues/32",
    cause="Masked gradients are set to 0, but weight decay moves the masked weights all the same.",
    words=r"weight.decay",
)
def masked_weights_that_decay(record: Record, repaired: bool = False) -> None:
    model = mlp(6, 3)
    masks = [(p.detach().abs() > p.detach().abs().median()).float() for p in model.parameters()]
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.0 if repaired else 0.1)
    with record(model):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
            for parameter, mask in zip(model.parameters(), masks, strict=True):
                assert parameter.grad is not None
                parameter.grad *= mask  # cause
            optimizer.step()  # cause


# --- losses --------------------------------------------------------------------------------------


@reported(
    GITHUB + "oclivegriffin/crosscode/pull/3",
    cause="The combined loss is computed and logged, but the reconstruction alone is returned.",
    words=r"no backward|not (part|in|reach)|never (part|reach|used)|unused|dropped",
)
def combined_loss_not_returned(record: Record, repaired: bool = False) -> None:
    encoder, decoder = nn.Linear(8, 32), nn.Linear(32, 8)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = Adam(model.parameters())
    logged = []

    def calculate_loss(x: Tensor) -> Tensor:
        latents = encoder(x).relu()
        kept = latents * (latents >= latents.topk(4).values[:, -1:])
        reconstruction = decoder(kept)
        reconstruction_loss = (reconstruction - x).square().mean()
        error = (x - reconstruction).detach()
        auxiliary_loss = (decoder(latents - kept) - error).square().mean()
        loss = reconstruction_loss + auxiliary_loss / 32  # cause
        logged.append(loss.item())
        return loss if repaired else reconstruction_loss  # cause

    with record(model):
        for _ in range(4):
            step(optimizer, calculate_loss(torch.randn(16, 8)))


@reported(
    GITHUB + "microsoft/protein-frame-flow/issues/23",
    cause="The auxiliary loss is added in place to the flow's and then again to the sum of both.",
    words=r"twice|two (paths|ways)|again|already",
)
def auxiliary_loss_added_twice(record: Record, repaired: bool = False) -> None:
    net = mlp(6, 6)
    optimizer = Adam(net.parameters())

    def model_step(x: Tensor) -> dict[str, Tensor]:
        flow = net(x)
        vf_loss = (flow - x).square().mean(1)
        auxiliary = (flow[:, 1:] - flow[:, :-1]).abs().mean(1)
        if not repaired:
            vf_loss += auxiliary  # cause
        return {"vf_loss": vf_loss, "auxiliary_loss": auxiliary}

    with record(net):
        for _ in range(3):
            losses = model_step(torch.randn(16, 6))
            total = losses["vf_loss"] + losses["auxiliary_loss"]  # cause
            step(optimizer, total.mean())


@reported(
    GITHUB + "Ramprasad-Group/polygnn/pull/14",
    cause="The features of each graph are passed to forward, which does not use them.",
    words=r"graph_feats.*(unused|not use|no effect)|unused|does not use",
)
def graph_features_not_used(record: Record, repaired: bool = False) -> None:
    class PolyGNN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.readout = nn.Linear(5, 8), nn.Linear(8, 1)

        def pool(self, x: Tensor, edges: Tensor) -> Tensor:
            source, target = edges
            h = torch.zeros(4, 8).index_add(0, target, self.message(x)[source]).relu()
            return h.view(2, 2, 8).sum(1)

        def forward(self, x: Tensor, edges: Tensor, graph_feats: Tensor) -> Tensor:  # cause
            return self.readout(self.pool(x, edges))

    class PolyGNNWithFeatures(PolyGNN):
        def __init__(self) -> None:
            super().__init__()
            self.readout = nn.Linear(10, 1)

        def forward(self, x: Tensor, edges: Tensor, graph_feats: Tensor) -> Tensor:
            return self.readout(torch.cat([self.pool(x, edges), graph_feats], 1))

    model = PolyGNNWithFeatures() if repaired else PolyGNN()
    optimizer = Adam(model.parameters())
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    with record(model):
        for _ in range(3):
            out = model(torch.randn(4, 5), edges, torch.randn(2, 2))  # cause
            step(optimizer, F.mse_loss(out, torch.randn(2, 1)))


@reported(
    GITHUB + "hnuzhy/SSDA-YOLO/issues/21",
    cause="The teacher's average covers parameters alone: its BatchNorm keeps old statistics.",
    words=r"running|buffer|statistics",
)
def teacher_that_keeps_old_statistics(record: Record, repaired: bool = False) -> None:
    student = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    optimizer = Adam(student.parameters())
    with record(nn.ModuleDict({"student": student, "teacher": teacher})):
        for _ in range(6):
            x = 3 + 2 * torch.randn(32, 6)
            pseudo = teacher(x).argmax(1)
            step(optimizer, F.cross_entropy(student(x + torch.randn(32, 6)), pseudo))
            with torch.no_grad():
                for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)  # cause
                if repaired:
                    for mine, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
                        mine.copy_(theirs)


# --- accumulation and data -----------------------------------------------------------------------


@reported(
    GITHUB + "WalkingMeatAxolotl/AnimaLoraStudio/pull/305",
    cause="The last batches of an epoch run backward without a step; their gradients are added "
    "to those of the next epoch.",
    words=r"epoch|left over|added|earlier|\b5 backward|accumulat",
)
def gradients_of_the_last_batches_leak(record: Record, repaired: bool = False) -> None:
    model, batches, accumulate = mlp(6, 1), [torch.randn(8, 6) for _ in range(7)], 3
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            for i, x in enumerate(batches):
                size = accumulate if i < 6 or not repaired else 1
                (model(x).square().mean() / size).backward()  # cause
                if (i + 1) % accumulate == 0 or (repaired and i + 1 == len(batches)):
                    optimizer.step()  # cause
                    optimizer.zero_grad()


@reported(
    GITHUB + "huggingface/transformers/pull/38872",
    cause="The last window of an epoch has fewer batches, but is divided by the full number.",
    words=r"window|fewer|divided|accumulat",
)
def last_window_divided_by_the_full_count(record: Record, repaired: bool = False) -> None:
    model, batches, accumulate = mlp(6, 1), [torch.randn(8, 6) for _ in range(9)], 4
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            for start in range(0, len(batches), accumulate):
                window = batches[start : start + accumulate]
                for x in window:
                    loss = model(x).square().mean()
                    (loss / (len(window) if repaired else accumulate)).backward()  # cause
                optimizer.step()  # cause
                optimizer.zero_grad()


class Noisy(Dataset[Tensor]):
    """Rows with noise that is drawn when a row is read."""

    def __init__(self) -> None:
        self.rows = torch.randn(16, 6)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index] + 0.1 * torch.randn(6)


@reported(
    GITHUB + "Lightning-AI/pytorch-lightning/issues/20412",
    cause="The seed is set again before each epoch, so that every epoch draws the same noise.",
    words=r"manual_seed|seed|same (batch|values|noise)|repeat",
)
def augmentation_that_repeats_in_each_epoch(record: Record, repaired: bool = False) -> None:
    model, data = mlp(6, 1), Noisy()
    loader = DataLoader(data, batch_size=8, shuffle=True)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            if not repaired:
                torch.manual_seed(42)  # cause
            for x in loader:  # cause
                step(optimizer, model(x).square().mean())


class Generated(IterableDataset[Tensor]):
    """Rows that each of several workers draws with its own generator."""

    def __init__(self, seeds: list[int]) -> None:
        self.seeds = seeds

    def __iter__(self) -> Iterator[Tensor]:
        generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]  # cause
        for _ in range(4):
            for generator in generators:  # as the workers of a loader take turns
                yield torch.randn(8, 6, generator=generator)


@reported(
    GITHUB + "TorchDSP/torchsig/pull/361",
    cause="Each worker's generator has the same seed, so that each batch comes twice.",
    words=r"same (batch|values)|repeat|seed",
)
def workers_seeded_with_one_number(record: Record, repaired: bool = False) -> None:
    model, data = mlp(6, 1), Generated([1, 2] if repaired else [1, 1])
    optimizer = Adam(model.parameters())
    with record(model):
        for x in DataLoader(data, batch_size=None):  # cause
            step(optimizer, model(x).square().mean())  # cause
