"""Programs that follow an advice: a row is a program that, with `followed`, has the change made.

It gives its first loss. Beside them stand programs that cut a gradient on purpose: of those the
fact is told and no advice is given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

Program = Callable[..., Tensor]


@dataclass(frozen=True)
class Advice:
    """A program, and the rule whose advice it can follow."""

    program: Program  # takes `record` and `followed`
    rule: str
    says: str  # a part of the advice
    learns: tuple[str, ...]  # parameters that have a gradient where it is followed
    same_loss: bool  # is the loss the same then


FOLLOWED: dict[str, Advice] = {}
MEANT: dict[str, Program] = {}


def follows(
    rule: str, says: str, *learns: str, same_loss: bool = True
) -> Callable[[Program], Program]:
    """Enter a program in the table of advice that is followed."""

    def enter(program: Program) -> Program:
        name = getattr(program, "__name__", "")
        FOLLOWED[name] = Advice(program, rule, says, learns, same_loss)
        return program

    return enter


def meant(program: Program) -> Program:
    """Enter a program in the table of those that need no advice."""
    MEANT[getattr(program, "__name__", "")] = program
    return program


def two(body: nn.Module, head: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"body": body, "head": head})


# --- cuts ----------------------------------------------------------------------------------------


def cut_by(how: Callable[[nn.Module, Tensor], Tensor], record: Record, followed: bool) -> Tensor:
    """The features of a body go into a head, cut."""
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        x = torch.randn(8, 6)
        h = model["body"](x) if followed else how(model["body"], x)
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "Remove the detach()", "body.weight", "body.bias")
def features_that_are_detached(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: body(x).detach(), record, followed)


@follows("cut-gradient", "Use the tensor itself", "body.weight", "body.bias")
def features_by_their_data(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: body(x).data, record, followed)


@follows("cut-gradient", "instead of the list", "body.weight", "body.bias")
def features_made_a_list(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: torch.tensor(body(x).tolist()), record, followed)


@follows("cut-gradient", "instead of NumPy", "body.weight", "body.bias")
def features_through_numpy(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: torch.from_numpy(body(x).detach().numpy()), record, followed)


@follows("cut-gradient", "out of torch.no_grad()", "body.weight", "body.bias")
def features_scaled_without_gradients(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        with torch.set_grad_enabled(followed):
            h = h * 2
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "Call rsample()", "body.weight", "body.bias")
def noise_that_is_sampled(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(4, 3))
    with record(model):
        mean, log_std = model["body"](torch.randn(8, 6)).chunk(2, 1)
        latent = Normal(mean, log_std.exp())
        z = latent.rsample() if followed else latent.sample()
        loss = F.cross_entropy(model["head"](z), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "use_reentrant=False", "body.weight", "body.bias")
def checkpoint_of_the_first_layer(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = checkpoint(model["body"], torch.randn(8, 6), use_reentrant=not followed)
        assert isinstance(h, Tensor)
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "softmax", "body.weight", "body.bias", same_loss=False)
def expert_chosen_by_argmax(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 4), nn.Linear(4, 3))
    with record(model):
        scores = model["body"](torch.randn(8, 6))
        chosen = scores.softmax(1) if followed else F.one_hot(scores.argmax(1), 4).float()
        loss = F.cross_entropy(model["head"](chosen), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "create_graph=True", "body.weight")
def penalty_without_a_graph(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(6, 1))
    with record(model):
        x = torch.randn(8, 6, requires_grad=True)
        out = model["body"](x).tanh().sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=followed)
        loss = (slope.square().sum(1) - 1).square().mean() + model["head"](x).square().mean()
        loss.backward()
    return loss


@follows("constant-term", "Remove the detach()", "body.weight", "head.weight")
def term_that_is_detached(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        size = h.square().mean()
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss = loss + (size if followed else size.detach())
        loss.backward()
    return loss


# --- gradients that are lost ---------------------------------------------------------------------


@follows("zero-gradient", "x + (torch.round(x) - x).detach()", "body.weight", "body.bias")
def rounded_on_the_way(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        x = 3 * model["body"](torch.randn(8, 6))
        h = x + (torch.round(x) - x).detach() if followed else torch.round(x)
        loss = F.cross_entropy(model["head"](h), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("zero-gradient", "Use sigmoid for a single output", "weight", "bias", same_loss=False)
def softmax_of_one_output(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 1)
    with record(model):
        out = model(torch.randn(8, 6))
        p = out.sigmoid() if followed else out.softmax(1)
        loss = F.binary_cross_entropy(p, (torch.arange(8) % 2)[:, None].float())
        loss.backward()
    return loss


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, given: bool) -> Tensor:
        ctx.given = given  # type: ignore[attr-defined]
        return 2 * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[object, ...]:
        return (2 * grads[0] if ctx.given else None), None  # type: ignore[attr-defined]


@follows("dropped-gradient", "Return a gradient for every input", "body.weight", "body.bias")
def function_without_a_gradient(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h: Tensor = Doubled.apply(model["body"](torch.randn(8, 6)), followed)  # type: ignore[no-untyped-call]
        loss = F.cross_entropy(model["head"](h), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("data-replaced", "Use h itself in place of", "body.weight")
def values_put_into_a_buffer(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h, buffer = model["body"](torch.randn(8, 6)), torch.zeros(8, 8)
        if followed:
            buffer = h
        else:
            buffer.data = h
        loss = F.cross_entropy(model["head"](buffer), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("never-called", "Call", "head.weight", same_loss=False)
def head_that_is_not_called(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        loss = F.cross_entropy(model["head"](h) if followed else h, torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("unused-result", "Use what", "head.weight", same_loss=False)
def head_whose_result_is_left(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 8))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        more = model["head"](h)
        loss = F.cross_entropy(h + more if followed else h, torch.arange(8) % 3)
        loss.backward()
    return loss


# --- what the optimizer holds, and when it is called ---------------------------------------------


@follows("not-in-optimizer", "Make the optimizer after the model is complete", "1.weight")
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


@follows("uncleared-gradient", "Call optimizer.zero_grad() before backward()")
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


@follows("clipped-in-vain", "Clip between backward() and optimizer.step()")
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


@follows("scheduler-stepped-first", "after the optimizer's step()")
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


@follows("kept-history", "Keep numbers, not tensors")
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


@follows("loss-input", "Leave out the softmax", same_loss=False)
def softmax_before_cross_entropy(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        out = model(torch.randn(8, 6))
        loss = F.cross_entropy(out if followed else out.softmax(1), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("loss-call", "Pass it log_softmax of the raw scores", same_loss=False)
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


# --- what is meant: a fact, and no advice --------------------------------------------------------


@meant
def straight_through_codebook(record: Record) -> Tensor:
    encoder, decoder, codes = nn.Linear(6, 4), nn.Linear(4, 6), nn.Embedding(16, 4)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "codes": codes})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(8, 6)
        a = encoder(x)
        b = codes(torch.cdist(a, codes.weight).argmin(1))
        loss = F.mse_loss(decoder(a + (b - a).detach()), x)
        step(optimizer, loss)
    return loss


@meant
def baseline_beside_the_log_probability(record: Record) -> Tensor:
    body, policy, value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    model = nn.ModuleDict({"body": body, "policy": policy, "value": value})
    optimizer = Adam(model.parameters())
    with record(model):
        h = body(torch.randn(8, 4)).relu()
        actions = Categorical(logits=policy(h))
        advantage = torch.randn(8) - value(h).squeeze(1).detach()
        loss = -(actions.log_prob(actions.sample()) * advantage).mean()
        step(optimizer, loss)
    return loss


@meant
def teacher_under_no_grad(record: Record) -> Tensor:
    model = nn.ModuleDict({"teacher": mlp(), "student": mlp()})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(8, 6)
        with torch.no_grad():
            logits = model["teacher"](x)
        out = model["student"](x)
        loss = F.kl_div(out.log_softmax(1), logits.softmax(1)) + F.mse_loss(out, logits)
        step(optimizer, loss)
    return loss


@meant
def target_network_behind_detach_in_the_optimizer(record: Record) -> Tensor:
    online = mlp(4, 3)
    model = nn.ModuleDict({"online": online, "target": copy.deepcopy(online)})
    optimizer = Adam(model.parameters())
    with record(model):
        q = online(torch.randn(8, 4)).gather(1, torch.randint(3, (8, 1))).squeeze(1)
        best = model["target"](torch.randn(8, 4)).max(1)[0].detach()
        loss = F.mse_loss(q, torch.randn(8) + 0.99 * best)
        step(optimizer, loss)
    return loss


@meant
def backbone_under_no_grad(record: Record) -> Tensor:
    model = two(mlp(6, 8), nn.Linear(8, 3))
    optimizer = Adam(model.parameters())
    with record(model):
        with torch.no_grad():
            h = model["body"](torch.randn(8, 6))
        loss = F.cross_entropy(model["head"](h), torch.arange(8) % 3)
        step(optimizer, loss)
    return loss


@meant
def base_of_a_lora_in_the_optimizer(record: Record) -> Tensor:
    model = nn.ModuleDict({"base": nn.Linear(6, 6), "a": nn.Linear(6, 2), "b": nn.Linear(2, 6)})
    model["base"].requires_grad_(False)
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(8, 6)
        loss = F.mse_loss(model["base"](x) + model["b"](model["a"](x)), torch.randn(8, 6))
        step(optimizer, loss)
    return loss
