"""A variational autoencoder for molecular fingerprints."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self, bits=32, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(bits, 48), nn.ReLU())
        self.mu, self.logvar = nn.Linear(48, latent), nn.Linear(48, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, bits))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.decoder(z), mu, logvar


class VAEKLDivergence:
    def __call__(self, logvar, mu):
        variance = logvar.square()
        return 0.5 * (mu.square() + variance - (1e-20 + variance).log() - 1).mean(-1)


class VAEELBO:
    def __init__(self, kl_scale=1.0):
        self.kl, self.kl_scale = VAEKLDivergence(), kl_scale

    def __call__(self, logvar, mu, x, logits):
        reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="none")
        return reconstruction.mean(-1) + self.kl_scale * self.kl(logvar, mu)


model, criterion = VAE(), VAEELBO(0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
prototypes = (torch.rand(5, 32) < 0.3).float()
for step in range(6):
    x = prototypes[torch.randint(5, (64,))]
    x = (x - (torch.rand_like(x) < 0.05).float()).abs()
    logits, mu, logvar = model(x)
    loss = criterion(logvar, mu, x, logits).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), "logvar", logvar.mean().item())
