"""More bugs like those of `before`: optimizers, registration, clearing, clipping and freezing."""

from __future__ import annotations

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
    GITHUB + "pytorch/pytorch/issues/666",
    cause="Layers in a plain list are not registered: the optimizer does not hold them.",
    words=r"ModuleList|plain list|not registered|no optimizer|not in the (model|optimizer)",
)
def layers_in_a_list(record: Record) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.list_of_layers = [nn.Linear(4, 4) for _ in range(3)]  # cause

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            for layer in self.list_of_layers:
                x = layer(x).tanh()  # cause
            return x

    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()


@reported(
    GITHUB + "graykode/nlp-tutorial/issues/29",
    cause="A layer is made anew in each forward, so that it is never trained.",
    words=r"made (anew )?in|each forward|in (the|its) forward|no optimizer|not registered",
)
def layer_made_in_forward(record: Record) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            scores = (self.query(x) @ x.transpose(1, 2)).softmax(-1)
            out = nn.Linear(8, 8)(scores @ x)  # cause
            return nn.functional.layer_norm(out + x, (8,))

    model = Attention()
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 5, 8)).square().mean().backward()
            optimizer.step()


@reported(
    GITHUB + "zjunlp/HVPNeT/issues/5",
    cause="The parameters of crf and fc were never appended to what the optimizer gets.",
    words=r"no optimizer|optimizer does not hold|not in (the|any) optimizer",
)
def groups_that_were_not_appended(record: Record) -> None:
    model = nn.ModuleDict({"bert": nn.Linear(6, 6), "crf": nn.Linear(6, 6), "fc": nn.Linear(6, 3)})
    with record(model):
        parameters = [{"params": list(model["bert"].parameters()), "lr": 1e-4}]
        params: dict[str, object] = {"lr": 5e-2, "params": []}
        for name, parameter in model.named_parameters():
            if "crf" in name or name.startswith("fc"):
                params["params"].append(parameter)  # type: ignore[attr-defined]
        optimizer = Adam(parameters)  # cause
        x = model["fc"](model["crf"](model["bert"](torch.randn(8, 6))))
        F.cross_entropy(x, torch.zeros(8, dtype=torch.long)).backward()
        optimizer.step()  # cause


@reported(
    GITHUB + "pytorch/pytorch/issues/54765",
    cause="The network was replaced after the optimizer was made: it updates the old one.",
    words=r"replaced|optimizer was made|no optimizer|optimizer does not hold|other parameters",
)
def network_replaced_after_the_optimizer(record: Record) -> None:
    with record():
        net = nn.Linear(4, 2)
        optimizer = Adam(net.parameters(), lr=3e-2)  # cause
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))  # cause
        for _ in range(2):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # cause


# --- the life of a gradient ----------------------------------------------------------------------


@reported(
    GITHUB + "wenet-e2e/wekws/pull/73",
    cause="Nothing clears the gradients between two steps.",
    words=r"clear|zero_grad",
)
def zero_grad_missing(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(2, (8,)))
            loss.backward()  # cause
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()  # cause


@reported(
    GITHUB + "meta-pytorch/opacus/issues/93",
    cause="zero_grad() clears the accumulated gradients at every micro-batch.",
    words=r"clear|zero_grad",
)
def accumulation_cleared_at_each_batch(record: Record) -> None:
    model = nn.Linear(6, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(8):
            optimizer.zero_grad()  # cause
            loss = F.cross_entropy(model(torch.randn(4, 6)), torch.randint(2, (4,))) / 4
            loss.backward()
            if (i + 1) % 4 == 0:
                optimizer.step()


@reported(
    GITHUB + "VGraphRNN/VGRNN/issues/4",
    cause="The gradients are clipped after the step that used them.",
    words=r"clip",
)
def clipped_after_the_step(record: Record) -> None:
    model = nn.GRU(4, 8)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            out, _ = model(torch.randn(5, 2, 4))
            out.square().mean().backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10)  # cause


@reported(
    GITHUB + "milesial/Pytorch-UNet/issues/468",
    cause="The gradients are clipped while they are still multiplied by the loss scale.",
    words=r"clip.*scale|scale.*clip|unscale",
)
def clipped_while_scaled(record: Record) -> None:
    model = nn.Conv2d(3, 2, 3, padding=1)
    optimizer = torch.optim.RMSprop(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with record(model):
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.randint(2, (2, 8, 8)))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # cause
            scaler.step(optimizer)
            scaler.update()


@reported(
    GITHUB + "zhaoyuzhi/deepfillv2/issues/6",
    cause="The discriminator's optimizer never steps.",
    words=r"(never|not|no) .*step|step.* never|stepped",
)
def discriminator_never_steps(record: Record) -> None:
    generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer_g = Adam(generator.parameters())
    optimizer_d = Adam(discriminator.parameters())
    with record(nn.ModuleDict({"g": generator, "d": discriminator})):
        for _ in range(2):
            z, real = torch.randn(8, 4), torch.randn(8, 4)
            optimizer_d.zero_grad()
            loss_d = discriminator(generator(z).detach()).mean() - discriminator(real).mean()
            loss_d.backward()  # cause
            optimizer_g.zero_grad()
            loss_g = -discriminator(generator(z)).mean()
            loss_g.backward()
            optimizer_g.step()


# --- freezing and modes --------------------------------------------------------------------------


@reported(
    GITHUB + "CSCYQJ/MICCAI23-ProtoContra-SFDA/issues/18",
    cause="requires_grad = False on a module is an attribute that freezes nothing.",
    words=r"requires_grad.*(attribute|module|nothing|no effect)|requires_grad_\(False\)",
)
def module_given_requires_grad(record: Record) -> None:
    model = nn.ModuleDict({"body": nn.Linear(4, 8), "outc": nn.Linear(8, 2)})
    with record(model):
        model["outc"].requires_grad = False  # cause
        optimizer = SGD(model.parameters(), lr=0.1)
        loss = model["outc"](model["body"](torch.randn(8, 4)).relu()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "udacity/deep-learning-v2-pytorch/issues/12",
    cause="require_grad is not requires_grad: the features are trained.",
    words=r"require_grad\b",
)
def require_grad_without_s(record: Record) -> None:
    vgg = nn.ModuleDict({"features": nn.Conv2d(3, 4, 3), "classifier": nn.Linear(4, 2)})
    with record(vgg):
        for param in vgg["features"].parameters():
            param.require_grad = False  # cause
        optimizer = SGD(vgg["classifier"].parameters(), lr=0.001)
        features = vgg["features"](torch.randn(4, 3, 8, 8)).relu().mean((2, 3))
        loss = F.cross_entropy(vgg["classifier"](features), torch.tensor([0, 1, 0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "shubhamagarwal92/mmd/issues/14",
    cause="evaluate() sets the model to eval mode and nothing sets it back: no dropout any more.",
    words=r"eval\b|evaluation mode|train\(\)",
)
def never_back_to_train_mode(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = Adam(model.parameters())

    def evaluate() -> float:
        model.eval()  # cause
        with torch.no_grad():
            return model(torch.randn(8, 6)).argmax(1).float().mean().item()

    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(2, (8,)))  # cause
            loss.backward()
            optimizer.step()
            evaluate()
