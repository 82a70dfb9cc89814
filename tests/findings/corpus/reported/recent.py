"""Bugs of values and graphs reported since 2023, written before any rule that may use them.

Together with recent_training.py they are 30. When they were written, `find` named the cause of 6,
gave a hint on 3, and reported nothing on 21; `run` named 6, gave a hint on 5, and reported nothing
on 19. Both reported a wrong cause for 3.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from tests.findings.corpus.cases import Record, reported, step
from tests.findings.corpus.models import mlp

GITHUB = "https://github.com/"

# --- checkpointing -------------------------------------------------------------------------------


@reported(
    GITHUB + "locuslab/open-unlearning/issues/178",
    cause="No input of the reentrant checkpoint requires a gradient, so its adapters get none.",
    words=r"use_reentrant|checkpoint",
)
def adapters_under_a_reentrant_checkpoint(record: Record, repaired: bool = False) -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(16, 16).requires_grad_(False)
            self.lora_a = nn.Linear(16, 2, bias=False)
            self.lora_b = nn.Linear(2, 16, bias=False)

        def forward(self, h: Tensor) -> Tensor:
            return h + (self.base(h) + self.lora_b(self.lora_a(h))).relu()

    embed = nn.Embedding(20, 16).requires_grad_(False)
    layers = nn.ModuleList([Adapted() for _ in range(2)])
    head = nn.Linear(16, 20)
    model = nn.ModuleDict({"embed": embed, "layers": layers, "head": head})
    if repaired:  # as enable_input_require_grads does
        embed.register_forward_hook(lambda module, args, out: out.requires_grad_())
    optimizer = Adam(p for p in model.parameters() if p.requires_grad)
    with record(model):
        for _ in range(3):
            tokens = torch.randint(20, (4, 9))
            h = embed(tokens[:, :-1])
            for layer in layers:
                h = checkpoint(layer, h, use_reentrant=True)  # cause
            step(optimizer, F.cross_entropy(head(h).flatten(0, 1), tokens[:, 1:].flatten()))


@reported(
    GITHUB + "openai/guided-diffusion/issues/167",
    cause="The checkpoint of the program's own computes the block again with other dropout masks.",
    words=r"(random|dropout|mask).*(differ|other|again|second|restor)|RNG",
)
def own_checkpoint_without_the_random_state(record: Record, repaired: bool = False) -> None:
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, block: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
            ctx.block, ctx.parameters = block, parameters
            ctx.save_for_backward(x)
            ctx.random_state = torch.get_rng_state()
            with torch.no_grad():
                return block(x)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            with torch.enable_grad(), torch.random.fork_rng(enabled=repaired):
                if repaired:
                    torch.set_rng_state(ctx.random_state)
                out = ctx.block(x)  # cause
            return None, *torch.autograd.grad(out, (x, *ctx.parameters), grad_out)

    block = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.3), nn.Linear(16, 8))
    first = nn.Linear(8, 8)
    optimizer = Adam([*first.parameters(), *block.parameters()])
    with record(nn.ModuleDict({"first": first, "block": block})):
        for _ in range(3):
            clean, noise = torch.randn(16, 8), torch.randn(16, 8)
            out = Recompute.apply(block, first(clean + noise), *block.parameters())  # cause
            step(optimizer, F.mse_loss(out, noise))


@reported(
    GITHUB + "ankanbhunia/PIDM/pull/66",
    cause="preserve_rng_state=False: dropout draws other masks when the block runs again.",
    words=r"preserve_rng_state",
)
def checkpoint_that_does_not_preserve_the_random_state(
    record: Record, repaired: bool = False
) -> None:
    block = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.3), nn.Linear(16, 8))
    first, last = nn.Linear(8, 8), nn.Linear(8, 8)
    model = nn.ModuleDict({"first": first, "block": block, "last": last})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            clean, noise = torch.randn(16, 8), torch.randn(16, 8)
            h = first(clean + noise)
            h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=repaired)  # cause
            step(optimizer, F.mse_loss(last(h), noise))


# --- custom Functions ----------------------------------------------------------------------------


@reported(
    GITHUB + "ashawkey/stable-dreamfusion/issues/158",
    cause="backward returns the stored gradient and ignores the one that it receives, so the "
    "weight of the loss and the scale of the GradScaler have no effect.",
    words=r"(ignores|not use|does not depend|without).*(grad|receive)",
)
def backward_that_ignores_its_gradient(record: Record, repaired: bool = False) -> None:
    class SpecifyGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, latents: Tensor, gradient: Tensor) -> Tensor:
            ctx.save_for_backward(gradient)
            return latents.new_ones(())

        @staticmethod
        def backward(ctx: Any, grad_scale: Tensor) -> Any:
            (gradient,) = ctx.saved_tensors
            return gradient, None  # cause

    class ScaleGradient(SpecifyGradient):
        @staticmethod
        def backward(ctx: Any, grad_scale: Tensor) -> Any:
            (gradient,) = ctx.saved_tensors
            return gradient * grad_scale, None

    function = ScaleGradient if repaired else SpecifyGradient
    field = mlp(4, 8)
    optimizer = Adam(field.parameters())
    with record(field):
        for _ in range(3):
            latents = field(torch.randn(8, 4))
            noise_error = (latents - torch.randn(8, 8)).detach()
            loss = 0.1 * function.apply(latents, noise_error)  # cause
            step(optimizer, loss + 1e-3 * latents.square().mean())


@reported(
    GITHUB + "NVIDIA-NeMo/Automodel/issues/1408",
    cause="The Function that adds the auxiliary loss's gradient is called and its result dropped.",
    words=r"drop|discard|not used|unused|never (used|reach)|no backward",
)
def auxiliary_loss_scaler_discarded(record: Record, repaired: bool = False) -> None:
    class AddAuxiliaryLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: Tensor, auxiliary: Tensor) -> Tensor:
            return scores.clone()

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Any:
            return grad_out, torch.ones(())

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.gate(x).softmax(-1)
            load = F.one_hot(scores.argmax(-1), 4).float().mean(0)
            auxiliary = 0.01 * 4 * (load * scores.mean(0)).sum()
            added = AddAuxiliaryLoss.apply(scores, auxiliary)  # cause
            return added if repaired else scores

    router, experts = Router(), nn.ModuleList([nn.Linear(8, 3) for _ in range(4)])
    optimizer = Adam([*router.parameters(), *experts.parameters()])
    with record(nn.ModuleDict({"router": router, "experts": experts})):
        for _ in range(3):
            x = torch.randn(16, 8)
            out = torch.stack([expert(x) for expert in experts], 1)
            mixed = (router(x)[..., None] * out).sum(1)
            step(optimizer, F.cross_entropy(mixed, torch.randint(3, (16,))))


# --- preference and policy losses ----------------------------------------------------------------


class TinyPolicy(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token after the first."""
        logits = self.head(torch.tanh(self.embed(tokens[:, :-1])))
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


