"""Measure the cost of recording: each row's step divided by the bare step, in interleaved rounds.

    python -m tests.bench.bench_record            all shapes and loops, six minutes on two cores
    python -m tests.bench.bench_record --quick    without GPT-2 small
    python -m tests.bench.bench_record --large    loops with GPT-2 small, ten minutes more
    python -m tests.bench.bench_record --growth   only the growth of the time with the calls
    python -m tests.bench.bench_record --calls    only 300 blocks: the cost, and calls per node
    python -m tests.bench.bench_record --watch    only the cost of `watch` in optimizer steps
    python -m tests.bench.bench_record --fingerprints   only the cost of fingerprints
    python -m tests.bench.bench_record --device cuda

A step is a forward and a backward: of a GPT-2 with random weights, batch 1, 32 tokens; or of an MLP
with three layers, batch 32. A recorded step is the whole `with` block, with `recording.graph`
ready. The script prints the median over the rounds of a row's time divided by the time of the bare
steps before and after it, and the quartiles. Times are CPU times of the process with one thread, so
that other processes count less; on a GPU they are wall times until the device is done. Slow rows
have fewer rounds.

Growth: 1,000 calls are recorded ten times, and 10,000 calls once; the best of three tries counts. A
ratio of 1 means that the time is proportional to the number of calls.

Calls: the number of calls to Python and C functions that recording adds to 300 blocks of LayerNorm,
Linear, tanh and add, divided by the number of nodes. It is the same in every run. The cost of the
recorded step is printed before it: the least CPU time of 20 rounds, divided by that of the bare
step.

TorchLens is measured last, because its first trace slows down all later calls into torch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from graphviz_torch import Graph, record, watch
from graphviz_torch.recording import listeners

Step = Callable[[], torch.Tensor]

SLOW, SLOW_ROUNDS = 1.5, 2  # seconds from which a row is slow, and the rounds of a slow row


def gpt2(
    width: int, heads: int, vocabulary: int, device: str = "cpu"
) -> tuple[torch.nn.Module, torch.Tensor, Step]:
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=width,
        n_head=heads,
        n_layer=12,
        vocab_size=vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    model = GPT2LMHeadModel(config).to(device)
    tokens = torch.randint(0, vocabulary, (1, 32)).to(device)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(tokens, labels=tokens).loss
        loss.backward()
        return loss

    return model, tokens, step


def mlp(device: str = "cpu") -> tuple[torch.nn.Module, torch.Tensor, Step]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()),
        torch.nn.Linear(256, 10),
    ).to(device)
    batch, labels = torch.randn(32, 64).to(device), torch.randint(0, 10, (32,)).to(device)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        return loss

    return model, batch, step


def loops() -> dict[str, tuple[torch.nn.Module, Step]]:
    """Return typical loops without gradients inside a recording, each with a training step."""
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(4)]
    decoder = torch.nn.Sequential(*layers, torch.nn.Linear(32, 32)).eval()
    policy = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    classifier, batch, _ = mlp()

    def learn(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()
        return loss

    def generation() -> torch.Tensor:
        sequence = torch.zeros(1, 1, 32)
        with torch.no_grad():
            for _ in range(32):
                sequence = torch.cat((sequence, decoder(sequence)[:, -1:]), 1)
        return learn(decoder, sequence)

    def rollout() -> torch.Tensor:
        state = torch.zeros(1, 8)
        with torch.no_grad():
            for _ in range(400):
                state = policy(state) + 0.1
        return learn(policy, state)

    def evaluation() -> torch.Tensor:
        with torch.no_grad():
            for _ in range(20):
                (classifier(batch).argmax(1) == 0).float().mean().item()
        return learn(classifier, batch)

    return {
        "generation, 32 tokens, width 32": (decoder, generation),
        "rollout, 400 steps of a tiny policy": (policy, rollout),
        "evaluation, 20 batches of the MLP": (classifier, evaluation),
    }


def large_loops() -> dict[str, tuple[torch.nn.Module, Step]]:
    """Return the same loops with GPT-2 small, whose calls take long compared with Python."""
    model, tokens, step = gpt2(768, 12, 50257)

    def generation() -> torch.Tensor:
        sequence = tokens
        with torch.no_grad():
            for _ in range(8):
                following = model(sequence).logits[:, -1:].argmax(-1)
                sequence = torch.cat((sequence, following), 1)
        return step()

    def rollout() -> torch.Tensor:
        rewards = []
        with torch.no_grad():
            for _ in range(8):
                chances = torch.distributions.Categorical(logits=model(tokens).logits[:, -1])
                rewards.append(chances.log_prob(chances.sample()))
        return step() * torch.stack(rewards).mean()

    def evaluation() -> torch.Tensor:
        with torch.no_grad():
            for _ in range(8):
                model(tokens, labels=tokens).loss.item()
        return step()

    return {
        "generation, 8 tokens, GPT-2 small": (model, generation),
        "rollout, 8 steps of GPT-2 small": (model, rollout),
        "evaluation, 8 batches, GPT-2 small": (model, evaluation),
    }


class Same(torch.autograd.Function):
    """A function that returns a copy of its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


