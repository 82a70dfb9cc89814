"""A fine-tuning recipe with gradient accumulation over padded batches."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
IGNORE = -100


class TinyTransformer(nn.Module):
    def __init__(self, vocab=32, size=48):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, size)
        self.pos_embeddings = nn.Embedding(32, size)
        self.layer = nn.TransformerEncoderLayer(size, 4, 96, dropout=0.0, batch_first=True)
        self.output = nn.Linear(size, vocab)

    def forward(self, tokens):
        n = tokens.shape[1]
        h = self.tok_embeddings(tokens) + self.pos_embeddings(torch.arange(n))
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.output(self.layer(h, src_mask=mask, is_causal=True))


class FullFinetuneRecipe:
    def __init__(self, model, gradient_accumulation_steps=4, lr=3e-3):
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self._gradient_accumulation_steps = gradient_accumulation_steps
        self._loss_fn = nn.CrossEntropyLoss(ignore_index=IGNORE)

    def _loss_step(self, batch):
        tokens, labels = batch
        logits = self._model(tokens)
        return self._loss_fn(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def train(self, batches):
        running_loss, num_tokens, step = 0, 0, 0
        self._optimizer.zero_grad()
        for idx, batch in enumerate(batches):
            current_num_tokens = (batch[1][:, 1:] != IGNORE).sum()
            num_tokens += current_num_tokens
            loss = self._loss_step(batch)
            loss = loss * current_num_tokens
            running_loss += loss
            if (idx + 1) % self._gradient_accumulation_steps == 0:
                running_loss = running_loss / num_tokens
                running_loss.backward()
                self._optimizer.step()
                self._optimizer.zero_grad(set_to_none=True)
                step += 1
                if step % 5 == 0:
                    print(step, "loss", running_loss.item(), "tokens", int(num_tokens))
                running_loss, num_tokens = 0, 0


def batches(count, batch=4, length=24):
    for i in range(count):
        tokens = torch.zeros(batch, length, dtype=torch.long)
        labels = torch.full((batch, length), IGNORE)
        for row in range(batch):
            short = i % 4 != 0
            n = int(torch.randint(6, 9, ())) if short else length
            start, stride = torch.randint(1, 31, ()), (3 if short else 1)
            tokens[row, :n] = (start + stride * torch.arange(n)) % 31 + 1
            labels[row, 2:n] = tokens[row, 2:n]
        yield tokens, labels


FullFinetuneRecipe(TinyTransformer()).train(batches(160))