@reported(
    GITHUB + "huggingface/trl/issues/1627",
    cause="beta is 0, which multiplies the margin: every gradient is exactly 0.",
    words=r"zero",
)
def preference_loss_with_beta_zero(record: Record, repaired: bool = False) -> None:
    policy, beta = TinyPolicy(), 0.1 if repaired else 0.0
    reference = copy.deepcopy(policy)
    optimizer = Adam(policy.parameters(), lr=1e-2)
    with record(policy):
        for _ in range(4):
            chosen, rejected = torch.randint(12, (6, 8)), torch.randint(12, (6, 8))
            margin = policy(chosen).sum(1) - policy(rejected).sum(1)
            with torch.no_grad():
                margin_ref = reference(chosen).sum(1) - reference(rejected).sum(1)
            loss = -F.logsigmoid(beta * (margin - margin_ref)).mean()  # cause
            step(optimizer, loss)


@reported(
    GITHUB + "meta-pytorch/torchforge/pull/571",
    cause="The ratio is of the log-probabilities to their own detached copy, so it is always 1, "
    "though the tokens were sampled by an older policy.",
    words=r"(its|their) own detach|always (0|1)\b|itself",
)
def ratio_to_its_own_detached_copy(record: Record, repaired: bool = False) -> None:
    policy = TinyPolicy()
    optimizer = Adam(policy.parameters(), lr=1e-2)
    with record(policy):
        for _ in range(2):
            tokens, reward = torch.randint(12, (6, 8)), torch.randn(6)
            with torch.no_grad():
                behavior = policy(tokens)
            advantage = ((reward - reward.mean()) / reward.std())[:, None]
            for _ in range(3):  # steps on one rollout
                logprobs = policy(tokens)
                old = behavior if repaired else logprobs.detach()
                ratio = (logprobs - old).exp()  # cause
                clipped = ratio.clamp(0.8, 1.2)  # cause
                step(optimizer, -torch.min(ratio * advantage, clipped * advantage).mean())


