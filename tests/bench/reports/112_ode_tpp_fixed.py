"""State evolution between the events of a point process with a neural ODE."""

import torch
from torch import nn

torch.manual_seed(0)


def rk4_step_method(diff_func, dt, z0):
    k1 = diff_func(z0)
    k2 = diff_func(z0 + dt * k1 / 2.0)
    k3 = diff_func(z0 + dt * k2 / 2.0)
    k4 = diff_func(z0 + dt * k3)
    return z0 + (k1 + 2.0 * k2 + 2.0 * k3 + k4) * dt / 6.0


class DNN(nn.Sequential):
    def __init__(self, inputs_dim, hidden_size):
        super().__init__(nn.Linear(inputs_dim, hidden_size), nn.Tanh(), nn.Linear(hidden_size, inputs_dim))


class NeuralODE(nn.Module):
    def __init__(self, model, solver, num_sample_times):
        super().__init__()
        self.model = model
        self.solver = solver
        self.num_sample_times = num_sample_times

    def forward(self, input_state, delta_time):
        state = input_state
        dt_ratio = 1.0 / self.num_sample_times
        for _ in range(self.num_sample_times):
            state = self.solver(diff_func=self.model, dt=delta_time * dt_ratio, z0=state)
        return state


class ODETPP(nn.Module):
    def __init__(self, hidden_size=2, num_event_types=3):
        super().__init__()
        self.layer_type_emb = nn.Embedding(num_event_types, hidden_size)
        self.event_model = DNN(hidden_size, 24)
        self.layer_neural_ode = NeuralODE(self.event_model, rk4_step_method, num_sample_times=4)
        self.time_factor = 1

    def forward(self, time_delta_seqs, type_seqs):
        type_seq_emb = self.layer_type_emb(type_seqs)
        left_limits = []
        right_limit = torch.zeros_like(type_seq_emb[:, 0])
        for type_emb, dt in zip(torch.unbind(type_seq_emb, dim=1), torch.unbind(time_delta_seqs[..., None], dim=1)):
            left_limit = self.layer_neural_ode(right_limit, dt / self.time_factor)
            right_limit = left_limit + type_emb
            left_limits.append(left_limit)
        return torch.stack(left_limits, dim=1)


A = torch.tensor([[-0.6, 1.0], [-1.0, -0.6]])


def true_states(time_delta_seqs, emb):
    state, states = torch.zeros(time_delta_seqs.shape[0], 2), []
    for i in range(time_delta_seqs.shape[1]):
        flow = torch.linalg.matrix_exp(A * time_delta_seqs[:, i, None, None])
        left = (flow @ state[..., None]).squeeze(-1)
        states.append(left)
        state = left + emb[:, i]
    return torch.stack(states, dim=1)


model = ODETPP()
emb = nn.Embedding(3, 2)
model.layer_type_emb.load_state_dict(emb.state_dict())
model.layer_type_emb.requires_grad_(False)
optimizer = torch.optim.Adam(model.event_model.parameters(), lr=2e-2)
for step in range(30):
    for _ in range(4):
        time_delta_seqs, type_seqs = 0.2 + torch.rand(64, 6), torch.randint(0, 3, (64, 6))
        target = true_states(time_delta_seqs, emb(type_seqs).detach())
        loss = (model(time_delta_seqs, type_seqs) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: loss {loss.item():.5f}")

with torch.no_grad():
    z = 0.5 * torch.randn(256, 2)
    speed, wanted = model.event_model(z).norm(dim=1).mean(), (z @ A.T).norm(dim=1).mean()
    later = rk4_step_method(model.event_model, torch.tensor(0.5), z)
    error = (later - z @ torch.linalg.matrix_exp(0.5 * A).T).norm(dim=1).mean()
print(f"speed of the state {speed.item():.3f}, of the process {wanted.item():.3f}; error of the state after 0.5: {error.item():.4f}")
