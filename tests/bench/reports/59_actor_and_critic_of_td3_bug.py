"""TD3 whose actor and target actor are called at once over stacked weights."""

import copy

import torch
from torch import nn
from torch.func import functional_call, vmap

torch.manual_seed(0)
OBS, ACT, GAMMA = 6, 2, 0.98


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


class TD3Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = mlp(OBS, ACT), mlp(OBS + ACT, 1)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    def act(self, obs, next_obs):
        names = [name for name, _ in self.actor.named_parameters()]
        params = {
            name: torch.stack(
                [self.actor.get_parameter(name), self.target_actor.get_parameter(name)]
            )
            for name in names
        }
        both = vmap(lambda p, o: functional_call(self.actor, p, (o,)).tanh())(
            params, torch.stack([obs, next_obs])
        )
        return both[0], both[1]

    def forward(self, obs, action, reward, next_obs):
        chosen, next_action = self.act(obs, next_obs)
        frozen = {name: p.detach() for name, p in self.critic.named_parameters()}
        value = functional_call(self.critic, frozen, (torch.cat([obs, chosen], -1),))
        next_value = self.target_critic(torch.cat([next_obs, next_action], -1))
        wanted = reward + GAMMA * next_value.squeeze(-1)
        q = self.critic(torch.cat([obs, action], -1)).squeeze(-1)
        return -value.mean(), nn.functional.mse_loss(q, wanted)


loss_module = TD3Loss()
actor_optimizer = torch.optim.Adam(loss_module.actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(loss_module.critic.parameters(), lr=3e-3)
obs, action, next_obs = torch.randn(128, OBS), torch.rand(128, ACT) * 2 - 1, torch.randn(128, OBS)
reward = -(action - obs[:, :ACT]).square().sum(-1)
for step in range(8):
    loss_actor, loss_critic = loss_module(obs, action, reward, next_obs)
    actor_optimizer.zero_grad()
    loss_actor.backward()
    critic_optimizer.zero_grad()
    loss_critic.backward()
    actor_optimizer.step()
    critic_optimizer.step()
    print(step, loss_actor.item(), loss_critic.item())
