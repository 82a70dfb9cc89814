"""Train a small diffusion network whose residual blocks are checkpointed."""

import torch as th
import torch.nn as nn
import torch.nn.functional as F

th.manual_seed(0)


def checkpoint(func, inputs, params, flag):
    """Evaluate a function without caching the intermediate activations."""
    if flag:
        args = tuple(inputs) + tuple(params)
        return CheckpointFunction.apply(func, len(inputs), *args)
    return func(*inputs)


class CheckpointFunction(th.autograd.Function):
    @staticmethod
    def forward(ctx, run_function, length, *args):
        ctx.run_function = run_function
        ctx.input_tensors = list(args[:length])
        ctx.input_params = list(args[length:])
        ctx.fwd_rng_state = th.get_rng_state()
        with th.no_grad():
            output_tensors = ctx.run_function(*ctx.input_tensors)
        return output_tensors

    @staticmethod
    def backward(ctx, *output_grads):
        ctx.input_tensors = [x.detach().requires_grad_(True) for x in ctx.input_tensors]
        with th.enable_grad(), th.random.fork_rng(devices=[]):
            th.set_rng_state(ctx.fwd_rng_state)
            shallow_copies = [x.view_as(x) for x in ctx.input_tensors]
            output_tensors = ctx.run_function(*shallow_copies)
        input_grads = th.autograd.grad(
            output_tensors, ctx.input_tensors + ctx.input_params, output_grads, allow_unused=True
        )
        del ctx.input_tensors
        del ctx.input_params
        del output_tensors
        return (None, None) + input_grads


class ResBlock(nn.Module):
    def __init__(self, channels, dropout, use_checkpoint):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.in_layers = nn.Sequential(nn.LayerNorm(channels), nn.SiLU(), nn.Linear(channels, channels))
        self.emb_layers = nn.Linear(channels, channels)
        self.out_layers = nn.Sequential(nn.SiLU(), nn.Dropout(p=dropout), nn.Linear(channels, channels))

    def forward(self, x, emb):
        return checkpoint(self._forward, (x, emb), self.parameters(), self.use_checkpoint)

    def _forward(self, x, emb):
        h = self.in_layers(x) + self.emb_layers(emb)
        return x + self.out_layers(h)


class UNetModel(nn.Module):
    def __init__(self, size=16, channels=64, dropout=0.5, use_checkpoint=True):
        super().__init__()
        self.time_embed = nn.Embedding(20, channels)
        self.inp = nn.Linear(size, channels)
        self.blocks = nn.ModuleList(ResBlock(channels, dropout, use_checkpoint) for _ in range(4))
        self.out = nn.Linear(channels, size)

    def forward(self, x, timesteps):
        emb = self.time_embed(timesteps)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)


grid = th.linspace(0, 6.28, 16)
data = th.sin(grid + 6.28 * th.rand(256, 1))
alphas_cumprod = th.linspace(0.98, 0.2, 20)
model = UNetModel()
optimizer = th.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(30):
    t = th.randint(0, 20, (256,))
    noise = th.randn_like(data)
    a = alphas_cumprod[t][:, None]
    loss = F.mse_loss(model(a.sqrt() * data + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.4f}")
