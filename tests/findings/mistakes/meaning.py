"""Mistakes with calls, batches and weights, their variants, and similar programs without one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent

CLASSES = torch.arange(8) % 3


@silent("called-for-each-sample")
def cell_along_time(record: Record) -> None:
    cell, head = nn.Linear(6, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([cell, head])):
        x = torch.randn(12, 8, 6)  # (time, batch, features)
        h = torch.stack([cell(x[t]) for t in range(12)]).mean(0)
        F.cross_entropy(head(h), CLASSES).backward()


@silent("called-for-each-sample")
def chunks_of_a_large_batch(record: Record) -> None:
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, head)
    with record(model):
        x = torch.randn(64, 5, 6)
        out = torch.cat([model(chunk).mean(1) for chunk in x.chunk(8)])
        F.cross_entropy(out, torch.arange(64) % 3).backward()


@silent("called-for-each-sample")
def batch_of_one_along_time(record: Record) -> None:
    cell, head = nn.Linear(6, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([cell, head])):
        x = torch.randn(1, 12, 6)  # (batch, time, features)
        h = torch.stack([cell(x[:, t]) for t in range(12)]).mean(0)
        F.cross_entropy(head(h), CLASSES[:1]).backward()


class Remembers(nn.Module):
    """A cell that keeps what it returned last."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 8)
        self.h = torch.zeros(8)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        out = (self.inner(x) + self.outer(self.h if h is None else h)).tanh()
        if h is None:
            self.h = out
        return out


@silent("called-for-each-sample")
def cell_with_a_state_of_its_own(record: Record) -> None:
    cell, head = Remembers(), nn.Linear(8, 3)
    with record(nn.ModuleList([cell, head])):
        out = torch.stack([cell(row) for row in torch.randn(12, 6)])
        F.cross_entropy(head(out), torch.arange(12) % 3).backward()


@silent("called-for-each-sample")
def cell_that_is_given_its_state_by_name(record: Record) -> None:
    cell, h = Remembers(), torch.zeros(8)
    with record(cell):
        for row in torch.randn(12, 6):
            h = cell(row, h=h)
        h.square().mean().backward()


@silent("called-for-each-sample")
def images_through_a_batch_norm(record: Record) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    with record(model):
        out = torch.cat([model(image) for image in torch.randn(12, 3, 4, 4).split(1)])
        F.cross_entropy(out, torch.arange(12) % 3).backward()


