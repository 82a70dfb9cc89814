"""Trainings with nothing wrong: several networks, several losses, samples and targets.

Each must have neither errors nor warnings: here detach, no_grad, sampling and networks that no
optimizer of the step holds are what the method is made of.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, healthy


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))


# --- adversarial ---------------------------------------------------------------------------------


@healthy
def gan_that_detaches_the_fake(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    bce = nn.BCEWithLogitsLoss()
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            real, fake = torch.randn(8, 6), g(torch.randn(8, 4))
            opt_d.zero_grad()
            loss_d = bce(d(real), torch.ones(8, 1)) + bce(d(fake.detach()), torch.zeros(8, 1))
            loss_d.backward()
            opt_d.step()
            opt_g.zero_grad()
            bce(d(fake), torch.ones(8, 1)).backward()
            opt_g.step()


@healthy
def gan_with_one_fake_for_each(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
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


@healthy
def gan_that_freezes_the_critic_meanwhile(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            d.requires_grad_(True)
            opt_d.zero_grad()
            (d(g(torch.randn(8, 4)).detach()).mean() - d(torch.randn(8, 6)).mean()).backward()
            opt_d.step()
            d.requires_grad_(False)
            opt_g.zero_grad()
            (-d(g(torch.randn(8, 4))).mean()).backward()
            opt_g.step()


@healthy
def wasserstein_gan_with_gradient_penalty(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
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


@healthy
def wasserstein_gan_with_clipped_weights(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
    opt_g = torch.optim.RMSprop(g.parameters())
    opt_d = torch.optim.RMSprop(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        for _ in range(2):
            opt_d.zero_grad()
            (d(g(torch.randn(8, 4)).detach()).mean() - d(torch.randn(8, 6)).mean()).backward()
            opt_d.step()
            for p in d.parameters():
                p.data.clamp_(-0.01, 0.01)
        opt_g.zero_grad()
        (-d(g(torch.randn(8, 4))).mean()).backward()
        opt_g.step()


@healthy
def translation_there_and_back(record: Record) -> None:
    there, back, judge = mlp(6, 6), mlp(6, 6), mlp(6, 1)
    opt_g = Adam([*there.parameters(), *back.parameters()])
    opt_d = Adam(judge.parameters())
    with record(nn.ModuleDict({"there": there, "back": back, "judge": judge})):
        for _ in range(2):
            a, b = torch.randn(8, 6), torch.randn(8, 6)
            fake_b = there(a)
            loss = (judge(fake_b) - 1).square().mean() + 10 * F.l1_loss(back(fake_b), a)
            opt_g.zero_grad()
            (loss + 5 * F.l1_loss(there(b), b)).backward()
            opt_g.step()
            opt_d.zero_grad()
            ((judge(b) - 1).square() + judge(fake_b.detach()).square()).mean().backward()
            opt_d.step()


@healthy
def adversarial_training_with_pgd(record: Record) -> None:
    model = mlp(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        x, y = torch.randn(8, 6), torch.randint(3, (8,))
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            loss = F.cross_entropy(model(x + delta), y)
            (grad,) = torch.autograd.grad(loss, delta)
            delta.data = (delta + 0.05 * grad.sign()).clamp(-0.1, 0.1).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(x + delta.detach()), y).backward()
        optimizer.step()


@healthy
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
        optimizer.zero_grad()
        (F.cross_entropy(label(features), torch.randint(3, (8,))) + wrong).backward()
        optimizer.step()


# --- generative ----------------------------------------------------------------------------------


@healthy
def variational_autoencoder(record: Record) -> None:
    encoder, decoder = mlp(6, 4), mlp(2, 6)
    optimizer = Adam([*encoder.parameters(), *decoder.parameters()])
    with record(nn.ModuleDict({"encoder": encoder, "decoder": decoder})):
        for _ in range(2):
            x = torch.rand(8, 6)
            mean, log_var = encoder(x).chunk(2, dim=1)
            z = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
            kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
            loss = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum") / 8 + kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def vector_quantized_autoencoder(record: Record) -> None:
    encoder, decoder, codes = mlp(6, 4), mlp(4, 6), nn.Embedding(5, 4)
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
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def denoising_diffusion(record: Record) -> None:
    model = mlp(7, 6)
    optimizer = Adam(model.parameters())
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    with record(model):
        for _ in range(2):
            x, t, noise = torch.randn(8, 6), torch.randint(50, (8,)), torch.randn(8, 6)
            alpha = alphas[t][:, None]
            noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
            loss = F.mse_loss(model(torch.cat([noisy, t[:, None] / 50], 1)), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def flow_of_affine_couplings(record: Record) -> None:
    couplings = nn.ModuleList([mlp(2, 4) for _ in range(3)])
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
            loss = -(Normal(0.0, 1.0).log_prob(x).sum(1) + log_det).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def energy_model_with_langevin_samples(record: Record) -> None:
    energy = mlp(2, 1)
    optimizer = Adam(energy.parameters())
    with record(energy):
        x = torch.randn(8, 2)
        for _ in range(3):
            x = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(energy(x).sum(), x)
            x = x - 0.1 * grad + 0.05 * torch.randn_like(x)
        optimizer.zero_grad()
        (energy(torch.randn(8, 2)).mean() - energy(x.detach()).mean()).backward()
        optimizer.step()


@healthy
def gumbel_softmax_straight_through(record: Record) -> None:
    choose, table = nn.Linear(6, 5), nn.Linear(5, 6, bias=False)
    optimizer = Adam([*choose.parameters(), *table.parameters()])
    with record(nn.ModuleList([choose, table])):
        for _ in range(2):
            x = torch.randn(8, 6)
            code = F.gumbel_softmax(choose(x), tau=0.7, hard=True)
            optimizer.zero_grad()
            F.mse_loss(table(code), x).backward()
            optimizer.step()


# --- reinforcement learning ----------------------------------------------------------------------


@healthy
def reinforce_with_a_baseline(record: Record) -> None:
    policy, baseline = mlp(4, 2), mlp(4, 1)
    optimizer = Adam([*policy.parameters(), *baseline.parameters()])
    with record(nn.ModuleDict({"policy": policy, "baseline": baseline})):
        states, returns = torch.randn(12, 4), torch.randn(12)
        distribution = Categorical(logits=policy(states))
        actions = distribution.sample()
        values = baseline(states).squeeze(1)
        advantage = returns - values.detach()
        loss = -(distribution.log_prob(actions) * advantage).mean() + F.mse_loss(values, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@healthy
def actor_and_critic_with_two_optimizers(record: Record) -> None:
    actor, critic = mlp(4, 2), mlp(4, 1)
    opt_actor, opt_critic = Adam(actor.parameters()), Adam(critic.parameters())
    with record(nn.ModuleDict({"actor": actor, "critic": critic})):
        for _ in range(2):
            state, following, reward = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8)
            distribution = Categorical(logits=actor(state))
            action = distribution.sample()
            with torch.no_grad():
                target = reward + 0.99 * critic(following).squeeze(1)
            td = target - critic(state).squeeze(1)
            opt_critic.zero_grad()
            td.square().mean().backward()
            opt_critic.step()
            opt_actor.zero_grad()
            (-distribution.log_prob(action) * td.detach()).mean().backward()
            opt_actor.step()


@healthy
def proximal_policy_optimization(record: Record) -> None:
    body, policy, value = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)
    model = nn.ModuleDict({"body": body, "policy": policy, "value": value})
    optimizer = Adam(model.parameters())
    with record(model):
        states, returns = torch.randn(24, 4), torch.randn(24)
        with torch.no_grad():
            h = body(states).tanh()
            old = Categorical(logits=policy(h))
            actions = old.sample()
            old_log_prob, advantage = old.log_prob(actions), returns - value(h).squeeze(1)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(3):
            h = body(states).tanh()
            new = Categorical(logits=policy(h))
            ratio = (new.log_prob(actions) - old_log_prob).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = 0.5 * F.mse_loss(value(h).squeeze(1), returns) - gain
            optimizer.zero_grad()
            (loss - 0.01 * new.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


@healthy
def soft_actor_critic(record: Record) -> None:
    actor, q1, q2 = mlp(4, 4), mlp(6, 1), mlp(6, 1)
    target1, target2 = copy.deepcopy(q1), copy.deepcopy(q2)
    log_alpha = torch.zeros((), requires_grad=True)
    opt_actor, opt_alpha = Adam(actor.parameters()), Adam([log_alpha])
    opt_q = Adam([*q1.parameters(), *q2.parameters()])
    nets = {"actor": actor, "q1": q1, "q2": q2, "target1": target1, "target2": target2}

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(state).chunk(2, dim=1)
        normal = Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        log_prob = normal.log_prob(raw) - torch.log(1 - raw.tanh().square() + 1e-6)
        return raw.tanh(), log_prob.sum(1, keepdim=True)

    with record(nn.ModuleDict(nets)):
        for _ in range(2):
            state, action, reward = torch.randn(8, 4), torch.rand(8, 2), torch.randn(8, 1)
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                following = torch.randn(8, 4)
                next_action, log_prob = act(following)
                both = torch.cat([following, next_action], 1)
                best = torch.min(target1(both), target2(both)) - alpha * log_prob
                target = reward + 0.99 * best
            pair = torch.cat([state, action], 1)
            opt_q.zero_grad()
            (F.mse_loss(q1(pair), target) + F.mse_loss(q2(pair), target)).backward()
            opt_q.step()
            new_action, log_prob = act(state)
            pair = torch.cat([state, new_action], 1)
            opt_actor.zero_grad()
            (alpha * log_prob - torch.min(q1(pair), q2(pair))).mean().backward()
            opt_actor.step()
            opt_alpha.zero_grad()
            (-log_alpha * (log_prob.detach() - 2.0)).mean().backward()
            opt_alpha.step()
            with torch.no_grad():
                for slow, fast in ((target1, q1), (target2, q2)):
                    for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
                        p.lerp_(q, 0.005)


@healthy
def deep_q_learning_with_a_target_network(record: Record) -> None:
    online = mlp(4, 3)
    target = copy.deepcopy(online)
    optimizer = Adam(online.parameters())
    with record(nn.ModuleDict({"online": online, "target": target})):
        for step in range(3):
            state, action = torch.randn(8, 4), torch.randint(3, (8, 1))
            reward, done = torch.randn(8), torch.randint(2, (8,)).float()
            q = online(state).gather(1, action).squeeze(1)
            with torch.no_grad():
                following = torch.randn(8, 4)
                best = online(following).argmax(1, keepdim=True)
                goal = reward + 0.99 * (1 - done) * target(following).gather(1, best).squeeze(1)
            optimizer.zero_grad()
            F.smooth_l1_loss(q, goal).backward()
            nn.utils.clip_grad_value_(online.parameters(), 100)
            optimizer.step()
            if step == 1:
                target.load_state_dict(online.state_dict())


@healthy
def deterministic_policy_that_clears_at_the_end(record: Record) -> None:
    actor, critic = mlp(4, 2), mlp(6, 1)
    slow_actor, slow_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    opt_actor, opt_critic = Adam(actor.parameters()), Adam(critic.parameters())
    nets = {"actor": actor, "critic": critic, "slow_actor": slow_actor, "slow_critic": slow_critic}
    with record(nn.ModuleDict(nets)):
        for _ in range(2):
            state, action, reward = torch.randn(8, 4), torch.rand(8, 2), torch.randn(8, 1)
            following = torch.randn(8, 4)
            with torch.no_grad():
                best = slow_critic(torch.cat([following, slow_actor(following).tanh()], 1))
            loss = F.mse_loss(critic(torch.cat([state, action], 1)), reward + 0.99 * best)
            loss.backward()
            opt_critic.step()
            (-critic(torch.cat([state, actor(state).tanh()], 1)).mean()).backward()
            opt_actor.step()
            opt_actor.zero_grad()
            opt_critic.zero_grad()


# --- representations, teachers, and learning to learn --------------------------------------------


@healthy
def contrastive_learning_of_two_views(record: Record) -> None:
    encoder, projector = mlp(6, 8), nn.Linear(8, 4)
    optimizer = Adam([*encoder.parameters(), *projector.parameters()])
    with record(nn.ModuleDict({"encoder": encoder, "projector": projector})):
        x = torch.randn(8, 6)
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        z = F.normalize(projector(encoder(views)), dim=1)
        similarity = z @ z.T / 0.5
        similarity = similarity.masked_fill(torch.eye(16, dtype=torch.bool), float("-inf"))
        loss = F.cross_entropy(similarity, (torch.arange(16) + 8) % 16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@healthy
def momentum_encoder_with_a_predictor(record: Record) -> None:
    online, predictor = mlp(6, 4), mlp(4, 4)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = SGD([*online.parameters(), *predictor.parameters()], lr=0.1)
    with record(nn.ModuleDict({"online": online, "predictor": predictor, "target": target})):
        for _ in range(2):
            a, b = torch.randn(8, 6), torch.randn(8, 6)
            with torch.no_grad():
                goal = F.normalize(target(b), dim=1)
            loss = 2 - 2 * (F.normalize(predictor(online(a)), dim=1) * goal).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.mul_(0.99).add_(fast, alpha=0.01)


@healthy
def stop_gradient_on_either_side(record: Record) -> None:
    encoder, predictor = mlp(6, 4), mlp(4, 4)
    optimizer = SGD([*encoder.parameters(), *predictor.parameters()], lr=0.1)
    with record(nn.ModuleDict({"encoder": encoder, "predictor": predictor})):
        z1, z2 = encoder(torch.randn(8, 6)), encoder(torch.randn(8, 6))
        p1, p2 = predictor(z1), predictor(z2)
        loss = -F.cosine_similarity(p1, z2.detach()).mean() / 2
        loss = loss - F.cosine_similarity(p2, z1.detach()).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@healthy
def distillation_from_a_teacher(record: Record) -> None:
    teacher, student = mlp(6, 3).eval(), mlp(6, 3)
    optimizer = Adam(student.parameters())
    with record(nn.ModuleDict({"teacher": teacher, "student": student})):
        for _ in range(2):
            x, y = torch.randn(8, 6), torch.randint(3, (8,))
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 4, dim=1)
            logits = student(x)
            kd = F.kl_div(F.log_softmax(logits / 4, dim=1), soft, reduction="batchmean")
            optimizer.zero_grad()
            (0.5 * F.cross_entropy(logits, y) + 8 * kd).backward()
            optimizer.step()


@healthy
def pseudo_labels_above_a_threshold(record: Record) -> None:
    model = mlp(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x, y, unlabelled = torch.randn(8, 6), torch.randint(3, (8,)), torch.randn(16, 6)
            with torch.no_grad():
                confidence, label = model(unlabelled).softmax(1).max(1)
            strong = model(unlabelled + 0.3 * torch.randn(16, 6))
            extra = F.cross_entropy(strong, label, reduction="none")
            loss = F.cross_entropy(model(x), y) + (extra * (confidence > 0.4)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def siamese_triplets(record: Record) -> None:
    net = mlp(6, 4)
    optimizer = Adam(net.parameters())
    with record(net):
        for _ in range(2):
            anchor = torch.randn(8, 6)
            positive, negative = anchor + 0.1 * torch.randn(8, 6), torch.randn(8, 6)
            loss = F.triplet_margin_loss(net(anchor), net(positive), net(negative), margin=2.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def model_agnostic_meta_learning(record: Record) -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(2):
            outer = torch.zeros(())
            for _ in range(2):
                weights = dict(model.named_parameters())
                x, y = torch.randn(5, 3), torch.randn(5, 1)
                inner = F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)
                grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
                fast = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
                x, y = torch.randn(5, 3), torch.randn(5, 1)
                outer = outer + F.mse_loss(torch.func.functional_call(model, fast, (x,)), y)
            optimizer.zero_grad()
            outer.backward()
            optimizer.step()


@healthy
def hypernetwork(record: Record) -> None:
    hyper = mlp(3, 8)
    optimizer = Adam(hyper.parameters())
    with record(hyper):
        for _ in range(2):
            generated = hyper(torch.randn(3))
            weight, bias = generated[:6].view(2, 3), generated[6:]
            loss = F.linear(torch.randn(8, 3), weight, bias).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@healthy
def deep_set_with_hard_attention(record: Record) -> None:
    score, embed, head = nn.Linear(6, 1), nn.Linear(6, 8), nn.Linear(8, 2)
    model = nn.ModuleDict({"score": score, "embed": embed, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(4, 9, 6)
        weight, chosen = score(x).squeeze(2).softmax(1).topk(3, dim=1)
        picked = embed(x).gather(1, chosen[:, :, None].expand(-1, -1, 8))
        logits = head((picked * weight[:, :, None]).sum(1))
        optimizer.zero_grad()
        F.cross_entropy(logits, torch.tensor([0, 1, 0, 1])).backward()
        optimizer.step()
