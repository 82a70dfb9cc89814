"""More bugs like those of `after`: optimizers, registration, clipping, freezing, modes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"
NO_GRAD = "does not require grad"
IN_PLACE = "modified by an inplace operation"


# --- what the optimizer holds, and what is registered --------------------------------------------


@reported(
    GITHUB + "microsoft/nni/issues/4521",
    cause="Speedup replaced a layer after the optimizer was made.",
    words=r"replaced|optimizer was made|no optimizer|optimizer does not hold|other parameters",
)
def layer_replaced_by_pruning(record: Record) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    with record(model):
        optimizer = SGD(model.parameters(), lr=0.1)  # cause
        smaller = nn.Linear(8, 16)
        smaller.weight.data.copy_(model[0].weight.data)
        model[0] = smaller  # cause
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 8)), torch.randint(2, (8,))).backward()
            optimizer.step()  # cause


@reported(
    GITHUB + "pytorch/pytorch/issues/632",
    cause="Parameters in a plain dict are not registered.",
    words=r"ParameterDict|ModuleDict|plain dict|not registered|no optimizer|not in the (model|opt)",
)
def parameters_in_a_dict(record: Record) -> None:
    class Aggregate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(2, 2)
            self.waggrs = {rel: nn.Parameter(torch.randn(1, 2)) for rel in range(3)}  # cause

        def forward(self, x: Tensor) -> Tensor:
            return self.out(sum(x * weight for weight in self.waggrs.values()))  # cause

    model = Aggregate()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 2)).square().mean().backward()
            optimizer.step()


@reported(
    GITHUB + "pytorch/pytorch/issues/59925",
    cause="All layers are in a plain list, so the model has no parameters.",
    words=r"ModuleList|plain list|not registered",
    raises="empty parameter list",
)
def every_layer_in_a_list(record: Record) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(4, 4) for _ in range(2)]  # cause

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    net = Net()
    with record(net):
        SGD(net.parameters(), lr=0.1)  # cause


@reported(
    GITHUB + "KaiyangZhou/pytorch-center-loss/issues/22",
    cause="The centers of the center loss are in no optimizer.",
    words=r"no optimizer|optimizer does not hold|not in (the|any) optimizer",
)
def centers_not_optimized(record: Record) -> None:
    class CenterLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.randn(3, 4))

        def forward(self, features: Tensor, labels: Tensor) -> Tensor:
            return (features - self.centers[labels]).square().sum(1).mean()

    model, center_loss = nn.Linear(6, 4), CenterLoss()
    with record(nn.ModuleDict({"model": model, "center": center_loss})):
        optimizer = SGD(model.parameters(), lr=0.1)  # cause
        for _ in range(2):
            features, labels = model(torch.randn(8, 6)), torch.randint(3, (8,))
            loss = F.cross_entropy(features, labels) + 0.1 * center_loss(features, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # cause


# --- the life of a gradient ----------------------------------------------------------------------


@reported(
    GITHUB + "facebookresearch/nwm/issues/16",
    cause="In the branch for bfloat16 nothing clears the gradients.",
    words=r"clear|zero_grad",
)
def zero_grad_in_one_branch_only(record: Record) -> None:
    model, bfloat_enable = nn.Linear(6, 6), True
    opt = torch.optim.AdamW(model.parameters())
    with record(model):
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat_enable):
                loss = model(torch.randn(8, 6)).square().mean()
            if not bfloat_enable:
                opt.zero_grad()
            loss.backward()  # cause
            opt.step()  # cause


@reported(
    GITHUB + "bytetriper/RAE/issues/67",
    cause="zero_grad() runs for every microbatch, so that only the last one counts.",
    words=r"clear|zero_grad",
)
def microbatches_cleared(record: Record) -> None:
    model = nn.Conv1d(2, 2, 3, padding=1)
    optimizer = torch.optim.AdamW(model.parameters())
    with record(model):
        for _ in range(2):
            for micro in torch.randn(8, 2, 5).chunk(4):
                optimizer.zero_grad(set_to_none=True)  # cause
                loss = F.mse_loss(model(micro), micro) / 4
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


@reported(
    GITHUB + "ultralytics/ultralytics/pull/11217",
    cause="zero_grad() at the start of an epoch discards what the last batches accumulated.",
    words=r"clear|zero_grad",
)
def epoch_begins_with_zero_grad(record: Record) -> None:
    model = nn.Linear(6, 2)
    optimizer, accumulate, last_step = SGD(model.parameters(), lr=0.1), 4, -1
    with record(model):
        for epoch in range(2):
            optimizer.zero_grad()  # cause
            for i in range(6):
                number = i + 6 * epoch
                F.cross_entropy(model(torch.randn(4, 6)), torch.randint(2, (4,))).backward()
                if number - last_step >= accumulate:
                    optimizer.step()
                    optimizer.zero_grad()
                    last_step = number


@reported(
    GITHUB + "awslabs/graphstorm/issues/1366",
    cause="The gradients are clipped when the step has already used them.",
    words=r"clip",
)
def clipping_that_comes_too_late(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer, max_grad_norm = Adam(model.parameters()), 1.0
    with record(model):
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm, 2.0)  # cause


@reported(
    GITHUB + "rwth-i6/returnn/issues/1590",
    cause="Gradients are clipped by value while they are scaled by the GradScaler.",
    words=r"clip.*scale|scale.*clip|unscale",
)
def clipped_by_value_while_scaled(record: Record) -> None:
    model = nn.Linear(6, 2)
    optimizer, scaler = Adam(model.parameters()), torch.amp.GradScaler("cpu")
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 6)).square().mean()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)  # cause
            scaler.step(optimizer)
            scaler.update()


@reported(
    GITHUB + "zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch/issues/7",
    cause="Neither discriminator's optimizer ever steps.",
    words=r"(never|not|no) .*step|step.* never|stepped",
)
def two_discriminators_never_step(record: Record) -> None:
    generator, d1, d2 = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 1), nn.Linear(16, 1)
    optimizer_g = Adam(generator.parameters())
    optimizer_d1, optimizer_d2 = Adam(d1.parameters()), Adam(d2.parameters())
    with record(nn.ModuleList([generator, d1, d2])):
        for _ in range(2):
            blurred, sharp = torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8)
            fake = generator(blurred)
            optimizer_d1.zero_grad()
            optimizer_d2.zero_grad()
            whole = d1(fake.detach().flatten(1)).mean() - d1(sharp.flatten(1)).mean()
            part = d2(fake.detach()[..., :4, :4].flatten(1)).mean()
            loss_d = whole + part - d2(sharp[..., :4, :4].flatten(1)).mean()
            loss_d.backward()  # cause
            optimizer_g.zero_grad()
            loss_g = F.l1_loss(fake, sharp) - d1(fake.flatten(1)).mean()
            loss_g.backward()
            optimizer_g.step()


@reported(
    GITHUB + "MyeongJin-Kim/Learning-Texture-Invariant-Representation/issues/11",
    cause="The adversarial loss runs backward after the step, and its gradients are cleared.",
    words=r"clear|after .*step|before .*step|never used",
)
def adversarial_backward_after_the_step(record: Record) -> None:
    model, critic = nn.Linear(6, 3), nn.Linear(3, 1)
    optimizer, _optimizer_d = SGD(model.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)
    with record(nn.ModuleDict({"model": model, "critic": critic})):
        for _ in range(3):
            optimizer.zero_grad()  # cause
            source, target = torch.randn(8, 6), torch.randn(8, 6)
            F.cross_entropy(model(source), torch.randint(3, (8,))).backward()
            optimizer.step()
            loss_adv = -critic(model(target).softmax(1)).mean() * 0.001
            loss_adv.backward()  # cause


@reported(
    GITHUB + "jdonnelly36/Deformable-ProtoPNet/issues/6",
    cause="The scheduler steps before the optimizer, so the first learning rate is skipped.",
    words=r"schedul",
)
def scheduler_first(record: Record) -> None:
    model = nn.Linear(6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with record(model):
        for _ in range(3):
            scheduler.step()  # cause
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), torch.randint(2, (8,))).backward()
            optimizer.step()


# --- freezing and modes --------------------------------------------------------------------------


@reported(
    GITHUB + "jina-ai/finetuner/issues/435",
    cause="Every layer is frozen, also the last one.",
    words=r"frozen|freez",
    raises=NO_GRAD,
)
def everything_frozen(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with record(model):
        for parameter in model.parameters():
            parameter.requires_grad = False  # cause
        anchor, positive = model(torch.randn(8, 6)), model(torch.randn(8, 6))
        loss = (1 - F.cosine_similarity(anchor, positive)).mean()
        loss.backward()  # cause


@reported(
    GITHUB + "pytorch/tutorials/issues/1624",
    cause="evaluate() leaves the model in eval mode, and the next epoch trains in it.",
    words=r"eval\b|evaluation mode|train\(\)",
)
def evaluation_leaves_eval_mode(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
    model.append(nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), lr=1e-3)

    def train(batches: Iterator[Tensor]) -> None:
        for batch in batches:
            loss = F.cross_entropy(model(batch), torch.randint(3, (8,)))  # cause
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def evaluate() -> None:
        model.eval()  # cause
        with torch.no_grad():
            model(torch.randn(8, 6))

    with record(model):
        for _ in range(2):
            train(torch.randn(8, 6) for _ in range(2))
            evaluate()
