"""Healthy trainings: several networks, several losses, samples and targets.

None of them may have errors or warnings. Their methods need detach, no_grad, sampling, and networks
that no optimizer of the step holds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import leaky_mlp

# --- adversarial ---------------------------------------------------------------------------------


def gan_that_detaches_the_fake(record: Record) -> None:
    g, d = leaky_mlp(4, 6), leaky_mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    bce = nn.BCEWithLogitsLoss()
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            real, fake = torch.randn(8, 6), g(torch.randn(8, 4))
            opt_d.zero_grad()
            loss_d = bce(d(real), torch.ones(8, 1)) + bce(d(fake.detach()), torch.zeros(8, 1))
            loss_d.backward()
            opt_d.step()
            step(opt_g, bce(d(fake), torch.ones(8, 1)))


def gan_with_one_fake_for_each(record: Record) -> None:
    g, d = leaky_mlp(4, 6), leaky_mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            d.zero_grad()
            F.softplus(-d(torch.randn(8, 6))).mean().backward()
            with torch.no_grad():
                fake = g(torch.randn(8, 4))
            F.softplus(d(fake)).mean().backward()
            opt_d.step()
            g.zero_grad()
            F.softplus(-d(g(torch.randn(8, 4)))).mean().backward()
            opt_g.step()


def gan_that_freezes_the_critic_meanwhile(record: Record) -> None:
    g, d = leaky_mlp(4, 6), leaky_mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            d.requires_grad_(True)
            step(opt_d, d(g(torch.randn(8, 4)).detach()).mean() - d(torch.randn(8, 6)).mean())
            d.requires_grad_(False)
            step(opt_g, -d(g(torch.randn(8, 4))).mean())


def wasserstein_gan_with_gradient_penalty(record: Record) -> None:
    g, d = leaky_mlp(4, 6), leaky_mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        for step in range(4):
            real, fake = torch.randn(8, 6), g(torch.randn(8, 4)).detach()
            share = torch.rand(8, 1)
            mixed = (share * real + (1 - share) * fake).requires_grad_()
            (grad,) = torch.autograd.grad(d(mixed).sum(), mixed, create_graph=True)
            penalty = (grad.norm(dim=1) - 1).square().mean()
            opt_d.zero_grad()
            (d(fake).mean() - d(real).mean() + 10 * penalty).backward()
            opt_d.step()
            if step % 2:
                opt_g.zero_grad()
                (-d(g(torch.randn(8, 4))).mean()).backward()
                opt_g.step()


def wasserstein_gan_with_clipped_weights(record: Record) -> None:
    g, d = leaky_mlp(4, 6), leaky_mlp(6, 1)
    opt_g = torch.optim.RMSprop(g.parameters())
    opt_d = torch.optim.RMSprop(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            step(opt_d, d(g(torch.randn(8, 4)).detach()).mean() - d(torch.randn(8, 6)).mean())
            for p in d.parameters():
                p.data.clamp_(-0.01, 0.01)
        step(opt_g, -d(g(torch.randn(8, 4))).mean())


def translation_there_and_back(record: Record) -> None:
    there, back, judge = leaky_mlp(6, 6), leaky_mlp(6, 6), leaky_mlp(6, 1)
    opt_g = Adam([*there.parameters(), *back.parameters()])
    opt_d = Adam(judge.parameters())
    with record(nn.ModuleDict({"there": there, "back": back, "judge": judge})):
        for _ in range(2):
            a, b = torch.randn(8, 6), torch.randn(8, 6)
            fake_b = there(a)
            loss = (judge(fake_b) - 1).square().mean() + 10 * F.l1_loss(back(fake_b), a)
            step(opt_g, loss + 5 * F.l1_loss(there(b), b))
            step(opt_d, ((judge(b) - 1).square() + judge(fake_b.detach()).square()).mean())


def adversarial_training_with_pgd(record: Record) -> None:
    model = leaky_mlp(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        x, y = torch.randn(8, 6), torch.randint(3, (8,))
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            loss = F.cross_entropy(model(x + delta), y)
            (grad,) = torch.autograd.grad(loss, delta)
            delta.data = (delta + 0.05 * grad.sign()).clamp(-0.1, 0.1).detach()
        step(optimizer, F.cross_entropy(model(x + delta.detach()), y))


def domain_classifier_behind_a_reversed_gradient(record: Record) -> None:
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: object, *gradients: Tensor) -> Tensor:
            return -gradients[0]

    body, label, domain = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    model = nn.ModuleDict({"body": body, "label": label, "domain": domain})
    optimizer = Adam(model.parameters())
    with record(model):
        features = body(torch.randn(8, 6)).relu()
        wrong = F.binary_cross_entropy_with_logits(
            domain(Reverse.apply(features)), torch.ones(8, 1)
        )
        step(optimizer, F.cross_entropy(label(features), torch.randint(3, (8,))) + wrong)


# --- generative ----------------------------------------------------------------------------------


def variational_autoencoder(record: Record) -> None:
    encoder, decoder = leaky_mlp(6, 4), leaky_mlp(2, 6)
    optimizer = Adam([*encoder.parameters(), *decoder.parameters()])
    with record(nn.ModuleDict({"encoder": encoder, "decoder": decoder})):
        for _ in range(2):
            x = torch.rand(8, 6)
            mean, log_var = encoder(x).chunk(2, dim=1)
            z = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
            kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
            step(
                optimizer,
                F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum") / 8 + kl,
            )


def vector_quantized_autoencoder(record: Record) -> None:
    encoder, decoder, codes = leaky_mlp(6, 4), leaky_mlp(4, 6), nn.Embedding(5, 4)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "codes": codes})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = torch.randn(8, 6)
            z = encoder(x)
            nearest = torch.cdist(z, codes.weight).argmin(1)
            quantized = codes(nearest)
            loss = F.mse_loss(quantized, z.detach()) + 0.25 * F.mse_loss(z, quantized.detach())
            quantized = z + (quantized - z).detach()
            loss = loss + F.mse_loss(decoder(quantized), x)
            step(optimizer, loss)


def denoising_diffusion(record: Record) -> None:
    model = leaky_mlp(7, 6)
    optimizer = Adam(model.parameters())
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    with record(model):
        for _ in range(2):
            x, t, noise = torch.randn(8, 6), torch.randint(50, (8,)), torch.randn(8, 6)
            alpha = alphas[t][:, None]
            noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
            step(optimizer, F.mse_loss(model(torch.cat([noisy, t[:, None] / 50], 1)), noise))


def flow_of_affine_couplings(record: Record) -> None:
    couplings = nn.ModuleList([leaky_mlp(2, 4) for _ in range(3)])
    optimizer = Adam(couplings.parameters())
    with record(couplings):
        for _ in range(2):
            x, log_det = torch.randn(8, 4), torch.zeros(8)
            for net in couplings:
                a, b = x.chunk(2, dim=1)
                scale, shift = net(a).chunk(2, dim=1)
                b = b * scale.tanh().exp() + shift
                log_det = log_det + scale.tanh().sum(1)
                x = torch.cat([b, a], dim=1)
            step(optimizer, -(Normal(0.0, 1.0).log_prob(x).sum(1) + log_det).mean())


def energy_model_with_langevin_samples(record: Record) -> None:
    energy = leaky_mlp(2, 1)
    optimizer = Adam(energy.parameters())
    with record(energy):
        x = torch.randn(8, 2)
        for _ in range(3):
            x = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(energy(x).sum(), x)
            x = x - 0.1 * grad + 0.05 * torch.randn_like(x)
        step(optimizer, energy(torch.randn(8, 2)).mean() - energy(x.detach()).mean())


def gumbel_softmax_straight_through(record: Record) -> None:
    choose, table = nn.Linear(6, 5), nn.Linear(5, 6, bias=False)
    optimizer = Adam([*choose.parameters(), *table.parameters()])
    with record(nn.ModuleList([choose, table])):
        for _ in range(2):
            x = torch.randn(8, 6)
            code = F.gumbel_softmax(choose(x), tau=0.7, hard=True)
            step(optimizer, F.mse_loss(table(code), x))


def gan_whose_codes_a_third_optimizer_learns(record: Record) -> None:
    g, body = leaky_mlp(6, 6), nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2))
    judge, codes = nn.Linear(16, 1), nn.Linear(16, 4)
    d = nn.ModuleDict({"body": body, "judge": judge, "codes": codes})
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    opt_info = Adam([*g.parameters(), *d.parameters()])

    def judged(x: Tensor) -> tuple[Tensor, Tensor]:
        features = body(x)
        return judge(features), codes(features)

    with record():
        for _ in range(3):
            fake = g(torch.randn(8, 6))
            step(opt_g, F.softplus(-judged(fake)[0]).mean())
            real, _ = judged(torch.randn(8, 6))
            made, _ = judged(fake.detach())
            step(opt_d, F.softplus(-real).mean() + F.softplus(made).mean())
            code = torch.randint(4, (8,))
            noise = torch.cat([F.one_hot(code, 4), torch.randn(8, 2)], 1)
            _, guessed = judged(g(noise))
            step(opt_info, F.cross_entropy(guessed, code))


def players_whom_one_function_trains(record: Record) -> None:
    g, d = leaky_mlp(4, 6), leaky_mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())

    def train(loss: Tensor, optimizer: Adam) -> Tensor:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with record():
        for _ in range(4):
            fake = g(torch.randn(8, 4))
            real = F.softplus(-d(torch.randn(8, 6))).mean()
            loss_d = train(real + F.softplus(d(fake.detach())).mean(), opt_d)
            loss_g = train(F.softplus(-d(fake)).mean(), opt_g)
            logged = {"critic": loss_d, "generator": loss_g}
            print(*(f"{name} {loss:.3f}" for name, loss in logged.items()))