@silent("scheduler-out-of-step")
def cosine_that_was_past_its_end_before(record: Record) -> None:
    """A rate that swings on purpose: nothing new happens to it while it is watched."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    for _ in range(8):
        optimizer.step()
        scheduler.step()
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), CLASSES))
            scheduler.step()


def clipped_by_value(record: Record, bound: float) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            nn.utils.clip_grad_value_(model.parameters(), bound)
            optimizer.step()


@says("extreme-clip-norm", "clip_grad_value_()", "clipped none of 6 gradients", advice="")
def bound_of_values_that_is_never_reached(record: Record) -> None:
    clipped_by_value(record, 1e4)


@silent("extreme-clip-norm")
def bound_of_values_that_some_reach(record: Record) -> None:
    clipped_by_value(record, 0.05)


@says("called-for-each-sample", "ran 12 times at {cause}, each time on a different slice")
def images_one_by_one(record: Record) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    with record(model):
        out = torch.cat([model(image) for image in torch.randn(12, 3, 4, 4).split(1)])  # cause
        F.cross_entropy(out, torch.arange(12) % 3).backward()


@says("called-for-each-sample", "head ran 12 times at {cause}, each time on a different slice")
def rows_inside_a_model(record: Record) -> None:
    class RowByRow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.head(row) for row in x])  # cause

    model = RowByRow()
    with record(model):
        F.cross_entropy(model(torch.randn(12, 6)), torch.arange(12) % 3).backward()


@says(
    "called-for-each-sample",
    "The product with weight ran 12 times at {cause}, each time on a different slice",
)
def function_of_each_row(record: Record) -> None:
    body, weight = nn.Linear(6, 6), nn.Parameter(torch.randn(3, 6))
    with record(nn.ModuleList([body])):
        h = body(torch.randn(12, 6))
        out = torch.stack([F.linear(row, weight) for row in h])  # cause
        F.cross_entropy(out, torch.arange(12) % 3).backward()


@silent("called-for-each-sample")
def rows_that_need_one_another_or_have_weights_of_their_own(record: Record) -> None:
    """A recurrence along the rows; a head for each row."""
    body, cell, heads = nn.Linear(6, 6), nn.Linear(6, 6), nn.ModuleList()
    heads.extend(nn.Linear(6, 3) for _ in range(12))
    with record(nn.ModuleList([body, cell, heads])):
        rows, h = body(torch.randn(12, 6)), torch.zeros(6)
        for row in rows:
            h = cell(row + h).tanh()
        out = torch.stack([head(row) for head, row in zip(heads, rows, strict=True)])
        (F.cross_entropy(out, torch.arange(12) % 3) + h.square().mean()).backward()


@silent("called-for-each-sample")
def step_for_each_sample(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for row, label in zip(torch.randn(10, 6), torch.arange(10) % 3, strict=True):
            step(optimizer, F.cross_entropy(model(row), label))


@silent("called-for-each-sample")
def observation_for_each_action(record: Record) -> None:
    policy = mlp()
    with record(policy):
        out = torch.stack([policy(torch.randn(6)) for _ in range(12)])
        F.cross_entropy(out, torch.arange(12) % 3).backward()


def trained_on(record: Record, batches: Iterable[list[Tensor]]) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for x, y in batches:
            step(optimizer, F.cross_entropy(model(x), y))


def samples(number: int = 32) -> TensorDataset:
    return TensorDataset(torch.randn(number, 6), torch.arange(number) % 3)


@silent("repeated-batch")
def whole_of_the_data_in_each_step(record: Record) -> None:
    loader = DataLoader(samples(), 32)
    trained_on(record, (next(iter(loader)) for _ in range(4)))


@silent("repeated-batch")
def one_batch_that_was_taken_once(record: Record) -> None:
    batch = next(iter(DataLoader(samples(), 8)))
    trained_on(record, [batch] * 4)


@silent("repeated-batch")
def first_batch_of_what_is_shuffled(record: Record) -> None:
    loader = DataLoader(samples(), 8, shuffle=True)
    trained_on(record, (next(iter(loader)) for _ in range(4)))


@silent("repeated-batch")
def epochs_in_the_same_order(record: Record) -> None:
    loader = DataLoader(samples(), 16)
    trained_on(record, (batch for _ in range(4) for batch in loader))


@silent("repeated-batch")
def looked_at_before_it_is_used(record: Record) -> None:
    loader = DataLoader(samples(), 8)
    model = mlp()
    with record(model):
        for _ in range(4):
            x, y = next(iter(loader))
        step(SGD(model.parameters(), lr=0.1), F.cross_entropy(model(x), y))


@silent("repeated-batch")
def held_out_batch_after_each_step(record: Record) -> None:
    loader, held_out, model = DataLoader(samples(), 8), DataLoader(samples(), 8), mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for x, y in loader:
            step(optimizer, F.cross_entropy(model(x), y))
            with torch.no_grad():
                model(next(iter(held_out))[0])


@silent("repeated-batch")
def data_that_is_made_up(record: Record) -> None:
    loader = DataLoader(TensorDataset(torch.ones(32, 6), torch.arange(32) % 3), 8)
    trained_on(record, (next(iter(loader)) for _ in range(4)))


@silent("repeated-batch")
def data_that_are_there_four_times(record: Record) -> None:
    trained_on(record, DataLoader(ConcatDataset([samples(16)] * 4), 4, num_workers=2))


@silent("no-update")
def bfloat16_with_a_rate_that_it_can_tell(record: Record) -> None:
    model = mlp().bfloat16()
    optimizer = SGD(model.parameters(), lr=1.0)
    with record(model):
        for _ in range(3):
            x = torch.randn(8, 6, dtype=torch.bfloat16)
            step(optimizer, F.cross_entropy(model(x).float(), CLASSES))


class Remembering(SGD):
    """Keeps in its state what rounding leaves over, and adds it in the next step."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                rest = self.state[p].setdefault("kahan", torch.zeros_like(p, dtype=torch.float32))
                rest.add_(p.grad.float(), alpha=-group["lr"])
                new = (p.float() + rest).to(p.dtype)
                rest.sub_(new.float() - p.float())
                p.copy_(new)


