"""Advantage actor-critic with GAE on a small vectorised environment."""

import torch
from torch import nn, optim

torch.manual_seed(0)


class VectorEnv:
    """Walk on a line towards the origin."""

    def __init__(self, n_envs):
        self.n_envs = n_envs
        self.state = torch.randn(n_envs, 2)

    def step(self, action):
        push = action.float() - 1
        pos, vel = self.state.unbind(1)
        vel = 0.8 * vel + 0.3 * push
        pos = pos + vel
        reward = -pos.abs()
        done = (pos.abs() > 4) | (torch.rand(self.n_envs) < 0.02)
        new = torch.randn(self.n_envs, 2)
        self.state = torch.where(done[:, None], new, torch.stack([pos, vel], 1))
        return self.state, reward, done


class A2C(nn.Module):
    def __init__(self, n_features, n_actions, n_envs, critic_lr=5e-3, actor_lr=2e-3):
        super().__init__()
        self.n_envs = n_envs
        self.critic = nn.Sequential(nn.Linear(n_features, 32), nn.ReLU(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(n_features, 32), nn.ReLU(), nn.Linear(32, n_actions))
        self.critic_optim = optim.RMSprop(self.critic.parameters(), lr=critic_lr)
        self.actor_optim = optim.RMSprop(self.actor.parameters(), lr=actor_lr)

    def select_action(self, x):
        pd = torch.distributions.Categorical(logits=self.actor(x))
        actions = pd.sample()
        return actions, pd.log_prob(actions), self.critic(x).squeeze(-1), pd.entropy()

    def get_losses(self, rewards, action_log_probs, value_preds, entropy, masks,
                   gamma=0.95, lam=0.95, ent_coef=0.01):
        T = len(rewards)
        advantages = torch.zeros(T, self.n_envs)
        gae = 0.0
        for t in reversed(range(T - 1)):
            td_error = rewards[t] + gamma * masks[t] * value_preds[t + 1] - value_preds[t]
            gae = td_error + gamma * lam * masks[t] * gae
            advantages[t] = gae
        critic_loss = advantages.pow(2).mean()
        actor_loss = -(advantages.detach() * action_log_probs).mean() - ent_coef * entropy.mean()
        return critic_loss, actor_loss

    def update_parameters(self, critic_loss, actor_loss):
        self.critic_optim.zero_grad()
        critic_loss.backward()
        self.critic_optim.step()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()


n_envs, n_steps = 16, 24
envs = VectorEnv(n_envs)
agent = A2C(2, 3, n_envs)
for update in range(40):
    steps = []
    for _ in range(n_steps):
        actions, log_probs, values, entropy = agent.select_action(envs.state)
        _, rewards, done = envs.step(actions)
        steps.append((rewards, log_probs, values, entropy, 1.0 - done.float()))
    batch = [torch.stack(column) for column in zip(*steps)]
    critic_loss, actor_loss = agent.get_losses(*batch)
    agent.update_parameters(critic_loss, actor_loss)
    if update % 5 == 0:
        print(update, "critic", critic_loss.item(), "reward", batch[0].mean().item())
