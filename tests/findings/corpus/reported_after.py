"""Bugs reported in public threads, kept apart: who writes rules reads them when the rules are done.

They were collected together with those of `reported_before`, by the same searches. What `find` says
of them tells whether rules found a bug's kind, or only the programs that their writers had seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"
NO_GRAD = "does not require grad"
IN_PLACE = "modified by an inplace operation"


# --- cuts, and terms that train nothing ----------------------------------------------------------


@reported(
    GITHUB + "guopengf/FL-MRCM/issues/10",
    cause="The adversarial loss is turned into a number before it is added to the loss.",
    words=r"item\(\)|detach",
)
def adversarial_loss_read_as_a_number(record: Record) -> None:
    generator, critic = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 1)
    optimizer = Adam(generator.parameters())
    with record(nn.ModuleDict({"G": generator, "D": critic})):
        image, target = torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8)
        output = generator(image)
        loss_recon = F.l1_loss(output, target)
        loss_adv_g = -critic(output.flatten(1)).mean()
        loss_adv_g = loss_adv_g.detach().item()  # cause
        loss = loss_recon + 0.01 * loss_adv_g
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "nikhilsinghmus/image2reverb/issues/37",
    cause="In the generator's step the critic is given a detached spectrogram.",
    words=r"detach",
)
def fake_detached_in_the_generators_step(record: Record) -> None:
    generator, critic = nn.Linear(6, 8), nn.Linear(8, 1)
    optimizer, _optimizer_d = Adam(generator.parameters()), Adam(critic.parameters())
    with record(nn.ModuleDict({"g": generator, "d": critic})):
        fake_spec, real_spec = generator(torch.randn(8, 6)), torch.randn(8, 8)
        d_fake2 = critic(fake_spec.detach())  # cause
        g_loss1 = F.mse_loss(d_fake2, torch.ones_like(d_fake2))
        g_loss2 = F.l1_loss(fake_spec, real_spec)
        optimizer.zero_grad()
        (g_loss1 + 100 * g_loss2).backward()
        optimizer.step()


@reported(
    GITHUB + "thuml/predrnn-pytorch/issues/11",
    cause="The decouple losses are copied into a new tensor, which has no gradient.",
    words=r"torch\.tensor|tensor\(\)|no gradient",
)
def decouple_losses_copied(record: Record) -> None:
    cell_c, cell_m, out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.ModuleList([cell_c, cell_m, out])
    optimizer = Adam(model.parameters())
    with record(model):
        decouple, frames = [], torch.randn(5, 2, 4)
        mse = torch.zeros(())
        for t in range(4):
            delta_c, delta_m = cell_c(frames[t]), cell_m(frames[t])
            decouple.append(F.cosine_similarity(delta_c, delta_m, dim=1).abs().mean())
            mse = mse + F.mse_loss(out(delta_c + delta_m), frames[t + 1])
        decouple_loss = torch.mean(torch.tensor(decouple))  # cause
        optimizer.zero_grad()
        (mse + 20 * decouple_loss).backward()
        optimizer.step()


@reported(
    GITHUB + "Wuziyi616/multi_part_assembly/issues/4",
    cause="The custom loss is a new tensor that depends on nothing.",
    words=r"custom_loss|no gradient|does not depend|constant",
)
def custom_loss_is_a_new_tensor(record: Record) -> None:
    model = nn.Linear(6, 7)
    optimizer = Adam(model.parameters())
    with record(model):
        pose = model(torch.randn(8, 6))
        trans_loss = pose[:, :3].square().mean()
        rot_loss = (pose[:, 3:].norm(dim=1) - 1).square().mean()
        custom_loss = torch.Tensor([0.5] * 8).mean()  # cause
        total = trans_loss + 0.2 * rot_loss + custom_loss  # cause
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


@reported(
    GITHUB + "coqui-ai/TTS/issues/2348",
    cause="The spectrogram is taken under no_grad, so the speaker loss does not reach the decoder.",
    words=r"no_grad",
)
def spectrogram_under_no_grad(record: Record) -> None:
    decoder, speaker = nn.Linear(8, 32), nn.Linear(17, 4)
    speaker.requires_grad_(False)
    optimizer = Adam(decoder.parameters())
    window = torch.hann_window(32)
    with record(nn.ModuleDict({"decoder": decoder, "speaker": speaker})):
        wave, target = decoder(torch.randn(4, 8)), torch.randn(4, 32)
        with torch.no_grad():  # cause
            spectrogram = torch.fft.rfft(wave * window).abs()  # cause
        embedding = speaker(spectrogram)
        consistency = -F.cosine_similarity(embedding, torch.randn(4, 4)).mean()
        optimizer.zero_grad()
        (F.l1_loss(wave, target) + 9 * consistency).backward()
        optimizer.step()


@reported(
    GITHUB + "pytorch/pytorch/issues/91431",
    cause="A cast to integers has no gradient.",
    words=r"long|integer",
)
def cast_to_long(record: Record) -> None:
    locate, table = nn.Linear(4, 1), nn.Embedding(10, 3)
    with record(nn.ModuleList([locate, table])):
        x = locate(torch.randn(8, 4)).sigmoid() * 9
        x = x.long()  # cause
        table(x).square().mean().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/91529",
    cause="The model's result is cloned and detached before the loss is computed of it.",
    words=r"detach",
    raises=NO_GRAD,
)
def result_cloned_and_detached(record: Record) -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(model):
        points = torch.rand(10, 2)
        y = model(points).clone().detach()  # cause
        (y - points.sum(1, keepdim=True)).square().sum().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/4620",
    cause="torch.normal draws numbers: no gradient comes to its mean and deviation.",
    words=r"normal",
)
def torch_normal_of_a_mean(record: Record) -> None:
    encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    with record(nn.ModuleDict({"encoder": encoder, "decoder": decoder})):
        x = torch.randn(8, 4)
        mu = encoder(x)
        z = torch.normal(mu, torch.ones_like(mu))  # cause
        F.mse_loss(decoder(z), x).backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/44944",
    cause="The learnable parameter is used as an index, and indexing has no gradient for it.",
    words=r"index|integer|long",
)
def parameter_as_an_index(record: Record) -> None:
    class Pick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position, self.linear = nn.Parameter(torch.tensor([1.2, 2.7])), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)[:, self.position.long()]  # cause

    model = Pick()
    with record(model):
        model(torch.randn(8, 4)).square().mean().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/45405",
    cause="The backward of the custom Function gives None to its inputs.",
    words=r"Product|None|custom",
)
def function_whose_backward_gives_none(record: Record) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return (x * w).sum(1)

        @staticmethod
        def backward(ctx: Any, *grad_output: Tensor) -> tuple[Any, Any]:
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            out = (x * w).sum(1)  # computed without grad: autograd.grad finds nothing
            if out.requires_grad:
                return torch.autograd.grad(out, (x, w), grad_output[0])
            return None, None

    w = nn.Parameter(torch.rand(3))
    body = nn.Linear(4, 3)
    with record(body):
        out = Product.apply(body(torch.randn(2, 4)), w)  # cause
        (out - 5).square().mean().backward()


@reported(
    GITHUB + "LixiangHan/GANs-for-1D-Signal/issues/7",
    cause="The gradient penalty is computed, and never added to the loss.",
    words=r"penalty|never used|unused|not part of",
)
def penalty_never_added(record: Record) -> None:
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    optimizer = Adam(critic.parameters())
    with record(critic):
        real, fake = torch.randn(4, 8), torch.randn(4, 8)
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        (grad,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        grad_penalty = 10 * (grad.norm(2, dim=1) - 1).square().mean()  # cause
        loss_d = critic(fake).mean() - critic(real).mean()
        optimizer.zero_grad()
        loss_d.backward()
        optimizer.step()
        del grad_penalty


@reported(
    GITHUB + "labmlai/annotated_deep_learning_paper_implementations/issues/66",
    cause="The teacher's logits are compared with themselves: that term trains nothing.",
    words=r"no gradient|trains nothing|kl_div",
)
def teacher_compared_with_itself(record: Record) -> None:
    large, small = nn.Linear(6, 4), nn.Linear(6, 4)
    optimizer = Adam(small.parameters())
    with record(nn.ModuleDict({"large": large, "small": small})):
        data, target = torch.randn(8, 6), torch.randint(4, (8,))
        with torch.no_grad():
            large_logits = large(data)
        output = small(data)
        log_prob = F.log_softmax(large_logits / 5, dim=-1)  # cause
        soft = F.kl_div(log_prob, F.softmax(large_logits / 5, dim=-1), reduction="batchmean")
        loss = F.cross_entropy(output, target) + 25 * soft  # cause
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- leaves --------------------------------------------------------------------------------------


@reported(
    GITHUB + "roman-vygon/triplet_loss_kws/issues/6",
    cause="requires_grad is set on a loss that has no history, and makes it a leaf.",
    words=r"\bleaf|requires_grad",
)
def requires_grad_set_on_the_loss(record: Record) -> None:
    encoder = nn.Linear(6, 4)
    optimizer = SGD(encoder.parameters(), lr=0.1)
    with record(encoder):
        embeddings = encoder(torch.randn(9, 6)).data
        anchor, positive, negative = embeddings.chunk(3)
        near, far = (anchor - positive).norm(dim=1), (anchor - negative).norm(dim=1)
        mean_losses = F.relu(near - far + 1).mean()
        mean_losses.requires_grad = True  # cause
        optimizer.zero_grad()
        mean_losses.backward()
        optimizer.step()


@reported(
    GITHUB + "yl4579/StyleTTS2/issues/258",
    cause="requires_grad can be set on leaves only, and this loss has a history.",
    words=r"\bleaf",
    raises="you can only change requires_grad flags of leaf variables",
)
def requires_grad_set_on_a_result(record: Record) -> None:
    model = nn.Linear(6, 4)
    optimizer = Adam(model.parameters())
    with record(model):
        g_loss = 5 * model(torch.randn(8, 6)).abs().mean()
        optimizer.zero_grad()
        g_loss.requires_grad = True  # cause
        g_loss.backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/140469",
    cause="randn(..., requires_grad=True) * 0.01 is not a leaf.",
    words=r"\bleaf",
    raises="can't optimize a non-leaf Tensor",
)
def leaf_times_a_number(record: Record) -> None:
    with record():
        image_syn = torch.randn(10, 3, 8, 8, requires_grad=True) * 0.01  # cause
        SGD([image_syn], lr=0.1, momentum=0.5)


@reported(
    GITHUB + "pytorch/pytorch/issues/12627",
    cause="The copy on the device is not a leaf, so the gradient of the input is None.",
    words=r"\bleaf",
    raises="NoneType",
)
def gradient_of_an_input_that_moved(record: Record) -> None:
    inputs = torch.randn(3, 5, requires_grad=True)
    with simulate_accelerator() as (device,), record():
        net = nn.Linear(5, 5).to(device)
        inputs = inputs.to(device)  # cause
        net(inputs).square().mean().backward()
        inputs = inputs + 0.1 * inputs.grad.sign()


@reported(
    GITHUB + "Hunter-DDM/knowledge-neurons/issues/14",
    cause="A parameter is edited in place outside no_grad.",
    words=r"\bleaf",
    raises="leaf Variable that requires grad",
)
def weight_edited_in_place(record: Record) -> None:
    dense, embedding = nn.Linear(6, 4), torch.randn(4)
    with record(dense):
        dense(torch.randn(2, 6)).sum().backward()
        dense.weight[:, 2] -= 2 * embedding  # cause


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
    cause="test() leaves the model in eval mode, and the next epoch trains in it.",
    words=r"eval\b|evaluation mode|train\(\)",
)
def test_leaves_eval_mode(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
    model.append(nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), lr=1e-3)

    def train(batches: Iterator[Tensor]) -> None:
        for batch in batches:
            loss = F.cross_entropy(model(batch), torch.randint(3, (8,)))  # cause
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def test() -> None:
        model.eval()  # cause
        with torch.no_grad():
            model(torch.randn(8, 6))

    with record(model):
        for _ in range(2):
            train(torch.randn(8, 6) for _ in range(2))
            test()
