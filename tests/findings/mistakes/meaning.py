"""What a call, a batch, a target or a weight is for: near misses of each rule, and variants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


@silent("scheduler-steps")
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


@says("clip-bound", "clip_grad_value_()", "cut none of 6 gradients", advice="")
def bound_of_values_that_is_never_reached(record: Record) -> None:
    clipped_by_value(record, 1e4)


@silent("clip-bound")
def bound_of_values_that_some_reach(record: Record) -> None:
    clipped_by_value(record, 0.05)


@says("called-for-each-sample", "ran 12 times at {cause}, on one slice after the other")
def images_one_by_one(record: Record) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    with record(model):
        out = torch.cat([model(image) for image in torch.randn(12, 3, 4, 4).split(1)])  # cause
        F.cross_entropy(out, torch.arange(12) % 3).backward()


@says("called-for-each-sample", "head ran 12 times at {cause}, on one slice after the other")
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


@says("called-for-each-sample", "The product with weight ran 12 times at {cause}, on one slice")
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


@silent("still-parameters")
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


@silent("still-parameters")
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


@says("still-parameters", "The step at {cause} leaves weight as it was: 100%", severity="warning")
def step_that_assigns_to_its_own_variable(record: Record) -> None:
    model = nn.Linear(6, 3)
    optimizer = Forgetful(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.step()  # cause


@silent("still-parameters")
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


@silent("zero-factors", "alike-rows")
def modulation_that_begins_at_zero(record: Record) -> None:
    model = Modulated()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        out = model(torch.randn(8, 6), torch.randn(8, 4))
        step(optimizer, F.cross_entropy(out, CLASSES))


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


@silent("zero-factors")
def gate_or_branch_that_begins_at_zero(record: Record) -> None:
    for gate, weight in ((0.0, 0.1), (1.0, 0.0)):
        model = Rezero(gate, weight)
        with record(model):
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()


@silent("alike-rows")
def filters_that_begin_as_a_mean(record: Record) -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3, groups=4, bias=False), nn.Flatten(), nn.Linear(16, 3))
    nn.init.constant_(model[0].weight, 1 / 3)  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        step(optimizer, F.cross_entropy(model(torch.randn(8, 4, 6)), CLASSES))


@says(
    "targets-outside",
    "cross_entropy at {cause} takes class numbers, or probabilities that sum to 1, and 6 of 12",
    advice="for samples of several classes, use binary_cross_entropy_with_logits",
)
def classes_of_which_a_sample_has_several(record: Record) -> None:
    model = nn.Linear(6, 3)
    y = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 1, 1], [0.5, 0.5, 0]])
    with record(model):
        F.cross_entropy(model(torch.randn(4, 6)), y).backward()  # cause


@silent("targets-outside")
def probabilities_of_pixels_and_of_one_sample(record: Record) -> None:
    """The classes are the second dimension, or the only one."""
    model = nn.Conv2d(2, 3, 1)
    with record(model):
        scores = model(torch.randn(2, 2, 4, 4))
        loss = F.cross_entropy(scores, torch.rand(2, 3, 4, 4).softmax(1).bfloat16().float())
        (loss + F.cross_entropy(scores[0, :, 0, 0], torch.tensor([0.2, 0.5, 0.3]))).backward()


@silent("targets-outside", "ignored-targets", "constant-targets")
def targets_that_fit(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        out, more = model(torch.randn(8, 6)), model(torch.randn(8, 6))
        labels = CLASSES.masked_fill(CLASSES == 2, -100)
        loss = F.cross_entropy(out, labels) + F.cross_entropy(more, out.softmax(1).detach())
        loss = loss + F.cosine_embedding_loss(out, more, 2 * (CLASSES > 0) - 1)
        smooth = F.one_hot(CLASSES, 3) * 0.9 + 0.05
        held, log = more.softmax(1).detach(), more.log_softmax(1).detach()
        loss = loss + F.cross_entropy(out, smooth) + F.kl_div(out.log_softmax(1), held)
        loss = loss + F.kl_div(F.logsigmoid(out), log, log_target=True)
        (loss + F.binary_cross_entropy_with_logits(out, smooth)).backward()


def met(record: Record, targets: Tensor) -> None:
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(torch.randn(48, 6), targets), 24)
    with record(model):
        for x, y in loader:
            F.mse_loss(model(x).squeeze(1), y).backward()  # loss


@says("constant-targets", "All 48 targets in y, which mse_loss at", "are 0.5", severity="info")
def numbers_that_are_all_alike(record: Record) -> None:
    met(record, torch.full((48,), 0.5))


@silent("constant-targets")
def numbers_that_differ_between_batches(record: Record) -> None:
    met(record, torch.arange(2).repeat_interleave(24).float())


@silent("constant-targets")
def adversary_that_is_to_say_real(record: Record) -> None:
    critic = nn.Linear(6, 1)
    with record(critic):
        scores = critic(torch.randn(24, 6))
        F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)).backward()


@silent("constant-targets")
def positive_that_is_the_first_of_the_scores(record: Record) -> None:
    model, head = nn.Linear(6, 8), nn.Linear(8, 1)
    zeros = torch.zeros(16, dtype=torch.long)
    with record(nn.ModuleList([model, head])):
        q, k, queue = model(torch.randn(16, 6)), torch.randn(16, 8), torch.randn(8, 5)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue], 1)
        logits /= 0.07
        loss = F.cross_entropy(logits, zeros) + F.cross_entropy(q @ queue, zeros)
        loss = loss + F.cross_entropy(head(torch.cat([q, q, q])).view(16, 3), zeros)
        keys = model(torch.randn(16, 4, 6)).transpose(1, 2)
        (loss + F.cross_entropy(5 * (q.unsqueeze(1) @ keys).squeeze(1), zeros)).backward()


@says("constant-targets", "All 16 targets in labels, ", "at {cause} was given, are 0")
def labels_in_the_order_of_a_folder(record: Record) -> None:
    model, labels = nn.Linear(6, 3, bias=False), torch.arange(48) // 16
    with record(model):
        labels = labels[:16]
        (F.cross_entropy(model(torch.randn(16, 6)) / 2, labels)).backward()  # cause


@says("ignored-targets", "in 1 of 2 calls")
def batch_of_two_without_a_target(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        total = torch.zeros(())
        for labels in (CLASSES, torch.full((8,), -1)):
            total = total + F.nll_loss(  # cause
                model(torch.randn(8, 6)).log_softmax(1), labels, ignore_index=-1, reduction="sum"
            )
        total.backward()


@silent("untied-weights")
def layers_of_equal_shape(record: Record) -> None:
    table, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    with record(nn.ModuleList([table, head])):
        F.cross_entropy(head(table(torch.arange(12))), torch.arange(12)).backward()


@says("sum-with-itself", "to itself, which only doubles it", severity="info", advice="")
def residual_of_the_root_without_its_branch(record: Record) -> None:
    body = nn.Linear(6, 3)
    with record(body):
        h = body(torch.randn(8, 6))
        h = h + h  # cause
        F.cross_entropy(h, CLASSES).backward()


@silent("sum-with-itself")
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


def q_values(model: nn.Module, hold: bool) -> tuple[Tensor, Tensor]:
    """What a network says of the actions taken, and the target that it is to learn."""
    q = model(torch.randn(8, 4)).gather(1, torch.arange(8)[:, None] % 3).squeeze(1)
    with torch.set_grad_enabled(not hold):
        target: Tensor = torch.randn(8) + 0.9 * model(torch.randn(8, 4)).max(1)[0]
    return q, target


@says("both-sides-learn", "a squared difference at {cause}", "target moves", advice="Detach target")
def temporal_difference_by_hand(record: Record) -> None:
    model = nn.Linear(4, 3)
    with record(model):
        q, target = q_values(model, hold=False)
        (q - target).pow(2).mean().backward()  # cause


@silent("both-sides-learn")
def temporal_difference_by_hand_with_a_target_that_is_held(record: Record) -> None:
    model = nn.Linear(4, 3)
    with record(model):
        q, target = q_values(model, hold=True)
        (q - target).pow(2).mean().backward()


@says("both-sides-learn", "p and z are pulled towards each other", severity="info", advice="")
def views_that_are_both_pulled(record: Record) -> None:
    encoder, predictor = nn.Linear(4, 3), nn.Linear(3, 3)
    with record(nn.ModuleList([encoder, predictor])):
        x = torch.randn(8, 4)
        p, z = predictor(encoder(x)), encoder(x + 0.1)
        (-F.cosine_similarity(p, z).mean()).backward()


@silent("both-sides-learn")
def views_of_which_one_is_held(record: Record) -> None:
    encoder, predictor = nn.Linear(4, 3), nn.Linear(3, 3)
    with record(nn.ModuleList([encoder, predictor])):
        x = torch.randn(8, 4)
        p, z = predictor(encoder(x)), encoder(x + 0.1).detach()
        (-F.cosine_similarity(p, z).mean()).backward()


def towards(record: Record, *, held: bool) -> None:
    """Values are pulled towards those of another network, in a step of the first one alone."""
    now, old = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer, another = SGD(now.parameters(), lr=0.1), SGD((old if held else now).parameters())
    with record(nn.ModuleDict({"now": now, "old": old})):
        x = torch.randn(8, 4)
        target = torch.randn(8, 1) + 0.9 * old(x)
        F.mse_loss(now(x), target).backward()
        optimizer.step()
    del another


@says(
    "both-sides-learn",
    "The target target of mse_loss",
    "takes gradients through old.weight and old.bias, which no optimizer updates.",
    severity="warning",
    advice="Detach target, or compute it under torch.no_grad(); if they are to learn, give them to "
    "an optimizer.",
)
def target_of_a_network_that_nothing_updates(record: Record) -> None:
    towards(record, held=False)


@says("both-sides-learn", "which the optimizer of this step does not hold", severity="info")
def target_of_a_network_that_another_optimizer_holds(record: Record) -> None:
    towards(record, held=True)


def apart(record: Record, loss: Any) -> None:
    """An optimizer holds one of two networks."""
    now, old = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = SGD(now.parameters(), lr=0.1)
    with record(nn.ModuleDict({"now": now, "old": old})):
        x = torch.randn(8, 4)
        loss(now(x), old(x)).backward()
        optimizer.step()


@says("not-in-optimizer", "No optimizer updates old.weight and old.bias", severity="warning")
def factor_that_no_optimizer_updates(record: Record) -> None:
    apart(record, lambda now, old: (now * old.sigmoid()).mean())


@says("not-in-optimizer", "No optimizer updates old.weight and old.bias", severity="warning")
def prediction_that_no_optimizer_updates(record: Record) -> None:
    apart(record, lambda now, old: F.mse_loss(old, now))


@says("both-sides-learn", "in a squared difference", severity="warning", advice="give them to")
def difference_to_what_no_optimizer_updates(record: Record) -> None:
    apart(record, lambda now, old: (old - now).pow(2).mean())


@silent()
def inputs_that_get_a_gradient_through_a_teacher(record: Record) -> None:
    """As for a map of what matters; the teacher is frozen."""
    teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
    optimizer = SGD(student.parameters(), lr=0.1)
    with record(nn.ModuleDict({"teacher": teacher, "student": student})):
        x = torch.randn(8, 4, requires_grad=True)
        F.mse_loss(student(x), teacher(x)).backward()
        optimizer.step()


@silent("both-sides-learn")
def centers_that_no_network_computes(record: Record) -> None:
    """They are there to learn: that no optimizer has them is told as that."""
    body, centers = nn.Linear(4, 2), nn.ParameterList([torch.zeros(3, 2)])
    optimizer = SGD(body.parameters(), lr=0.1)
    with record(nn.ModuleDict({"body": body, "centers": centers})):
        nearest = centers[0][torch.arange(8) % 3]
        F.mse_loss(body(torch.randn(8, 4)), nearest).backward()
        optimizer.step()


@silent("both-sides-learn", "weighted-log-prob")
def an_entropy_and_a_gate(record: Record) -> None:
    """Both factors of a product come from one result: nothing is compared."""
    policy, gate = nn.Linear(4, 3), nn.Linear(4, 3)
    with record(nn.ModuleList([policy, gate])):
        x = torch.randn(8, 4)
        scores = policy(x)
        entropy = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()
        h = scores.tanh() * gate(x).sigmoid()
        (entropy + h.square().mean()).backward()


@silent("both-sides-learn")
def critic_of_two_batches(record: Record) -> None:
    """As of a Wasserstein distance: a difference, which is scaled and not squared."""
    critic = nn.Linear(4, 1)
    with record(critic):
        real, fake = critic(torch.randn(8, 4)), critic(torch.randn(8, 4))
        ((fake - real) * 10).mean().backward()


@says("both-sides-learn", "a squared difference at {cause}", severity="info", advice="")
def difference_multiplied_by_itself(record: Record) -> None:
    layer = nn.Linear(4, 3)
    with record(layer):
        apart = layer(torch.randn(8, 4)) - layer(torch.randn(8, 4))
        (apart * apart).mean().backward()  # cause


@says("both-sides-learn", "p and z are pulled", severity="info", advice="")
def views_that_one_call_encodes(record: Record) -> None:
    encoder = nn.Linear(4, 3)
    with record(encoder):
        x = torch.randn(8, 4)
        p, z = F.normalize(encoder(torch.cat([x, x + 0.1])), dim=1).split(8)
        (2 - 2 * (p * z).sum(1)).mean().backward()  # cause


@silent("both-sides-learn")
def parts_of_one_result_that_are_no_views(record: Record) -> None:
    """Neighbours in time, whose rows overlap; a gate; queries and keys."""
    layer = nn.Linear(4, 6)
    with record(layer):
        h = layer(torch.randn(8, 4))
        smooth = (h[1:] - h[:-1]).pow(2).mean()
        a, b = layer(torch.randn(8, 4)).chunk(2, dim=1)
        q, k = layer(torch.randn(8, 4)).view(8, 2, 3).unbind(1)
        (smooth + (a * b).mean() + (q * k).mean()).backward()


@says("weighted-log-prob", "is weighted by advantage", "trains value.bias and value.weight, too")
def normal_policy_whose_advantage_has_a_history(record: Record) -> None:
    policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
    with record(nn.ModuleDict({"policy": policy, "value": value})):
        x = torch.randn(8, 4)
        drawn = torch.distributions.Normal(policy(x), torch.ones(2))
        advantage = torch.randn(8) - value(x).squeeze(1)
        log_prob = drawn.log_prob(drawn.sample()).sum(1)
        (-(log_prob * advantage).mean()).backward()


def policy_of_many_dimensions(record: Record, held: bool) -> None:
    policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
    with record(nn.ModuleDict({"policy": policy, "value": value})):
        x = torch.randn(8, 4)
        drawn = torch.distributions.MultivariateNormal(policy(x), torch.eye(2))
        with torch.set_grad_enabled(not held):
            advantage = torch.randn(8) - value(x).squeeze(1)
        (-(drawn.log_prob(drawn.sample()) * advantage).mean()).backward()


@says("weighted-log-prob", "is weighted by advantage", "trains value.bias and value.weight, too")
def policy_of_many_dimensions_whose_advantage_has_a_history(record: Record) -> None:
    policy_of_many_dimensions(record, held=False)


@silent("weighted-log-prob")
def policy_of_many_dimensions_whose_advantage_is_held(record: Record) -> None:
    policy_of_many_dimensions(record, held=True)


@silent("weighted-log-prob")
def likelihood_of_the_data_weighted_by_what_learns(record: Record) -> None:
    mean, share = nn.Linear(4, 2), nn.Linear(4, 1)
    with record(nn.ModuleList([mean, share])):
        x, y = torch.randn(8, 4), torch.randn(8, 2)
        density = torch.distributions.MultivariateNormal(mean(x), torch.eye(2))
        (-(density.log_prob(y) * share(x).squeeze(1).sigmoid()).mean()).backward()


@says("weighted-log-prob", "is weighted by advantage", "trains value.bias and value.weight, too")
def coin_whose_advantage_has_a_history(record: Record) -> None:
    policy, value = nn.Linear(4, 1), nn.Linear(4, 1)
    with record(nn.ModuleDict({"policy": policy, "value": value})):
        x = torch.randn(8, 4)
        drawn = torch.distributions.Bernoulli(logits=policy(x))
        advantage = torch.randn(8, 1) - value(x)
        (-(drawn.log_prob(drawn.sample()) * advantage).mean()).backward()


@silent("weighted-log-prob")
def likelihood_weighted_by_what_learns_the_share(record: Record) -> None:
    """Of a mixture: the data are no draws, and each share has to learn by the likelihood."""
    means, share = nn.Parameter(torch.randn(3)), nn.Linear(1, 3)
    with record(share):
        x = torch.randn(8, 1)
        likelihood = torch.distributions.Normal(means, torch.ones(3)).log_prob(x)
        (-(share(x).softmax(1) * likelihood).sum(1).mean()).backward()
