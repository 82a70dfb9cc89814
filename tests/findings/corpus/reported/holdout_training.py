"""Bugs of roles, optimizers and calls for which no rule was written; not for authors of rules."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from tests.findings.corpus.cases import Record, reported, step
from tests.findings.corpus.models import mlp

GITHUB = "https://github.com/"

# --- roles ---------------------------------------------------------------------------------------


@reported(
    GITHUB + "philtabor/Deep-Q-Learning-Paper-To-Code/issues/9",
    cause="The values of the next states come from the network that learns, with their history.",
    words=r"both|target",
)
def double_q_target_with_history(record: Record, repaired: bool = False) -> None:
    q_eval = mlp(4, 3)
    optimizer = Adam(q_eval.parameters())
    criterion = nn.SmoothL1Loss()
    with record(q_eval):
        for _ in range(2):
            states, states_, done = torch.randn(8, 4), torch.randn(8, 4), torch.rand(8) < 0.1
            index = torch.arange(8)
            q_pred = q_eval(states)[index, torch.randint(3, (8,))]
            if repaired:
                with torch.no_grad():
                    q_next = q_eval(states_)
            else:
                q_next = q_eval(states_)
            q_next = q_next.max(dim=1)[0].masked_fill(done, 0.0)
            q_target = torch.randn(8) + 0.9 * q_next
            step(optimizer, criterion(q_target, q_pred))  # cause


@reported(
    GITHUB + "muupan/async-rl/issues/12",
    cause="The advantage that weights log_prob still has the history of the values.",
    words=r"log_prob|weight",
)
def advantage_with_the_history_of_the_values(record: Record, repaired: bool = False) -> None:
    body, pi, v = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    model = nn.ModuleDict({"body": body, "pi": pi, "v": v})
    optimizer = Adam(model.parameters())
    with record(model):
        pi_loss: Any = 0
        v_loss: Any = 0
        for _ in range(3):
            h = body(torch.randn(1, 4)).relu()
            policy, value = Categorical(logits=pi(h)), v(h).squeeze()
            log_prob = policy.log_prob(policy.sample()).squeeze()
            advantage = torch.randn(()) - value
            weight = advantage.detach() if repaired else advantage
            pi_loss = pi_loss - log_prob * weight  # cause
            v_loss = v_loss + advantage.square() / 2
        step(optimizer, pi_loss + v_loss)


@reported(
    GITHUB + "philtabor/Youtube-Code-Repository/issues/23",
    cause="The value's target is computed by the critic and the actor with their history.",
    words=r"both|target|value",
)
def value_target_with_history(record: Record, repaired: bool = False) -> None:
    actor, critic, value = mlp(4, 2), mlp(5, 1), mlp(4, 1)
    value_optimizer = Adam(value.parameters())
    with record(nn.ModuleDict({"actor": actor, "critic": critic, "value": value})):
        for _ in range(2):
            state = torch.randn(8, 4)
            mean, log_std = actor(state).chunk(2, 1)
            policy = Normal(mean, log_std.exp())
            action = policy.rsample()
            critic_value = critic(torch.cat([state, action], 1)).view(-1)
            value_target = critic_value - policy.log_prob(action).view(-1)
            if repaired:
                value_target = value_target.detach()
            value_loss = 0.5 * F.mse_loss(value(state).view(-1), value_target)  # cause
            step(value_optimizer, value_loss)


@reported(
    GITHUB + "arxyzan/data2vec-pytorch/issues/8",
    cause="The averaged teacher is a copy whose parameters take gradients too.",
    words=r"teacher|both|target",
)
def averaged_teacher_that_takes_gradients(record: Record, repaired: bool = False) -> None:
    student, head = mlp(6, 8), nn.Linear(8, 8)
    teacher = copy.deepcopy(student)
    if repaired:
        teacher.requires_grad_(False)
    optimizer = Adam([*student.parameters(), *head.parameters()])
    with record(nn.ModuleDict({"student": student, "head": head, "teacher": teacher})):
        for _ in range(2):
            x = torch.randn(8, 6)
            y = teacher(x)
            step(optimizer, F.smooth_l1_loss(head(student(x + torch.randn(8, 6))), y))  # cause
            with torch.no_grad():
                for own, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    own.lerp_(new, 0.01)


@reported(
    GITHUB + "huangzongmou/yolov8_Distillation/issues/5",
    cause="The layer that aligns the student's features is part of the loss, and no optimizer "
    "holds it.",
    words=r"no optimizer|not in",
)
def aligning_layer_of_the_loss(record: Record, repaired: bool = False) -> None:
    class FeatureLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.align = nn.Conv2d(3, 5, 1)

        def forward(self, y_s: Tensor, y_t: Tensor) -> Tensor:
            return F.mse_loss(self.align(y_s), y_t)  # cause

    student, teacher, distance = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 5, 3), FeatureLoss()
    parameters = [*student.parameters(), *(distance.parameters() if repaired else ())]
    optimizer = Adam(parameters)
    with record(student):
        for _ in range(2):
            x = torch.randn(2, 2, 6, 6)
            with torch.no_grad():
                target = teacher(x)
            y_s = student(x)
            step(optimizer, distance(y_s, target) + y_s.square().mean())


@reported(
    GITHUB + "Hsintien-Ng/idinvert_pytorch-reproduced/issues/1",
    cause="optimizer_D.zero_grad() is missing: its step takes what the encoder's loss left too.",
    words=r"not cleared|another|other.* loss|earlier",
)
def discriminator_gradients_never_cleared(record: Record, repaired: bool = False) -> None:
    encoder, discriminator = mlp(6, 6), mlp(6, 1)
    optimizer_e, optimizer_d = Adam(encoder.parameters()), Adam(discriminator.parameters())
    with record(nn.ModuleDict({"e": encoder, "d": discriminator})):
        for _ in range(3):
            x = torch.randn(8, 6)
            xr = encoder(x)
            loss_e = F.mse_loss(xr, x) + F.softplus(-discriminator(xr)).mean()
            optimizer_e.zero_grad()
            loss_e.backward()  # cause
            optimizer_e.step()
            real, fake = discriminator(x), discriminator(xr.detach())
            loss_d = F.softplus(fake).mean() + F.softplus(-real).mean()
            if repaired:
                optimizer_d.zero_grad()
            loss_d.backward()  # cause
            optimizer_d.step()  # cause


# --- did the call matter -------------------------------------------------------------------------


@reported(
    GITHUB + "EagleW/Writing-editing-Network/issues/3",
    cause="backward keeps the graph, which nothing uses again.",
    words=r"retain_graph",
)
def graph_of_each_draft_retained(record: Record, repaired: bool = False) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn = nn.Embedding(12, 6), nn.GRU(6, 8, batch_first=True)
            self.out = nn.Linear(8, 12)

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.out(self.rnn(self.embed(ids))[0])
            return result

    model = Decoder()
    optimizer = Adam(model.parameters())

    def train_batch(ids: Tensor) -> float:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward(retain_graph=not repaired)  # cause
        optimizer.step()
        return loss.item()

    with record(model):
        for _ in range(3):
            train_batch(torch.randint(12, (4, 6)))


@reported(
    GITHUB + "aimagelab/meshed-memory-transformer/issues/71",
    cause="The scheduler steps for each batch and once more for the epoch.",
    words=r"scheduler.*(more often|times)|twice",
)
def scheduler_stepped_for_batch_and_epoch(record: Record, repaired: bool = False) -> None:
    model = mlp()
    optim = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optim, 2, 0.5)

    def train_xe() -> None:
        if not repaired:
            scheduler.step()  # cause
        for _ in range(2):
            step(optim, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))
            scheduler.step()  # cause

    with record(model):
        for _ in range(3):
            train_xe()


@reported(
    GITHUB + "karpathy/nanoGPT/pull/240",
    cause="scaled_dot_product_attention drops in eval mode: its dropout_p is the same.",
    words=r"dropout",
)
def attention_that_drops_in_evaluation(record: Record, repaired: bool = False) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.dropout = nn.Linear(8, 24), nn.Linear(8, 8), 0.2

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
            p = self.dropout if self.training or not repaired else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # cause
            result: Tensor = self.out(y.transpose(1, 2).flatten(2))
            return result

    model = nn.Sequential(nn.Embedding(12, 8), Attention(), nn.Linear(8, 12))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            model.train()
            ids = torch.randint(12, (4, 7))
            step(optimizer, F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()


@reported(
    GITHUB + "rixwew/pytorch-fm/issues/21",
    cause="F.dropout of the attention's scores is given no training=self.training.",
    words=r"dropout",
)
def dropout_of_scores_in_evaluation(record: Record, repaired: bool = False) -> None:
    class AttentionalFactorization(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.projection, self.fc = (
                nn.Linear(4, 4),
                nn.Linear(4, 1),
                nn.Linear(4, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            p, q = x[:, :-1], x[:, 1:]
            inner = p * q
            scores = F.softmax(self.projection(F.relu(self.attention(inner))), dim=1)
            if repaired:
                scores = F.dropout(scores, p=0.2, training=self.training)
            else:
                scores = F.dropout(scores, p=0.2)  # cause
            result: Tensor = self.fc((scores * inner).sum(1))
            return result

    model = AttentionalFactorization()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            y = torch.randint(2, (8, 1)).float()
            step(optimizer, F.binary_cross_entropy_with_logits(model(torch.randn(8, 5, 4)), y))
        with torch.no_grad():
            model.eval()
            model(torch.randn(8, 5, 4)).sigmoid()


@reported(
    GITHUB + "NVIDIA/Megatron-LM/issues/656",
    cause="The head's weight is moved to a buffer of its own: it is tied to the embedding no more.",
    words=r"tied|copy|same values",
)
def head_untied_by_a_buffer(record: Record, repaired: bool = False) -> None:
    embedding, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    model = nn.ModuleDict({"embedding": embedding, "body": nn.Linear(8, 8), "head": head})
    head.weight = embedding.weight
    if not repaired:
        buffer = torch.empty(12, 8)
        buffer.copy_(head.weight.detach())
        head.weight = nn.Parameter(buffer)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            ids = torch.randint(12, (4, 7))
            logits = head(model["body"](embedding(ids[:, :-1])).relu())  # cause
            step(optimizer, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


@reported(
    GITHUB + "Tony-Y/pytorch_warmup/issues/12",
    cause="zero_grad() runs between backward and step: nothing is ever optimized.",
    words=r"cleared",
)
def cleared_between_backward_and_step(record: Record, repaired: bool = False) -> None:
    model = mlp()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
            if repaired:
                optimizer.zero_grad()
            loss.backward()
            if not repaired:
                optimizer.zero_grad()  # cause
            optimizer.step()


@reported(
    GITHUB + "pytorch/ao/pull/1124",
    cause="Weights of bfloat16 are trained with a rate so small that rounding takes the update.",
    words=r"bfloat16|round",
)
def fine_tuning_in_bfloat16_alone(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.sign())
    if not repaired:
        model.to(torch.bfloat16)
    optimizer = Adam(model.parameters(), lr=1e-5)
    with record(model):
        for _ in range(3):
            x = torch.randn(16, 8, dtype=model[0].weight.dtype)
            optimizer.zero_grad()
            F.cross_entropy(model(x).float(), torch.randint(3, (16,))).backward()
            optimizer.step()  # cause
