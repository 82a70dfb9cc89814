"""Mistakes inside a function, a library or a checkpoint, with the expected line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import NO_GRAD, Program, says, silent


@says("changed-in-place", "add_ at {cause} (y += 1)")
def changed_inside_a_reentrant_checkpoint(record: Record) -> None:
    layer = nn.Linear(4, 4)

    def block(x: Tensor) -> Tensor:
        y = layer(x).sigmoid()
        y += 1  # cause
        return y * 2

    with record(layer):
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(block, x, use_reentrant=True).sum().backward()


def by_hand(update: Callable[[Tensor], None]) -> Program:
    """Losses kept with their history, over steps that no optimizer makes."""

    def program(record: Record) -> None:
        layer, losses = nn.Linear(4, 1), []
        with record(layer):
            for _ in range(5):
                loss = layer(torch.randn(8, 4)).square().mean()  # cause
                layer.zero_grad()
                loss.backward()
                for p in layer.parameters():
                    update(p)
                losses.append(loss)  # appended

    program.__name__ = f"history_{update.__name__}"
    return program


def in_place(p: Any) -> None:
    with torch.no_grad():
        p -= 0.1 * p.grad


def of_data(p: Any) -> None:
    p.data.sub_(0.1 * p.grad)


def set_anew(p: Any) -> None:
    p.data = p.data - 0.1 * p.grad


for way in (in_place, of_data, set_anew):
    says("retained-graph", "losses keeps the result of ", "appended at {appended}")(by_hand(way))


def scheduled(layer: nn.Module, optimizer: Any, scheduler: Any) -> None:
    for _ in range(3):
        layer(torch.randn(8, 4)).square().mean().backward()
        scheduler.step()
        optimizer.step()
        optimizer.zero_grad()


@says("scheduler-out-of-step", "scheduler.step", "first step of optimizer")
def scheduler_made_in_a_function(record: Record) -> None:
    layer = nn.Linear(4, 1)

    def train() -> None:
        optimizer = SGD(layer.parameters(), lr=0.1)
        scheduler = StepLR(optimizer, 1)
        layer(torch.randn(8, 4)).square().mean().backward()
        scheduler.step()  # cause
        optimizer.step()

    with record(layer):
        train()


@says("scheduler-out-of-step", "trainer.scheduler.step()")
def scheduler_of_a_trainer(record: Record) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 1)
            self.optimizer = SGD(self.layer.parameters(), lr=0.1)
            self.scheduler = StepLR(self.optimizer, 1)

    trainer = Trainer()
    with record(trainer.layer):
        scheduled(trainer.layer, trainer.optimizer, trainer.scheduler)


@says("cut-gradient", "as_tensor() at {cause}", raises=NO_GRAD, advice="torch.stack")
def losses_put_into_a_tensor(record: Record) -> None:
    layer = nn.Linear(4, 4)
    with record(layer):
        parts = [layer(torch.randn(4)).sum() for _ in range(3)]
        torch.as_tensor(parts).mean().backward()  # cause


@says("cut-gradient", "nested_tensor() at {cause}", advice="as_nested_tensor()")
def images_of_several_sizes(record: Record) -> None:
    embed, head = nn.Linear(4, 4), nn.Linear(4, 2)
    with record():
        rows = embed(torch.randn(5, 4)).split([2, 3])
        tokens = torch.nested.nested_tensor([*rows], layout=torch.jagged)  # cause
        head(tokens).values().square().mean().backward()


@says("copy-in-backward", "4 copies between devices", advice="DistributedDataParallel")
def replicas_copied_by_hand(record: Record) -> None:
    with simulate_accelerator(2) as (first, second):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).to(first)
        with record(model):
            x = torch.randn(8, 4).to(first)
            weights = [p.to(second) for p in model.parameters()]  # cause
            far = F.linear(F.linear(x.to(second), *weights[:2]), *weights[2:])
            (model(x) + far.to(first)).sum().backward()


def tiny_gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, int] = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, bos_token_id=0, eos_token_id=0, **size))


@says(
    "nonfinite-value",
    "addmm in ",
    " (in pytorch_utils.py:",
    " at {cause} (in ",
    "c_attn.weight is NaN",
)
def weight_spoilt_in_a_library(record: Record) -> None:
    model, x = tiny_gpt2(), torch.randint(50, (2, 8))
    torch.nn.init.constant_(model.transformer.h[0].attn.c_attn.weight[0], float("nan"))
    with record(model):
        model(x, labels=x).loss.backward()  # cause


@says("changed-in-place", " at lines.py:", " (in modeling_gpt2.py:")
def hidden_state_of_a_library_changed(record: Record) -> None:
    model, x = tiny_gpt2(), torch.randint(50, (2, 8))
    with record(model):
        out = model(x, output_hidden_states=True)
        out.hidden_states[1].mul_(0)  # cause
        out.logits.sum().backward()


def refused(target: Tensor, name: str) -> Program:
    def program(record: Record) -> None:
        layer = nn.Linear(4, 3)
        with record(layer):
            F.cross_entropy(layer(torch.randn(8, 4)), target).backward()  # cause

    program.__name__ = f"target_{name}"
    return program


REFUSED = {  # a target that cross_entropy refuses, by what to try
    "squeeze(1)": (torch.zeros(8, 1, dtype=torch.long), "of_a_column"),
    "argmax(1)": (torch.eye(8, 3).long(), "of_one_hot_rows"),
    "long()": (torch.zeros(8), "of_floats"),
    "target.max()": (torch.full((8,), 3), "beyond_the_classes"),
}
for advice, (target, name) in REFUSED.items():
    says("exception", raises=".", advice=advice)(refused(target, name))


@silent()
def scheduler_that_comes_second_in_a_later_step(record: Record) -> None:
    layer = nn.Linear(4, 1)
    made = SGD(layer.parameters(), lr=0.1)
    schedule = StepLR(made, 1)

    def step() -> None:
        optimizer, scheduler = made, schedule
        layer(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    step()
    with record(layer):
        step()
