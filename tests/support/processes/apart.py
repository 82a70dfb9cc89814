"""Trainings of several steps in which ranks diverge or send wrong values, and healthy trainings.

They were written before the rules that find these mistakes. The line that a finding has to name
ends with `# cause`. If a finding may name either of two lines, both end with it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.optim import SGD, Optimizer

from tests.support.processes.mistakes import Policy, average, batch, net

STEPS = 4


@dataclass(frozen=True)
class Apart:
    """A training with a mistake, and the expected finding."""

    program: Callable[[bool], object]  # the argument says whether the advice is followed
    rule: str
    words: tuple[str, ...]
    inside: Callable[..., object] | None  # function of the program that has the line
    line: bool  # whether the finding names the line

    @property
    def lines(self) -> frozenset[str]:
        """The lines that a finding may name, such as "apart.py:41"."""
        text, first = inspect.getsourcelines(self.inside or self.program)
        path = Path(inspect.getfile(self.program)).name
        marked = (i for i, line in enumerate(text) if line.rstrip().endswith("# cause"))
        return frozenset(f"{path}:{first + i}" for i in marked)


APART: dict[str, Apart] = {}
TOGETHER: dict[str, Callable[[], object]] = {}


def says(
    rule: str,
    *words: str,
    inside: Callable[..., object] | None = None,
    line: bool = True,
) -> Callable[[Callable[[bool], object]], Callable[[bool], object]]:
    """Register a program: one finding of `rule` contains `words`; the repaired one has none."""

    def enter(program: Callable[[bool], object]) -> Callable[[bool], object]:
        APART[program.__name__] = Apart(program, rule, words, inside, line)
        return program

    return enter


def healthy(program: Callable[[], object]) -> Callable[[], object]:
    """Register a program without findings."""
    TOGETHER[program.__name__] = program
    return program


def loop(loss: Callable[[], Tensor], optimizer: Optimizer, average_of: nn.Module | None) -> None:
    """Run some steps; average the gradients of `average_of` without DDP, if given."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        average(() if average_of is None else average_of.parameters())
        optimizer.step()


REGISTRY: list[nn.Module] = []


