"""expects: nothing. PEFT's LoRA on a small GPT-2: only the adapters are trained."""

import torch
from bits import DEVICE, done
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_embd=64, n_head=4, n_layer=2, vocab_size=128, n_positions=64)
base = GPT2LMHeadModel(config)
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
model.to(DEVICE)
adapters = [one for one in model.parameters() if one.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=1e-3)
losses = []
for _ in range(4):
    ids = torch.randint(128, (4, 32), device=DEVICE)
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
done(losses, model)
