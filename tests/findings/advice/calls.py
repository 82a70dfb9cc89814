"""Programs for advice on calls and numbers without the intended effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp


def loss_of(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)


@follows("dropout-in-eval-mode", "Pass training=self.training")
def dropout_without_a_mode(record: Record, followed: bool) -> Tensor:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.dropout(self.body(x), 0.1, training=self.training or not followed)
            result: Tensor = self.head(h)
            return result

    model = Net()
    with record(model):
        loss = loss_of(model)
        loss.backward()
        model.eval()(torch.randn(8, 6))
    return loss


@follows("unneeded-retain-graph", "Remove retain_graph=True")
def graph_that_is_retained(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(3):
            loss = loss_of(model)
            optimizer.zero_grad()
            loss.backward(retain_graph=not followed)
            optimizer.step()
            first = first if i else loss.detach()
    return first


@follows("scheduler-out-of-step", "once for each step of the optimizer")
def scheduler_that_steps_twice(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.9)
    with record(model):
        for i in range(4):
            loss = loss_of(model)
            step(optimizer, loss)
            for _ in range(1 if followed else 2):
                scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("scheduler-out-of-step", "Set T_max to the number of times")
def scheduler_past_its_end(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, 6 if followed else 3)
    with record(model):
        for i in range(6):
            loss = loss_of(model)
            step(optimizer, loss)
            scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("scheduler-out-of-step", "Construct the scheduler with the optimizer")
def scheduler_of_an_optimizer_that_was_replaced(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.9)
    optimizer = SGD(model.parameters(), lr=0.05)
    if followed:
        scheduler = ExponentialLR(optimizer, 0.9)
    with record(model):
        for i in range(4):
            loss = loss_of(model)
            step(optimizer, loss)
            scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("zero-learning-rate", "Check the code that sets lr")
def schedule_that_counts_epochs(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    steps = 100 if followed else 2
    scheduler = LambdaLR(optimizer, lambda i: max(0.0, 1 - i / steps))
    for _ in range(3):
        optimizer.step()  # without gradients
        scheduler.step()
    with record(model):
        for i in range(4):
            loss = loss_of(model)
            step(optimizer, loss)
            scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("recreated-optimizer", "once, before the loop")
def optimizer_for_each_step(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = Adam(model.parameters())
    with record(model):
        for i in range(4):
            optimizer = optimizer if followed else Adam(model.parameters())
            loss = loss_of(model)
            step(optimizer, loss)
            first = first if i else loss.detach()
    return first


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.ln_1, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.ln_1(self.body(x)))
        return result


def decayed(record: Record, names: tuple[str, ...], by_dimension: bool) -> Tensor:
    """A training whose optimizer decays what has none of these names."""
    model = Normed()
    spared = [
        p
        for name, p in model.named_parameters()
        if (p.ndim < 2 if by_dimension else any(part in name for part in names))
    ]
    others = [p for p in model.parameters() if not any(p is each for each in spared)]
    rest = {"params": others, "weight_decay": 0.1}
    optimizer = AdamW([rest, {"params": spared, "weight_decay": 0.0}])
    with record(model):
        loss = loss_of(model)
        step(optimizer, loss)
    return loss


@follows("empty-parameter-group", "Compare the names")
def names_that_fit_nothing(record: Record, followed: bool) -> Tensor:
    return decayed(record, ("gamma", "beta") if not followed else ("bias", "ln_"), False)


@follows("weight-decay-on-norms", "number of dimensions")
def names_that_fit_biases_alone(record: Record, followed: bool) -> Tensor:
    return decayed(record, ("bias", "LayerNorm.weight"), followed)


@follows("epsilon-underflow", "Keep the parameters in float32", rounded=0.02)
def epsilon_below_float16(record: Record, followed: bool) -> Tensor:
    model = mlp()
    if not followed:
        model.half()
    optimizer = Adam(model.parameters())
    with record(model), torch.autocast("cpu", torch.bfloat16, enabled=followed):
        x = torch.randn(8, 6).to(next(model.parameters()).dtype)
        loss = F.cross_entropy(model(x).float(), torch.arange(8) % 3)
        step(optimizer, loss)
    return loss


@follows("extreme-clip-norm", "Raise max_norm")
def bound_that_is_always_reached(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(6):
            loss = loss_of(model)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0 if followed else 0.001)
            optimizer.step()
            first = first if i else loss.detach()
    return first


@follows("extreme-clip-norm", "Raise clip_value")
def bound_that_leaves_signs(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(6):
            loss = loss_of(model)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1 if followed else 1e-5)
            optimizer.step()
            first = first if i else loss.detach()
    return first


@follows("called-for-each-sample", "on the whole tensor")
def model_called_for_each_sample(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        x = torch.randn(12, 6)
        out = model(x) if followed else torch.stack([model(row) for row in x])
        loss = F.cross_entropy(out, torch.arange(12) % 3)
        loss.backward()
    return loss


@follows("called-for-each-sample", "on the whole tensor")
def product_with_each_row(record: Record, followed: bool) -> Tensor:
    body, weight = nn.Linear(6, 6), nn.Parameter(torch.randn(3, 6))
    with record(body):
        h = body(torch.randn(12, 6))
        rows = [h] if followed else h
        out = torch.stack([F.linear(row, weight) for row in rows]).view(12, 3)
        loss = F.cross_entropy(out, torch.arange(12) % 3)
        loss.backward()
    return loss


@follows("epsilon-underflow", "Pass a larger epsilon, such as 1e-4")
def divisor_kept_away_by_nothing(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 8).half()
    with record(model):
        h = model(torch.randn(8, 6).half())
        length = h.square().sum(1, keepdim=True).sqrt()
        loss = (h / length.clamp(min=1e-4 if followed else 1e-8)).float().square()[:, 0].mean()
        loss.backward()
    return loss


class Drawn(Dataset[tuple[Tensor, int]]):
    """Samples that are drawn when they are asked for, by torch or by a generator of its own."""

    def __init__(self, by_torch: bool) -> None:
        self.by_torch, self.generator = by_torch, torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.randn(6, generator=None if self.by_torch else self.generator), i % 3


class Streamed(IterableDataset[tuple[Tensor, int]]):
    """The same samples for whoever asks, or a part of them for each worker."""

    def __init__(self, parted: bool) -> None:
        self.parted, self.samples = parted, torch.randn(32, 6)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = get_worker_info()
        assert worker is not None
        first, every = (worker.id, worker.num_workers) if self.parted else (0, 1)
        yield from [(self.samples[i], i % 3) for i in range(first, 32, every)]


def trained_on(record: Record, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i, (x, y) in enumerate(batches):
            loss = F.cross_entropy(model(x), y)
            step(optimizer, loss)
            first = first if i else loss.detach()
    return first


@follows("repeated-batch", "Draw random numbers with torch", same_loss=False)
def workers_that_draw_the_same(record: Record, followed: bool) -> Tensor:
    return trained_on(record, DataLoader(Drawn(followed), 4, num_workers=2))


@follows("repeated-batch", "get_worker_info()", same_loss=False)
def workers_that_stream_the_same(record: Record, followed: bool) -> Tensor:
    return trained_on(record, DataLoader(Streamed(followed), 4, num_workers=2))


@follows("repeated-batch", "Write for batch in loader")
def iterator_made_for_each_step(record: Record, followed: bool) -> Tensor:
    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.arange(32) % 3), 8)
    firsts = (next(iter(loader)) for _ in range(4))
    return trained_on(record, loader if followed else firsts)


# --- weights and targets -------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.table.weight)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.table(ids).tanh())
        return result


@follows("untied-weights", "Tie them: head.weight = table.weight")
def head_that_begins_as_a_copy(record: Record, followed: bool) -> Tensor:
    model = Tied(followed)
    with record(model):
        ids = torch.randint(12, (4, 6))
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
    return loss


@follows("zero-init-pair", "only one of the two factors should be zero", "1.weight")
def factors_that_are_both_zero(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False))
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    if followed:
        nn.init.kaiming_uniform_(model[0].weight)  # type: ignore[arg-type]
    with record(model):
        loss = F.mse_loss(model(x), y)
        loss.backward()
    return loss


class Gated(nn.Module):
    """A layer, and a branch that a gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.branch = nn.Linear(6, 6), nn.Linear(6, 6)
        self.gate = nn.Parameter(torch.zeros(()))
        nn.init.zeros_(self.branch.weight)
        nn.init.zeros_(self.branch.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        result: Tensor = x + self.gate * self.branch(x)
        return result


@follows("zero-init-pair", "Initialize branch.weight with random values", "gate")
def gate_and_branch_that_are_both_zero(record: Record, followed: bool) -> Tensor:
    model = Gated()
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    if followed:
        nn.init.kaiming_uniform_(model.branch.weight)
    with record(model):
        loss = F.mse_loss(model(x), y)
        loss.backward()
    return loss


@follows("symmetric-init", "nn.init.kaiming_uniform_", same_loss=False)
def weights_that_begin_alike(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    for weight in (model[0].weight, model[2].weight):
        (nn.init.kaiming_uniform_ if followed else nn.init.ones_)(weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        loss = loss_of(model)
        step(optimizer, loss)
    return loss


@follows("no-update", "Keep the parameters in float32", rounded=0.02)
def weights_that_bfloat16_keeps(record: Record, followed: bool) -> Tensor:
    model, first = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), torch.zeros(())
    with torch.no_grad():
        for weight in model.parameters():
            weight.sign_()
    if not followed:
        model.bfloat16()
    optimizer = Adam(model.parameters(), lr=6e-4)
    with record(model):
        for i in range(3):
            x = torch.ones(8, 6, dtype=model[0].weight.dtype)
            x[:, ::2] = (torch.arange(8) % 3)[:, None].to(x.dtype)
            with torch.autocast("cpu", torch.bfloat16, enabled=followed):
                loss = F.cross_entropy(model(x).float(), torch.arange(8) % 3)
            step(optimizer, loss)
            first = first if i else loss.detach()
    return first


@follows("target-out-of-range", "Pass log_softmax of the scores", same_loss=False)
def scores_for_log_probabilities(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    with record(model):
        scores = model(torch.randn(8, 6))
        scores = scores.log_softmax(1) if followed else scores
        loss = F.kl_div(scores, torch.randn(8, 3).softmax(1), reduction="batchmean")
        loss.backward()
    return loss


@follows("target-out-of-range", "Pass log_target=True", same_loss=False)
def log_probabilities_for_a_target(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    with record(model):
        scores, target = model(torch.randn(8, 6)).log_softmax(1), torch.randn(8, 3).log_softmax(1)
        loss = F.kl_div(scores, target, reduction="batchmean", log_target=followed)
        loss.backward()
    return loss


@follows("target-out-of-range", "Pass softmax(dim=1) of scores", same_loss=False)
def scores_of_a_teacher_for_a_target(record: Record, followed: bool) -> Tensor:
    model, teacher = nn.Linear(6, 3), torch.randn(8, 3)
    with record(model):
        loss = F.cross_entropy(
            model(torch.randn(8, 6)), teacher.softmax(1) if followed else teacher
        )
        loss.backward()
    return loss


@follows("target-out-of-range", "Pass 2 * target - 1", same_loss=False)
def cosine_targets_of_zero(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 4)
    with record(model):
        same = torch.arange(8) % 2
        one, other = model(torch.randn(8, 6)), model(torch.randn(8, 6))
        loss = F.cosine_embedding_loss(one, other, 2 * same - 1 if followed else same)
        loss.backward()
    return loss


@follows("target-out-of-range", "Pass (target + 1) / 2", same_loss=False)
def probabilities_of_signs(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 1)
    with record(model):
        target = 2.0 * (torch.arange(8) % 2) - 1
        out = model(torch.randn(8, 6)).squeeze(1)
        target = (target + 1) / 2 if followed else target
        loss = F.binary_cross_entropy_with_logits(out, target)
        loss.backward()
    return loss


@follows("ignored-targets", "Skip batches without a target")
def batch_without_a_target(record: Record, followed: bool) -> Tensor:
    model, total = nn.Linear(6, 3), torch.zeros(())
    with record(model):
        for i in range(2):
            out = model(torch.randn(8, 6))
            labels = torch.full((8,), -100) if i else torch.arange(8) % 3
            if followed and labels.eq(-100).all():
                continue
            total = total + F.cross_entropy(out, labels, reduction="sum")
        total.backward()
    return total


class Doubling(nn.Module):
    def __init__(self, followed: bool) -> None:
        super().__init__()
        self.inside, self.followed = nn.Linear(8, 8), followed

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x).tanh()
        given = x if self.followed else h
        return given + h


@follows("self-add", "Add the branch's input", same_loss=False)
def residual_that_was_overwritten(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 8), Doubling(followed), nn.Linear(8, 3))
    with record(model):
        loss = loss_of(model)
        loss.backward()
    return loss


@follows("recreated-optimizer", "Create the scheduler once, before the loop.")
def scheduler_in_the_loop(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.9)
    with record(model):
        for i in range(4):
            if not followed:
                scheduler = ExponentialLR(optimizer, 0.9)
            loss = loss_of(model)
            step(optimizer, loss)
            scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("recreated-optimizer", "Create the scaler once, before the loop.")
def scaler_in_the_loop(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with record(model):
        for i in range(4):
            if not followed:
                scaler = torch.amp.GradScaler("cpu")
            loss = loss_of(model)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            first = first if i else loss.detach()
    return first


@follows("scheduler-out-of-step", "Set T_max to the number of times")
def cosine_after_a_warm_up_that_is_too_short(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    warm = LambdaLR(optimizer, lambda i: (i + 1) / 2)
    cosine = CosineAnnealingLR(optimizer, 6 if followed else 3)
    scheduler = SequentialLR(optimizer, [warm, cosine], [2])
    with record(model):
        for i in range(8):
            loss = loss_of(model)
            step(optimizer, loss)
            scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("zero-learning-rate", "a schedule may be past its end")
def schedule_shorter_than_the_training(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    steps = 8 if followed else 4
    scheduler = LambdaLR(optimizer, lambda i: 1 - i / steps)  # below 0 after that
    with record(model):
        for i in range(8):
            loss = loss_of(model)
            step(optimizer, loss)
            scheduler.step()
            first = first if i else loss.detach()
    return first
