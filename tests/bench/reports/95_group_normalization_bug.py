"""GRPO with groups of responses of which some episodes fail."""

import torch
from torch import nn

torch.manual_seed(0)


class Normalization:
    def __init__(self, group_size, eps=1e-5):
        self.group_size = group_size
        self.eps = eps

    def __call__(self, x, group_sizes=None):
        x_norm = x.clone()
        bs = x.shape[0]
        for i in range(bs // self.group_size):
            s = slice(i * self.group_size, (i + 1) * self.group_size)
            x_norm[s] = (x[s] - x[s].mean()) / (x[s].std() + self.eps)
        return x_norm


class Policy(nn.Module):
    def __init__(self, features=6, actions=5):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, actions))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


class GroupedRolloutWorkflow:
    """Runs group_size episodes for each prompt; an episode that fails returns None and is dropped."""

    def __init__(self, group_size, failure=0.25):
        self.group_size = group_size
        self.failure = failure

    def arun_episode(self, policy, prompt):
        if torch.rand(()) < self.failure:
            return None
        with torch.no_grad():
            dist = policy(prompt)
            action = dist.sample()
        answer = int(prompt[:5].argmax())
        reward = float(action == answer) + 4.0 * prompt[5].item()
        return prompt, action, dist.log_prob(action), reward

    def run(self, policy, prompts):
        rows, group_sizes = [], []
        for prompt in prompts:
            results = [self.arun_episode(policy, prompt) for _ in range(self.group_size)]
            results = [r for r in results if r is not None]
            if results:
                rows += results
                group_sizes.append(len(results))
        obs, actions, logps, rewards = zip(*rows)
        return torch.stack(obs), torch.stack(actions), torch.stack(logps), torch.tensor(rewards), group_sizes


def accuracy(policy):
    prompts = torch.rand(512, 6)
    with torch.no_grad():
        probs = policy(prompts).probs
    return probs.gather(1, prompts[:, :5].argmax(1, keepdim=True)).mean().item()


n_samples = 6
policy = Policy()
workflow = GroupedRolloutWorkflow(n_samples)
reward_norm = Normalization(group_size=n_samples)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
print(f"before: {accuracy(policy):.3f} of the answers are right")
for step in range(30):
    obs, actions, old_logps, rewards, group_sizes = workflow.run(policy, torch.rand(32, 6))
    advantages = reward_norm(rewards, group_sizes)
    for _ in range(2):
        ratio = torch.exp(policy(obs).log_prob(actions) - old_logps)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 6 == 0:
        print(f"step {step}: {len(rewards)} responses, loss {loss.item():.4f}")
print(f"after: {accuracy(policy):.3f} of the answers are right")
