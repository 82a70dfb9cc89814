"""Grids as tokens: example pairs as the context, the output grid as the target."""

import torch
from torch import nn

torch.manual_seed(0)
num_tokens = 10
num_context_tokens = 27
num_target_tokens = 9


class DecoderOnlyTransformer(nn.Module):
    def __init__(self, dim=32, heads=4, layers=2):
        super().__init__()
        self.num_context_tokens = num_context_tokens
        self.embedding = nn.Embedding(num_tokens + 1, dim)
        self.position = nn.Embedding(num_context_tokens + num_target_tokens, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.to_logits = nn.Linear(dim, num_tokens + 1)

    def forward(self, src):
        n = src.shape[1]
        x = self.embedding(src) + self.position(torch.arange(n))
        x = self.layers(x)
        return self.to_logits(x[:, self.num_context_tokens:])


def make_batch(batch=32):
    """Every task adds one colour shift to a grid; one example pair, one test pair."""
    shift = torch.randint(1, 3, (batch, 1))
    grids = torch.randint(0, num_tokens, (batch, 2, 9))
    example_in, test_in = grids.unbind(1)
    example_out, test_out = ((g + shift) % num_tokens for g in (example_in, test_in))
    return torch.cat([example_in, example_out, test_in, test_out], 1)


model = DecoderOnlyTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
criterion = nn.CrossEntropyLoss()
for step in range(120):
    src = make_batch()
    output = model(src)
    target = src[:, model.num_context_tokens:].reshape(-1)
    loss = criterion(output.reshape(-1, num_tokens + 1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        accuracy = (output.reshape(-1, num_tokens + 1).argmax(-1) == target).float().mean()
        print(step, loss.item(), "accuracy", accuracy.item())
