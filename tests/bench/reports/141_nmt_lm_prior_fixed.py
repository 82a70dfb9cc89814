"""Translation with gradient accumulation and a language-model prior."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
PAD = 0


class Seq2Seq(nn.Module):
    def __init__(self, vocab=30, size=48):
        super().__init__()
        self.src_emb = nn.Embedding(vocab, size, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(vocab, size, padding_idx=PAD)
        self.decoder = nn.GRU(size, size, batch_first=True)
        self.generator = nn.Linear(2 * size, vocab)

    def forward(self, src, tgt):
        out, _ = self.decoder(self.tgt_emb(tgt[:, :-1]))
        return self.generator(torch.cat([out, self.src_emb(src)[:, :-1]], -1))


class LossCompute:
    def __init__(self, lm_prior_model, lambda_lm, tau=2.0):
        self.lm_prior_model, self.lambda_lm, self.tau = lm_prior_model, lambda_lm, tau

    def _compute_lm_prior(self, scores, tgt):
        with torch.no_grad():
            lm_scores = (self.lm_prior_model(tgt[:, :-1]) / self.tau).softmax(-1)
        kl = F.kl_div((scores / self.tau).log_softmax(-1), lm_scores, reduction="none").sum(-1)
        keep = tgt[:, 1:].ne(PAD)
        return self.tau ** 2 * kl[keep].mean()

    def __call__(self, scores, tgt, normalization, accum):
        loss = F.cross_entropy(scores.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD,
                               reduction="sum")
        loss = loss / normalization + self.lambda_lm * self._compute_lm_prior(scores, tgt)
        return loss / accum


class Trainer:
    def __init__(self, model, train_loss, optim, accum_count=4):
        self.model, self.train_loss, self.optim = model, train_loss, optim
        self.accum_count = accum_count

    def train(self, steps):
        for step in range(steps):
            batches = [make_batch() for _ in range(self.accum_count)]
            normalization = sum(tgt[:, 1:].ne(PAD).sum().item() for _, tgt in batches)
            self._gradient_accumulation(batches, normalization)
            if step % 10 == 0:
                print(step, self.report / normalization)

    def _gradient_accumulation(self, true_batches, normalization):
        self.optim.zero_grad()
        self.report = 0.0
        for src, tgt in true_batches:
            normalization = tgt[:, 1:].ne(PAD).sum().item()
            scores = self.model(src, tgt)
            loss = self.train_loss(scores, tgt, normalization, self.accum_count)
            loss.backward()
            self.report += F.cross_entropy(scores.detach().flatten(0, 1), tgt[:, 1:].flatten(),
                                           ignore_index=PAD, reduction="sum").item()
        self.optim.step()


def make_batch(batch=16, length=9):
    src = torch.randint(3, 30, (batch, length))
    tgt = torch.cat([torch.ones(batch, 1, dtype=torch.long), 32 - src[:, :-1]], 1)
    lengths = torch.randint(4, length + 1, (batch, 1))
    return src, tgt.masked_fill(torch.arange(length) >= lengths, PAD)


lm = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30)).requires_grad_(False)
model = Seq2Seq()
optim = torch.optim.Adam(model.parameters(), lr=5e-3)
Trainer(model, LossCompute(lm, lambda_lm=0.2), optim).train(60)
