"""Add tokens to a pretrained language model and continue its training."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LM(nn.Module):
    def __init__(self, vocab=30, size=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.lm_head = nn.Linear(size, vocab, bias=False)
        self.post_init()

    def forward(self, ids):
        return self.lm_head(self.rnn(self.embed(ids))[0])

    def post_init(self):
        for module in self.modules():
            if not getattr(module, "is_initialized", False):
                self.init_weights(module)
                module.is_initialized = True

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.3)

    def resize_token_embeddings(self, vocab):
        old = self.embed.weight.detach()
        extra = torch.randn(vocab - len(old), old.shape[1]) * 0.02
        self.embed.weight = nn.Parameter(torch.cat([old, extra]))
        self.embed.num_embeddings = vocab
        self.lm_head = self.resized_head(vocab)

    def resized_head(self, vocab):
        old = self.lm_head.weight.detach()
        new = nn.Linear(old.shape[1], vocab, bias=False)
        with torch.no_grad():
            new.weight[: len(old)] = old
            new.weight[len(old) :] = old.mean(0)
        new.is_initialized = True
        return new


def train(model, steps, vocab):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        start = torch.randint(vocab, (16, 1))
        ids = (start + 3 * torch.arange(10)) % vocab
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, loss.item())


model = LM()
train(model, 41, 30)
model.resize_token_embeddings(32)
model.post_init()
print("with two new tokens")
train(model, 11, 30)
