"""A BatchTopK crosscoder between two layers, with an auxiliary loss for dead latents."""

import torch
from torch import nn

torch.manual_seed(0)


class BatchTopkCrosscoder(nn.Module):
    def __init__(self, n_layers=2, d_model=16, n_latents=64, k=4):
        super().__init__()
        self.k, self.n_latents = k, n_latents
        self.W_enc = nn.Parameter(torch.randn(n_layers * d_model, n_latents) * 0.1)
        self.b_enc = nn.Parameter(torch.zeros(n_latents))
        self.W_dec = nn.Parameter(torch.randn(n_latents, n_layers * d_model) * 0.1)
        with torch.no_grad():
            self.b_enc[n_latents // 2:] = -2.0

    def forward_train(self, activation_BMPD):
        flat = activation_BMPD.flatten(1)
        pre = torch.relu(flat @ self.W_enc + self.b_enc)
        cut = pre.flatten().topk(self.k * len(flat)).values.min()
        latents = pre * (pre >= cut)
        return latents @ self.W_dec, latents, flat @ self.W_enc + self.b_enc


class TopKStyleTrainer:
    def __init__(self, model, lambda_aux=0.25, dead_after=5, k_aux=16):
        self.model, self.lambda_aux, self.k_aux = model, lambda_aux, k_aux
        self.dead_after = dead_after
        self.since_fired = torch.zeros(model.n_latents)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def aux_loss(self, flat, recon, latents, pre):
        self.since_fired += 1
        self.since_fired[(latents > 0).any(0)] = 0
        dead = self.since_fired >= self.dead_after
        if not dead.any():
            return torch.zeros(())
        residual = (flat - recon).detach()
        k = min(self.k_aux, int(dead.sum()))
        values, index = pre.masked_fill(~dead, -torch.inf).topk(k, 1)
        aux_latents = torch.zeros_like(pre).scatter(1, index, values)
        return (aux_latents @ self.model.W_dec - residual).pow(2).sum(1).mean()

    def _calculate_loss_and_log(self, batch_BMPD, log):
        flat = batch_BMPD.flatten(1)
        recon, latents, pre = self.model.forward_train(batch_BMPD)
        reconstruction_loss = (flat - recon).pow(2).sum(1).mean()
        aux_loss = self.aux_loss(flat, recon, latents, pre)
        loss = reconstruction_loss + self.lambda_aux * aux_loss
        if log:
            log_dict = {
                "train/loss": loss.item(),
                "train/reconstruction_loss": reconstruction_loss.item(),
                "train/aux_loss": aux_loss.item(),
                "train/dead": int((self.since_fired >= self.dead_after).sum()),
            }
            return reconstruction_loss, log_dict
        return reconstruction_loss, None

    def run_batch(self, batch_BMPD, log):
        self.optimizer.zero_grad()
        loss, log_dict = self._calculate_loss_and_log(batch_BMPD, log)
        loss.backward()
        self.optimizer.step()
        if log_dict is not None:
            print({key: round(value, 4) for key, value in log_dict.items()})


features = torch.randn(48, 32)
trainer = TopKStyleTrainer(BatchTopkCrosscoder())
for step in range(60):
    code = torch.rand(64, 48) * (torch.rand(64, 48) < 0.06)
    trainer.run_batch((code @ features).view(64, 2, 16), log=step % 6 == 0)