class Agent:
    """A training loop for a policy, which it calls without a wrapper."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.optimizer = SGD(policy.parameters(), lr=0.1)

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.objective().backward()
        self.optimizer.step()

    def objective(self) -> Tensor:
        return self.policy.loss(batch())  # cause


def ddp_agent() -> Agent:
    """Return an agent that trains the module inside a DDP wrapper."""
    REGISTRY[:] = [DDP(Policy())]
    policy = REGISTRY[0].module
    assert isinstance(policy, Policy)
    return Agent(policy)


@says("ddp-bypassed", "did not go through the wrapper", "were not averaged", inside=Agent.objective)
def method_past_a_wrapper_that_no_variable_holds(repaired: bool) -> None:
    agent = ddp_agent()
    if repaired:
        vars(agent)["objective"] = lambda: REGISTRY[0](batch()).square().mean()
    for _ in range(STEPS):
        agent.update()


@says("diverged-replicas", "3.bias", "since step 0", "not averaged")
def parameter_forgotten_in_the_average(repaired: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for parameter in [*model.parameters()][: None if repaired else -1]:
            dist.all_reduce(parameter.grad)  # cause
            parameter.grad /= dist.get_world_size()
        optimizer.step()


@says("diverged-buffers", "1.running_mean", "1.running_var")
def buffers_that_nobody_broadcasts(repaired: bool) -> None:
    model = DDP(net(nn.BatchNorm1d(8)), broadcast_buffers=repaired)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch(32)).square().mean().backward()  # cause
        optimizer.step()


@says("diverged-replicas", "since step 0")
def clipped_by_the_norm_before_the_average(repaired: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        norm = get_total_norm([p.grad for p in model.parameters()])
        average(model.parameters())
        if repaired:
            norm = get_total_norm([p.grad for p in model.parameters()])
        clip_grads_with_norm_(model.parameters(), 0.001, norm)  # cause
        optimizer.step()


@says("diverged-replicas", "The values of 0.weight", "average the gradients")
def weights_of_another_seed_averaged_by_hand(repaired: bool) -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for parameter in model.parameters() if repaired else ():
        dist.broadcast(parameter.detach(), src=0)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # cause
            parameter.grad /= dist.get_world_size()
        optimizer.step()


@says("diverged-replicas", "since step 2", "no gradients are averaged")
def model_made_anew_without_its_wrapper(repaired: bool) -> None:
    model: nn.Module = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if step == 2:
            model = copy.deepcopy(model.module)
            model = DDP(model) if repaired else model
            optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        model(batch()).square().mean().backward()  # cause
        optimizer.step()  # cause


@says("diverged-replicas", "since step 0")
def momentum_that_one_rank_has_loaded(repaired: bool) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    if dist.get_rank() == 0 or repaired:
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()  # cause


@says("diverged-replicas", "since step 0", "learning rate")
def learning_rate_of_each_rank(repaired: bool) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1 if repaired else 0.1 * (1 + dist.get_rank()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()  # cause


@says("skipped-step", "Rank 1 did not step", "rank 0 did")
def step_that_one_rank_skips(repaired: bool) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        steps = torch.tensor(step < 2 or dist.get_rank() == 0, dtype=torch.int32)
        if repaired:
            dist.all_reduce(steps, dist.ReduceOp.MIN)
        if steps:
            optimizer.step()  # cause


@says("diverged-replicas", "since step 1", line=False)
def weights_that_one_rank_loads_on_the_way(repaired: bool) -> None:
    model = DDP(net())
    state = copy.deepcopy(model.module.state_dict())
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if step == 2 and (dist.get_rank() == 0 or repaired):
            model.module.load_state_dict(state)  # cause
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()


@says("diverged-replicas", "since step 0", "not averaged", "is not the .grad")
def average_of_copies(repaired: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for parameter in model.parameters():
            gradient = parameter.grad / dist.get_world_size()
            dist.all_reduce(gradient)  # cause
            if repaired:
                parameter.grad.copy_(gradient)
        optimizer.step()


@says("non-differentiable-all-gather", "all_gather")
def features_gathered_without_gradient(repaired: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        features = model(batch())
        every = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(every, features)  # cause
        if repaired:
            every[dist.get_rank()] = features
        scores = features @ torch.cat(every).t()
        nn.functional.cross_entropy(scores, torch.arange(len(scores))).backward()
        average(model.parameters())
        optimizer.step()


@says("divided-twice", "divided by 2", "also divides by the number")
def loss_and_gradients_both_divided(repaired: bool) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean() / (1 if repaired else dist.get_world_size())  # cause
        loss.backward()  # cause
        optimizer.step()


@says("redundant-all-reduce", "2 times")
def shards_reduced_in_every_micro_batch(repaired: bool) -> None:
    model = net()
    sharded = fully_shard(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for i in range(2):
            sharded.set_requires_gradient_sync(i == 1 or not repaired)
            (model(batch()).square().mean() / 2).backward()  # cause
        optimizer.step()


@says("diverged-replicas", "since step 0", "not averaged")
def never_synchronised(repaired: bool) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for i in range(2):
            with nullcontext() if repaired and i == 1 else model.no_sync():
                (model(batch()).square().mean() / 2).backward()  # cause
        optimizer.step()  # cause


@says("diverged-replicas", "critic.weight and critic.bias", "since step 0", line=False)
def player_without_a_wrapper(repaired: bool) -> None:
    torch.manual_seed(0)
    generator, critic = DDP(nn.Linear(4, 4)), nn.Linear(4, 1)
    critic = DDP(critic) if repaired else critic
    first, second = SGD(generator.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)
    for _ in range(STEPS):
        second.zero_grad()
        made = generator(batch())
        critic(made.detach()).square().mean().backward()  # cause
        second.step()  # cause
        first.zero_grad()
        critic(made).mean().backward()
        first.step()


@healthy
def batch_norm_under_ddp() -> None:
    model = DDP(net(nn.BatchNorm1d(8)))
    loop(lambda: model(batch(32)).square().mean(), SGD(model.parameters(), lr=0.1), None)


@healthy
def weights_averaged_every_second_step() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()
        if step % 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.detach())
                parameter.data /= dist.get_world_size()


@healthy
def shards_reduced_in_the_last_micro_batch() -> None:
    model = net()
    sharded = fully_shard(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for i in range(2):
            sharded.set_requires_gradient_sync(i == 1)
            (model(batch()).square().mean() / 2).backward()
        optimizer.step()


@healthy
def clipped_after_the_average() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        average(model.parameters())
        clip_grad_norm_(model.parameters(), 0.001)
        optimizer.step()


@healthy
def features_gathered_with_their_gradient() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def loss() -> Tensor:
        features = model(batch())
        every = torch.cat(differentiable.all_gather(features))
        seen = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        with torch.no_grad():
            dist.all_gather(seen, features)  # for a log
        scores = features @ every.t()
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))

    loop(loss, optimizer, model)


@healthy
def gathered_with_the_own_put_back() -> None:
    """Gather features without gradients and insert this rank's own features, as CLIP does."""
    model = net()

    def loss() -> Tensor:
        features = model(batch())
        every = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(every, features)
        every[dist.get_rank()] = features
        scores = features @ torch.cat(every).t()
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))

    loop(loss, SGD(model.parameters(), lr=0.1), model)


@healthy
def experts_of_each_rank() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    torch.manual_seed(10 + dist.get_rank())
    expert = nn.Linear(4, 2)
    nn.init.zeros_(expert.bias)  # equal on all ranks at the beginning
    model = nn.Sequential(shared, expert)
    loop(lambda: model(batch()).square().mean(), SGD(model.parameters(), lr=0.1), shared)


@healthy
def players_of_two_wrappers() -> None:
    torch.manual_seed(0)
    generator, critic = DDP(nn.Linear(4, 4)), DDP(nn.Linear(4, 1))
    first, second = SGD(generator.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)
    for _ in range(STEPS):
        second.zero_grad()
        critic(generator(batch()).detach()).square().mean().backward()
        second.step()
        first.zero_grad()
        critic(generator(batch())).mean().backward()
        first.step()


@healthy
def stages_of_a_pipeline() -> None:
    torch.manual_seed(dist.get_rank())
    stage = nn.Linear(4, 4)
    optimizer = SGD(stage.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            out, gradient = stage(batch()), torch.empty(6, 4)
            dist.send(out.detach(), 1)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            x = torch.empty(6, 4)
            dist.recv(x, 0)
            x.requires_grad_()
            stage(x).square().mean().backward()
            dist.send(x.grad, 0)
        optimizer.step()
