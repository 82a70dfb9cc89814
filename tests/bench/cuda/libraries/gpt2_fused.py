"""expects: nothing. A small GPT-2 in bf16, fused AdamW, clipped gradients."""

import torch
from bits import DEVICE, done
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_embd=128, n_head=4, n_layer=4, vocab_size=512, n_positions=128)
model = GPT2LMHeadModel(config).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
losses = []
for _ in range(6):
    ids = torch.randint(512, (8, 64), device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.detach())
done(losses, model)
