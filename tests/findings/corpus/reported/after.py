"""Bugs from public threads that authors of rules may read only once their rules are finished.

They were collected together with those of `before`, by the same searches. The share that `find`
names shows whether the rules detect kinds of bugs, or only the programs that their authors knew.
"""

from __future__ import annotations

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
