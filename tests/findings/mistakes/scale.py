"""Means over a wrong number of values, overwritten weights, and wrong modes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent


def accumulate(record: Record, scale: float, count: int = 4) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for number in range(2 * count):
            loss = F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3))
            (scale * loss).backward()
            if number % count == count - 1:
                optimizer.step()
                optimizer.zero_grad()


@says("undivided-accumulation", "adds the gradients of 4 backwards", "not divided by 4")
def accumulation_with_a_weight_of_the_loss(record: Record) -> None:
    accumulate(record, 0.7)


@silent("undivided-accumulation")
def accumulation_multiplied_by_the_share(record: Record) -> None:
    accumulate(record, 0.25)


@silent("undivided-accumulation")
def accumulation_whose_gradients_are_divided(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for number in range(4):
            F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)).backward()
            if number % 2:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= 2
                optimizer.step()
                optimizer.zero_grad()


@says("averaged-twice", "averaged over a batch of 8 already, and is divided by 8 again")
def mean_of_squares_divided_by_the_batch(record: Record) -> None:
    model = mlp()
    with record(model):
        loss = -F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3))
        (-loss / 8).backward()  # cause


@silent("averaged-twice")
def mean_divided_by_another_number(record: Record) -> None:
    model = mlp()
    with record(model):
        (F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)) / 3).backward()


@says("mean-over-masked-values", "sets 10 of 32 to zero")
def tokens_masked_by_their_lengths(record: Record) -> None:
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    kept = torch.arange(8) < torch.tensor([3, 5, 8, 6])[:, None]
    with record(model):
        words = torch.randint(9, (4, 8))
        scores = model(words).transpose(1, 2)
        losses = F.cross_entropy(scores, words, reduction="none")
        (kept * losses).mean().backward()  # cause


@silent("mean-over-masked-values")
def weights_that_are_no_mask(record: Record) -> None:
    model = mlp()
    with record(model):
        losses = F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3), reduction="none")
        (losses * torch.rand(8, 3)).mean().backward()
        (losses.detach() * model[0].weight.sum()).mean().backward()


@silent("mean-over-masked-values")
def mask_that_a_hook_packs(record: Record) -> None:
    """Nothing is unpacked that the program has packed."""
    model, unpacked = mlp(), []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    with record(model):
        losses = F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3), reduction="none")
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            loss = (losses * (torch.rand(8, 3) > 0.5)).mean()
        assert not unpacked
        loss.backward()


@silent("mean-of-unequal-means")
def losses_of_unequal_sizes_in_one_backward(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        total: Any = 0
        for size in (4, 16):
            total = total + F.cross_entropy(model(torch.randn(size, 6)), torch.arange(size) % 3)
        step(optimizer, total)


def swap(record: Record, restored: bool) -> None:
    model, other = mlp(), mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.randn(8, 6)).square().mean())
            own = copy.deepcopy(model.state_dict())
            with torch.no_grad():
                for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                    mine.data.copy_(theirs)
            if restored:
                model.load_state_dict(own)


@says("overwritten-weights", "The values of other", "own, which has the", severity="warning")
def weights_of_another_model(record: Record) -> None:
    swap(record, restored=False)


@says("overwritten-weights", "load_state_dict at", "are lost", severity="info")
def return_to_the_best_weights(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        best = copy.deepcopy(model.state_dict())
        for _ in range(3):
            step(optimizer, model(torch.randn(8, 6)).square().mean())
            model.load_state_dict(best)


@silent("overwritten-weights")
def weights_swapped_and_restored(record: Record) -> None:
    swap(record, restored=True)


@silent("overwritten-weights", "copy-onto-itself")
def weights_projected_on_a_sphere(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.randn(8, 6)).square().mean())
            with torch.no_grad():
                model[0].weight.copy_(F.normalize(model[0].weight))


@says("train-mode-without-gradients", "although it is frozen", "dropout makes the result random")
def teacher_that_drops(record: Record) -> None:
    teacher = nn.Sequential(nn.Linear(6, 3), nn.Dropout()).requires_grad_(False)
    student = nn.Linear(6, 3)
    optimizer = SGD(student.parameters(), lr=0.1)
    with record(student):
        x = torch.randn(8, 6)
        target = teacher(x)  # cause
        step(optimizer, F.mse_loss(student(x), target))


@silent("dropout-switched-off", "train-mode-without-gradients")
def dropout_off_for_an_evaluation(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.randn(8, 6)).square().mean())
            model[1].p = 0.0
            with torch.no_grad():
                model(torch.randn(8, 6))
            model[1].p = 0.5


@says("unreachable-targets", "outside of the range of tanh", "between -1 and 1")
def targets_of_a_tanh(record: Record) -> None:
    model = nn.Linear(6, 1)
    with record(model):
        y = model(torch.randn(8, 6)).tanh().squeeze(1)
        F.smooth_l1_loss(y, torch.arange(8.0)).backward()  # cause


@silent("unreachable-targets")
def targets_at_the_ends_of_a_sigmoid(record: Record) -> None:
    model = nn.Linear(6, 1)
    with record(model):
        y = model(torch.randn(8, 6)).sigmoid()
        F.mse_loss(y, torch.randint(2, (8, 1)).float()).backward()


@says("loss-input", "got the result of relu", "a probability of 1/2")
def relu_before_binary_scores(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        scores = model(torch.randn(8, 6)).relu()
        target = torch.randint(2, (8, 3)).float()
        F.binary_cross_entropy_with_logits(scores, target).backward()  # cause


@says("loss-input", "got a constant as input", severity="warning")
def target_and_input_swapped(record: Record) -> None:
    model = nn.Linear(6, 1)
    with record(model):
        y = model(torch.randn(8, 6)).sigmoid()
        F.binary_cross_entropy(torch.rand(8, 1), y).backward()  # cause


@says("loss-input", "computes KL(model || other)", severity="info")
def divergence_of_the_model(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        y = model(torch.randn(8, 6)).softmax(1)
        teacher = torch.randn(8, 3).log_softmax(1)
        F.kl_div(teacher, y, reduction="batchmean").backward()  # cause


def likelihood(record: Record, sign: float, maximize: bool = False) -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1, maximize=maximize)
    with record(model):
        scores = model(torch.randn(8, 6)).log_softmax(1)
        loss = sign * scores[torch.arange(8), torch.arange(8) % 3].sum() / 8
        step(optimizer, loss)


@says("minimized-log-probability", "without a minus sign")
def likelihood_that_is_minimized(record: Record) -> None:
    likelihood(record, 0.5)


@silent("minimized-log-probability")
def likelihood_with_a_minus_sign(record: Record) -> None:
    likelihood(record, -0.5)


@silent("minimized-log-probability")
def likelihood_that_an_optimizer_maximizes(record: Record) -> None:
    likelihood(record, 0.5, maximize=True)


@says("repeated-layer", "contains one Linear 3 times")
def one_layer_three_times(record: Record) -> None:
    model = nn.Sequential(*[nn.Linear(6, 6)] * 3)
    with record(model):
        model(torch.randn(8, 6)).square().mean().backward()


@says("retained-graph", "kept keeps results of the forward", "appended at {cause}")
def outputs_kept_in_a_list(record: Record) -> None:
    model, kept = mlp(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(5):
            state = model(torch.randn(8, 6))
            kept.append(state)  # cause
            step(optimizer, model(torch.randn(8, 6)).square().mean())


@says("cut-gradient", "start got no gradient", "torch.tensor()")
def parameter_of_no_module_before_a_cut(record: Record) -> None:
    model, start = nn.Linear(2, 1), nn.Parameter(torch.ones(2))
    optimizer = SGD([*model.parameters(), start], lr=0.1)
    with record(model):
        for _ in range(2):
            inputs = torch.tensor([value.item() for value in start])  # cause
            step(optimizer, model(inputs).square().sum())


@says("zero-gradient", "round at {cause} has slope 0")
def rounded_weights_of_no_module(record: Record) -> None:
    weight = nn.Parameter(torch.randn(3, 6))
    with record():
        F.linear(torch.randn(8, 6), weight.round()).square().mean().backward()  # cause


@silent("normalization-axis")
def heads_mixed_by_a_weight_after_the_softmax(record: Record) -> None:
    """As in DeepViT, which normalizes the mixed heads before the product."""
    project, mix, norm = nn.Linear(8, 24), nn.Parameter(torch.randn(4, 4)), nn.LayerNorm(4)
    with record(project):
        q, k, v = (x.unflatten(-1, (4, 2)).transpose(1, 2) for x in self_chunks(project))
        weights = (q @ k.transpose(2, 3)).softmax(-1)
        weights = torch.einsum("bhij,hg->bijg", weights, mix)
        weights = norm(weights).permute(0, 3, 1, 2)
        torch.einsum("bhij,bhjd->bhid", weights, v).square().mean().backward()


def self_chunks(project: nn.Linear) -> Any:
    return project(torch.randn(5, 7, 8)).chunk(3, -1)


@silent()
def attention_with_a_mask_of_the_padding(record: Record) -> None:
    """The mask is added by the product of queries and keys itself."""
    attend = nn.MultiheadAttention(8, 2)
    with record(attend):
        h = torch.randn(9, 4, 8)
        y, _ = attend(h, h, h, key_padding_mask=torch.arange(9).expand(4, 9) > 5)
        (y * torch.randn(8)).square().mean().backward()


def next_tokens(record: Record, mask: str, lag: int = 1) -> None:
    embed, project, head = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 20)
    words = torch.randint(20, (4, 9))
    with record(nn.ModuleList([embed, project, head])):
        q, k, v = project(embed(words)).chunk(3, -1)
        if mask == "flag":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(1, 2) / 3
            if mask == "filled":
                hidden = torch.ones(9, 9).triu(1).bool()
                scores = scores.masked_fill(hidden, -torch.inf)
            y = scores.softmax(-1) @ v
        logits = head(y)[:, : 9 - lag].flatten(0, 1)
        F.cross_entropy(logits, words[:, lag:].flatten()).backward()


@says("future-leak", "softmax at", "has no mask and is not causal")
def next_tokens_without_a_mask(record: Record) -> None:
    next_tokens(record, "none")


@silent("future-leak", "target-shift")
def next_tokens_with_filled_scores(record: Record) -> None:
    next_tokens(record, "filled")


@silent("future-leak", "target-shift")
def next_tokens_with_a_causal_attention(record: Record) -> None:
    next_tokens(record, "flag")


@says("target-shift", "shifted by 2 positions", severity="warning")
def next_tokens_but_one(record: Record) -> None:
    next_tokens(record, "flag", lag=2)


@says("target-shift", "unshifted", severity="info")
def tokens_that_are_copied(record: Record) -> None:
    next_tokens(record, "flag", lag=0)


@silent("future-leak", "target-shift")
def targets_that_are_other_tokens(record: Record) -> None:
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 20)
    with record(nn.ModuleList([embed, head])):
        scores = head(embed(torch.randint(20, (4, 9))))
        F.cross_entropy(scores.transpose(1, 2), torch.randint(20, (4, 9))).backward()


@says("not-registered", "scale", "is not an nn.Parameter")
def tensor_that_is_not_a_parameter(record: Record) -> None:
    model = nn.Linear(6, 3)
    model.scale = torch.ones(3, requires_grad=True)  # type: ignore[assignment]
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            step(optimizer, (model(torch.randn(8, 6)) * model.scale).square().mean())


@says("cut-gradient", "cut by detach() at {cause}")
def states_written_into_a_buffer(record: Record) -> None:
    cell, head = nn.RNNCell(6, 4), nn.Linear(4, 1)
    with record(nn.ModuleList([cell, head])):
        states = torch.zeros(3, 2, 4)
        for t in range(3):
            states[t] = cell(torch.randn(2, 6)).detach()  # cause
        head(states).square().mean().backward()


@says("ignored-result", "scores.masked_fill()", "it changes no tensor")
def scores_masked_without_effect(record: Record) -> None:
    model = nn.Linear(6, 6)
    with record(model):
        scores = model(torch.randn(6, 6))
        scores.masked_fill(torch.eye(6).bool(), -1e9)  # cause
        scores.softmax(-1)[:, 0].mean().backward()


@silent("ignored-result")
def scores_masked_in_place(record: Record) -> None:
    model = nn.Linear(6, 6)
    with record(model):
        scores = model(torch.randn(6, 6)).clone()
        scores.masked_fill_(torch.eye(6).bool(), -1e9)
        scores.softmax(-1)[:, 0].mean().backward()


def averaged(record: Record, buffers: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x = torch.randn(8, 6)
            step(optimizer, F.mse_loss(model(x), teacher(x)))
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast.detach(), 0.1)
            for slow, fast in zip(teacher.buffers(), model.buffers(), strict=True):
                if buffers:
                    slow.copy_(fast)


@says("stale-average", "running statistics of its batch norm are not")
def average_of_parameters_alone(record: Record) -> None:
    averaged(record, buffers=False)


@silent("stale-average")
def average_of_parameters_and_buffers(record: Record) -> None:
    averaged(record, buffers=True)


@says("unchanging-term", "has the same value 0.1 in 4 steps")
def sum_of_probabilities(record: Record) -> None:
    router = nn.Linear(6, 3)
    optimizer = SGD(router.parameters(), lr=0.1)
    with record(router):
        for _ in range(4):
            p = router(torch.randn(8, 6)).softmax(-1)
            balance = p.sum(-1).mean()  # cause
            step(optimizer, p[:, 0].square().mean() + 0.1 * balance)


@silent("unchanging-term")
def hinge_without_violations(record: Record) -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(4):
            y = model(torch.randn(8, 6))
            step(optimizer, y.square().mean() + (y - 100).relu().mean())


@says("train-mode-without-gradients", "The weights of 1 are frozen, but it ran in train mode")
def frozen_norm_in_train_mode(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    model[1].requires_grad_(False)
    optimizer = SGD(model[0].parameters(), lr=0.1)
    with record(model):
        step(optimizer, model(torch.randn(8, 6)).square().mean())


@says("nonfinite-value", "its input advantage, set at {uses}, already contains 2 NaN")
def advantage_of_two_equal_rewards(record: Record) -> None:
    model, rewards = nn.Linear(6, 2), torch.ones(2)
    with record(model):
        advantage = (rewards - rewards.mean()) / rewards.std()  # uses
        (advantage * model(torch.randn(8, 6))).mean().backward()  # cause


@says("output-not-in-loss", "extra ran at {cause}, but the loss does not depend on its result")
def layer_that_is_called_without_use(record: Record) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.extra = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            unused = self.extra(x)  # cause
            return self.body(x) if unused is not None else x

    model = Net()
    with record(model):
        model(torch.randn(8, 6)).square().mean().backward()


@silent("target-shift")
def tokens_of_a_batch_of_two_with_the_time_first(record: Record) -> None:
    """As in XLNet: of two positions, none is two after another one."""
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 20)
    words = torch.randint(20, (2, 9))
    with record(nn.ModuleList([embed, head])):
        scores = head(embed(words.T)).transpose(0, 1)
        F.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
