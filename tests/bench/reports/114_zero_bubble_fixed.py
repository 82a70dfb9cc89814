"""Two-pass backward of a pipeline stage: first the gradients of its inputs, then those of its weights."""

import time

import torch
from torch import nn

torch.manual_seed(0)
counts = {"dX": 0, "dW": 0}


class WeightGradStore:
    enabled = True
    cache = []

    @classmethod
    def run(cls):
        for param, compute in cls.cache:
            grad = compute()
            param.grad = grad if param.grad is None else param.grad + grad
        cls.cache.clear()


class CustomMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            counts["dX"] += 1
            grad_x = grad_output @ weight.T
        if ctx.needs_input_grad[1]:

            def compute():
                counts["dW"] += 1
                return x.T @ grad_output

            if WeightGradStore.enabled:
                WeightGradStore.cache.append((weight, compute))
            else:
                grad_weight = compute()
        return grad_x, grad_weight


class Stage(nn.Module):
    def __init__(self, size=256, layers=4):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(size, size) / size**0.5) for _ in range(layers))

    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(CustomMatmul.apply(x, weight))
        return x


def backward_input(loss, inputs):
    torch.autograd.backward(loss, inputs=inputs, retain_graph=True)


def backward_weight(loss, params):
    WeightGradStore.run()


stage = Stage()
teacher = Stage().requires_grad_(False)
optimizer = torch.optim.Adam(stage.parameters(), lr=1e-3)
spent = 0.0
for step in range(20):
    x = torch.randn(512, 256, requires_grad=True)
    with torch.no_grad():
        target = 0.5 * torch.tanh(x @ teacher.weights[0])
    loss = (stage(x) - target).square().mean()
    optimizer.zero_grad()
    start = time.perf_counter()
    backward_input(loss, [x])
    backward_weight(loss, list(stage.parameters()))
    spent += time.perf_counter() - start
    optimizer.step()
    if step % 5 == 0 or step == 19:
        print(f"step {step}: loss {loss.item():.4f}")
print(f"backward {1000 * spent / 20:.1f} ms a step; products for inputs {counts['dX']}, for weights {counts['dW']}")
