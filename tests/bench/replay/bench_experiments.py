"""What an experiment takes against the forward: `python -m tests.bench.replay.bench_experiments`.

Each runs the forward one to three times, and beside it what differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from graphviz_torch import experiment, record
from graphviz_torch.experiments.experiment import EXPERIMENTS
from tests.support.models import MLP, ResNet, gpt2

CASES = {
    "GPT-2, 12 layers of width 128": (
        lambda: gpt2(12, 128, 4).train(),
        lambda: torch.randint(0, 32, (8, 32)),
    ),
    "ResNet-50 of width 32": (lambda: ResNet(50, 32), lambda: torch.randn(8, 3, 64, 64)),
    "MLP": (lambda: MLP(512, 2048, 512), lambda: torch.randn(256, 512)),
}


def seconds(run: Callable[[], object]) -> float:
    """The shortest of three runs, in time of computing: a busy machine counts for less."""
    times = []
    for _ in range(3):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return min(times)


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    for name, (make, data) in CASES.items():
        model, x = make(), data()
        once = seconds(lambda model=model, x=x: model(x))
        with record(model, experiments=True) as recording:
            output = model(x)
            getattr(output, "logits", output).sum().backward()
        print(f"{name}: forward {once * 1e3:.0f} ms")
        for each in EXPERIMENTS:
            took = seconds(lambda each=each, recording=recording: experiment(recording, each))
            print(f"    {each:<14}{took / once:6.1f} times")


if __name__ == "__main__":
    main()