def chains() -> dict[str, Callable[[int], object]]:
    """Return functions that make chains of n calls; each call uses the result of the one before."""
    weight = torch.ones(1, requires_grad=True)

    def under_no_grad(n: int) -> None:
        x = torch.ones(1)
        with torch.no_grad():
            for _ in range(n):
                x = torch.tanh(x * weight)

    def functions(n: int) -> None:
        x = weight
        for _ in range(n):
            x = Same.apply(x)  # type: ignore[no-untyped-call]

    def detached(n: int) -> None:
        x = torch.ones(1)
        for _ in range(n):
            x = torch.tanh(x * weight).detach()

    def backwards(n: int) -> None:
        for _ in range(n // 10):
            torch.tanh(weight * 2).sum().backward()

    return {
        "under no_grad": under_no_grad,
        "custom Functions": functions,
        "detached states": detached,
        "a tenth as many backwards": backwards,
    }


def growth() -> None:
    """Print the time of 10,000 calls in one block, divided by that of ten blocks of 1,000 calls."""
    print("\nGrowth: 10,000 calls in one block against ten blocks of 1,000")
    for name, chain in chains().items():

        def recorded(n: int, chain: Callable[[int], object] = chain) -> None:
            with record():
                chain(n)

        recorded(100)
        gc.collect()
        gc.freeze()  # a collection visits only the objects of the chain
        ten = [sum(seconds(lambda: recorded(1000)) for _ in range(10)) for _ in range(3)]
        one = [seconds(lambda: recorded(10000)) for _ in range(3)]
        print(f"  {name:30} {min(one) / min(ten):6.2f}   ({min(ten):.2f} s, {min(one):.2f} s)")


class Block(torch.nn.Module):
    """LayerNorm, Linear, tanh and add: nine nodes, including the parameters."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


def counted(run: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Count the calls of each function, by its file, its name, and its docstring's first line."""
    calls: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        caller = "/".join(code.co_filename.rsplit("/", 3)[-3:])
        if event == "call":
            doc = code.co_consts[0] if code.co_consts else None
            text = doc.strip().splitlines()[0] if isinstance(doc, str) and doc.strip() else ""
            calls[f"{caller}:{code.co_firstlineno} {code.co_name}", text] += 1
        elif event == "c_call":
            name = getattr(argument, "__qualname__", repr(argument))
            calls[name, f"called by {caller} {code.co_name}"] += 1

    run()  # work that is done once in a process
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def print_calls(blocks: int = 300, most: int = 10) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(blocks)))
    inputs = torch.randn(4, 8)

    def step() -> None:
        model(inputs).mean().backward()
        model.zero_grad()

    def recorded() -> Graph:
        with record(model) as recording:
            step()
        return recording.graph

    def row(**options: Any) -> Callable[[], object]:
        def run() -> None:
            with record(model, **options) as recording:
                step()
            assert recording.graph

        return run

    def alone() -> None:
        every = listeners.LISTENERS, listeners.QUERIES
        listeners.LISTENERS, listeners.QUERIES = (), ()
        try:
            recorded()
        finally:
            listeners.LISTENERS, listeners.QUERIES = every

    runs = {
        "bare step": step,
        "everything": row(),
        "what is not finite": row(gradients="finite"),
        "no gradients": row(gradients=False),
        "no listener": alone,
    }
    for run in runs.values():
        run()
    gc.collect()
    gc.freeze()
    least = dict.fromkeys(runs, math.inf)
    for _ in range(20):
        least = {name: min(least[name], seconds(run)) for name, run in runs.items()}
    for name, best in least.items():
        print(f"  {name:30} {best * 1000:6.1f} ms {best / least['bare step']:6.2f}")
    nodes = len(recorded().nodes)
    bare, calls = counted(step), counted(recorded)
    calls.subtract(bare)
    print(
        f"{nodes} nodes: {calls.total() / nodes:.1f} calls a node beside {bare.total() / nodes:.1f}"
    )
    for (name, text), count in calls.most_common(most):
        print(f"  {count / nodes:6.2f}   {name}   {text}")