@reported(
    GITHUB + "Goekdeniz-Guelmez/mlx-lm-lora/issues/55",
    cause="Without a level of importance sampling the ratio is made of zeros: the policy's term "
    "has no gradient, and only the penalty trains.",
    words=r"no gradient|constant|zeros_like|detach",
)
def policy_term_made_of_zeros(record: Record, repaired: bool = False) -> None:
    policy = TinyPolicy()
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = Adam(policy.parameters(), lr=1e-2)
    level = "token" if repaired else None
    with record(policy):
        for _ in range(3):
            tokens, advantage = torch.randint(12, (6, 8)), torch.randn(6, 1)
            logprobs, expected = policy(tokens), reference(tokens)
            if level is None:
                log_weights = torch.zeros_like(logprobs)  # cause
            else:
                log_weights = logprobs - logprobs.detach()
            policy_loss = -(log_weights.exp() * advantage).mean()  # cause
            distance = (expected - logprobs).exp() - (expected - logprobs) - 1
            step(optimizer, policy_loss + 0.04 * distance.mean())  # cause


# --- shapes and factors --------------------------------------------------------------------------


@reported(
    GITHUB + "bayesflow-org/bayesflow/issues/787",
    cause="The weights (B, 1, 1, 1) meet errors (B, H, W): each image is weighted by all weights.",
    words=r"broadcast|shapes?|\(4, 4, 6, 6\)",
)
def noise_weights_paired_with_each_image(record: Record, repaired: bool = False) -> None:
    net = nn.Conv2d(3, 3, 3, padding=1)
    optimizer = Adam(net.parameters())
    with record(net):
        for _ in range(3):
            clean, noise = torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6)
            t = torch.rand(4, 1, 1, 1)
            weight = 1 / (t + 0.1)
            error = (net((1 - t) * clean + t * noise) - noise).square().mean(1, keepdim=repaired)
            step(optimizer, (weight * error).mean())  # cause


@reported(
    GITHUB + "AdaptiveMotorControlLab/CEBRA/issues/48",
    cause="The row maximum loses its axis, so it is subtracted from columns instead of rows.",
    words=r"keepdim|broadcast|axis|column",
)
def maximum_without_keepdim(record: Record, repaired: bool = False) -> None:
    encoder = mlp(5, 4)
    optimizer = Adam(encoder.parameters())
    with record(encoder):
        for _ in range(3):
            a, b = encoder(torch.randn(8, 5)), encoder(torch.randn(8, 5))
            scores = a @ b.T
            positive = scores.diagonal()
            largest = scores.detach().max(1, keepdim=repaired).values
            centered = scores - largest  # cause
            uniform = centered.exp().sum(1).log()
            align = -(positive - (largest.squeeze(1) if repaired else largest))
            step(optimizer, (align + uniform).mean())


@reported(
    GITHUB + "mindspore-ai/hyper-parallel/issues/752",
    cause="Fractions that sum to 1 are multiplied with scores that sum to 1 and all is summed: "
    "the balance loss is the number 1 whatever the router does.",
    words=r"constant|same number|sums? to|always 1|no effect|cancel|zero",
)
def balance_loss_that_is_constant(record: Record, repaired: bool = False) -> None:
    router, experts = nn.Linear(8, 4), nn.Linear(8, 4 * 3)
    optimizer = Adam([*router.parameters(), *experts.parameters()])
    with record(nn.ModuleDict({"router": router, "experts": experts})):
        for _ in range(3):
            x = torch.randn(16, 8)
            top, chosen = router(x).softmax(-1).topk(2)
            top = top / top.sum(-1, keepdim=True)
            counts = F.one_hot(chosen, 4).float().sum((0, 1))
            if repaired:
                mean_score = torch.zeros(4).index_add(0, chosen.flatten(), top.flatten()) / 16
                balance = 4 * (counts / 32 * mean_score).sum()
            else:
                fraction, mean_score = counts / 32, top.mean(0)
                balance = (fraction[:, None] * mean_score[None, :]).sum()  # cause
            rows = experts(x).view(16, 4, 3).gather(1, chosen[..., None].expand(-1, -1, 3))
            logits = (rows * top[..., None]).sum(1)
            step(optimizer, F.cross_entropy(logits, torch.randint(3, (16,))) + 0.1 * balance)


