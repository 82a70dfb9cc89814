"""Caption training: the language loss of a model with image tokens in front."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def for_causal_lm_loss(logits, labels, vocab_size, ignore_index=-100, shift_labels=None):
    """Predicts each label from the position before it."""
    if shift_labels is None:
        labels = F.pad(labels, (0, 1), value=ignore_index)
        shift_labels = labels[..., 1:]
    logits = logits.float().reshape(-1, vocab_size)
    return F.cross_entropy(logits, shift_labels.reshape(-1), ignore_index=ignore_index)


class Captioner(nn.Module):
    def __init__(self, vocab=30, size=32, image_tokens=4):
        super().__init__()
        self.vocab, self.image_tokens = vocab, image_tokens
        self.see = nn.Linear(12, size * image_tokens)
        self.embed = nn.Embedding(vocab, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.output = nn.Linear(size, vocab)

    def forward(self, pixels, input_ids, labels):
        image = self.see(pixels).unflatten(-1, (self.image_tokens, -1))
        hidden, _ = self.rnn(torch.cat([image, self.embed(input_ids)], 1))
        logits = self.output(hidden)
        shifted_logits = logits[:, self.image_tokens : -1].contiguous()
        labels = labels[:, 1:].contiguous()
        loss = for_causal_lm_loss(
            shifted_logits.view(-1, self.vocab), labels.view(-1), vocab_size=self.vocab
        )
        return loss, logits


model = Captioner()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(6):
    pixels = torch.randn(16, 12)
    start = pixels[:, :5].argmax(1, keepdim=True)
    captions = (start * 3 + 7 * torch.arange(10)) % 30
    loss, logits = model(pixels, captions, labels=captions)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
