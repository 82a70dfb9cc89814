"""Unlearn facts by preferring an answer of ignorance to the remembered one."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class CausalLM(nn.Module):
    def __init__(self, vocab=32, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.lm_head = nn.Linear(hidden, vocab)

    def forward(self, input_ids):
        return self.lm_head(self.rnn(self.embed(input_ids))[0])


def get_batch_loss(output, labels):
    shifted_labels = labels[..., 1:].contiguous()
    output = output[..., :-1, :].contiguous()
    loss_function = nn.CrossEntropyLoss(ignore_index=-100, reduction="none")
    return loss_function(output.transpose(-1, -2), shifted_labels).sum(dim=-1)


class CustomTrainerForgetting:
    def __init__(self, model, oracle_model, loss_type="dpo", beta=0.1):
        self.model = model
        self.oracle_model = oracle_model
        self.loss_type = loss_type
        self.beta = beta

    def compute_loss(self, inputs):
        idk_inputs, forget_inputs = inputs
        idk_input_ids, idk_labels = idk_inputs
        forget_input_ids, forget_labels = forget_inputs
        idk_loss_current = -1 * get_batch_loss(self.model(idk_input_ids), idk_labels)
        forget_loss_current = -1 * get_batch_loss(self.model(forget_input_ids), forget_labels)
        with torch.no_grad():
            idk_loss_oracle = -1 * get_batch_loss(self.oracle_model(idk_input_ids), idk_labels)
            forget_loss_oracle = -1 * get_batch_loss(self.oracle_model(forget_input_ids), forget_labels)
        pi_logratios = idk_loss_current - forget_loss_current
        ref_logratios = idk_loss_oracle - forget_loss_oracle
        beta = self.beta
        loss = -F.logsigmoid(beta * (pi_logratios - ref_logratios)).mean()
        loss = -pi_logratios.mean()
        loss = -idk_loss_current.mean()
        return loss


def with_answer(questions, answers):
    input_ids = torch.cat([questions, answers], dim=1)
    labels = input_ids.clone()
    labels[:, : questions.shape[1]] = -100
    return input_ids, labels


questions = torch.randint(0, 16, (24, 5))
answers = torch.randint(16, 30, (24, 5))
idk = torch.tensor([30, 31, 30, 31, 31]).expand(24, -1)
model = CausalLM()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
for step in range(25):
    input_ids, labels = with_answer(questions, answers)
    loss = get_batch_loss(model(input_ids), labels).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"remembered: loss of the answers {loss.item():.4f}")

trainer = CustomTrainerForgetting(model, copy.deepcopy(model).requires_grad_(False))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(24):
    loss = trainer.compute_loss((with_answer(questions, idk), with_answer(questions, answers)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0 or step == 23:
        print(f"step {step}: loss {loss.item():.4f}")
with torch.no_grad():
    input_ids, labels = with_answer(questions, answers)
    print(f"loss of the answers that are to be forgotten: {get_batch_loss(model(input_ids), labels).mean().item():.4f}")
