"""Direct preference optimization of a small language model."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LM(nn.Module):
    def __init__(self, vocab=40, size=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class DPOTrainer:
    def __init__(self, model, ref_model=None, beta=0.1):
        self.model, self.ref_model, self.beta = model, ref_model, beta
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)

    @staticmethod
    def sequence_logps(model, ids):
        logps = model(ids[:, :-1]).log_softmax(-1)
        return logps.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def step(self, chosen, rejected):
        policy_chosen = self.sequence_logps(self.model, chosen)
        policy_rejected = self.sequence_logps(self.model, rejected)
        with torch.no_grad():
            reference = self.model if self.ref_model is None else self.ref_model
            ref_chosen = self.sequence_logps(reference, chosen)
            ref_rejected = self.sequence_logps(reference, rejected)
        logits = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)
        loss = -F.logsigmoid(self.beta * logits).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


model = LM()
reference = copy.deepcopy(model).requires_grad_(False)
trainer = DPOTrainer(model, reference)
chosen, rejected = torch.randint(40, (8, 12)), torch.randint(40, (8, 12))
losses = []
for step in range(5):
    losses.append(trainer.step(chosen, rejected))
    print(step, losses[-1])
