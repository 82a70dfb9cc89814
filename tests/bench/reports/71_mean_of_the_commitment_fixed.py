"""Train a small vector-quantised autoencoder."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Quantizer(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, commitment_loss_factor=0.25):
        super().__init__()
        self.embeddings = nn.Embedding(num_embeddings, embedding_dim)
        self.embeddings.weight.data.uniform_(-1 / num_embeddings, 1 / num_embeddings)
        self.commitment_loss_factor = commitment_loss_factor

    def forward(self, z):
        distances = torch.cdist(z, self.embeddings.weight)
        closest = distances.argmin(-1)
        quantized = self.embeddings(closest)
        commitment_loss = F.mse_loss(
            quantized.detach(), z, reduction="none"
        ).sum(-1)
        embedding_loss = F.mse_loss(
            quantized, z.detach(), reduction="none"
        ).sum(-1)
        vq_loss = commitment_loss * self.commitment_loss_factor + embedding_loss
        quantized = z + (quantized - z).detach()
        return quantized, vq_loss, distances.gather(1, closest[:, None]).mean().item()


class VQVAE(nn.Module):
    def __init__(self, input_dim=64, latent_dim=8, width=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(input_dim, width), nn.ReLU(), nn.Linear(width, latent_dim))
        self.quantizer = Quantizer(32, latent_dim)
        self.decoder = nn.Sequential(nn.Linear(latent_dim, width), nn.ReLU(), nn.Linear(width, input_dim))

    def forward(self, x):
        quantized, vq_loss, distance = self.quantizer(self.encoder(x))
        recon_x = self.decoder(quantized)
        recon_loss = F.mse_loss(recon_x, x, reduction="none").sum(-1)
        return (recon_loss + vq_loss).mean(), recon_loss.mean().item(), distance


centres = torch.randn(20, 64)
images = centres[torch.randint(20, (2048,))] + 0.2 * torch.randn(2048, 64)
model = VQVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(400):
    batch = images[torch.randint(2048, (100,))]
    loss, recon, distance = model(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 79:
        print(step, "recon", recon, "distance to the codebook", distance)