@silent("no-update")
def bfloat16_that_remembers_the_rest(record: Record) -> None:
    model = nn.Linear(6, 3)
    nn.init.ones_(model.weight)
    model.bfloat16()
    optimizer = Remembering(model.parameters(), lr=1e-4)
    step(optimizer, model(torch.ones(8, 6, dtype=torch.bfloat16)).square().mean())
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.ones(8, 6, dtype=torch.bfloat16)).square().mean())


class Forgetful(SGD):
    """Makes new tensors, and changes no parameter."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p = p - group["lr"] * p.grad


@says("no-update", "The step at {cause} does not change weight: 100%", severity="warning")
def step_that_assigns_to_its_own_variable(record: Record) -> None:
    model = nn.Linear(6, 3)
    optimizer = Forgetful(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.step()  # cause


@silent("no-update")
def rows_of_a_table_that_were_not_read(record: Record) -> None:
    table = nn.Embedding(100, 8)
    optimizer = SGD(table.parameters(), lr=0.1)
    with record(table):
        for _ in range(3):
            step(optimizer, table(torch.zeros(8, dtype=torch.long)).square().mean())


class Modulated(nn.Module):
    """A modulation and an output layer that begin at zero, as those of a DiT."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.body, self.out = nn.Linear(4, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        for layer in (self.shift, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        result: Tensor = self.out(self.body(x) + self.shift(c))
        return result


@silent("zero-init-pair", "symmetric-init")
def modulation_that_begins_at_zero(record: Record) -> None:
    model = Modulated()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        out = model(torch.randn(8, 6), torch.randn(8, 4))
        step(optimizer, F.cross_entropy(out, CLASSES))


@silent("zero-init-pair")
def layers_that_begin_at_zero_and_a_loss_at_its_minimum(record: Record) -> None:
    model = Modulated()
    with record(model):
        model(torch.randn(8, 6), torch.randn(8, 4)).square().mean().backward()


class Rezero(nn.Module):
    """A residual branch with a gate: one of the two begins at zero."""

    def __init__(self, gate: float, weight: float) -> None:
        super().__init__()
        self.body, self.branch = nn.Linear(6, 8), nn.Linear(8, 8)
        self.gate = nn.Parameter(torch.tensor([gate]))
        nn.init.normal_(self.branch.weight, std=weight)
        nn.init.zeros_(self.branch.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        result: Tensor = x + self.gate * self.branch(x)
        return result


@silent("zero-init-pair")
def gate_or_branch_that_begins_at_zero(record: Record) -> None:
    for gate, weight in ((0.0, 0.1), (1.0, 0.0)):
        model = Rezero(gate, weight)
        with record(model):
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()


@silent("symmetric-init")
def filters_that_begin_as_a_mean(record: Record) -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3, groups=4, bias=False), nn.Flatten(), nn.Linear(16, 3))
    nn.init.constant_(model[0].weight, 1 / 3)  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        step(optimizer, F.cross_entropy(model(torch.randn(8, 4, 6)), CLASSES))


@silent("untied-weights")
def layers_of_equal_shape(record: Record) -> None:
    table, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    with record(nn.ModuleList([table, head])):
        F.cross_entropy(head(table(torch.arange(12))), torch.arange(12)).backward()


@says("self-add", "to itself, which only doubles it", severity="info", advice="")
def residual_of_the_root_without_its_branch(record: Record) -> None:
    body = nn.Linear(6, 3)
    with record(body):
        h = body(torch.randn(8, 6))
        h = h + h  # cause
        F.cross_entropy(h, CLASSES).backward()


@silent("self-add")
def residual_that_is_added(record: Record) -> None:
    class Block(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x) + x

    model = nn.Sequential(Block(6, 6), nn.Linear(6, 3))
    with record(model):
        F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()


@silent("outside-autocast")
def everything_under_autocast(record: Record) -> None:
    model = mlp()
    with record(model), torch.autocast("cpu", torch.bfloat16):
        F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
