"""Healthy trainings: architectures, optimizers and loops.

None of them may have errors or warnings. Most do on purpose what is a mistake in other programs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import batch, mlp

# --- architectures -------------------------------------------------------------------------------


def multilayer_perceptron(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with record(model):
        for _ in range(3):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))


def linear_regression_by_hand(record: Record) -> None:
    x = torch.randn(32, 2)
    y = x @ torch.tensor([2.0, -1.0]) + 0.5
    w, b = torch.zeros(2, requires_grad=True), torch.zeros((), requires_grad=True)
    with record():
        for _ in range(3):
            loss = (x @ w + b - y).square().mean()
            loss.backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
                b -= 0.1 * b.grad
                w.grad.zero_()
                b.grad.zero_()


def convolutions_with_batch_norm(record: Record) -> None:
    model = nn.Sequential(
        *[nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)],
        *[nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)],
        *[nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 4)],
    )
    optimizer = AdamW(model.parameters())
    with record(model):
        for _ in range(2):
            step(
                optimizer, F.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.randint(4, (8,)))
            )


def residual_blocks(record: Record) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    model = nn.Sequential(nn.Linear(6, 8), *[Block() for _ in range(6)], nn.Linear(8, 3))
    optimizer = AdamW(model.parameters())
    with record(model):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def transformer_encoder_with_padding(record: Record) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.ModuleDict({"embed": nn.Embedding(20, 16, padding_idx=0)})
    model["encoder"] = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model["head"] = nn.Linear(16, 2)
    optimizer = AdamW(model.parameters())
    with record(model):
        tokens = torch.randint(1, 20, (4, 7))
        tokens[0, 4:] = 0
        hidden = model["encoder"](model["embed"](tokens), src_key_padding_mask=tokens == 0)
        F.cross_entropy(model["head"](hidden[:, 0]), torch.tensor([0, 1, 0, 1])).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def causal_language_model_with_tied_weights(record: Record) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.position = nn.Embedding(20, 16), nn.Embedding(8, 16)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.head = nn.Linear(16, 20, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).triu(1))

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
            q, k, v = self.qkv(F.layer_norm(x, (16,))).chunk(3, dim=-1)
            scores = (q @ k.transpose(1, 2) / 4).masked_fill(self.mask, float("-inf"))
            return self.head(x + self.out(scores.softmax(-1) @ v))

    model = Model()
    optimizer = AdamW(model.parameters())
    with record(model):
        for _ in range(2):
            tokens = torch.randint(20, (4, 9))
            step(
                optimizer,
                F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
            )


def lstm_over_packed_sequences(record: Record) -> None:
    lstm, head = nn.LSTM(4, 8, num_layers=2, batch_first=True, dropout=0.1), nn.Linear(8, 2)
    optimizer = Adam([*lstm.parameters(), *head.parameters()])
    with record(nn.ModuleList([lstm, head])):
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(3, 5, 4), torch.tensor([5, 3, 2]), batch_first=True
        )
        _, (hidden, _) = lstm(packed)
        F.cross_entropy(head(hidden[-1]), torch.tensor([0, 1, 0])).backward()
        optimizer.step()


def truncated_backpropagation_through_time(record: Record) -> None:
    cell, head = nn.GRUCell(4, 8), nn.Linear(8, 4)
    optimizer = SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    with record(nn.ModuleDict({"cell": cell, "head": head})):
        state = torch.zeros(2, 8)
        for chunk in torch.randn(3, 5, 2, 4):
            state, loss = state.detach(), torch.zeros(())
            for x in chunk:
                state = cell(x, state)
                loss = loss + F.mse_loss(head(state), x)
            step(optimizer, loss)


def sequence_to_sequence_with_teacher_forcing(record: Record) -> None:
    embed, encoder, decoder = nn.Embedding(12, 8), nn.GRU(8, 8), nn.GRUCell(8, 8)
    out = nn.Linear(8, 12)
    model = nn.ModuleDict({"embed": embed, "encoder": encoder, "decoder": decoder, "out": out})
    optimizer = Adam(model.parameters())
    with record(model):
        source, target = torch.randint(12, (5, 3)), torch.randint(12, (4, 3))
        _, hidden = encoder(embed(source))
        state, word, loss = hidden[0], torch.zeros(3, dtype=torch.long), torch.zeros(())
        for t in range(4):
            state = decoder(embed(word), state)
            logits = out(state)
            loss = loss + F.cross_entropy(logits, target[t])
            word = target[t] if t % 2 else logits.argmax(1)
        step(optimizer, loss)


def speech_with_ctc(record: Record) -> None:
    model = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 6, 1))
    optimizer = Adam(model.parameters())
    with record(model):
        log_probs = model(torch.randn(3, 8, 20)).permute(2, 0, 1).log_softmax(2)
        targets, lengths = torch.randint(1, 6, (3, 5)), torch.tensor([5, 4, 3])
        step(optimizer, F.ctc_loss(log_probs, targets, torch.full((3,), 20), lengths))


def segmentation_with_an_ignored_class(record: Record) -> None:
    down, up = nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 8, 2, 2)
    head = nn.Conv2d(11, 4, 1)
    model = nn.ModuleDict({"down": down, "up": up, "head": head})
    optimizer = AdamW(model.parameters())
    with record(model):
        x, y = torch.randn(2, 3, 8, 8), torch.randint(4, (2, 8, 8))
        y[:, 0] = 255
        logits = head(torch.cat([up(down(x).relu()), x], 1))
        step(optimizer, F.cross_entropy(logits, y, ignore_index=255))
        (logits.argmax(1) == y).float().mean().item()


def graph_network_with_scatter(record: Record) -> None:
    message, update = nn.Linear(8, 8), nn.GRUCell(8, 8)
    readout = nn.Linear(8, 2)
    model = nn.ModuleDict({"message": message, "combine": update, "readout": readout})
    optimizer = Adam(model.parameters())
    with record(model):
        nodes, edges = torch.randn(10, 8), torch.randint(10, (2, 24))
        for _ in range(3):
            sent = message(nodes[edges[0]]).relu()
            summed = torch.zeros_like(nodes).index_add(0, edges[1], sent)
            nodes = update(summed, nodes)
        F.cross_entropy(readout(nodes), torch.randint(2, (10,))).backward()
        optimizer.step()


def recommender_with_sparse_embedding_bags(record: Record) -> None:
    bags, head = nn.EmbeddingBag(50, 8, sparse=True, mode="sum"), nn.Linear(8, 1)
    sparse, dense = torch.optim.SparseAdam(bags.parameters()), Adam(head.parameters())
    with record(nn.ModuleDict({"bags": bags, "head": head})):
        for _ in range(2):
            items, offsets = torch.randint(50, (20,)), torch.arange(0, 20, 5)
            score = head(bags(items, offsets)).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(score, torch.tensor([0.0, 1.0, 1.0, 0.0]))
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()


def mixture_of_experts(record: Record) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 4)
            self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            probabilities = self.gate(x).softmax(1)
            weight, chosen = probabilities.topk(2, dim=1)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows, slot = torch.where(chosen == i)
                if len(rows):
                    out = out.index_add(0, rows, weight[rows, slot, None] * expert(x[rows]))
            share = F.one_hot(chosen[:, 0], 4).float().mean(0)
            return out, 4 * (share * probabilities.mean(0)).sum()

    model = Experts()
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(16, 6)
        out, balance = model(x)
        step(optimizer, F.mse_loss(out, x) + 0.01 * balance)


def euler_steps_of_a_neural_ode(record: Record) -> None:
    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = Adam(field.parameters())
    with record(field):
        path = [torch.randn(8, 2)]
        for _ in range(10):
            path.append(path[-1] + 0.1 * field(path[-1]))
        step(optimizer, F.mse_loss(torch.stack(path), torch.zeros(11, 8, 2)))


def physics_informed_network(record: Record) -> None:
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = Adam(net.parameters())
    with record(net):
        for _ in range(2):
            t = torch.rand(16, 1, requires_grad=True)
            u = net(t)
            (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
            start = net(torch.zeros(1, 1))
            step(optimizer, (du + u).square().mean() + (start - 1).square().mean())


def image_fitted_by_gradient_descent(record: Record) -> None:
    features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).requires_grad_(
        False
    )
    content = torch.rand(1, 3, 12, 12)
    image = content.clone().requires_grad_()
    optimizer = Adam([image], lr=0.05)
    with record(features):
        with torch.no_grad():
            target = features(torch.rand(1, 3, 12, 12)).flatten(2)
            gram = target @ target.transpose(1, 2)
        for _ in range(2):
            found = features(image).flatten(2)
            step(
                optimizer,
                F.mse_loss(found @ found.transpose(1, 2), gram) + F.mse_loss(image, content),
            )
            with torch.no_grad():
                image.clamp_(0, 1)
