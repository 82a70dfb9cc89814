"""For each rule of a step of training: a graph that it names something in, and near misses."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Step
from tests.findings.by_hand.graphs import Case, chain, event, told

STEP = event("step", label="optimizer", detail="0", where="train.py:9")


CASES: dict[str, Case] = {
    "uncleared-gradient": Case(
        replace(chain("w", "MulBackward0"), step=Step(stale_gradients="train.py:9")),
        "warning",
        "The optimizer's step at train.py:9 used the gradients of an earlier step again: they were "
        "not cleared in between.",
        [chain("w", "MulBackward0")],
    ),
    "scheduler-stepped-first": Case(
        told(event("schedule", label="scheduler", detail="optimizer")),
        "warning",
        "scheduler.step() at train.py:7 ran before optimizer had stepped once: the first learning "
        "rate of the schedule is never used.",
        [told(STEP)],
    ),
    "lost-gradient": Case(
        told(event("clear", operation="optimizer", times=6), STEP),
        "warning",
        "optimizer.zero_grad() at train.py:7 cleared gradients that no step had used, 6 times.",
        [
            told(event("clear", operation="optimizer", times=1)),
            told(event("clear", times=6)),  # by model.zero_grad(), and nobody steps
        ],
    ),
    "clipped-in-vain": Case(
        told(event("clip", operation="clip_grad_norm_", detail="after the step")),
        "warning",
        "clip_grad_norm_() at train.py:7 clips gradients after the step that used them, and so "
        "changes nothing.",
        [
            told(event("clip", operation="clip_grad_norm_", detail="in time")),
            told(event("clip", detail="in time"), event("clip", detail="nothing")),
        ],
    ),
    "optimizer-never-stepped": Case(
        told(event("backward", label="D.weight, D.bias")),
        "warning",
        "backward at train.py:7 gives D.weight, D.bias a gradient, but the optimizer that holds "
        "them never stepped.",
        [told(STEP)],
    ),
}
