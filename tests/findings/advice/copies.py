"""Programs for advice on copies between devices that are unused, or that the program waits for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import simulate_accelerator
from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record
from tests.findings.corpus.models import mlp

CLASSES = torch.arange(8) % 3


class Inside(nn.Module):
    """A layer, something that is done to what it gives, and a head."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.between(self.body(x)))
        return result


def trained(
    record: Record, device: torch.device, model: nn.Module, batch: Callable[[], Tensor]
) -> Tensor:
    """The first loss of four steps."""
    losses, y = [], CLASSES.to(device)
    with record(model):
        for _ in range(4):
            loss = F.cross_entropy(model(batch()), y)
            loss.backward()
            losses.append(loss.detach())
    return losses[0].cpu()


@follows("unused-copy", 'with x = x.to("sim:0")', raises="same device", same_loss=False)
def move_that_is_not_kept(record: Record, followed: bool) -> Tensor:
    with simulate_accelerator() as [sim]:
        model, y = mlp().to(sim), CLASSES.to(sim)
        with record(model):
            x = torch.randn(8, 6)
            if followed:
                x = x.to(sim)
            else:
                x.to(sim)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        return loss.cpu()


@follows("device-sync", "Create the distribution with validate_args=False")
def distribution_that_looks_at_its_values(record: Record, followed: bool) -> Tensor:
    checked = {"validate_args": not followed}

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 3)

        def forward(self, x: Tensor, actions: Tensor) -> Tensor:
            chosen = torch.distributions.Categorical(logits=self.body(x), **checked)
            result: Tensor = chosen.log_prob(actions)
            return result

    with simulate_accelerator() as [sim]:
        model, x, actions = Policy().to(sim), torch.randn(8, 6, device=sim), CLASSES.to(sim)
        with record(model):
            loss = -model(x, actions).mean()
            loss.backward()
        return loss.cpu()


@follows("repeated-copy", "Move table once, before the loop")
def table_moved_in_each_step(record: Record, followed: bool) -> Tensor:
    with simulate_accelerator() as [sim]:
        model, table = mlp().to(sim), torch.randn(8, 6)
        moved = table.to(sim)
        return trained(record, sim, model, lambda: moved if followed else table.to(sim))


@follows("round-trip", "Stay on sim:0")
def activation_that_visits_the_cpu(record: Record, followed: bool) -> Tensor:
    with simulate_accelerator() as [sim]:
        model = Inside(lambda h: h.relu() if followed else h.cpu().relu().to(h.device)).to(sim)
        return trained(record, sim, model, lambda: torch.ones(8, 6).to(sim))


@follows("copy-in-backward", "Move the model once with model.to(device)")
def weight_moved_in_each_forward(record: Record, followed: bool) -> Tensor:
    class Moves(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.to(x.device), self.bias.to(x.device))

    with simulate_accelerator() as [sim]:
        model: nn.Module = Moves(6, 3)
        if followed:
            model = model.to(sim)
        return trained(record, sim, model, lambda: torch.ones(8, 6).to(sim))


@follows("device-sync", "torch.where or a mask")
def branch_on_a_value(record: Record, followed: bool) -> Tensor:
    def between(h: Tensor) -> Tensor:
        if followed:
            return torch.where(h.max() > 1e3, h / 2, h)
        return h / 2 if h.max().item() > 1e3 else h

    with simulate_accelerator() as [sim]:
        return trained(record, sim, Inside(between).to(sim), lambda: torch.ones(8, 6).to(sim))


@follows("device-sync", "read its value after the loop or once for many steps")
def loss_read_in_each_step(record: Record, followed: bool) -> Tensor:
    with simulate_accelerator() as [sim]:
        model, x, y = mlp().to(sim), torch.randn(8, 6).to(sim), CLASSES.to(sim)
        sums, total = torch.zeros((), device=sim), 0.0
        with record(model):
            for _ in range(4):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                if followed:
                    sums += loss.detach()
                else:
                    total += loss.item()
            total += sums.item()
        return torch.tensor(total)


@follows("device-sync", "use torch.where(mask, x, 0)")
def positive_ones_picked_by_a_mask(record: Record, followed: bool) -> Tensor:
    def between(h: Tensor) -> Tensor:
        total = torch.where(h > 0, h, 0).sum() if followed else h[h > 0].sum()
        return h + total

    with simulate_accelerator() as [sim]:
        return trained(record, sim, Inside(between).to(sim), lambda: torch.ones(8, 6).to(sim))


@follows("pageable-copy", "pin_memory() once, and")
def large_batch_from_pageable_memory(record: Record, followed: bool) -> Tensor:
    def batch() -> Tensor:
        x = torch.randn(8, 1 << 16)
        return x.pin_memory().to(sim, non_blocking=True) if followed else x.to(sim)

    with simulate_accelerator() as [sim]:
        return trained(record, sim, nn.Linear(1 << 16, 3).to(sim), batch)


@follows("tiny-copies", "them with torch.stack or torch.cat, and copy once")
def rows_moved_one_by_one(record: Record, followed: bool) -> Tensor:
    def batch() -> Tensor:
        rows = [torch.ones(6) * i for i in range(32)]
        moved = torch.stack(rows).to(sim) if followed else torch.stack([r.to(sim) for r in rows])
        return moved[:8]

    with simulate_accelerator() as [sim]:
        return trained(record, sim, mlp().to(sim), batch)


@follows("mixed-devices", 'x = x.to("sim:0")', raises="same device", same_loss=False)
def batch_left_on_the_cpu(record: Record, followed: bool) -> Tensor:
    with simulate_accelerator() as [sim]:
        model, y = mlp().to(sim), CLASSES.to(sim)
        with record(model):
            x = torch.randn(8, 6)
            if followed:
                x = x.to(sim)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        return loss.cpu()


@follows("non-leaf-in-optimizer", "requires_grad=True", raises="non-leaf", same_loss=False)
def leaf_that_was_moved(record: Record, followed: bool) -> Tensor:
    with simulate_accelerator() as [sim]:
        if followed:
            offset = torch.ones(6, device=sim, requires_grad=True)
        else:
            offset = torch.ones(6, requires_grad=True).to(sim)
        model, y = mlp().to(sim), CLASSES.to(sim)
        with record(model):
            optimizer = torch.optim.SGD([offset, *model.parameters()], lr=0.1)
            loss = F.cross_entropy(model(torch.ones(8, 6, device=sim) + offset), y)
            loss.backward()
            optimizer.step()
        return loss.cpu()
