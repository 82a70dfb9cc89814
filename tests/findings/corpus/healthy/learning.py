"""Healthy trainings: by reward, from a teacher, and of representations."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import leaky_mlp

# --- reinforcement learning ----------------------------------------------------------------------


def reinforce_with_a_baseline(record: Record) -> None:
    policy, baseline = leaky_mlp(4, 2), leaky_mlp(4, 1)
    optimizer = Adam([*policy.parameters(), *baseline.parameters()])
    with record(nn.ModuleDict({"policy": policy, "baseline": baseline})):
        states, returns = torch.randn(12, 4), torch.randn(12)
        distribution = Categorical(logits=policy(states))
        actions = distribution.sample()
        values = baseline(states).squeeze(1)
        advantage = returns - values.detach()
        step(
            optimizer,
            -(distribution.log_prob(actions) * advantage).mean() + F.mse_loss(values, returns),
        )


def actor_and_critic_with_two_optimizers(record: Record) -> None:
    actor, critic = leaky_mlp(4, 2), leaky_mlp(4, 1)
    opt_actor, opt_critic = Adam(actor.parameters()), Adam(critic.parameters())
    with record(nn.ModuleDict({"actor": actor, "critic": critic})):
        for _ in range(2):
            state, following, reward = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8)
            distribution = Categorical(logits=actor(state))
            action = distribution.sample()
            with torch.no_grad():
                target = reward + 0.99 * critic(following).squeeze(1)
            td = target - critic(state).squeeze(1)
            step(opt_critic, td.square().mean())
            step(opt_actor, (-distribution.log_prob(action) * td.detach()).mean())


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


def soft_actor_critic(record: Record) -> None:
    actor, q1, q2 = leaky_mlp(4, 4), leaky_mlp(6, 1), leaky_mlp(6, 1)
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
            step(opt_q, F.mse_loss(q1(pair), target) + F.mse_loss(q2(pair), target))
            new_action, log_prob = act(state)
            pair = torch.cat([state, new_action], 1)
            step(opt_actor, (alpha * log_prob - torch.min(q1(pair), q2(pair))).mean())
            step(opt_alpha, (-log_alpha * (log_prob.detach() - 2.0)).mean())
            with torch.no_grad():
                for slow, fast in ((target1, q1), (target2, q2)):
                    for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
                        p.lerp_(q, 0.005)


def deep_q_learning_with_a_target_network(record: Record) -> None:
    online = leaky_mlp(4, 3)
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


def deterministic_policy_that_clears_at_the_end(record: Record) -> None:
    actor, critic = leaky_mlp(4, 2), leaky_mlp(6, 1)
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


def contrastive_learning_of_two_views(record: Record) -> None:
    encoder, projector = leaky_mlp(6, 8), nn.Linear(8, 4)
    optimizer = Adam([*encoder.parameters(), *projector.parameters()])
    with record(nn.ModuleDict({"encoder": encoder, "projector": projector})):
        x = torch.randn(8, 6)
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        z = F.normalize(projector(encoder(views)), dim=1)
        similarity = z @ z.T / 0.5
        similarity = similarity.masked_fill(torch.eye(16, dtype=torch.bool), float("-inf"))
        step(optimizer, F.cross_entropy(similarity, (torch.arange(16) + 8) % 16))


def momentum_encoder_with_a_predictor(record: Record) -> None:
    online, predictor = leaky_mlp(6, 4), leaky_mlp(4, 4)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = SGD([*online.parameters(), *predictor.parameters()], lr=0.1)
    with record(nn.ModuleDict({"online": online, "predictor": predictor, "target": target})):
        for _ in range(2):
            a, b = torch.randn(8, 6), torch.randn(8, 6)
            with torch.no_grad():
                goal = F.normalize(target(b), dim=1)
            step(optimizer, 2 - 2 * (F.normalize(predictor(online(a)), dim=1) * goal).sum(1).mean())
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.mul_(0.99).add_(fast, alpha=0.01)


def stop_gradient_on_either_side(record: Record) -> None:
    encoder, predictor = leaky_mlp(6, 4), leaky_mlp(4, 4)
    optimizer = SGD([*encoder.parameters(), *predictor.parameters()], lr=0.1)
    with record(nn.ModuleDict({"encoder": encoder, "predictor": predictor})):
        z1, z2 = encoder(torch.randn(8, 6)), encoder(torch.randn(8, 6))
        p1, p2 = predictor(z1), predictor(z2)
        loss = -F.cosine_similarity(p1, z2.detach()).mean() / 2
        loss = loss - F.cosine_similarity(p2, z1.detach()).mean() / 2
        step(optimizer, loss)


def distillation_from_a_teacher(record: Record) -> None:
    teacher, student = leaky_mlp(6, 3).eval(), leaky_mlp(6, 3)
    optimizer = Adam(student.parameters())
    with record(nn.ModuleDict({"teacher": teacher, "student": student})):
        for _ in range(2):
            x, y = torch.randn(8, 6), torch.randint(3, (8,))
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 4, dim=1)
            logits = student(x)
            kd = F.kl_div(F.log_softmax(logits / 4, dim=1), soft, reduction="batchmean")
            step(optimizer, 0.5 * F.cross_entropy(logits, y) + 8 * kd)


def pseudo_labels_above_a_threshold(record: Record) -> None:
    model = leaky_mlp(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x, y, unlabelled = torch.randn(8, 6), torch.randint(3, (8,)), torch.randn(16, 6)
            with torch.no_grad():
                confidence, label = model(unlabelled).softmax(1).max(1)
            strong = model(unlabelled + 0.3 * torch.randn(16, 6))
            extra = F.cross_entropy(strong, label, reduction="none")
            step(optimizer, F.cross_entropy(model(x), y) + (extra * (confidence > 0.4)).mean())


def siamese_triplets(record: Record) -> None:
    net = leaky_mlp(6, 4)
    optimizer = Adam(net.parameters())
    with record(net):
        for _ in range(2):
            anchor = torch.randn(8, 6)
            positive, negative = anchor + 0.1 * torch.randn(8, 6), torch.randn(8, 6)
            step(
                optimizer,
                F.triplet_margin_loss(net(anchor), net(positive), net(negative), margin=2.0),
            )


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
            step(optimizer, outer)


def hypernetwork(record: Record) -> None:
    hyper = leaky_mlp(3, 8)
    optimizer = Adam(hyper.parameters())
    with record(hyper):
        for _ in range(2):
            generated = hyper(torch.randn(3))
            weight, bias = generated[:6].view(2, 3), generated[6:]
            step(optimizer, F.linear(torch.randn(8, 3), weight, bias).square().mean())


def deep_set_with_hard_attention(record: Record) -> None:
    score, embed, head = nn.Linear(6, 1), nn.Linear(6, 8), nn.Linear(8, 2)
    model = nn.ModuleDict({"score": score, "embed": embed, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(4, 9, 6)
        weight, chosen = score(x).squeeze(2).softmax(1).topk(3, dim=1)
        picked = embed(x).gather(1, chosen[:, :, None].expand(-1, -1, 8))
        logits = head((picked * weight[:, :, None]).sum(1))
        step(optimizer, F.cross_entropy(logits, torch.tensor([0, 1, 0, 1])))
