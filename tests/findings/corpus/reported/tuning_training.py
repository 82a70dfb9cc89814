"""Bugs of roles, optimizers and calls, written before their rules, whose authors may read them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

from tests.findings.corpus.cases import Record, reported, step
from tests.findings.corpus.models import mlp

GITHUB = "https://github.com/"

# --- roles ---------------------------------------------------------------------------------------


@reported(
    GITHUB + "datawhalechina/easy-rl/pull/117",
    cause="The target is computed by the network that learns and is not detached.",
    words=r"both|target",
)
def target_of_the_network_that_learns(record: Record, repaired: bool = False) -> None:
    policy = mlp(4, 3)
    optimizer = Adam(policy.parameters())
    with record(policy):
        for _ in range(2):
            states, following, reward = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8)
            q = policy(states).gather(1, torch.randint(3, (8, 1))).squeeze(1)
            expected = reward + 0.99 * policy(following).max(1)[0]
            if repaired:
                expected = expected.detach()
            step(optimizer, F.mse_loss(q, expected))  # cause


@reported(
    GITHUB + "astariul/encode-attend-navigate-pytorch/issues/2",
    cause="The critic's value weights the log-probability with its history.",
    words=r"log_prob|weight",
)
def policy_loss_that_trains_the_critic(record: Record, repaired: bool = False) -> None:
    actor, critic = mlp(4, 3), mlp(4, 1)
    model = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            states, reward = torch.randn(8, 4), torch.randn(8)
            policy = Categorical(logits=actor(states))
            log_prob = policy.log_prob(policy.sample())
            value = critic(states).squeeze(1)
            advantage = reward - (value.detach() if repaired else value)
            policy_loss = (advantage * log_prob).mean()  # cause
            step(optimizer, policy_loss + F.mse_loss(value, reward))


@reported(
    GITHUB + "mani-skill/ManiSkill/issues/899",
    cause="The loss of the temperature takes log_pi with its history, which gives the actor a "
    "gradient too.",
    words=r"actor|log_pi|log_prob",
)
def temperature_loss_that_reaches_the_actor(record: Record, repaired: bool = False) -> None:
    actor, log_alpha = mlp(4, 4), nn.Parameter(torch.zeros(()))
    a_optimizer = Adam([log_alpha])
    with record(actor):
        for _ in range(2):
            mean, log_std = actor(torch.randn(8, 4)).chunk(2, 1)
            policy = Normal(mean, log_std.exp())
            log_pi = policy.log_prob(policy.rsample()).sum(1)
            if repaired:
                log_pi = log_pi.detach()
            alpha_loss = (-log_alpha.exp() * (log_pi - 2.0)).mean()  # cause
            step(a_optimizer, alpha_loss)  # cause


@reported(
    GITHUB + "open-mmlab/mmrazor/pull/100",
    cause="The features of the teacher's part of the network are not detached: the teacher is "
    "pulled towards the student.",
    words=r"both|teacher|target",
)
def self_distillation_without_detach(record: Record, repaired: bool = False) -> None:
    body, deep, shallow = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    model = nn.ModuleDict({"body": body, "deep": deep, "shallow": shallow})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            h = body(torch.randn(8, 6)).relu()
            teacher, student = deep(h), shallow(h)
            if repaired:
                teacher = teacher.detach()
            distance = F.mse_loss(student, teacher)  # cause
            step(optimizer, distance + F.cross_entropy(deep(h), torch.randint(3, (8,))))


@reported(
    GITHUB + "Lornatang/ESRGAN-PyTorch/issues/39",
    cause="The discriminator's loss is followed by a step of the generator's optimizer.",
    words=r"never stepped|no optimizer|steps",
)
def generator_stepped_in_the_turn_of_the_discriminator(
    record: Record, repaired: bool = False
) -> None:
    generator, discriminator = mlp(4, 6), mlp(6, 1)
    g_optimizer, d_optimizer = Adam(generator.parameters()), Adam(discriminator.parameters())
    with record(nn.ModuleDict({"g": generator, "d": discriminator})):
        for _ in range(2):
            sr = generator(torch.randn(8, 4))
            discriminator.requires_grad_(False)
            g_optimizer.zero_grad()
            (-discriminator(sr).mean() + F.l1_loss(sr, torch.randn(8, 6))).backward()
            g_optimizer.step()
            discriminator.requires_grad_(True)
            d_optimizer.zero_grad()
            d_loss = discriminator(sr.detach()).mean() - discriminator(torch.randn(8, 6)).mean()
            d_loss.backward()  # cause
            (d_optimizer if repaired else g_optimizer).step()  # cause


@reported(
    GITHUB + "lucidrains/audiolm-pytorch/pull/265",
    cause="The result of the attention is never used.",
    words=r"attn.*does not depend|not used",
)
def attention_whose_result_is_not_used(record: Record, repaired: bool = False) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.ff = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            residual = x
            attn_out = self.attn(x)  # cause
            if repaired:
                x = attn_out
            x = x + residual  # cause
            result: Tensor = self.ff(x.relu()) + x
            return result

    model = nn.Sequential(nn.Linear(6, 8), Block(), nn.Linear(8, 3))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))


@reported(
    GITHUB + "ginobilinie/asdnet/issues/2",
    cause="The discriminator's optimizer steps with what the generator's loss left in its "
    "gradients.",
    words=r"another|other.* loss|gradients of",
)
def both_losses_in_both_steps(record: Record, repaired: bool = False) -> None:
    generator, discriminator = mlp(4, 6), mlp(6, 1)
    g_optimizer, d_optimizer = Adam(generator.parameters()), Adam(discriminator.parameters())
    with record(nn.ModuleDict({"g": generator, "d": discriminator})):
        for _ in range(3):
            fake = generator(torch.randn(8, 4))
            if not repaired:
                d_optimizer.zero_grad()
            g_optimizer.zero_grad()
            g_loss = -discriminator(fake).mean()
            g_loss.backward()  # cause
            g_optimizer.step()
            if repaired:
                d_optimizer.zero_grad()
            real = discriminator(torch.randn(8, 6))
            d_loss = discriminator(fake.detach()).mean() - real.mean()
            d_loss.backward()
            d_optimizer.step()  # cause


# --- did the call matter -------------------------------------------------------------------------


@reported(
    GITHUB + "shenweichen/DeepCTR-Torch/issues/69",
    cause="retain_graph=True is not needed: no second backward runs through the graph.",
    words=r"retain_graph",
)
def graph_retained_for_nothing(record: Record, repaired: bool = False) -> None:
    model = mlp(6, 1)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            y = torch.randint(2, (16, 1)).float()
            loss = F.binary_cross_entropy_with_logits(model(torch.randn(16, 6)), y)
            total = loss + 1e-5 * sum(p.square().sum() for p in model.parameters())
            optimizer.zero_grad()
            if repaired:
                total.backward()
            else:
                total.backward(retain_graph=True)  # cause
            optimizer.step()


@reported(
    GITHUB + "lucidrains/imagen-pytorch/issues/71",
    cause="T_max of the cosine is the number of warm-up steps: after it the rate rises again.",
    words=r"T_max|rises|past",
)
def cosine_past_its_end(record: Record, repaired: bool = False) -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), lr=1e-3)
    scheduler = CosineAnnealingLR(optimizer, T_max=6 if repaired else 3)  # cause
    with record(model):
        for _ in range(6):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))
            scheduler.step()  # cause


@reported(
    GITHUB + "pytorch/vision/issues/1261",
    cause="The scheduler steps in the loop over batches and again after it.",
    words=r"scheduler.*(more often|times)|twice",
)
def scheduler_stepped_twice_for_a_step(record: Record, repaired: bool = False) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    lr_scheduler = ExponentialLR(optimizer, 0.9)

    def train_one_epoch() -> None:
        step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))
        lr_scheduler.step()  # cause

    with record(model):
        for _ in range(4):
            train_one_epoch()
            if not repaired:
                lr_scheduler.step()  # cause


@reported(
    GITHUB + "alan-turing-institute/deepsensor/issues/47",
    cause="The optimizer is made anew each time and loses its moments.",
    words=r"anew|made",
)
def optimizer_made_in_each_epoch(record: Record, repaired: bool = False) -> None:
    model = mlp()
    once = Adam(model.parameters(), lr=1e-3)

    def train_epoch() -> None:
        optimizer = once if repaired else Adam(model.parameters(), lr=1e-3)  # cause
        step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))

    with record(model):
        for _ in range(4):
            train_epoch()


@reported(
    GITHUB + "delip/PyTorchNLPBook/issues/28",
    cause="F.dropout without training= drops in eval mode too.",
    words=r"dropout",
)
def dropout_of_the_book_in_evaluation(record: Record, repaired: bool = False) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.fc1(x))
            trains = self.training or not repaired
            h = F.dropout(h, p=0.5, training=trains)  # cause
            result: Tensor = self.fc2(h)
            return result

    model = Classifier()
    optimizer = Adam(model.parameters())
    with record(model):
        model.train()
        step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).item()


@reported(
    GITHUB + "ewrfcas/face_attribute_classification_pytorch/issues/1",
    cause="A Dropout made in forward is in train mode whatever the model is in.",
    words=r"dropout",
)
def dropout_made_in_forward(record: Record, repaired: bool = False) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.drop = nn.Linear(6, 16), nn.Linear(16, 2), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x).relu()
            h = (self.drop if repaired else nn.Dropout(0.5))(h)  # cause
            result: Tensor = self.head(h)
            return result

    model = Net()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            model.train()
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(2, (8,))))
            model.eval()
            with torch.no_grad():
                model(torch.randn(8, 6)).argmax(1)


@reported(
    GITHUB + "NVIDIA-NeMo/Automodel/pull/2511",
    cause="The head has a copy of the embedding's weight, and is not tied to it.",
    words=r"tied|copy|same values",
)
def head_with_a_copy_of_the_embedding(record: Record, repaired: bool = False) -> None:
    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens, self.mix = nn.Embedding(12, 8), nn.Linear(8, 8)
            self.lm_head = nn.Linear(8, 12, bias=False)
            if repaired:
                self.lm_head.weight = self.embed_tokens.weight
            else:
                self.lm_head.weight = nn.Parameter(self.embed_tokens.weight.detach().clone())

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.lm_head(self.mix(self.embed_tokens(ids)).tanh())  # cause
            return result

    model = LanguageModel()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            ids = torch.randint(12, (4, 7))
            logits = model(ids[:, :-1])
            step(optimizer, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


@reported(
    GITHUB + "deepspeedai/DeepSpeedExamples/pull/75",
    cause="The names of what is not to decay fit no parameter: that group is empty.",
    words=r"empty|no parameter|decay",
)
def names_without_decay_that_fit_nothing(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    no_decay = ["bias", "1.weight"] if repaired else ["attn_nw", "norm_b"]
    rest = [(n, p) for n, p in model.named_parameters() if not any(part in n for part in no_decay)]
    none = [p for n, p in model.named_parameters() if any(part in n for part in no_decay)]
    groups = [
        {"params": [p for _, p in rest], "weight_decay": 0.1},
        {"params": none, "weight_decay": 0.0},
    ]
    optimizer = AdamW(groups, lr=1e-3)
    with record(model):
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # cause


@reported(
    GITHUB + "workofart/ml-by-hand/pull/85",
    cause="The weights are bfloat16, and the update is rounded away.",
    words=r"bfloat16|round",
)
def update_rounded_away(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.sign())
    if not repaired:
        model.bfloat16()
    optimizer = Adam(model.parameters(), lr=6e-4)
    with record(model):
        for _ in range(3):
            x = torch.randn(8, 6, dtype=model[0].weight.dtype)
            loss = F.cross_entropy(model(x).float(), torch.randint(3, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # cause


@reported(
    GITHUB + "philtabor/Deep-Q-Learning-Paper-To-Code/issues/16",
    cause="The target network's values are not detached.",
    words=r"target|both",
)
def target_network_that_gets_a_gradient(record: Record, repaired: bool = False) -> None:
    q_eval = mlp(4, 3)
    q_next = copy.deepcopy(q_eval)
    optimizer = Adam(q_eval.parameters())
    with record(nn.ModuleDict({"q_eval": q_eval, "q_next": q_next})):
        for _ in range(2):
            q = q_eval(torch.randn(8, 4)).gather(1, torch.randint(3, (8, 1))).squeeze(1)
            best = q_next(torch.randn(8, 4)).max(1)[0]
            if repaired:
                best = best.detach()
            q_target = torch.randn(8) + 0.99 * best
            step(optimizer, F.mse_loss(q, q_target))  # cause
