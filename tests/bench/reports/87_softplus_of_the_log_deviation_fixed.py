"""Train a variational autoencoder on coverage profiles."""

import torch
from torch import nn

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self, nsamples=24, nhidden=48, nlatent=8, beta=0.002):
        super().__init__()
        self.beta = beta
        self.encoder = nn.Sequential(
            nn.Linear(nsamples, nhidden), nn.LeakyReLU(), nn.BatchNorm1d(nhidden),
            nn.Linear(nhidden, nhidden), nn.LeakyReLU(), nn.BatchNorm1d(nhidden),
        )
        self.mu = nn.Linear(nhidden, nlatent)
        self.logsigma = nn.Linear(nhidden, nlatent)
        self.softplus = nn.Softplus()
        self.decoder = nn.Sequential(nn.Linear(nlatent, nhidden), nn.LeakyReLU(), nn.BatchNorm1d(nhidden))
        self.outputlayer = nn.Linear(nhidden, nsamples)

    def encode(self, tensor):
        tensor = self.encoder(tensor)
        mu = self.mu(tensor)
        logsigma = self.logsigma(tensor)
        return mu, logsigma

    def reparameterize(self, mu, logsigma):
        epsilon = torch.randn_like(mu)
        return mu + epsilon * torch.exp(logsigma / 2)

    def forward(self, tensor):
        mu, logsigma = self.encode(tensor)
        latent = self.reparameterize(mu, logsigma)
        return self.outputlayer(self.decoder(latent)), mu, logsigma

    def calc_loss(self, depths_in, depths_out, mu, logsigma):
        sse = (depths_out - depths_in).pow(2).mean(1)
        kld = -0.5 * (1 + logsigma - mu.pow(2) - logsigma.exp()).sum(1)
        return (sse + self.beta * kld).mean(), sse.mean(), kld.mean()


profiles = torch.randn(20, 24)
depths = profiles[torch.randint(20, (1024,))] + 0.1 * torch.randn(1024, 24)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(15):
    order = torch.randperm(len(depths))
    for batch in order.split(128):
        depths_in = depths[batch]
        depths_out, mu, logsigma = model(depths_in)
        loss, sse, kld = model.calc_loss(depths_in, depths_out, mu, logsigma)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 3 == 2:
        print(epoch, "loss", loss.item(), "sse", sse.item(), "kld", kld.item(), "logsigma", logsigma.mean().item())
