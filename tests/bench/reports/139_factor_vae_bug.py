"""A FactorVAE: total correlation from a discriminator on the latent code."""

import torch
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self, dim=16, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, dim))

    def reparameterize(self, mean, logvar):
        return mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, -1)
        latent_sample = self.reparameterize(mean, logvar)
        return self.decoder(latent_sample), (mean, logvar), latent_sample

    def sample_latent(self, x):
        return self.reparameterize(*self.encoder(x).chunk(2, -1))


def _permute_dims(latent_sample):
    columns = [z[torch.randperm(len(z))] for z in latent_sample.unbind(1)]
    return torch.stack(columns, 1)


class FactorKLoss:
    def __init__(self, gamma=6.0):
        self.gamma = gamma
        self.discriminator = nn.Sequential(
            nn.Linear(4, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
            nn.Linear(64, 2),
        )
        self.optimizer_d = optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def call_optimize(self, data, model, optimizer):
        data1, data2 = data.chunk(2)
        recon_batch, (mean, logvar), latent_sample1 = model(data1)
        rec_loss = F.mse_loss(recon_batch, data1, reduction="sum") / len(data1)
        kl_loss = 0.5 * (-1 - logvar + mean.pow(2) + logvar.exp()).sum(1).mean()

        d_z = self.discriminator(latent_sample1)
        tc_loss = (d_z[:, 0] - d_z[:, 1]).mean()
        vae_loss = rec_loss + 0.1 * kl_loss + self.gamma * tc_loss

        optimizer.zero_grad()
        vae_loss.backward(retain_graph=True)

        latent_sample2 = model.sample_latent(data2)
        z_perm = _permute_dims(latent_sample2).detach()
        d_z_perm = self.discriminator(z_perm)
        ones = torch.ones(len(data1), dtype=torch.long)
        zeros = torch.zeros_like(ones)
        d_tc_loss = 0.5 * (F.cross_entropy(d_z, zeros) + F.cross_entropy(d_z_perm, ones))

        self.optimizer_d.zero_grad()
        d_tc_loss.backward()
        optimizer.step()
        self.optimizer_d.step()
        return rec_loss, tc_loss, d_tc_loss


mixing = torch.randn(4, 16)
model, criterion = VAE(), FactorKLoss()
optimizer = optim.Adam(model.parameters(), lr=2e-3)
for step in range(80):
    data = torch.tanh(torch.randn(128, 4) @ mixing)
    losses = criterion.call_optimize(data, model, optimizer)
    if step % 10 == 0:
        print(step, "rec %.3f tc %.3f d_tc %.3f" % tuple(loss.item() for loss in losses))
