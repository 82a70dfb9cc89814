"""Programs for advice on optimizers, on the order of their calls, and on inputs of losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

# --- what the optimizer holds, and when it is called ---------------------------------------------


@follows("not-in-optimizer", "Construct the optimizer after the model is complete", "1.weight")
def layer_replaced_under_its_optimizer(record: Record, followed: bool) -> Tensor:
    model, new = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), nn.Linear(8, 3)
    if followed:
        model[1] = new
    optimizer = SGD(model.parameters(), lr=0.1)
    model[1] = new
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
        step(optimizer, loss)
    return loss


class Listed(nn.Module):
    def __init__(self, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(6, 6), nn.Linear(6, 6)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        result: Tensor = self.out(x)
        return result


@follows("not-registered", "Use nn.ModuleList", "layers.0.weight", "layers.1.bias")
def layers_in_a_plain_list(record: Record, followed: bool) -> Tensor:
    model = Listed(followed)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
        step(optimizer, loss)
    return loss


@follows("missing-zero-grad", "Call optimizer.zero_grad() before backward()")
def gradients_that_add_up(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
            if followed:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            first = first if i else loss.detach()
    return first


@follows("ineffective-clipping", "Clip between backward() and optimizer.step()")
def clipped_when_it_is_over(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(2):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
            optimizer.zero_grad()
            loss.backward()
            if followed:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if not followed:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            first = first if i else loss.detach()
    return first


@follows("scheduler-out-of-step", "after the optimizer's step()")
def scheduler_before_its_optimizer(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 2, 0.5)
    with record(model):
        for i in range(3):
            if not followed:
                scheduler.step()
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
            step(optimizer, loss)
            if followed:
                scheduler.step()
            first = first if i else loss.detach()
    return first


@follows("trained-in-eval-mode", "Call model.train()", same_loss=False)
def trained_after_an_evaluation(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 3))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model.eval()
        if followed:
            model.train()
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
        step(optimizer, loss)
    return loss


@follows("retained-graph", "Keep only the number, with item()")
def losses_that_are_kept(record: Record, followed: bool) -> Tensor:
    model, losses, first = mlp(), [], torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(5):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
            losses.append(loss.item() if followed else loss)
            step(optimizer, loss)
            first = first if i else loss.detach()
    return first


# --- losses --------------------------------------------------------------------------------------


@follows("loss-input", "Remove the softmax", same_loss=False)
def softmax_before_cross_entropy(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        out = model(torch.randn(8, 6))
        loss = F.cross_entropy(out if followed else out.softmax(1), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("loss-input", "Pass log_softmax of the raw scores", same_loss=False)
def probabilities_into_kl_div(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        out, target = model(torch.randn(8, 6)), torch.randn(8, 3).softmax(1)
        given = out.log_softmax(1) if followed else out.softmax(1)
        loss = F.kl_div(given, target, reduction="batchmean")
        loss.backward()
    return loss


@follows("accidental-broadcast", "Call squeeze(-1)", same_loss=False)
def predictions_with_a_column(record: Record, followed: bool) -> Tensor:
    model = mlp(6, 1)
    with record(model):
        out, y = model(torch.randn(8, 6)), torch.randn(8)
        loss = F.mse_loss(out.squeeze(-1) if followed else out, y)
        loss.backward()
    return loss


@follows("nonfinite-gradient", "Add a small number before sqrt", same_loss=False)
def slope_of_a_square_root(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 8)
    with record(model):
        x = torch.randn(8, 6)
        x[0] = 0
        distance = (model(x) - model.bias).square().sum(1)
        loss = (distance + (1e-8 if followed else 0)).sqrt().mean()
        loss.backward()
    return loss


@follows("unstepped-term", "Remove the detach()")
def term_of_a_head_that_nobody_steps(record: Record, followed: bool) -> Tensor:
    body, head, x = nn.Linear(6, 8), nn.Linear(8, 1), torch.randn(8, 6)
    optimizer = SGD(body.parameters(), lr=0.1)
    with record(nn.ModuleDict({"body": body, "head": head})):
        h = body(x).tanh()
        term = head(h if followed else h.detach()).square().mean()
        loss = h.square().mean() + term
        step(optimizer, loss)
    return loss
