"""Bugs of axes and values, written before their rules. Authors of rules may read them.

A program with `repaired=True` contains the repair from the thread and has no mistake.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, reported, step

GITHUB = "https://github.com/"

# --- axes ----------------------------------------------------------------------------------------


@reported(
    GITHUB + "zhouhaoyi/Informer2020/issues/59",
    cause="A view splits positions where heads were to be moved before them.",
    words=r"view|permute|transpose",
)
def heads_moved_by_a_view(record: Record, repaired: bool = False) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            b, length, _ = x.shape
            q, k, v = self.project(x).view(b, length, 3, 2, 4).unbind(2)
            if repaired:
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            else:
                q = q.reshape(b, 2, length, -1)  # cause
                k = k.reshape(b, 2, length, -1)  # cause
                v = v.reshape(b, 2, length, -1)  # cause
            weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
            result: Tensor = self.out((weights @ v).transpose(1, 2).reshape(b, length, 8))
            return result

    model = Attention()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            step(optimizer, F.mse_loss(model(torch.randn(3, 5, 8)), torch.randn(3, 5, 8)))


@reported(
    GITHUB + "graykode/nlp-tutorial/issues/38",
    cause="The last states of both directions, (2, batch, hidden), are viewed as (batch, 2 * "
    "hidden), which mixes samples.",
    words=r"view|permute|transpose",
)
def last_states_viewed_as_a_batch(record: Record, repaired: bool = False) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 5, bidirectional=True)
            self.out = nn.Linear(10, 2)

        def forward(self, x: Tensor) -> Tensor:
            output, (final, _) = self.lstm(x.transpose(0, 1))
            right = final.transpose(0, 1).reshape(-1, 10, 1)
            hidden = right if repaired else final.view(-1, 10, 1)  # cause
            output = output.permute(1, 0, 2)
            weights = torch.bmm(output, hidden).squeeze(2).softmax(1)
            context = torch.bmm(output.transpose(1, 2), weights.unsqueeze(2)).squeeze(2)
            result: Tensor = self.out(context)
            return result

    model = Classifier()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(6, 4, 6)), torch.randint(2, (6,))))


@reported(
    GITHUB + "OpenNMT/OpenNMT-py/issues/1521",
    cause="States of shape (layers, batch, size) are viewed as (-1, layers * size), which puts "
    "two samples into a row.",
    words=r"view|permute|transpose",
)
def bridge_over_states_of_two_samples(record: Record, repaired: bool = False) -> None:
    encoder, bridge, head = nn.LSTM(6, 4, num_layers=2), nn.Linear(8, 8), nn.Linear(4, 3)
    model = nn.ModuleDict({"encoder": encoder, "bridge": bridge, "head": head})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            _, (states, _) = encoder(torch.randn(7, 6, 6))
            if repaired:
                flat = states.transpose(0, 1).reshape(-1, 8)
                bridged = bridge(flat).relu().view(6, 2, 4).transpose(0, 1)
            else:
                flat = states.view(-1, 8)  # cause
                bridged = bridge(flat).relu().view(states.shape)  # cause
            step(optimizer, F.cross_entropy(head(bridged[-1]), torch.randint(3, (6,))))


@reported(
    GITHUB + "PetrochukM/PyTorch-NLP/issues/2",
    cause="The softmax of the scores runs over the batch and not over the positions.",
    words=r"softmax|dimension",
)
def attention_over_the_batch(record: Record, repaired: bool = False) -> None:
    query, memory, out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)
    model = nn.ModuleDict({"query": query, "memory": memory, "out": out})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            q, m = query(torch.randn(5, 2, 6)), memory(torch.randn(5, 7, 6))
            scores = torch.bmm(q, m.transpose(1, 2)).view(10, 7)
            weights = scores.softmax(-1 if repaired else 0).view(5, 2, 7)  # cause
            mix = torch.cat((torch.bmm(weights, m), q), -1)
            step(optimizer, F.cross_entropy(out(mix).flatten(0, 1), torch.randint(3, (10,))))


@reported(
    GITHUB + "CAMMA-public/rendezvous/issues/10",
    cause="The softmax runs over the heads, dimension 1, and not over the keys.",
    words=r"softmax|dimension",
)
def attention_over_the_heads(record: Record, repaired: bool = False) -> None:
    class CrossAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.query, self.value = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8)
            self.softmax = nn.Softmax(dim=-1 if repaired else 1)

        def split(self, x: Tensor) -> Tensor:
            return x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
            weights = self.softmax(q @ k.transpose(-1, -2) / 2)  # cause
            return (weights @ v).transpose(1, 2).flatten(2)

    model = nn.Sequential(CrossAttention(), nn.Linear(8, 3))
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            y = torch.randint(3, (20,))
            step(optimizer, F.cross_entropy(model(torch.randn(4, 5, 6)).flatten(0, 1), y))


@reported(
    GITHUB + "fastnlp/fastNLP/issues/254",
    cause="The softmax runs over dimension 2, which is that of the queries where there are heads.",
    words=r"softmax|dimension",
)
def attention_over_the_queries(record: Record, repaired: bool = False) -> None:
    class DotAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softmax = nn.Softmax(-1 if repaired else 2)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output: Tensor = self.softmax(torch.matmul(q, k.transpose(-1, -2)) / 2.0)  # cause
            return torch.matmul(output, v)

    project, out, attention = nn.Linear(6, 24), nn.Linear(8, 2), DotAttention()
    model = nn.ModuleDict({"project": project, "attention": attention, "out": out})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            q, k, v = project(torch.randn(4, 5, 6)).view(4, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
            mixed = attention(q, k, v).transpose(1, 2).reshape(4, 5, 8)
            step(optimizer, F.cross_entropy(out(mixed.mean(1)), torch.randint(2, (4,))))


@reported(
    GITHUB + "DEEP-PolyU/KEQA_WSDM19/issues/2",
    cause="The scores have a last dimension of size 1, and softmax over it gives ones.",
    words=r"softmax|size 1",
)
def attention_over_a_single_score(record: Record, repaired: bool = False) -> None:
    rnn, attn, out = nn.GRU(6, 4), nn.Linear(10, 1), nn.Linear(4, 3)
    model = nn.ModuleDict({"rnn": rnn, "attn": attn, "out": out})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            x = torch.randn(7, 5, 6)
            outputs, _ = rnn(x)
            scores = attn(torch.cat((x, outputs), -1))
            weights = F.softmax(scores, dim=0 if repaired else -1)  # cause
            step(optimizer, F.cross_entropy(out((weights * outputs).sum(0)), torch.arange(5) % 3))


@reported(
    GITHUB + "gabeur/mmt/issues/1",
    cause="F.normalize without dim normalises over dimension 1, the tokens, not the features.",
    words=r"\bnorm",
)
def embeddings_normalised_over_tokens(record: Record, repaired: bool = False) -> None:
    video, text = nn.Linear(6, 8), nn.Linear(6, 8)
    model = nn.ModuleDict({"video": video, "text": text})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            frames = video(torch.randn(4, 5, 6))
            v = F.normalize(frames, dim=-1) if repaired else F.normalize(frames)  # cause
            t = F.normalize(text(torch.randn(4, 6)))
            scores = (v @ t.t()).mean(1) * 10
            step(optimizer, F.cross_entropy(scores, torch.arange(4)))


@reported(
    GITHUB + "AndersonJo/dqn-pytorch/issues/1",
    cause="The LSTM is made without batch_first=True and takes the batch for time.",
    words=r"batch_first|time",
)
def recurrence_over_the_batch(record: Record, repaired: bool = False) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(3, 6, 3)
            self.lstm = nn.LSTM(10, 8, 1, batch_first=repaired)  # cause
            self.out = nn.Linear(6 * 8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x, _ = self.lstm(self.conv(x).relu())  # cause
            result: Tensor = self.out(x.reshape(x.shape[0], -1))
            return result

    model = Network()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            q = model(torch.randn(9, 3, 12)).gather(1, torch.randint(4, (9, 1)))
            step(optimizer, F.smooth_l1_loss(q, torch.randn(9, 1)))


@reported(
    GITHUB + "om-ai-lab/OmDet/issues/19",
    cause="MultiheadAttention is made without batch_first=True and attends across the samples.",
    words=r"batch_first|across|samples",
)
def self_attention_across_the_batch(record: Record, repaired: bool = False) -> None:
    class EncoderLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = nn.MultiheadAttention(8, 2, batch_first=repaired)  # cause
            self.norm = nn.LayerNorm(8)

        def forward(self, src: Tensor) -> Tensor:
            mixed, _ = self.self_attn(src, src, src)  # cause
            result: Tensor = self.norm(src + mixed)
            return result

    model = nn.Sequential(nn.Linear(6, 8), EncoderLayer(), nn.Flatten(), nn.Linear(40, 3))
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(4, 5, 6)), torch.randint(3, (4,))))


@reported(
    GITHUB + "meta-pytorch/opacus/pull/825",
    cause="The result of (batch * heads, length, dim) is viewed as (batch, length, heads * dim): "
    "heads become positions.",
    words=r"view|permute|transpose",
)
def heads_viewed_as_positions(record: Record, repaired: bool = False) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

        def split(self, x: Tensor) -> Tensor:
            return x.view(3, 5, 2, 4).transpose(1, 2).reshape(6, 5, 4)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
            mixed = torch.bmm((torch.bmm(q, k.transpose(1, 2)) / 2).softmax(-1), v)
            if repaired:
                mixed = mixed.view(3, 2, 5, 4).transpose(1, 2).reshape(3, 5, 8)
            else:
                mixed = mixed.view(3, 5, 8)  # cause
            result: Tensor = self.out(mixed)
            return result

    model = Attention()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            step(optimizer, F.mse_loss(model(torch.randn(3, 5, 8)), torch.randn(3, 5, 8)))


# --- values --------------------------------------------------------------------------------------


@reported(
    GITHUB + "wagonhelm/NaNmnist/issues/2",
    cause="All weights begin as zeros, so that all units stay alike.",
    words=r"alike|zero",
)
def weights_all_zero(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Sigmoid(), nn.Linear(16, 3))
    if not repaired:
        for layer in (model[0], model[2]):
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]  # cause
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))))


@reported(
    GITHUB + "Guitaricet/relora/issues/18",
    cause="Both matrices of the LoRA begin as zeros: neither gets a gradient.",
    words=r"both|zero",
)
def lora_of_two_zeros(record: Record, repaired: bool = False) -> None:
    class ReLoRA(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(6, 6).requires_grad_(False)
            self.lora_A, self.lora_B = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
            if not repaired:
                nn.init.zeros_(self.lora_A.weight)  # cause
            nn.init.zeros_(self.lora_B.weight)  # cause

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.base(x) + self.lora_B(self.lora_A(x))  # cause
            return result

    model = ReLoRA()
    optimizer = Adam([p for p in model.parameters() if p.requires_grad])
    with record(model):
        for _ in range(2):
            step(optimizer, F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 6)))


@reported(
    GITHUB + "pytorch/pytorch/issues/23782",
    cause="cosine_embedding_loss takes targets of 1 and -1 and is given others, which it leaves "
    "out of the loss.",
    words=r"target|-1",
)
def cosine_targets_of_zero_and_one(record: Record, repaired: bool = False) -> None:
    model = nn.Linear(6, 4)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            same = torch.randint(2, (8,))
            one, other = model(torch.randn(8, 6)), model(torch.randn(8, 6))
            target = 2 * same - 1 if repaired else same
            step(optimizer, F.cosine_embedding_loss(one, other, target))  # cause


@reported(
    GITHUB + "OpenRLHF/OpenRLHF/pull/583",
    cause="All labels of the batch are ignored, and the mean over none is NaN.",
    words=r"target|label|ignore",
)
def labels_that_are_all_ignored(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        ids = torch.randint(10, (2, 7))
        labels = ids.clone()
        labels[:, : 3 if repaired else 7] = -100  # cause
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())  # cause
        step(optimizer, loss)


@reported(
    GITHUB + "pytorch/pytorch/issues/32137",
    cause="normalize's epsilon of 1e-12 is 0 in float16, and a vector of zeros gives 0 / 0.",
    words=r"eps|1e-12|float16",
)
def normalised_zeros_in_half_precision(record: Record, repaired: bool = False) -> None:
    model = nn.Linear(4, 4, bias=False).half()
    with record(model):
        x = torch.randn(3, 4).half()
        x[1] = 0
        h = model(x)
        unit = F.normalize(h, eps=1e-4) if repaired else F.normalize(h)  # cause
        unit.float().square().sum().backward()


@reported(
    GITHUB + "kornia/kornia/issues/3966",
    cause="The bound of the clamp, 1e-8, is 0 in float16.",
    words=r"1e-08|1e-8|float16",
)
def clamped_at_an_epsilon_that_is_zero(record: Record, repaired: bool = False) -> None:
    model = nn.Linear(4, 4).half()
    eps: float = 1e-4 if repaired else 1e-8
    with record(model):
        quaternion: Any = model(torch.randn(5, 4).half())
        vector = quaternion[:, 1:]
        norm = vector.norm(dim=1, keepdim=True).clamp(min=eps)  # cause
        (vector / norm).float().sum().backward()