def print_watch(steps: int = 800) -> None:
    """Print the cost of `watch` and of `detect_anomaly` in steps of an MLP with Adam.

    Each takes 20 steps in turn. The median and the lower quartile of the thread's CPU time are
    printed; with OMP_NUM_THREADS=1, this is the time of the whole step.
    """
    warnings.simplefilter("ignore")  # detect_anomaly warns that it is slow
    for width, batch in ((64, 16), (96, 96), (512, 64)):
        layers = [
            part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.Tanh())
        ]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))
        optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(batch, width)
        times: dict[str, list[float]] = {"bare": [], "watch": [], "detect_anomaly": []}
        with watch(model) as watching:
            turns = [name for name in times for _ in range(20)] * (steps * 64 // width // 20)
            for name in [*["watch"] * 200, *turns]:
                if name != "watch":
                    watching._watch.close()
                with torch.autograd.set_detect_anomaly(name == "detect_anomaly"):
                    start = time.thread_time()
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                    times[name].append(time.thread_time() - start)
                if name != "watch":
                    watching._watch.open()
        quarters = {name: statistics.quantiles(found, n=4) for name, found in times.items()}
        low, bare, _ = quarters.pop("bare")
        told = [
            f"{name} +{(each[1] - bare) * 1e3:.3f} ms ({(each[0] - low) * 1e3:.3f})"
            for name, each in quarters.items()
        ]
        print(f"  step of {bare * 1e3:.2f} ms ({low * 1e3:.2f}): {', '.join(told)}", flush=True)


def rows(model: torch.nn.Module, step: Step) -> dict[str, Callable[[], object]]:
    def recorded(**options: Any) -> Callable[[], object]:
        def run() -> object:
            with record(model, **options) as recording:
                step()
            return recording.graph

        return run

    def under(context: Callable[[], contextlib.AbstractContextManager[object]]) -> Step:
        def run() -> torch.Tensor:
            with context():
                return step()

        return run

    off = {"gradients": False, "transfers": False, "memory": False}
    cpu = [torch.profiler.ProfilerActivity.CPU]
    return {
        "modules + lines": recorded(**off),
        "+ transfers": recorded(**{**off, "transfers": True}),
        "+ gradient statistics": recorded(memory=False),
        "everything": recorded(),
        "fingerprints": recorded(fingerprints=True),
        "what is not finite": recorded(gradients="finite"),
        "detect_anomaly": under(lambda: torch.autograd.detect_anomaly(check_nan=True)),
        "detect_anomaly, no NaN check": under(lambda: torch.autograd.detect_anomaly(False)),
        "torch.profiler": under(lambda: torch.profiler.profile(activities=cpu)),
        "torch.profiler, stacks": under(
            lambda: torch.profiler.profile(activities=cpu, with_stack=True, record_shapes=True)
        ),
    }


def torchlens(model: torch.nn.Module, inputs: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return a row for TorchLens, if installed. It traces only the forward."""
    try:
        import torchlens as lens
    except ImportError:
        return {}
    return {"TorchLens, forward alone": lambda: lens.trace(model, inputs)}


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    run()
    return time.process_time() - start


def runnable(runs: dict[str, Callable[[], object]]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the rows that run, after a warm-up; print why the others do not."""
    for name, run in runs.items():
        try:
            run()
        except Exception as error:
            print(f"  {name:30} does not run: {type(error).__name__}: {str(error)[:100]}")
        else:
            yield name, run


def bench(
    title: str, step: Callable[[], object], wanted: dict[str, Callable[[], object]], rounds: int
) -> None:
    print(f"\n{title}", flush=True)
    step()
    runs = dict(runnable(wanted))
    gc.collect()
    gc.freeze()  # existing objects are ignored, so that a collection is quick
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    bare = [seconds(step)]
    slow: set[str] = set()
    for number in range(rounds):
        for name, run in runs.items():
            if name in slow and number >= SLOW_ROUNDS:
                continue
            row = seconds(run)
            if row > SLOW:
                slow.add(name)
            bare.append(seconds(step))
            ratios[name].append(2 * row / (bare[-2] + bare[-1]))
    print(f"  {'bare step':30} {statistics.median(bare) * 1000:6.1f} ms, {rounds} rounds")
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"  {name:30} {middle:6.2f}   ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--fingerprints", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", nargs="*", default=[], help="rows to measure (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.growth or options.calls or options.watch:
        (growth if options.growth else print_calls if options.calls else print_watch)()
        raise SystemExit
    shapes = {
        "GPT-2, width 64": gpt2(64, 4, 512, options.device),
        "MLP, three layers": mlp(options.device),
    }
    if not options.quick:
        shapes = {"GPT-2 small": gpt2(768, 12, 50257, options.device), **shapes}
    if options.fingerprints:  # the "bare step" is then the recorded step
        for title, (model, _, step) in shapes.items():
            found = rows(model, step)
            bench(
                title,
                found["everything"],
                {"fingerprints": found["fingerprints"]},
                2 * options.rounds,
            )
        raise SystemExit
    for title, (model, _, step) in shapes.items():
        wanted = rows(model, step)
        chosen = {name: wanted[name] for name in options.rows or wanted if name in wanted}
        bench(title, step, chosen, options.rounds * (1 if title == "GPT-2 small" else 3))
    for title, (model, step) in loops().items():
        wanted = {name: rows(model, step)[name] for name in ("everything", "detect_anomaly")}
        bench(title, step, wanted, options.rounds)
    for title, (model, step) in large_loops().items() if options.large else ():
        bench(title, step, {"everything": rows(model, step)["everything"]}, options.rounds)
    growth()
    for title, (model, inputs, step) in shapes.items():
        peer = torchlens(model, inputs)
        if peer and not options.rows:
            bench(title, step, peer, options.rounds)
