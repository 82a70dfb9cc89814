"""Train TD3 with behaviour cloning on a fixed data set with scaled rewards."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class ReplayBuffer:
    def __init__(self, state, action, next_state, reward, not_done):
        self.state, self.action, self.next_state = state, action, next_state
        self.reward, self.not_done = reward, not_done

    def sample(self, batch_size):
        ind = torch.randint(len(self.state), (batch_size,))
        return self.state[ind], self.action[ind], self.next_state[ind], self.reward[ind], self.not_done[ind]


class RewardScaledBuffer(ReplayBuffer):
    """Scale and shift the rewards when they are drawn."""

    def __init__(self, *data, scale=1.0, shift=0.0):
        super().__init__(*data)
        self.scale, self.shift = scale, shift

    def sample(self, batch_size):
        transition = list(super().sample(batch_size))
        transition[2] = self.scale * transition[2] + self.shift
        return transition


def mlp(inputs, outputs, width=64):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


class Agent:
    def __init__(self, state_dim, action_dim, discount=0.8, tau=0.05):
        self.actor, self.critic = mlp(state_dim, action_dim), mlp(state_dim + action_dim, 1)
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=2e-3)
        self.discount, self.tau = discount, tau

    def act(self, actor, state):
        return torch.tanh(actor(state))

    def train(self, buffer, step, batch_size=128):
        state, action, next_state, reward, not_done = buffer.sample(batch_size)
        with torch.no_grad():
            next_action = (self.act(self.actor_target, next_state) + 0.1 * torch.randn_like(action)).clamp(-1, 1)
            target = self.critic_target(torch.cat([next_state, next_action], 1))
            target = reward + not_done * self.discount * target
        critic_loss = F.mse_loss(self.critic(torch.cat([state, action], 1)), target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        if step % 2 == 0:
            pi = self.act(self.actor, state)
            q = self.critic(torch.cat([state, pi], 1))
            actor_loss = -q.mean() / q.abs().mean().detach() + 0.02 * F.mse_loss(pi, action)
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            for net, target_net in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
                for param, target_param in zip(net.parameters(), target_net.parameters()):
                    target_param.data.lerp_(param.data, self.tau)
        return critic_loss.item()


def environment(state, action):
    next_state = (0.8 * state + 0.5 * action).clamp(-2, 2)
    return next_state, -(next_state - 1).square().sum(1, keepdim=True)


state = 4 * torch.rand(4000, 2) - 2
action = 2 * torch.rand(4000, 2) - 1
next_state, reward = environment(state, action)
not_done = (torch.rand(4000, 1) > 0.05).float()
buffer = RewardScaledBuffer(state, action, next_state, reward, not_done, scale=4.0, shift=2.0)
agent = Agent(2, 2)
for step in range(1, 501):
    critic_loss = agent.train(buffer, step)
    if step % 100 == 0:
        with torch.no_grad():
            place, total = torch.zeros(64, 2), 0.0
            for _ in range(20):
                place, gain = environment(place, agent.act(agent.actor, place))
                total += gain.mean().item()
            first = torch.cat([torch.zeros(1, 2), agent.act(agent.actor, torch.zeros(1, 2))], 1)
            print(step, "critic loss", critic_loss, "return", total, "value", agent.critic(first).item())
