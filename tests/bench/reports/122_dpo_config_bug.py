"""DPO of a small causal model from preference pairs."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


@dataclass
class DPOConfig:
    learning_rate: float = 1e-3
    beta: float = 0.0
    max_steps: int = 12
    batch_size: int = 8


class TinyLM(nn.Module):
    def __init__(self, vocab=40, size=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.lm_head = nn.Linear(size, vocab)

    def forward(self, ids):
        return self.lm_head(self.rnn(self.wte(ids))[0])


def get_batch_logps(logits, labels, mask):
    logps = logits[:, :-1].log_softmax(-1).gather(-1, labels[:, 1:, None]).squeeze(-1)
    return (logps * mask[:, 1:]).sum(-1)


class DPOTrainer:
    def __init__(self, model, ref_model=None, args=DPOConfig()):
        self.model, self.args = model, args
        self.ref_model = (copy.deepcopy(model) if ref_model is None else ref_model).eval()
        self.ref_model.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)

    def dpo_loss(self, policy_chosen, policy_rejected, ref_chosen, ref_rejected):
        pi_logratios = policy_chosen - policy_rejected
        ref_logratios = ref_chosen - ref_rejected
        logits = pi_logratios - ref_logratios
        losses = -F.logsigmoid(self.args.beta * logits)
        margins = self.args.beta * logits.detach()
        return losses.mean(), margins.mean()

    def train(self, prompt, chosen, rejected):
        for step in range(self.args.max_steps):
            pick = torch.randint(len(prompt), (self.args.batch_size,))
            logps = []
            for answer in (chosen, rejected):
                ids = torch.cat([prompt[pick], answer[pick]], 1)
                mask = torch.ones_like(ids)
                mask[:, :prompt.shape[1]] = 0
                policy = get_batch_logps(self.model(ids), ids, mask)
                with torch.no_grad():
                    reference = get_batch_logps(self.ref_model(ids), ids, mask)
                logps.append((policy, reference))
            (pc, rc), (pr, rr) = logps
            loss, margin = self.dpo_loss(pc, pr, rc, rr)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print({"loss": round(loss.item(), 4), "rewards/margins": round(margin.item(), 4)})


prompt = torch.randint(0, 40, (64, 6))
chosen = torch.randint(0, 20, (64, 6))
rejected = torch.randint(20, 40, (64, 6))
DPOTrainer(TinyLM()).train(prompt, chosen, rejected)
