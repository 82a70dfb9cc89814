"""Measure the time of each experiment relative to the forward.

Run `python -m tests.bench.replay.bench_experiments`. An experiment runs the forward one to three
times, with the changed version beside it. With `--real`, the models have real sizes, so that
kernels take most of the time; with small models, Python does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from graphviz_torch import record
from graphviz_torch.experiments import experiment
from graphviz_torch.experiments.runner import EXPERIMENTS
from tests.support.models import MLP, ResNet, gpt2, known

CASES = {
    "GPT-2, 12 layers of width 128": (
        lambda: gpt2(12, 128, 4).train(),
        lambda: torch.randint(0, 32, (8, 32)),
    ),
    "ResNet-50 of width 32": (lambda: ResNet(50, 32), lambda: torch.randn(8, 3, 64, 64)),
    "MLP": (lambda: MLP(512, 2048, 512), lambda: torch.randn(256, 512)),
}
REAL = {
    "GPT-2 small, 4 x 256 tokens": (
        lambda: known("GPT2LMHeadModel", "GPT2Config").train(),
        lambda: torch.randint(0, 50257, (4, 256)),
    ),
    "ResNet-50, 8 images of 224 x 224": (
        lambda: ResNet(50, 64, 1000),
        lambda: torch.randn(8, 3, 224, 224),
    ),
}


def seconds(run: Callable[[], object], times: int = 3) -> float:
    """Return the CPU time of the fastest of some runs."""
    taken = []
    for _ in range(times):
        begun = time.process_time()
        run()
        taken.append(time.process_time() - begun)
    return min(taken)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="use models with real sizes")
    parser.add_argument("names", nargs="*", help="names of experiments (default: all)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, (make, data) in (REAL if asked.real else CASES).items():
        model, x = make(), data()
        once = seconds(lambda model=model, x=x: model(x))
        with record(model, experiments=True) as recording:
            output = model(x)
            getattr(output, "logits", output).sum().backward()
        model.zero_grad()
        print(f"{name}: forward {once * 1e3:.0f} ms", flush=True)
        for each in asked.names or EXPERIMENTS:
            took = seconds(
                lambda each=each, recording=recording: experiment(recording, each),
                1 if asked.real else 3,
            )
            print(f"    {each:<14}{took / once:6.1f} times", flush=True)


if __name__ == "__main__":
    main()
