"""Diffusion model of one-dimensional designs (airfoils)."""

import torch as th
from torch import nn
from torch.nn import functional as F

th.manual_seed(0)


class Normalizer:
    def __init__(self, min_val, max_val, eps=1e-7):
        self.eps = eps
        self.min_val = min_val
        self.max_val = max_val

    def normalize(self, x):
        return (x - self.min_val) / (self.max_val - self.min_val + self.eps)

    def denormalize(self, x):
        return x * (self.max_val - self.min_val + self.eps) + self.min_val


class Unet1D(nn.Module):
    def __init__(self, dim=32, channels=1, seq_length=16):
        super().__init__()
        self.time = nn.Embedding(50, dim)
        self.inp = nn.Linear(seq_length, dim)
        self.mid = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, seq_length)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.time(t)[:, None])
        return self.out(F.silu(self.mid(h)) + h)


class GaussianDiffusion1D(nn.Module):
    """Expects designs between 0 and 1, which auto_normalize maps to -1 to 1."""

    def __init__(self, model, seq_length, timesteps=50, auto_normalize=True):
        super().__init__()
        self.model = model
        self.seq_length = seq_length
        self.num_timesteps = timesteps
        self.auto_normalize = auto_normalize
        betas = th.linspace(1e-3, 0.2, timesteps)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", (1 - betas).cumprod(0))

    def forward(self, img):
        if self.auto_normalize:
            img = img * 2 - 1
        t = th.randint(0, self.num_timesteps, (img.shape[0],))
        noise = th.randn_like(img)
        a = self.alphas_cumprod[t][:, None, None]
        return F.mse_loss(self.model(a.sqrt() * img + (1 - a).sqrt() * noise, t), noise)

    @th.no_grad()
    def sample(self, batch_size):
        x = th.randn(batch_size, 1, self.seq_length)
        for i in reversed(range(self.num_timesteps)):
            t = th.full((batch_size,), i)
            beta, a = self.betas[i], self.alphas_cumprod[i]
            eps = self.model(x, t)
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            a_prev = self.alphas_cumprod[i - 1] if i > 0 else th.ones(())
            x = (beta * a_prev.sqrt() * x0 + (1 - a_prev) * (1 - beta).sqrt() * x) / (1 - a)
            if i > 0:
                x = x + (beta * (1 - a_prev) / (1 - a)).sqrt() * th.randn_like(x)
        return (x + 1) / 2 if self.auto_normalize else x


seq_length = 16
grid = th.linspace(0, 3.14159, seq_length)
training_ds = th.rand(512, 1) * 2.0 + 6.0 * th.sin(grid) + 0.1 * th.randn(512, seq_length)
design_normalizer = Normalizer(training_ds.amin(dim=0), training_ds.amax(dim=0))
dataloader = th.utils.data.DataLoader(th.utils.data.TensorDataset(training_ds), batch_size=32, shuffle=True)
diffusion = GaussianDiffusion1D(Unet1D(seq_length=seq_length), seq_length, auto_normalize=True)
optimizer = th.optim.Adam(diffusion.parameters(), lr=3e-3)
for epoch in range(20):
    for data in dataloader:
        designs = data[0]
        designs = design_normalizer.normalize(designs)
        designs_flat = designs.view(designs.size(0), 1, -1)
        optimizer.zero_grad()
        loss = diffusion(designs_flat)
        loss.backward()
        optimizer.step()
    if epoch % 5 == 0 or epoch == 19:
        print(f"[Epoch {epoch}] [loss: {loss.item():.4f}]")

samples = design_normalizer.denormalize(diffusion.sample(batch_size=128).squeeze(1))
print(f"mean error of the designs' mean: {(samples.mean(0) - training_ds.mean(0)).abs().mean().item():.4f}")
print(f"spread of the samples {samples.std(0).mean().item():.4f}, of the designs {training_ds.std(0).mean().item():.4f}")
