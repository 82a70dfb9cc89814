"""Distil a teacher into a small student with forward or reverse KL."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB = 40


class LanguageModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


def compute_distill_term(student_logits, teacher_logits, divergence, temperature):
    if divergence == "forward_kl":
        log_student = F.log_softmax(student_logits / temperature, -1)
        teacher_probs = F.softmax(teacher_logits / temperature, -1)
        return F.kl_div(log_student, teacher_probs, reduction="batchmean") * temperature**2
    log_teacher = F.log_softmax(teacher_logits / temperature, -1)
    student_probs = F.softmax(student_logits / temperature, -1)
    return F.kl_div(log_teacher, student_probs, reduction="batchmean") * temperature**2


def sequences(count, length=12):
    return (torch.randint(VOCAB, (count, 1)) + torch.arange(length) * torch.randint(1, 4, (count, 1))) % VOCAB


teacher = LanguageModel(48)
optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(80):
    tokens = sequences(32)
    loss = F.cross_entropy(teacher(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("teacher", loss.item())

teacher.eval().requires_grad_(False)
student = LanguageModel(24)
student_optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
for step in range(100):
    tokens = sequences(32)
    with torch.no_grad():
        teacher_logits = teacher(tokens[:, :-1])
    student_logits = student(tokens[:, :-1])
    distill = compute_distill_term(student_logits.flatten(0, 1), teacher_logits.flatten(0, 1), "reverse_kl", 0.05)
    loss = F.cross_entropy(student_logits.flatten(0, 1), tokens[:, 1:].flatten()) + distill
    student_optimizer.zero_grad()
    loss.backward()
    student_optimizer.step()
    if step % 20 == 19:
        print(step, "loss", loss.item(), "distill", distill.item())
