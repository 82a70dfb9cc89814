"""GRPO on a toy language model: write as many of the wanted tokens as possible."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class TinyLM(nn.Module):
    def __init__(self, vocab=16, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def token_logprobs(model, ids, prompt_len):
    logps = model(ids[:, :-1]).log_softmax(-1)
    return logps.gather(2, ids[:, 1:, None]).squeeze(-1)[:, prompt_len - 1 :]


def sequence_logprob(model, ids, prompt_len):
    return token_logprobs(model, ids, prompt_len).sum(-1)


@torch.no_grad()
def sample(model, prompts, new_tokens):
    ids = prompts
    for _ in range(new_tokens):
        probs = model(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
    return ids


def grpo_loss(logp, old_logp, ref_logp, advantages, clip_eps=0.2, beta=0.02):
    ratio = torch.exp(logp - old_logp)
    clipped = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps)
    policy = torch.minimum(ratio * advantages, clipped * advantages)
    kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1
    return -(policy - beta * kl).mean()


logprob = sequence_logprob
model = TinyLM()
ref_model = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
group, prompts, prompt_len, new_tokens = 8, 8, 3, 24
for step in range(20):
    questions = torch.randint(0, 16, (prompts, prompt_len)).repeat_interleave(group, 0)
    ids = sample(model, questions, new_tokens)
    rewards = (ids[:, prompt_len:] < 4).float().mean(1)
    grouped = rewards.view(prompts, group)
    advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
    with torch.no_grad():
        old_logp = logprob(model, ids, prompt_len)
        ref_logp = logprob(ref_model, ids, prompt_len)
    for _ in range(4):
        loss = grpo_loss(logprob(model, ids, prompt_len), old_logp, ref_logp, advantages)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 4 == 0 or step == 19:
        print(f"step {step}: reward {rewards.mean().item():.3f}, loss {loss.item():.4f}")
