"""Programs for advice on means, padding, overwritten weights, modes, signs and Functions."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp


@follows("undivided-accumulation", "Divide the loss by 2", same_loss=False)
def accumulated_sum(record: Record, followed: bool) -> Tensor:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for number in range(4):
            loss = F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3))
            if followed:
                loss = loss / 2
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    return loss


@follows("averaged-twice", "Remove the division", same_loss=False)
def mean_divided_again(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        loss = F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3))
        if not followed:
            loss = loss / 8
        loss.backward()
    return loss


@follows("mean-over-masked-values", "(loss * mask).sum() / mask.sum()", same_loss=False)
def mean_of_masked(record: Record, followed: bool) -> Tensor:
    model, mask = mlp(), (torch.arange(8) < 5)[:, None].expand(8, 3)
    with record(model):
        losses = (model(torch.randn(8, 6)) - torch.randn(8, 3)).square()
        loss = (losses * mask).sum() / mask.sum() if followed else (losses * mask).mean()
        loss.backward()
    return loss


@follows("mean-of-unequal-means", "reduction='sum'", same_loss=False)
def batches_of_unequal_sizes(record: Record, followed: bool) -> Tensor:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for size in (4, 20):
            scores, target = model(torch.randn(size, 6)), torch.arange(size) % 3
            if followed:
                loss = F.cross_entropy(scores, target, reduction="sum") / 24
            else:
                loss = F.cross_entropy(scores, target) / 2
            loss.backward()
        optimizer.step()
    return loss


@follows("padding-in-targets", "ignore_index=0", same_loss=False)
def padding_in_a_language_model(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 12))
    words = torch.randint(1, 12, (4, 9))
    words[:, 5:] = 0
    options = {"ignore_index": 0} if followed else {}
    with record(model):
        scores = model(words[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(scores, words[:, 1:].flatten(), **options)  # type: ignore[arg-type]
        loss.backward()
    return loss


@follows("attention-to-padding", "key_padding_mask", same_loss=False)
def attention_without_a_mask(record: Record, followed: bool) -> Tensor:
    embed, attend = nn.Embedding(12, 8, padding_idx=0), nn.MultiheadAttention(8, 2)
    words = torch.randint(1, 12, (4, 9))
    words[:, 5:] = 0
    with record(nn.ModuleList([embed, attend])):
        h = embed(words).transpose(0, 1)
        out, _ = attend(h, h, h, key_padding_mask=words == 0 if followed else None)
        loss = (out * torch.randn(8)).square().mean()
        loss.backward()
    return loss


@follows("overwritten-weights", "Copy into another model")
def average_copied_into_the_model(record: Record, followed: bool) -> Tensor:
    model, average = mlp(), mlp()
    shown = copy.deepcopy(model) if followed else model
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        step(optimizer, model(torch.ones(8, 6)).square().mean())
        shown.load_state_dict(average.state_dict())
        loss = F.mse_loss(model(torch.ones(8, 6)), torch.ones(8, 3))
        step(optimizer, loss)
    return loss * 0 + 1


@follows("copy-onto-itself", "copy.deepcopy(model.state_dict())")
def best_state_without_a_copy(record: Record, followed: bool) -> Tensor:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        best = copy.deepcopy(model.state_dict()) if followed else model.state_dict()
        loss = model(torch.ones(8, 6)).square().mean()
        step(optimizer, loss)
        model.load_state_dict(best)
    return loss


@follows("train-mode-without-gradients", "Call eval() before such forwards")
def validation_in_train_mode(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        loss = model(torch.ones(8, 6)).square().mean()
        step(optimizer, loss)
        model.train(not followed)
        with torch.no_grad():
            model(torch.ones(8, 6))
        model.train()
    return loss


@follows("dropout-switched-off", "leave the probability as it is", same_loss=False)
def probability_set_to_zero(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            loss = model(torch.ones(8, 6)).square().mean()
            step(optimizer, loss)
            if not followed:
                model[1].p = 0.0
            with torch.no_grad():
                model.eval()(torch.ones(8, 6))
            model.train()
    return loss


@follows("unreachable-targets", "leave out the activation", same_loss=False)
def sigmoid_before_large_targets(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 1)
    with record(model):
        y = model(torch.randn(8, 6))
        if not followed:
            y = y.sigmoid()
        loss = F.mse_loss(y, 9 * torch.rand(8, 1))
        loss.backward()
    return loss


@follows("loss-input", "Leave out the ReLU", same_loss=False)
def relu_after_the_last_layer(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    with record(model):
        y = model(torch.randn(8, 6))
        if not followed:
            y = y.relu()
        loss = F.binary_cross_entropy_with_logits(y, torch.randint(2, (8, 3)).float())
        loss.backward()
    return loss


@follows("loss-input", "the model's output first", same_loss=False)
def output_as_the_target(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 1)
    with record(model):
        y, target = model(torch.randn(8, 6)).sigmoid(), torch.rand(8, 1)
        given = (y, target) if followed else (target, y)
        loss = F.binary_cross_entropy(*given)
        loss.backward()
    return loss


@follows("minimized-log-probability", "maximize=True")
def likelihood_to_be_maximized(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1, maximize=followed)
    with record(model):
        loss = F.logsigmoid(model(torch.randn(8, 6))).mean()
        step(optimizer, loss)
    return loss


@follows("result-on-context", "ctx.save_for_backward(result)")
def result_kept_by_a_function(record: Record, followed: bool) -> Tensor:
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            result = x.exp()
            if followed:
                ctx.save_for_backward(result)
            else:
                ctx.result = result
            return result

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient * (ctx.saved_tensors[0] if followed else ctx.result)

    model = mlp()
    with record(model):
        loss = Exp.apply(model(torch.randn(8, 6))).mean()
        loss.backward()
    return loss


@follows("repeated-layer", "copy.deepcopy(layer)", same_loss=False)
def one_layer_in_a_list(record: Record, followed: bool) -> Tensor:
    layer = nn.Linear(6, 6)
    layers = [copy.deepcopy(layer) for _ in range(3)] if followed else [layer] * 3
    model = nn.Sequential(*layers)
    with record(model):
        loss = model(torch.randn(8, 6)).square().mean()
        loss.backward()
    return loss


@follows("retained-graph", "Keep a detach() of the tensor")
def outputs_with_their_graphs(record: Record, followed: bool) -> Tensor:
    model, kept = mlp(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(5):
            state = model(torch.randn(8, 6))
            kept.append(state.detach() if followed else state)
            loss = model(torch.randn(8, 6)).square().mean()
            step(optimizer, loss)
    return loss


@follows("future-leak", "is_causal=True", same_loss=False)
def language_model_without_a_causal_mask(record: Record, followed: bool) -> Tensor:
    embed, project, head = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 20)
    words = torch.randint(20, (4, 9))
    with record(nn.ModuleList([embed, project, head])):
        q, k, v = project(embed(words)).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=followed)
        loss = F.cross_entropy(head(y)[:, :-1].flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
    return loss


@follows("target-shift", "by one position once", same_loss=False)
def labels_shifted_again(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    words = torch.randint(20, (4, 9))
    with record(model):
        scores, labels = model(words[:, :-1]), words[:, 1:]
        if not followed:
            scores, labels = scores[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten())
        loss.backward()
    return loss


@follows("ignored-result", "ends with an underscore", same_loss=False)
def mask_without_effect(record: Record, followed: bool) -> Tensor:
    model, mask = nn.Linear(6, 6), torch.eye(6).bool()
    with record(model):
        scores = model(torch.randn(6, 6)).clone()
        if followed:
            scores.masked_fill_(mask, -1e9)
        else:
            scores.masked_fill(mask, -1e9)
        loss = scores.softmax(-1)[:, 0].square().mean()
        loss.backward()
    return loss


@follows("stale-average", "Average or copy the buffers", same_loss=False)
def teacher_without_statistics(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x = torch.randn(8, 6)
            loss = F.mse_loss(model(x), teacher(x))
            step(optimizer, loss)
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast.detach(), 0.1)
            if followed:
                for slow, fast in zip(teacher.buffers(), model.buffers(), strict=True):
                    slow.copy_(fast)
    return loss
