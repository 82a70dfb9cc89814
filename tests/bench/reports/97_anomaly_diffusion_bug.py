"""Train a diffusion model for anomaly detection together with a segmentation network."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def mean_flat(tensor):
    return tensor.mean(dim=list(range(1, tensor.dim())))


class GaussianDiffusionModel:
    def __init__(self, num_timesteps=100):
        betas = torch.linspace(1e-3, 0.05, num_timesteps)
        self.num_timesteps = num_timesteps
        self.alphas_cumprod = (1 - betas).cumprod(0)

    def extract(self, values, t):
        return values[t].view(-1, 1, 1, 1)

    def sample_q(self, x_0, t, noise):
        a = self.extract(self.alphas_cumprod, t)
        return a.sqrt() * x_0 + (1 - a).sqrt() * noise

    def predict_x_0_from_eps(self, x_t, t, eps):
        a = self.extract(self.alphas_cumprod, t)
        return (x_t - (1 - a).sqrt() * eps) / a.sqrt()

    def calc_loss(self, model, x_0, t):
        noise = torch.randn_like(x_0)
        x_t = self.sample_q(x_0, t, noise)
        estimate_noise = model(x_t, t)
        return {"loss": mean_flat((estimate_noise - noise).square())}, x_t, estimate_noise

    def norm_guided_one_step_denoising(self, model, x_0, anomaly_label, args):
        normal_t = torch.randint(0, args["less_t_range"], (x_0.shape[0],))
        noisier_t = torch.randint(args["less_t_range"], self.num_timesteps, (x_0.shape[0],))
        normal_loss, x_normal_t, estimate_noise_normal = self.calc_loss(model, x_0, normal_t)
        noisier_loss, x_noisier_t, estimate_noise_noisier = self.calc_loss(model, x_0, noisier_t)
        pred_x_0_noisier = self.predict_x_0_from_eps(x_noisier_t, noisier_t, estimate_noise_noisier).clamp(-1, 1)
        pred_x_t_noisier = self.sample_q(pred_x_0_noisier, normal_t, estimate_noise_normal)
        loss = (normal_loss["loss"] + noisier_loss["loss"])[anomaly_label == 0].mean()
        scale = (1 - self.extract(self.alphas_cumprod, normal_t)).sqrt()
        estimate_noise_hat = estimate_noise_normal - scale * args["condition_w"] * (pred_x_t_noisier - x_normal_t)
        return loss, self.predict_x_0_from_eps(x_normal_t, normal_t, estimate_noise_hat).clamp(-1, 1)


class UNetModel(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.time = nn.Embedding(100, channels)
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, x, t):
        return self.conv2(F.silu(self.conv1(x) + self.time(t)[..., None, None]))


class SegmentationSubNetwork(nn.Sequential):
    def __init__(self, channels=12):
        super().__init__(nn.Conv2d(2, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 1, 3, padding=1), nn.Sigmoid())


def make_sample():
    image = torch.full((1, 8, 8), 0.2) + 0.05 * torch.randn(1, 8, 8)
    mask = torch.zeros(1, 8, 8)
    if torch.rand(()) < 0.5:
        r, c = torch.randint(0, 6, (2,))
        mask[:, r : r + 3, c : c + 3] = 1
        image = torch.where(mask > 0, -image, image)
    return image, mask, mask.amax()


args = {"less_t_range": 30, "condition_w": 1, "Batch_Size": 3}
unet_model, seg_model = UNetModel(), SegmentationSubNetwork()
ddpm_sample = GaussianDiffusionModel()
optimizer_ddpm = torch.optim.Adam(unet_model.parameters(), lr=5e-3)
optimizer_seg = torch.optim.Adam(seg_model.parameters(), lr=1e-2)
for epoch in range(4):
    train_loss = 0.0
    for i in range(7):
        aug_image, anomaly_mask, anomaly_label = (torch.stack(p) for p in zip(*(make_sample() for _ in range(args["Batch_Size"]))))
        noise_loss, pred_x0 = ddpm_sample.norm_guided_one_step_denoising(unet_model, aug_image, anomaly_label, args)
        pred_mask = seg_model(torch.cat((aug_image, pred_x0), dim=1))
        loss = noise_loss + 5 * F.binary_cross_entropy(pred_mask, anomaly_mask)
        optimizer_ddpm.zero_grad()
        optimizer_seg.zero_grad()
        loss.backward()
        optimizer_ddpm.step()
        optimizer_seg.step()
        train_loss += loss.item()
    print(f"Epoch:{epoch}, Train loss: {train_loss / 7:.4f}")
