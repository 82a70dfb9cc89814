"""wav2vec 2.0 pretraining on padded batches of features."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def _compute_mask_indices(shape, mask_prob, mask_length, attention_mask=None):
    batch, length = shape
    lengths = [length] * batch if attention_mask is None else attention_mask.sum(1).tolist()
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, n in enumerate(lengths):
        count = max(1, int(mask_prob * n / mask_length))
        starts = torch.randperm(int(n) - mask_length + 1)[:count]
        mask[row, (starts[:, None] + torch.arange(mask_length)).flatten()] = True
    return mask


def _sample_negative_indices(shape, num_negatives, attention_mask=None):
    batch, length = shape
    lengths = [length] * batch if attention_mask is None else attention_mask.sum(1).tolist()
    return torch.stack([torch.randint(0, int(n), (length, num_negatives)) for n in lengths])


class Wav2Vec2Pretrain(nn.Module):
    def __init__(self, feats=8, size=32, mask_prob=0.5, mask_length=3):
        super().__init__()
        self.mask_prob, self.mask_length = mask_prob, mask_length
        self.feature_projection = nn.Linear(feats, size)
        self.masked_spec_embed = nn.Parameter(torch.rand(size))
        self.encoder = nn.TransformerEncoderLayer(size, 4, 64, dropout=0.0, batch_first=True)
        self.positions = nn.Embedding(40, size)
        self.project_hid, self.project_q = nn.Linear(size, 16), nn.Linear(size, 16)

    def forward(self, wav, wav_lens):
        batch_size, sequence_length = wav.shape[:2]
        attention_mask = torch.arange(sequence_length) < wav_lens[:, None]
        shape = batch_size, sequence_length
        mask_time_indices = _compute_mask_indices(
            shape, self.mask_prob, self.mask_length, attention_mask)
        negative_sample_indices = _sample_negative_indices(shape, 20, attention_mask)
        features = self.feature_projection(wav)
        hidden = torch.where(mask_time_indices[..., None], self.masked_spec_embed, features)
        hidden = hidden + self.positions(torch.arange(sequence_length))
        hidden = self.encoder(hidden, src_key_padding_mask=~attention_mask)
        hidden, quantized = self.project_hid(hidden), self.project_q(features)
        rows = torch.arange(batch_size)[:, None, None]
        negatives = quantized[rows, negative_sample_indices]
        targets = torch.cat([quantized[:, :, None], negatives], 2)
        logits = F.cosine_similarity(hidden[:, :, None], targets, dim=-1) / 0.1
        same = (targets[:, :, 1:] == targets[:, :, :1]).all(-1)
        logits = torch.cat([logits[:, :, :1], logits[:, :, 1:].masked_fill(same, -1e4)], 2)
        logits = logits[mask_time_indices]
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def make_batch(batch=16, length=32):
    lens = torch.randint(10, length + 1, (batch,))
    phase, speed = torch.rand(2, batch, 1, 1) * 3
    time = torch.arange(length)[:, None] * (0.2 + 0.1 * speed)
    wav = torch.sin(phase + time * torch.linspace(0.5, 2, 8)) + 0.05 * torch.randn(batch, length, 8)
    return wav * (torch.arange(length) < lens[:, None])[..., None], lens


model = Wav2Vec2Pretrain()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(50):
    loss = model(*make_batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
