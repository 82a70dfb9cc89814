"""Healthy trainings as papers and their code write them.

They were written before their authors saw the findings of `find`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import SGD, Adam, AdamW

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import batches, layers


def contrastive_pairs_with_a_frozen_text_tower(record: Record) -> None:
    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = layers(12, 32, 8), layers(10, 32, 8)
            self.logit_scale = nn.Parameter(torch.tensor(2.66))
            for p in self.text.parameters():
                p.requires_grad = False

        def forward(self, image: Tensor, text: Tensor) -> Tensor:
            a = F.normalize(self.image(image), dim=-1)
            with torch.no_grad():
                b = F.normalize(self.text(text), dim=-1)
            return self.logit_scale.exp() * a @ b.T

    model = Clip()
    optimizer = AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
    with record(model):
        for _ in range(3):
            logits, target = model(torch.randn(8, 12), torch.randn(8, 10)), torch.arange(8)
            step(
                optimizer, (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
            )
            with torch.no_grad():
                model.logit_scale.clamp_(0, 4.6052)


def meta_learning_with_functional_weights(record: Record) -> None:
    from torch.func import functional_call

    model = layers(1, 20, 20, 1)
    outer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            losses = []
            for _task in range(3):
                weights = dict(model.named_parameters())
                x = torch.rand(10, 1) * 6
                y = (x + torch.rand(1)).sin()
                inner = F.mse_loss(functional_call(model, weights, (x[:5],)), y[:5])
                grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
                weights = {
                    n: w - 0.01 * g for (n, w), g in zip(weights.items(), grads, strict=True)
                }
                losses.append(F.mse_loss(functional_call(model, weights, (x[5:],)), y[5:]))
            step(outer, torch.stack(losses).mean())


def first_order_meta_learning_on_copies(record: Record) -> None:
    model = layers(1, 20, 1)
    outer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            learner = copy.deepcopy(model)
            inner = SGD(learner.parameters(), lr=0.02)
            for _step in range(2):
                x = torch.rand(10, 1)
                step(inner, F.mse_loss(learner(x), x.sin()))
            outer.zero_grad()
            for p, q in zip(model.parameters(), learner.parameters(), strict=True):
                p.grad = (p - q).detach()
            outer.step()


def low_rank_adapters_put_in_place_of_linears(record: Record) -> None:
    class Lora(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)
            self.dropout = nn.Dropout(0.05)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(self.dropout(x))) * 2  # type: ignore[no-any-return]

    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    model.requires_grad_(False)
    for i in (0, 3):
        layer = model[i]
        assert isinstance(layer, nn.Linear)
        model[i] = Lora(layer)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with record(model, gradients=True):
        for x, y in batches(3):
            step(optimizer, F.cross_entropy(model(x), y))


def hinge_gan_with_a_spectral_norm(record: Record) -> None:
    generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 12))
    critic = nn.Sequential(
        spectral_norm(nn.Linear(12, 32)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(32, 1))
    )
    optimizer_g = Adam(generator.parameters(), lr=2e-4, betas=(0.0, 0.9))
    optimizer_d = Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9))
    with record(nn.ModuleDict({"G": generator, "D": critic})):
        for _ in range(2):
            for _step in range(2):
                with torch.no_grad():
                    fake = generator(torch.randn(16, 8))
                loss_d = F.relu(1 - critic(torch.randn(16, 12))).mean()
                loss_d = loss_d + F.relu(1 + critic(fake)).mean()
                step(optimizer_d, loss_d)
            loss_g = -critic(generator(torch.randn(16, 8))).mean()
            step(optimizer_g, loss_g)


def variational_autoencoder_of_images(record: Record) -> None:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten())
            self.mu, self.logvar = nn.Linear(128, 4), nn.Linear(128, 4)
            self.decode = nn.Sequential(
                nn.Linear(4, 128),
                nn.ReLU(),
                nn.Unflatten(1, (8, 4, 4)),
                nn.ConvTranspose2d(8, 1, 4, 2, 1),
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.encode(x)
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
            return self.decode(z).sigmoid(), mu, logvar

    model = Vae()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model, gradients=True):
        for _ in range(2):
            x = torch.rand(8, 1, 8, 8)
            reconstruction, mu, logvar = model(x)
            likelihood = F.binary_cross_entropy(reconstruction, x, reduction="sum")
            divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
            step(optimizer, likelihood + divergence)


def diffusion_with_an_averaged_copy(record: Record) -> None:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Embedding(50, 16), nn.SiLU(), nn.Linear(16, 16))
            self.enter, self.leave = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1)
            self.norm = nn.GroupNorm(4, 16)
            nn.init.zeros_(self.leave.weight)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            h = self.enter(x) + self.time(t)[:, :, None, None]
            return self.leave(F.silu(self.norm(h)))  # type: ignore[no-any-return]

    model = Denoiser()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    with record(model):
        for _ in range(2):
            x, noise, t = torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8), torch.randint(50, (4,))
            a = alphas[t][:, None, None, None]
            step(optimizer, F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise))
            with torch.no_grad():
                for p, q in zip(average.parameters(), model.parameters(), strict=True):
                    p.lerp_(q, 0.01)


def clipped_policy_with_a_shared_body(record: Record) -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
            self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> tuple[Any, Tensor]:
            h = self.body(x)
            return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)

    agent = Agent()
    optimizer = Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    with record(agent):
        states, rewards = torch.randn(32, 4), torch.randn(32)
        with torch.no_grad():
            policy, values = agent(states)
            actions = policy.sample()
            before = policy.log_prob(actions)
            advantages, running = torch.zeros(32), torch.zeros(())
            for t in reversed(range(31)):
                delta = rewards[t] + 0.99 * values[t + 1] - values[t]
                advantages[t] = running = delta + 0.99 * 0.95 * running
            returns = advantages + values
        for _ in range(2):
            for rows in torch.randperm(32).split(16):
                policy, value = agent(states[rows])
                ratio = (policy.log_prob(actions[rows]) - before[rows]).exp()
                with torch.no_grad():
                    ((ratio - 1) - ratio.log()).mean().item()
                adv = advantages[rows]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
                loss = pg - 0.01 * policy.entropy().mean()
                loss = loss + 0.5 * F.mse_loss(value, returns[rows])
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()


def deterministic_policy_with_two_critics(record: Record) -> None:
    actor, one, two = layers(4, 32, 2), layers(6, 32, 1), layers(6, 32, 1)
    actor_target, one_target, two_target = (copy.deepcopy(m) for m in (actor, one, two))
    actor_step = Adam(actor.parameters(), lr=1e-3)
    critic_step = Adam([*one.parameters(), *two.parameters()], lr=1e-3)
    nets = {"actor": actor, "one": one, "two": two}
    targets = {"actor_target": actor_target, "one_target": one_target, "two_target": two_target}
    with record(nn.ModuleDict({**nets, **targets})):
        for step in range(4):
            s, a, r, n = (
                torch.randn(16, 4),
                torch.randn(16, 2),
                torch.randn(16, 1),
                torch.randn(16, 4),
            )
            with torch.no_grad():
                noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
                wanted = torch.cat([n, (actor_target(n).tanh() + noise).clamp(-1, 1)], 1)
                y = r + 0.99 * torch.min(one_target(wanted), two_target(wanted))
            sa = torch.cat([s, a], 1)
            critic_loss = F.mse_loss(one(sa), y) + F.mse_loss(two(sa), y)
            critic_step.zero_grad()
            critic_loss.backward()
            critic_step.step()
            if step % 2:
                actor_loss = -one(torch.cat([s, actor(s).tanh()], 1)).mean()
                actor_step.zero_grad()
                actor_loss.backward()
                actor_step.step()
                for net, target in zip(nets.values(), targets.values(), strict=True):
                    for p, q in zip(net.parameters(), target.parameters(), strict=True):
                        q.data.copy_(0.005 * p.data + 0.995 * q.data)


def attention_over_the_edges_of_a_graph(record: Record) -> None:
    class Attend(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.lin = nn.Linear(inputs, outputs, bias=False)
            self.att = nn.Parameter(torch.randn(2 * outputs) * 0.1)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            h = self.lin(x)
            source, target = edges
            score = F.leaky_relu(torch.cat([h[source], h[target]], 1) @ self.att, 0.2)
            score = (score - score.max().detach()).exp()
            total = torch.zeros(len(x)).index_add(0, target, score)
            weight = score / (total[target] + 1e-16)
            return torch.zeros_like(h).scatter_add(
                0, target[:, None].expand(-1, h.shape[1]), weight[:, None] * h[source]
            )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Attend(5, 16), Attend(16, 3)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = F.dropout(F.elu(self.one(x, edges)), 0.5, training=self.training)
            return F.log_softmax(self.two(x, edges), 1)

    model = Net()
    optimizer = Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    x, edges, y = torch.randn(30, 5), torch.randint(30, (2, 90)), torch.randint(3, (30,))
    train = torch.arange(30) < 10
    with record(model, gradients=True):
        for _ in range(2):
            model.train()
            step(optimizer, F.nll_loss(model(x, edges)[train], y[train]))
            model.eval()
            with torch.no_grad():
                (model(x, edges).argmax(1)[~train] == y[~train]).float().mean().item()


def rounded_weights_with_a_learned_scale(record: Record) -> None:
    class Quantized(nn.Linear):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__(inputs, outputs)
            self.step = nn.Parameter(self.weight.detach().abs().mean() / 4)

        def forward(self, x: Tensor) -> Tensor:
            scaled = (self.weight / self.step).clamp(-8, 7)
            rounded = scaled + (scaled.round() - scaled).detach()
            x = x + (x.clamp(-4, 4).mul(8).round().div(8) - x).detach()
            return F.linear(x, rounded * self.step, self.bias)

    model = nn.Sequential(Quantized(6, 16), nn.ReLU(), Quantized(16, 3))
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model, gradients=True):
        for x, y in batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def binary_weights_by_a_function_of_ones_own(record: Record) -> None:
    class Binarize(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return grads[0] * (x.abs() <= 1)

    class Binary(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, Binarize.apply(self.weight), self.bias)  # type: ignore[no-untyped-call]

    model = nn.Sequential(Binary(6, 16), nn.BatchNorm1d(16), nn.Hardtanh(), nn.Linear(16, 3))
    optimizer = Adam(model.parameters(), lr=1e-2)
    with record(model, gradients=True):
        for x, y in batches(3):
            step(optimizer, F.cross_entropy(model(x), y))
            for layer in model:
                if isinstance(layer, Binary):
                    layer.weight.data.clamp_(-1, 1)
