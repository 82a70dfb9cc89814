"""Graphs that trigger the rules on training steps, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.findings.rules.training import (
    EarlySchedulerStep,
    MixedLosses,
    OptimizerNeverStepped,
)
from graphviz_torch.graph import Step
from graphviz_torch.graph.events import GradientClearing, GradientClip, OptimizerStep
from tests.findings.by_hand.graphs import Case, chain, event, told

STEP = event(OptimizerStep, optimizer="optimizer", where="train.py:9")


CASES: dict[str, Case] = {
    "missing-zero-grad": Case(
        replace(chain("w", "MulBackward0"), step=Step(stale_gradients="train.py:9")),
        "warning",
        "The optimizer's step at train.py:9 used the gradients of an earlier step again, "
        "because they were not cleared in between.",
        [chain("w", "MulBackward0")],
    ),
    "scheduler-out-of-step (first)": Case(
        told(event(EarlySchedulerStep, scheduler="scheduler", optimizer="optimizer")),
        "warning",
        "scheduler.step() at train.py:7 was called before the first step of optimizer, so the "
        "first learning rate of the schedule is never used.",
        [told(STEP)],
    ),
    "zero-grad-before-step": Case(
        told(event(GradientClearing, by_optimizer=True, times=6), STEP),
        "warning",
        "optimizer.zero_grad() at train.py:7 cleared gradients that no step had used, 6 times.",
        [
            told(event(GradientClearing, by_optimizer=True, times=1)),
            told(event(GradientClearing, times=6)),  # by model.zero_grad(), and nobody steps
        ],
    ),
    "ineffective-clipping": Case(
        told(event(GradientClip, function="clip_grad_norm_", moment="after the step")),
        "warning",
        "clip_grad_norm_() at train.py:7 clips gradients after the step that used them, so it "
        "has no effect.",
        [
            told(event(GradientClip, function="clip_grad_norm_", moment="in time")),
            told(
                event(GradientClip, moment="in time"), event(GradientClip, moment="before backward")
            ),
        ],
    ),
    "optimizer-never-stepped": Case(
        told(event(OptimizerNeverStepped, parameters=("D.weight", "D.bias"))),
        "warning",
        "backward at train.py:7 computes gradients for D.weight, D.bias, but the optimizer that "
        "holds them has not stepped so far.",
        [told(STEP)],
    ),
    "mixed-losses": Case(
        told(
            event(
                MixedLosses,
                optimizer="opt_g",
                through=True,
                second="train.py:9",
                stepped="train.py:10",
            ),
            STEP,
        ),
        "warning",
        "opt_g steps at train.py:10 with the gradients of two losses: those of backward at "
        "train.py:7, after which another optimizer stepped, and those of backward at "
        "train.py:9.",
        [told(STEP)],
    ),
}
