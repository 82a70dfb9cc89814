"""Bugs from public threads, written before their authors knew the rules that find them.

They were scored once. The rules were changed afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"


@reported(
    GITHUB + "showlab/Olaf-World/issues/8",
    cause="The codebook is only used inside detach(), so its own loss does not reach it.",
    words=r"detach",
)
def codebook_loss_on_the_straight_through_output(record: Record) -> None:
    encoder, decoder, codebook = nn.Linear(6, 4), nn.Linear(4, 6), nn.Embedding(10, 4)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "codebook": codebook})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            x = torch.randn(8, 6)
            z_e = encoder(x)
            indices = torch.cdist(z_e, codebook.weight).argmin(1)
            z = codebook(indices)
            z_q = z_e + (z - z_e).detach()  # cause
            codebook_loss = F.mse_loss(z_q, z_e.detach())
            commitment = F.mse_loss(z_e, z_q.detach())
            loss = F.mse_loss(decoder(z_q), x) + codebook_loss + 0.25 * commitment
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "huggingface/trl/pull/6140",
    cause="The entropies are computed under no_grad, so the bonus trains nothing.",
    words=r"no_grad",
)
def entropy_bonus_under_no_grad(record: Record) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

        def forward(self, tokens: Tensor) -> Any:
            return self.head(self.body(tokens))

    def logps_and_entropies(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(tokens[:, :-1])
        logps = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        with torch.no_grad():  # cause
            probs = logits.softmax(-1)
            entropies = -(probs * logits.log_softmax(-1)).sum(-1)  # cause
        return logps, entropies

    policy = Policy()
    optimizer = Adam(policy.parameters(), lr=1e-3)
    with record(policy):
        tokens, advantages = torch.randint(20, (4, 6)), torch.randn(4, 1)
        logps, entropies = logps_and_entropies(policy, tokens)
        ratio = (logps - logps.detach()).exp()
        mask = torch.ones_like(logps)
        loss = -((ratio * advantages) * mask).sum() / mask.sum()
        entropy_loss = (entropies * mask).sum() / mask.sum().clamp(min=1.0)
        loss = loss - 0.01 * entropy_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "huggingface/trl/pull/6625",
    cause="The custom Function's backward ignores the gradient of its second result.",
    words=r"Chunked|entropy",
)
def function_that_ignores_one_gradient(record: Record) -> None:
    class ChunkedLogProb(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor) -> Any:
            logp = (hidden @ weight.T).log_softmax(-1)
            ctx.save_for_backward(hidden, weight, target, logp)
            entropy = -(logp.exp() * logp).sum(-1)
            return logp.gather(-1, target[:, None]).squeeze(-1), entropy

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            grad_logprobs, _grad_entropy = grads  # cause
            hidden, weight, target, logp = ctx.saved_tensors
            scores = F.one_hot(target, weight.shape[0]) - logp.exp()
            scores = scores * grad_logprobs[:, None]
            return scores @ weight, scores.T @ hidden, None

    body, head = nn.Linear(6, 8), nn.Linear(8, 12, bias=False)
    optimizer = Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    with record(nn.ModuleDict({"body": body, "head": head})):
        x, target = torch.randn(16, 6), torch.randint(12, (16,))
        logprobs, entropy = ChunkedLogProb.apply(body(x).tanh(), head.weight, target)  # cause
        loss = -logprobs.mean() - 0.1 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "clvrai/spirl/issues/15",
    cause="The critic is stepped before the policy loss, computed with it, goes backward.",
    words=r"step|optimizer",
    raises="modified by an inplace operation",
)
def critic_stepped_before_the_policy_backward(record: Record) -> None:
    policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    policy_opt, critic_opt = Adam(policy.parameters()), Adam(critic.parameters())
    with record(nn.ModuleDict({"policy": policy, "critic": critic})):
        obs, actions, target = torch.randn(8, 4), torch.randn(8, 2), torch.randn(8, 1)
        policy_loss = -critic(torch.cat([obs, policy(obs)], 1)).mean()
        critic_loss = F.mse_loss(critic(torch.cat([obs, actions], 1)), target)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()  # cause
        policy_opt.zero_grad()
        policy_loss.backward()
        policy_opt.step()


@reported(
    GITHUB + "ermongroup/ncsn/issues/2",
    cause="The score network is put in eval mode to log a test loss and never put back.",
    words=r"eval",
)
def in_eval_mode_since_the_first_test_loss(record: Record) -> None:
    score = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.Softplus(), nn.Linear(32, 2))
    optimizer = Adam(score.parameters(), lr=1e-3)

    def dsm(x: Tensor, sigma: float = 0.3) -> Tensor:
        noise = torch.randn_like(x) * sigma
        return 0.5 * (score(x + noise) + noise / sigma**2).square().sum(-1).mean()

    with record(score):
        score.train()
        for step in range(4):
            loss = dsm(torch.randn(32, 2))  # cause
            optimizer.zero_grad()
            loss.backward()  # cause
            optimizer.step()
            if step % 2 == 0:
                score.eval()  # cause
                with torch.no_grad():
                    dsm(torch.randn(32, 2))


@reported(
    GITHUB + "LianpoWang/SLIIF/issues/13",
    cause="The blocks stand in a plain list, so they are not registered.",
    words=r"regist|plain list",
)
def residual_blocks_in_a_plain_list(record: Record) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.net(x)  # type: ignore[no-any-return]

    class Mlps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlps = [Block() for _ in range(5)]  # cause
            self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for mlp in self.mlps:
                x = mlp(x)  # cause
            return self.last(x)  # type: ignore[no-any-return]

    model = Mlps()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        loss = F.l1_loss(model(torch.rand(32, 2)), torch.rand(32, 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "mlcommons/GaNDLF/issues/107",
    cause="The scheduler is stepped before the optimizer.",
    words=r"schedul",
)
def scheduler_stepped_in_the_validation_before(record: Record) -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1, gamma=0.5)

    def validate() -> None:
        with torch.no_grad():
            F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
        scheduler.step()  # cause

    def train() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()

    with record(model):
        for _ in range(2):
            validate()
            train()


@reported(
    GITHUB + "CIntellifusion/GeometryForcing/issues/13",
    cause="The projectors of the alignment loss are in no optimizer.",
    words=r"no optimizer",
)
def projector_of_a_loss_in_no_optimizer(record: Record) -> None:
    class Alignment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projectors = nn.ModuleList([nn.Linear(8, 5), nn.Linear(8, 5)])

        def forward(self, features: list[Tensor], target: Tensor) -> Any:
            parts = [
                1 - F.cosine_similarity(projector(feature), target).mean()  # cause
                for projector, feature in zip(self.projectors, features, strict=True)
            ]
            return sum(parts)

    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)
            self.alignment = Alignment()

        def forward(self, x: Tensor, target: Tensor) -> Any:
            noise = torch.randn_like(x)
            hidden = self.up(x + noise)
            aligned = self.alignment([hidden, hidden.relu()], target)
            return F.mse_loss(self.down(hidden.relu()), noise) + 0.5 * aligned

    model = Diffusion()
    optimizer = Adam([*model.up.parameters(), *model.down.parameters()], lr=1e-3)  # cause
    with record(model):
        for _ in range(2):
            loss = model(torch.randn(8, 6), torch.randn(8, 5))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "Lightning-AI/pytorch-lightning/issues/9599",
    cause="Gradients are clipped while they are still scaled.",
    words=r"clip",
)
def clipped_by_the_trainer_before_unscaling(record: Record) -> None:
    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.optimizer = model, Adam(model.parameters(), lr=1e-3)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def clip_gradients(self) -> None:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)  # cause

        def pre_optimization_step(self) -> None:
            self.scaler.unscale_(self.optimizer)

        def fit(self, x: Tensor, y: Tensor) -> None:
            self.optimizer.zero_grad()
            self.scaler.scale(F.cross_entropy(self.model(x), y)).backward()
            self.clip_gradients()
            self.pre_optimization_step()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    model = nn.Linear(6, 3)
    trainer = Trainer(model)
    with record(model):
        for _ in range(2):
            trainer.fit(torch.randn(8, 6), torch.randint(3, (8,)))


@reported(
    GITHUB + "Tsinghua-MARS-Lab/DenseTNT/issues/11",
    cause="The scores of the goals are detached, so the goals' network gets no gradient.",
    words=r"detach",
)
def goals_that_are_detached(record: Record) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.goals_2D_mlps = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
            self.goals_2D_decoder = nn.Linear(16, 1)

        def forward(self, goals: Tensor, hidden: Tensor) -> Tensor:
            encoded = self.goals_2D_mlps(goals).detach()  # cause
            both = torch.cat([encoded, hidden.expand(len(goals), -1)], 1)
            return self.goals_2D_decoder(both).squeeze(-1)  # type: ignore[no-any-return]

    model = nn.ModuleDict({"encoder": nn.Linear(5, 8), "decoder": Decoder()})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            scores = model["decoder"](torch.randn(12, 2), model["encoder"](torch.randn(1, 5)))
            loss = F.nll_loss(scores.log_softmax(0)[None], torch.tensor([3]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
