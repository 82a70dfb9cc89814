"""Healthy trainings: modules, memory, devices, shapes and losses."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

# --- shapes and losses ---------------------------------------------------------------------------


def columns_times_rows(record: Record) -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frequency, self.out = nn.Parameter(torch.rand(8)), nn.Linear(8, 1)

        def forward(self, t: Tensor) -> Tensor:
            return self.out(torch.sin(t.unsqueeze(1) * self.frequency)).squeeze(1)

    model = Fourier()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            t = torch.rand(8)
            step(optimizer, F.mse_loss(model(t), t.square()))


def attention_over_one_key_at_first(record: Record) -> None:
    query, key, head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    model = nn.ModuleDict({"query": query, "key": key, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        x, loss = torch.randn(4, 5, 6), torch.zeros(())
        for t in range(1, 5):
            scores = query(x[:, t - 1 : t]) @ key(x[:, :t]).transpose(1, 2)
            context = scores.softmax(-1) @ x[:, :t]
            loss = loss + F.mse_loss(head(context.squeeze(1)), x[:, t])
        step(optimizer, loss)


def soft_targets_and_sigmoids_as_they_should_be(record: Record) -> None:
    model = mlp(6, 5)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            out, soft = model(torch.randn(8, 6)), torch.rand(8, 3).softmax(1)
            loss = F.cross_entropy(out[:, :3], soft)
            loss = loss + F.binary_cross_entropy(out[:, 3].sigmoid(), torch.rand(8))
            log_other = F.log_softmax(torch.randn(8, 3), dim=1)
            loss = loss + F.kl_div(out[:, :3].log_softmax(1), log_other, log_target=True)
            step(optimizer, loss)


def a_row_masked_but_for_one_key(record: Record) -> None:
    query, value = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = Adam([*query.parameters(), *value.parameters()])
    with record(nn.ModuleList([query, value])):
        x, lengths = torch.randn(3, 4, 6), torch.tensor([4, 1, 2])
        hidden = torch.arange(4)[None, :] >= lengths[:, None]
        scores = (query(x) @ x.transpose(1, 2)).masked_fill(hidden[:, None, :], float("-inf"))
        out = scores.softmax(-1) @ value(x)
        step(optimizer, (out.square() * ~hidden[:, :, None]).sum() / (~hidden).sum())


def logarithms_kept_from_zero(record: Record) -> None:
    model = mlp(6, 3)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            p = model(100 * torch.randn(8, 6)).softmax(1)
            entropy = -(p * (p + 1e-8).log()).sum(1).mean()
            spread = (p.var(0, unbiased=False) + 1e-6).sqrt().sum()
            step(optimizer, entropy - spread)


def where_with_both_sides_made_safe(record: Record) -> None:
    model = nn.Linear(6, 4)
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        x = model(10 * torch.randn(8, 6))
        safe = torch.where(x > 0, x, torch.ones_like(x))
        y = torch.where(x > 0, safe.log1p(), torch.zeros_like(x))
        step(optimizer, y.mean())


def residual_branches_that_begin_at_zero(record: Record) -> None:
    class Rezero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.gain = mlp(6, 6), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gain * self.branch(x)

    model = nn.Sequential(Rezero(), Rezero(), nn.Linear(6, 3))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))


# --- modules, memory and devices -----------------------------------------------------------------


def layers_registered_and_listed_too(record: Record) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
            self.order = [self.first, self.second]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.order:
                x = layer(x)
            return x

    model = Net()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))


def frozen_first_and_trained_later(record: Record) -> None:
    body, head = mlp(6, 8), nn.Linear(8, 3)
    body.requires_grad_(False)
    optimizer = SGD(head.parameters(), lr=0.1)
    with record(nn.ModuleDict({"body": body, "head": head})):
        for epoch in range(4):
            if epoch == 2:
                body.requires_grad_(True)
                optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.01})
            optimizer.zero_grad()
            logits = head(body(torch.randn(8, 6)))
            F.cross_entropy(logits, torch.randint(3, (8,))).backward()
            optimizer.step()


def a_step_for_each_of_two_losses(record: Record) -> None:
    model, centers = nn.Linear(6, 4), nn.Parameter(torch.randn(3, 4))
    optimizer, slow = SGD(model.parameters(), lr=0.1), SGD([centers], lr=0.5)
    with record(model):
        for _ in range(2):
            features, labels = model(torch.randn(8, 6)), torch.randint(3, (8,))
            loss = F.cross_entropy(features, labels)
            loss = loss + 0.1 * (features - centers[labels]).square().sum(1).mean()
            optimizer.zero_grad()
            slow.zero_grad()
            loss.backward()
            optimizer.step()
            slow.step()


def reentrant_checkpoint_of_what_requires_grad(record: Record) -> None:
    embed, block, head = nn.Embedding(10, 6), mlp(6, 6), nn.Linear(6, 3)
    model = nn.ModuleDict({"embed": embed, "block": block, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        hidden = checkpoint(block, embed(torch.randint(10, (8, 5))), use_reentrant=True)
        step(optimizer, F.cross_entropy(head(hidden.mean(1)), torch.randint(3, (8,))))


def replay_of_what_was_detached(record: Record) -> None:
    cell, head, buffer = nn.GRUCell(4, 8), nn.Linear(8, 2), []
    optimizer = Adam([*cell.parameters(), *head.parameters()])
    with record(nn.ModuleList([cell, head])):
        state = torch.zeros(1, 8)
        for _ in range(4):
            x = torch.randn(1, 4)
            buffer.append((x, state.detach()))
            with torch.no_grad():
                state = cell(x, state)
            old, before = buffer[torch.randint(len(buffer), ()).item()]
            step(optimizer, head(cell(old, before)).square().mean())


def encoding_that_is_a_buffer(record: Record) -> None:
    class Encoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("pe", torch.rand(10, 6), persistent=False)
            self.linear = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x + self.pe[: x.shape[1]]).mean(1)

    model = Encoding()
    with simulate_accelerator() as (device,), record(model):
        model.to(device)
        optimizer = Adam(model.parameters())
        for _ in range(2):
            x, y = torch.randn(4, 5, 6).to(device), torch.randint(3, (4,)).to(device)
            step(optimizer, F.cross_entropy(model(x), y))


def layers_on_two_devices(record: Record) -> None:
    with simulate_accelerator(2) as (first, second):
        front, back = mlp(6, 8).to(first), mlp(8, 3).to(second)
        optimizer = SGD([*front.parameters(), *back.parameters()], lr=0.1)
        with record(nn.ModuleDict({"front": front, "back": back})):
            for _ in range(2):
                hidden = front(torch.randn(8, 6).to(first))
                logits = back(hidden.to(second))
                step(optimizer, F.cross_entropy(logits, torch.randint(3, (8,)).to(second)))


def model_replicated_over_two_devices(record: Record) -> None:
    with simulate_accelerator(2) as devices:
        model = nn.DataParallel(mlp(6, 3).to(devices[0]), device_ids=list(devices))
        optimizer = SGD(model.parameters(), lr=0.1)
        with record(model):
            for _ in range(2):
                x, y = torch.randn(8, 6).to(devices[0]), torch.randint(3, (8,)).to(devices[0])
                step(optimizer, F.cross_entropy(model(x), y))


def double_precision_throughout(record: Record) -> None:
    model = mlp(6, 1).double()
    optimizer = torch.optim.Rprop(model.parameters())
    with record(model):
        for _ in range(2):
            x = torch.randn(8, 6, dtype=torch.float64)
            step(optimizer, F.huber_loss(model(x).squeeze(1), x.sum(1)))


def recurrence_over_fifty_steps(record: Record) -> None:
    rnn, head = nn.RNN(4, 16, batch_first=True), nn.Linear(16, 1)
    optimizer = Adam([*rnn.parameters(), *head.parameters()])
    with record(nn.ModuleList([rnn, head])):
        out, _ = rnn(torch.randn(4, 50, 4))
        optimizer.zero_grad()
        head(out).square().mean().backward()
        nn.utils.clip_grad_norm_(rnn.parameters(), 1.0)
        optimizer.step()


def ensemble_by_vmap(record: Record) -> None:
    models = [mlp(6, 3) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    optimizer = SGD(params.values(), lr=0.1)

    def one(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(base, (p, b), (x,))

    with record():
        for _ in range(2):
            out = torch.vmap(one, (0, 0, None))(params, buffers, torch.randn(8, 6))
            step(optimizer, F.cross_entropy(out.flatten(0, 1), torch.randint(3, (8,)).repeat(3)))