@reported(
    GITHUB + "huggingface/transformers/pull/45111",
    cause="The router returns probabilities as logits, and the balance loss applies softmax again.",
    words=r"softmax.*(twice|again|already|second)|probabilit",
)
def router_probabilities_normalized_twice(record: Record, repaired: bool = False) -> None:
    router, experts = nn.Linear(8, 4), nn.ModuleList([nn.Linear(8, 3) for _ in range(4)])
    optimizer = Adam([*router.parameters(), *experts.parameters()])
    with record(nn.ModuleDict({"router": router, "experts": experts})):
        for _ in range(3):
            x = torch.randn(16, 8)
            logits = router(x)
            probabilities = logits.softmax(-1)
            out = torch.stack([expert(x) for expert in experts], 1)
            mixed = (probabilities[..., None] * out).sum(1)
            router_logits = logits if repaired else probabilities
            again = router_logits.softmax(-1)  # cause
            load = F.one_hot(again.argmax(-1), 4).float().mean(0)
            balance = 4 * (load * again.mean(0)).sum()
            step(optimizer, F.cross_entropy(mixed, torch.randint(3, (16,))) + 0.01 * balance)


@reported(
    GITHUB + "NVIDIA-NeMo/Automodel/pull/3850",
    cause="Logits of padded negatives are -inf before they are divided by the learned "
    "temperature, whose gradient is NaN.",
    words=r"nan|inf|finite",
)
def padded_negatives_divided_by_the_temperature(record: Record, repaired: bool = False) -> None:
    encoder, log_t = nn.Linear(6, 8), nn.Parameter(torch.zeros(()))
    model = nn.ParameterDict({"log_t": log_t})
    optimizer = SGD([*encoder.parameters(), log_t], lr=0.01)
    with record(nn.ModuleDict({"encoder": encoder, "rest": model})):
        query, negatives = torch.randn(8, 6), torch.randn(8, 5, 6)
        padded = torch.arange(5) >= 3
        scores = torch.einsum("qd,qnd->qn", encoder(query), encoder(negatives))
        if repaired:
            scores = (scores / log_t.exp()).masked_fill(padded, -torch.inf)
        else:
            scores = scores.masked_fill(padded, -torch.inf)  # cause
            scores = scores / log_t.exp()  # cause
        step(optimizer, F.cross_entropy(scores, torch.zeros(8, dtype=torch.long)))


@reported(
    GITHUB + "badripatro/simba/issues/1",
    cause="to(float32) of a complex tensor drops its imaginary part.",
    words=r"imaginary",
)
def spectrum_cast_to_real(record: Record, repaired: bool = False) -> None:
    weight = nn.Parameter(torch.randn(8, 5 if repaired else 8, dtype=torch.cfloat))
    mixer, head = nn.ParameterDict({"weight": weight}), nn.Linear(64, 3)
    optimizer = Adam([weight, *head.parameters()])
    with record(nn.ModuleDict({"mixer": mixer, "head": head})):
        for _ in range(3):
            x = torch.randn(16, 8, 8)
            if repaired:
                mixed = torch.fft.irfft2(torch.fft.rfft2(x) * weight, s=(8, 8))
            else:
                mixed = torch.fft.ifft2(torch.fft.fft2(x) * weight)
                mixed = mixed.to(torch.float32)  # cause
            step(optimizer, F.cross_entropy(head(mixed.flatten(1)), torch.randint(3, (16,))))


# --- functional transforms and solvers -----------------------------------------------------------


