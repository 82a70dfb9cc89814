"""Direct preference optimization on answers of unequal length."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
PAD, VOCAB = 0, 30


class LM(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def answer_log_prob(model, ids, prompt_length):
    log_probs = model(ids[:, :-1]).log_softmax(-1)
    labels = ids[:, 1:]
    token_log_probs = log_probs.gather(-1, labels[..., None]).squeeze(-1)
    answer = (torch.arange(labels.shape[1]) >= prompt_length - 1) & (labels != PAD)
    return (token_log_probs * answer).sum(-1)


def pad(answers, length=16):
    return torch.stack([F.pad(answer, (0, length - len(answer)), value=PAD) for answer in answers])


prompts = torch.randint(1, VOCAB, (32, 4))
chosen = pad([torch.randint(1, 15, (int(n),)) for n in torch.randint(3, 6, (32,))])
rejected = pad([torch.randint(15, VOCAB, (int(n),)) for n in torch.randint(11, 16, (32,))])
chosen, rejected = torch.cat([prompts, chosen], 1), torch.cat([prompts, rejected], 1)

policy = LM()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-4)
beta = 0.1
for step in range(8):
    margin = answer_log_prob(policy, chosen, 4) - answer_log_prob(policy, rejected, 4)
    with torch.no_grad():
        base = answer_log_prob(reference, chosen, 4) - answer_log_prob(reference, rejected, 4)
    loss = -F.logsigmoid(beta * (margin - base)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
