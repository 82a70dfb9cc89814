"""Bugs of axes and values for which no rule was written; do not read them while writing rules.

A program with `repaired=True` contains the repair from the thread and has no mistake.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, reported, step

GITHUB = "https://github.com/"

# --- axes ----------------------------------------------------------------------------------------


@reported(
    GITHUB + "timbmg/Sentence-VAE/issues/15",
    cause="The last state, (layers * directions, batch, hidden), is viewed with the batch first.",
    words=r"view|permute|transpose",
)
def latent_of_a_state_viewed_batch_first(record: Record, repaired: bool = False) -> None:
    embedding, encoder = nn.Embedding(12, 6), nn.GRU(6, 4, bidirectional=True, batch_first=True)
    to_mean, decoder = nn.Linear(8, 3), nn.Linear(3, 12)
    model = nn.ModuleList([embedding, encoder, to_mean, decoder])
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            ids = torch.randint(12, (5, 7))
            _, hidden = encoder(embedding(ids))
            hidden = hidden.transpose(0, 1).flatten(1) if repaired else hidden.view(5, 8)  # cause
            step(optimizer, F.cross_entropy(decoder(to_mean(hidden)), ids[:, 0]))


@reported(
    GITHUB + "danielhavir/capsule-network/issues/4",
    cause="Capsules are cut from (batch, channels, height, width) by a view: a capsule takes "
    "pixels of one channel.",
    words=r"view|permute|transpose",
)
def capsules_of_pixels(record: Record, repaired: bool = False) -> None:
    class PrimaryCaps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(x)
            if repaired:
                out = out.permute(0, 2, 3, 1).reshape(out.size(0), -1, 8)
            else:
                out = out.view(out.size(0), -1, 8)  # cause
            return out / (1 + out.norm(dim=-1, keepdim=True))

    model = nn.Sequential(PrimaryCaps(), nn.Flatten(), nn.Linear(8 * 25, 4))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x, y = torch.randn(6, 3, 7, 7), torch.randint(4, (6,))
            step(optimizer, F.cross_entropy(model(x), y))


@reported(
    GITHUB + "vitrioil/Speech-Separation/issues/4",
    cause="Features of (batch, channels, time, frequency) are viewed as (batch, -1, time, 1).",
    words=r"view|permute|transpose",
)
def channels_and_frequencies_viewed_before_time(record: Record, repaired: bool = False) -> None:
    conv, lstm, out = (
        nn.Conv2d(1, 4, 3, padding=1),
        nn.LSTM(24, 8, batch_first=True),
        nn.Linear(8, 6),
    )
    model = nn.ModuleDict({"conv": conv, "lstm": lstm, "out": out})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            h = conv(torch.randn(3, 1, 9, 6)).relu()
            if repaired:
                h = h.permute(0, 2, 1, 3).reshape(3, 9, 24)
            else:
                h = h.view(3, 24, 9).transpose(1, 2)  # cause
            output, _ = lstm(h)
            step(optimizer, F.mse_loss(out(output), torch.randn(3, 9, 6)))


@reported(
    GITHUB + "Jingkang50/OpenPSG/issues/56",
    cause="A view turns (queries, batch, ...) into (batch, queries, ...).",
    words=r"view|permute|transpose",
)
def queries_viewed_as_a_batch(record: Record, repaired: bool = False) -> None:
    embed, mask, out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(5, 4)
    model = nn.ModuleDict({"embed": embed, "mask": mask, "out": out})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            queries = embed(torch.randn(5, 3, 6))  # 5 queries of 3 samples
            queries = queries.transpose(0, 1) if repaired else queries.view(3, 5, 8)  # cause
            memory = mask(torch.randn(3, 7, 6))
            scores = torch.einsum("bqc,bmc->bqm", queries, memory)
            step(optimizer, F.cross_entropy(out(scores.mean(2)), torch.randint(4, (3,))))


@reported(
    GITHUB + "nerminnuraydogan/vision-transformer/issues/1",
    cause="The softmax of the attention runs over the queries.",
    words=r"softmax|dimension",
)
def patches_attended_over_the_wrong_dimension(record: Record, repaired: bool = False) -> None:
    patch, qkv, head = nn.Linear(12, 8), nn.Linear(8, 24), nn.Linear(8, 3)
    model = nn.ModuleDict({"patch": patch, "qkv": qkv, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            q, k, v = qkv(patch(torch.randn(4, 6, 12))).chunk(3, dim=-1)
            scores = q @ k.mT / 8**0.5
            attention = torch.softmax(scores, dim=-1 if repaired else 1)  # cause
            pooled = (attention @ v).mean(1)
            step(optimizer, F.cross_entropy(head(pooled), torch.randint(3, (4,))))


@reported(
    GITHUB + "xmu-xiaoma666/External-Attention-pytorch/issues/18",
    cause="The softmax runs over the batch, and the sum that it weights over the kernels.",
    words=r"softmax|dimension",
)
def selective_kernels_over_the_batch(record: Record, repaired: bool = False) -> None:
    convs = nn.ModuleList([nn.Conv2d(3, 4, k, padding=k // 2) for k in (1, 3, 5)])
    fcs, out = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), nn.Linear(4, 2)
    model = nn.ModuleDict({"convs": convs, "fcs": fcs, "out": out})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = torch.randn(6, 3, 8, 8)
            feats = torch.stack([conv(x) for conv in convs])
            s = feats.sum(0).mean((-1, -2))
            weights = torch.stack([fc(s).view(6, 4, 1, 1) for fc in fcs])
            weights = weights.softmax(0 if repaired else 1)  # cause
            v = (weights * feats).sum(0)
            step(optimizer, F.cross_entropy(out(v.mean((-1, -2))), torch.randint(2, (6,))))


@reported(
    GITHUB + "catalyst-team/catalyst/pull/285",
    cause="The softmax of the pooling runs over the last dimension, of size 1: weights are ones.",
    words=r"softmax|size 1",
)
def pooling_with_weights_of_one(record: Record, repaired: bool = False) -> None:
    class AttentionPooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Conv1d(6, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.score(x.transpose(1, 2))
            weights = scores.softmax(2 if repaired else 1)  # cause
            return (weights.transpose(1, 2) * x).sum(1)

    model = nn.Sequential(nn.Linear(4, 6), AttentionPooling(), nn.Linear(6, 2))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            step(optimizer, F.mse_loss(model(torch.randn(8, 4, 4)), torch.randn(8, 2)))


@reported(
    GITHUB + "xmed-lab/CLIP_Surgery/issues/35",
    cause="Features of (batch, tokens, channels) are divided by their norm over dimension 1, that "
    "of the tokens.",
    words=r"norm",
)
def features_divided_by_the_norm_over_tokens(record: Record, repaired: bool = False) -> None:
    image, words = nn.Linear(6, 8), nn.Linear(5, 8)
    model = nn.ModuleDict({"image": image, "words": words})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            features = image(torch.randn(4, 7, 6))
            axis = -1 if repaired else 1
            features = features / features.norm(dim=axis, keepdim=True)  # cause
            text = words(torch.randn(4, 5))
            text = text / text.norm(dim=-1, keepdim=True)
            similarity = (features @ text.t()).mean(1)
            step(optimizer, F.cross_entropy(10 * similarity, torch.arange(4)))


@reported(
    GITHUB + "facebookresearch/fairseq/issues/2449",
    cause="The LSTM of the encoder is made without batch_first=True.",
    words=r"batch_first|time",
)
def encoder_without_batch_first(record: Record, repaired: bool = False) -> None:
    class SimpleEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 6)
            self.lstm = nn.LSTM(6, 8, batch_first=repaired)  # cause
            self.out = nn.Linear(8, 12)

        def forward(self, ids: Tensor) -> Tensor:
            x, _ = self.lstm(self.embed(ids))  # cause
            result: Tensor = self.out(x)
            return result

    model = SimpleEncoder()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            ids = torch.randint(12, (5, 9))
            step(optimizer, F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))


@reported(
    GITHUB + "IBM/TabFormer/pull/14",
    cause="TransformerEncoder takes the batch second, and is given it first.",
    words=r"batch_first|across|samples",
)
def rows_encoded_across_the_batch(record: Record, repaired: bool = False) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    fields, encoder, out = nn.Linear(3, 8), nn.TransformerEncoder(layer, 1), nn.Linear(40, 2)
    model = nn.ModuleDict({"fields": fields, "encoder": encoder, "out": out})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            h = fields(torch.randn(6, 5, 3))
            h = encoder(h.transpose(0, 1)).transpose(0, 1) if repaired else encoder(h)  # cause
            step(optimizer, F.cross_entropy(out(h.flatten(1)), torch.randint(2, (6,))))


# --- values --------------------------------------------------------------------------------------


@reported(
    GITHUB + "yz93/LAVT-RIS/issues/25",
    cause="Both layers of the gate begin as zeros: the first never gets a gradient.",
    words=r"both|zero",
)
def gate_of_two_layers_of_zeros(record: Record, repaired: bool = False) -> None:
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    if not repaired:
        nn.init.zeros_(first.weight)  # cause
    nn.init.zeros_(second.weight)  # cause
    gate = nn.Sequential(first, nn.ReLU(), second, nn.Tanh())
    model = nn.ModuleDict({"body": body, "gate": gate, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = body(torch.randn(8, 6))
            x = x + gate(x) * x  # cause
            step(optimizer, F.cross_entropy(head(x), torch.randint(3, (8,))))


@reported(
    GITHUB + "circle-hit/SAPT/issues/11",
    cause="lora_A and lora_B are both made by torch.zeros.",
    words=r"both|zero",
)
def lora_made_of_zeros(record: Record, repaired: bool = False) -> None:
    class LoRALayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6), requires_grad=False)
            a = torch.randn(6, 2) if repaired else torch.zeros(6, 2)
            self.lora_A = nn.Parameter(a)  # cause
            self.lora_B = nn.Parameter(torch.zeros(2, 6))  # cause

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + x @ self.lora_A @ self.lora_B  # cause

    model = nn.Sequential(LoRALayer(), nn.ReLU(), nn.Linear(6, 3))
    optimizer = Adam([p for p in model.parameters() if p.requires_grad])
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))


@reported(
    GITHUB + "nvidia-cosmos/cosmos-rl/pull/155",
    cause="All labels are ignored: the loss is 0 and trains nothing.",
    words=r"target|label|ignore",
)
def sum_over_labels_that_are_ignored(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            ids = torch.randint(10, (2, 7))
            labels = ids.clone()
            labels[:, : 3 if repaired else 7] = -100  # cause
            logits = model(ids).flatten(0, 1)
            loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")  # cause
            step(optimizer, loss / (labels != -100).sum().clamp(min=1))


@reported(
    GITHUB + "lightonai/pylate/issues/239",
    cause="The epsilon of 1e-8 that is added to the divisor is 0 in float16.",
    words=r"1e-08|1e-8|float16",
)
def scores_normalised_with_an_epsilon_of_zero(record: Record, repaired: bool = False) -> None:
    model = nn.Linear(4, 1).half()
    epsilon = 1e-3 if repaired else 1e-8
    with record(model):
        documents = torch.randn(2, 4, 4).half()
        documents[1] = documents[1, 0]  # of one query all are alike
        scores = model(documents).squeeze(-1)
        low, high = scores.min(1, keepdim=True).values, scores.max(1, keepdim=True).values
        scores = (scores - low) / (high - low + epsilon)  # cause
        F.kl_div(scores.float().log_softmax(1), torch.full((2, 4), 0.25)).backward()