@reported(
    GITHUB + "pytorch/pytorch/issues/120581",
    cause="stack_module_state copies the parameters in each step: the optimizer's get no gradient.",
    words=r"stack_module_state|copy|copies",
)
def ensemble_stacked_in_each_step(record: Record, repaired: bool = False) -> None:
    models = nn.ModuleList([nn.Linear(4, 1) for _ in range(3)])
    params, buffers = stack_module_state(list(models))
    optimizer = Adam(params.values() if repaired else models.parameters(), lr=0.05)
    base = models[0]

    def forward(params: Any, buffers: Any, x: Tensor) -> Tensor:
        return functional_call(base, (params, buffers), (x,))

    with record(models):
        for _ in range(4):
            x = torch.randn(16, 4)
            if not repaired:
                params, buffers = stack_module_state(list(models))  # cause
            out = vmap(forward, in_dims=(0, 0, None))(params, buffers, x)
            optimizer.zero_grad()
            (out - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()


@reported(
    GITHUB + "pytorch/pytorch/issues/120538",
    cause="The gradient is asked for a slice that was cut from the parameter after the loss.",
    words=r"slice|select|not (a )?part of|unused|did not use|new tensor",
    raises=r"appears to not have been used",
)
def gradient_of_a_slice_taken_afterwards(record: Record) -> None:
    models = [nn.Linear(2, 1) for _ in range(5)]
    params, buffers = stack_module_state(models)

    def compute_loss(params: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(models[0], (params, buffers), (x,)), y)

    with record(models[0]):
        x, y = torch.randn(5, 2, 2), torch.randn(5, 2, 1)
        losses = vmap(compute_loss)(params, buffers, x, y)
        for loss, weight in zip(losses, params["weight"], strict=True):  # cause
            torch.autograd.grad(loss, weight, retain_graph=True)  # cause


@reported(
    GITHUB + "pytorch/pytorch/issues/158610",
    cause="Inside vmap a tensor does not require a gradient, though the one outside does; "
    "torch.func.grad is needed there.",
    words=r"vmap",
    raises=r"does not require grad",
)
def gradient_asked_inside_vmap(record: Record) -> None:
    potential = mlp(3, 1)

    def force(x: Tensor) -> Tensor:
        energy = potential(x).sum()
        return -torch.autograd.grad(energy, x, create_graph=True)[0]  # cause

    with record(potential):
        positions = torch.randn(8, 3, requires_grad=True)
        forces = vmap(force)(positions)  # cause
        F.mse_loss(forces, torch.zeros(8, 3)).backward()


@reported(
    GITHUB + "KanishJebaMathewM/Truxify/issues/13118",
    cause="The inner update writes through .data of a copy: the meta-model gets no gradient.",
    words=r"\.data|in place|copy|deepcopy",
)
def meta_learner_that_updates_data(record: Record, repaired: bool = False) -> None:
    model = mlp(3, 1)
    optimizer = Adam(model.parameters(), lr=1e-2)
    with record(model):
        for _ in range(3):
            support, query = torch.randn(8, 3), torch.randn(8, 3)
            if repaired:
                loss = model(support).square().mean()
                grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
                names = [name for name, _ in model.named_parameters()]
                fast = {
                    n: p - 0.1 * g for n, p, g in zip(names, model.parameters(), grads, strict=True)
                }
                step(optimizer, (functional_call(model, fast, (query,)) - 1).square().mean())
                continue
            adapted = copy.deepcopy(model)  # cause
            loss = adapted(support).square().mean()
            grads = torch.autograd.grad(loss, list(adapted.parameters()), create_graph=True)
            for parameter, gradient in zip(adapted.parameters(), grads, strict=True):
                parameter.data -= 0.1 * gradient  # cause
            optimizer.zero_grad()
            (adapted(query) - 1).square().mean().backward()
            optimizer.step()


@reported(
    GITHUB + "locuslab/torchdeq/issues/8",
    cause="The solver keeps the best state detached and returns it: the layer gets no gradient.",
    words=r"detach|no_grad",
)
def fixed_point_kept_detached(record: Record, repaired: bool = False) -> None:
    cell, inject, head = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, 1)
    model = nn.ModuleDict({"cell": cell, "inject": inject, "head": head})
    optimizer = Adam(model.parameters())

    def solve(x: Tensor) -> Tensor:
        z = best = torch.zeros(16, 8)
        lowest = float("inf")
        for _ in range(6):
            following = torch.tanh(0.3 * cell(z) + x)
            residual = (following - z).norm().item()
            if residual < lowest:
                lowest, best = residual, following.detach()  # cause
            z = following
        return torch.tanh(0.3 * cell(best) + x) if repaired else best

    with record(model):
        for _ in range(3):
            x = torch.randn(16, 4)
            step(optimizer, (head(solve(inject(x))) - x.sum(1, keepdim=True)).square().mean())
