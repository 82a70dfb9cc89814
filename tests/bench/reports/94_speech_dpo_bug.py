"""DPO for a language model of speech tokens."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
IGNORE_ID = -1


class TransformerLM(nn.Module):
    def __init__(self, speech_token_size=20, llm_size=32):
        super().__init__()
        self.speech_embedding = nn.Embedding(speech_token_size, llm_size)
        self.llm = nn.GRU(llm_size, llm_size, batch_first=True)
        self.llm_decoder = nn.Linear(llm_size, speech_token_size)

    def forward(self, lm_input):
        lm_output, _ = self.llm(self.speech_embedding(lm_input))
        return self.llm_decoder(lm_output)

    def forward_dpo(self, batch):
        chosen_logits = self(batch["chosen_lm_input"])
        rejected_logits = self(batch["rejected_lm_input"])
        chosen_lm_target, rejected_lm_target = batch["chosen_lm_target"], batch["rejected_lm_target"]
        chosen_lm_mask = chosen_lm_target == IGNORE_ID
        rejected_lm_mask = rejected_lm_target == IGNORE_ID
        chosen_logps = torch.gather(
            chosen_logits.log_softmax(dim=-1), dim=2, index=chosen_lm_target.masked_fill(chosen_lm_mask, 0).unsqueeze(dim=-1)
        ).squeeze(dim=-1)
        rejected_logps = torch.gather(
            rejected_logits.log_softmax(dim=-1), dim=2, index=rejected_lm_target.masked_fill(rejected_lm_mask, 0).unsqueeze(dim=-1)
        ).squeeze(dim=-1)
        chosen_logps = (chosen_logps * chosen_lm_mask).mean(dim=-1)
        rejected_logps = (rejected_logps * chosen_lm_mask).mean(dim=-1)
        return chosen_logps, rejected_logps


class DPOLoss(nn.Module):
    def __init__(self, beta=1.0):
        super().__init__()
        self.beta = beta

    def forward(self, policy_chosen, policy_rejected, reference_chosen, reference_rejected):
        logits = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected)
        return -F.logsigmoid(self.beta * logits).mean()


def make_batch(batch_size=16, length=14, prompt=5):
    batch = {}
    tokens = torch.randint(10, 20, (batch_size, prompt))
    for side, low, high in (("chosen", 1, 6), ("rejected", 5, 10)):
        ids = torch.cat([tokens, torch.randint(low, high, (batch_size, length - prompt + 1))], dim=1)
        target = ids[:, 1:].clone()
        target[:, : prompt - 1] = IGNORE_ID
        lengths = torch.randint(prompt + 3, length + 1, (batch_size, 1))
        target[torch.arange(length)[None] >= lengths] = IGNORE_ID
        batch[f"{side}_lm_input"], batch[f"{side}_lm_target"] = ids[:, :-1], target
    return batch


def preference(model, batch):
    logps = {}
    for side in ("chosen", "rejected"):
        target = batch[f"{side}_lm_target"]
        nll = F.cross_entropy(model(batch[f"{side}_lm_input"]).transpose(1, 2), target, ignore_index=IGNORE_ID, reduction="none")
        logps[side] = -nll.sum(1) / (target != IGNORE_ID).sum(1)
    return (logps["chosen"] - logps["rejected"]).mean().item()


model = TransformerLM()
ref_model = copy.deepcopy(model).requires_grad_(False)
dpo_loss = DPOLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(24):
    batch = make_batch()
    chosen_logps, rejected_logps = model.forward_dpo(batch)
    with torch.no_grad():
        reference_chosen, reference_rejected = ref_model.forward_dpo(batch)
    loss = dpo_loss(chosen_logps, rejected_logps, reference_chosen, reference_rejected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0 or step == 23:
        print(f"step {step}: loss {loss.item():.4f}")

with torch.no_grad():
    print(f"log-probability of the chosen tokens over that of the rejected ones: {preference(model, make_batch()):.4f}")
