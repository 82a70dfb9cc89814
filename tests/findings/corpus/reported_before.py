"""Bugs reported in public threads, collected before the rules of this year were written."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributions import Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"
NO_GRAD = "does not require grad"
IN_PLACE = "modified by an inplace operation"


# --- cuts ---------------------------------------------------------------------------------------


@reported(
    GITHUB + "pytorch/pytorch/issues/1339",
    cause="The second model gets the argmax of the first one's output, which has no gradient.",
    words=r"\bmax\(\)|argmax|indices",
)
def argmax_between_two_models(record: Record) -> None:
    first, second = nn.Linear(4, 6), nn.Embedding(6, 3)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with record(nn.ModuleList([first, second])):
        y = first(torch.randn(8, 4))
        chosen = torch.max(y, 1)[1]  # cause
        loss = F.cross_entropy(second(chosen), torch.randint(3, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "LZGMatrix/BOP19_CDPN_2019ICCV/issues/4",
    cause="The loss is computed of coordinates that argmax gave.",
    words=r"argmax",
    raises=NO_GRAD,
)
def coordinates_from_argmax(record: Record) -> None:
    model = nn.Conv1d(3, 64, 1)
    with record(model):
        bins = model(torch.randn(2, 3, 10))
        coordinates = torch.argmax(bins, dim=1)  # cause
        coordinates = 2.0 * coordinates.float() / 63.0 - 1.0
        loss = F.l1_loss(coordinates, torch.rand(2, 10))
        loss.backward()


@reported(
    GITHUB + "isayev/ReLeaSE/issues/39",
    cause="The policy loss is summed up of numbers read with item().",
    words=r"item\(\)",
    raises=NO_GRAD,
)
def policy_loss_of_items(record: Record) -> None:
    policy = nn.Linear(4, 3)
    optimizer = Adam(policy.parameters())
    with record(policy):
        rl_loss, discounted = torch.zeros(1), 1.0
        for _ in range(4):
            log_probs = F.log_softmax(policy(torch.randn(1, 4)), dim=1)
            rl_loss -= log_probs[0, 1].item() * discounted  # cause
            discounted *= 0.9
        optimizer.zero_grad()
        rl_loss.backward()
        optimizer.step()


@reported(
    GITHUB + "wangle53/CSA-CDGAN/issues/5",
    cause="The adversarial term of the generator's loss is computed of a detached prediction.",
    words=r"detach",
)
def adversarial_term_detached(record: Record) -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = Adam(generator.parameters())
    with record(nn.ModuleDict({"generator": generator, "critic": critic})):
        fake, real = generator(torch.randn(8, 4)), torch.randn(8, 4)
        pred_fake = critic(fake).detach()  # cause
        err_adv = F.binary_cross_entropy_with_logits(pred_fake, torch.ones(8, 1))
        err_con = F.l1_loss(fake, real)
        optimizer.zero_grad()
        (err_adv + 50 * err_con).backward()
        optimizer.step()


@reported(
    GITHUB + "queenie88/A-GCN/issues/4",
    cause="The learned adjacency is detached, so that the weights that make it learn nothing.",
    words=r"detach",
)
def adjacency_detached(record: Record) -> None:
    class Adaptive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta, self.phi, self.out = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            adj = torch.softmax(self.theta(x) @ self.phi(x).transpose(1, 2), dim=-1)
            adj = adj.detach()  # cause
            return self.out(adj @ x).mean(1)

    model = Adaptive()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 5, 6)), torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()


@reported(
    GITHUB + "yifita/deep_cage/issues/16",
    cause="The regularization of the weights is computed of weights that were detached.",
    words=r"detach",
)
def regularization_of_detached_weights(record: Record) -> None:
    net = nn.Linear(3, 5)
    optimizer = Adam(net.parameters())
    with record(net):
        points, cage = torch.randn(10, 3), torch.randn(5, 3)
        weights = net(points).softmax(1)
        deformed = weights @ cage
        weights = weights.detach()  # cause
        loss = F.mse_loss(deformed, points) + 0.1 * weights.clamp(max=0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "Ugenteraan/Deep_Hierarchical_Classification/issues/6",
    cause="The dependency term is computed of argmaxes, so no gradient comes from it.",
    words=r"argmax|compar|no gradient",
)
def dependency_term_of_argmax(record: Record) -> None:
    model = nn.ModuleDict({"upper": nn.Linear(6, 2), "lower": nn.Linear(6, 4)})
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        x = torch.randn(8, 6)
        upper, lower = model["upper"](x), model["lower"](x)
        wrong = torch.argmax(upper, 1) != torch.argmax(lower, 1) // 2  # cause
        dloss = wrong.float().mean()
        loss = F.cross_entropy(upper, torch.zeros(8, dtype=torch.long))
        loss = loss + F.cross_entropy(lower, torch.zeros(8, dtype=torch.long)) + dloss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "jankrepl/deepdow/pull/106",
    cause="sample() draws under no_grad; rsample() lets the gradient through.",
    words=r"\bsample|rsample",
)
def sample_instead_of_rsample(record: Record) -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(6, 4), "decoder": nn.Linear(2, 6)})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(16, 6)
        mean, log_std = model["encoder"](x).chunk(2, dim=1)
        z = Normal(mean, log_std.exp()).sample()  # cause
        loss = F.mse_loss(model["decoder"](z), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- leaves, and what becomes of them ------------------------------------------------------------


@reported(
    GITHUB + "speechbrain/speechbrain/issues/735",
    cause="Variable(loss, requires_grad=True) makes the loss a leaf: backward ends there.",
    words=r"leaf|Variable",
)
def loss_made_a_variable(record: Record) -> None:
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            predict = model(torch.randn(8, 8)).argmax(1).float()
            loss = F.mse_loss(predict, torch.rand(8))
            loss = Variable(loss, requires_grad=True)  # cause
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "vinsis/ternary-quantization/issues/4",
    cause="What .to(device) gives of a leaf is not a leaf.",
    words=r"\bleaf",
    raises="can't optimize a non-leaf Tensor",
)
def scaling_factors_moved_after_they_were_made(record: Record) -> None:
    with simulate_accelerator() as (device,), record():
        scaling = [torch.ones(2, requires_grad=True).to(device) for _ in range(3)]  # cause
        SGD(scaling, lr=0.1)


@reported(
    GITHUB + "pytorch/pytorch/issues/19778",
    cause="The view of a leaf is not a leaf, so that its .grad stays None.",
    words=r"\bleaf",
    raises="NoneType",
)
def gradient_of_a_view(record: Record) -> None:
    with record():
        points = torch.tensor([0.25, 0.75], requires_grad=True).view(2, 1, 1)  # cause
        for _ in range(2):
            points.square().sum().backward()
            with torch.no_grad():
                points -= 0.1 * points.grad


@reported(
    GITHUB + "BaiTheBest/SparseLLM/issues/13",
    cause="s = s - lr * s.grad makes a new tensor that is not a leaf and has no .grad.",
    words=r"\bleaf",
    raises="NoneType",
)
def update_makes_a_new_tensor(record: Record) -> None:
    with record():
        s = torch.randn(4, 3, requires_grad=True)
        for _ in range(3):
            loss = (s.sum(1) - 1).square().mean()
            loss.backward()
            s = s - 0.1 * s.grad  # cause
            s.grad.zero_()


@reported(
    GITHUB + "Atcold/NYU-DLSP20/issues/765",
    cause="A parameter that requires grad is written to in place, through a view.",
    words=r"\bleaf",
    raises="a view of a leaf Variable",
)
def sinusoids_written_into_an_embedding(record: Record) -> None:
    embedding = nn.Embedding(10, 4)
    with record():
        theta = torch.arange(10.0)[:, None] / 10_000 ** (torch.arange(4.0) / 4)
        embedding.weight[:, 0::2] = torch.sin(theta[:, 0::2])  # cause


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


# --- a term that trains nothing ------------------------------------------------------------------


@reported(
    GITHUB + "facebookresearch/DomainBed/issues/50",
    cause="Without create_graph the gradients in the penalty are constants.",
    words=r"create_graph",
)
def penalty_without_create_graph(record: Record) -> None:
    network = nn.Linear(6, 2)
    optimizer = Adam(network.parameters())
    with record(network):
        losses = []
        for _ in range(2):
            losses.append(F.cross_entropy(network(torch.randn(8, 6)), torch.randint(2, (8,))))
        mean = sum(losses) / 2
        params = list(network.parameters())
        mean_grad = torch.autograd.grad(mean, params, retain_graph=True)  # cause
        penalty = 0.0
        for loss in losses:
            grads = torch.autograd.grad(loss, params, retain_graph=True)  # cause
            penalty += sum((g - m).pow(2).sum() for g, m in zip(grads, mean_grad, strict=True))
        optimizer.zero_grad()
        (mean + 1000 * penalty).backward()
        optimizer.step()
