"""Graphs that trigger the rules on calls, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphviz_torch.findings.rules.clipping import ExtremeClipNorm
from graphviz_torch.findings.rules.meaning.batches import RowOfData
from graphviz_torch.findings.rules.meaning.calls import (
    CallPerSample,
    DropoutInEvalMode,
    RepeatedBatch,
    UnneededRetainGraph,
)
from graphviz_torch.findings.rules.meaning.optimizer_lines import LineOfOneParameter
from graphviz_torch.findings.rules.meaning.optimizers import (
    RecreatedOptimizer,
    StepWithoutGradients,
    VanishedEpsilon,
    ZeroLearningRate,
)
from graphviz_torch.findings.rules.meaning.parameter_groups import (
    DecayedNorms,
    EmptyParameterGroup,
    SharedParameters,
    UnknownGroupOption,
)
from graphviz_torch.findings.rules.meaning.schedulers import (
    RateSetByHand,
    SchedulerStepsTooOften,
    UnusedScheduler,
)
from graphviz_torch.findings.rules.watched import NonfiniteLoss
from graphviz_torch.findings.rules.watched_parameters import ReplacedParameters
from graphviz_torch.findings.rules.written_values import UnrestoredWeights
from graphviz_torch.graph import Graph, TensorMeta, Untracked
from tests.findings.by_hand.graphs import Case, event, told


def idle(kind: type[Any], **fields: Any) -> Graph:
    return told(event(kind, **fields))


ROWS = (
    Untracked("data", "input", (TensorMeta((1, 4), "float32", "cpu"),), targets=(0,)),
    Untracked("data", "target", (TensorMeta((1,), "int64", "cpu"),), targets=(0,)),
)

CASES: dict[str, Case] = {
    "dropout-in-eval-mode": Case(
        idle(DropoutInEvalMode, function="dropout"),
        "warning",
        "dropout() at train.py:7 drops values in eval mode, too, because it does not know the "
        "mode of the model.",
        [idle(EmptyParameterGroup, optimizer="o"), told()],
    ),
    "unneeded-retain-graph": Case(
        idle(UnneededRetainGraph, by="create_graph", count=3),
        "info",
        "backward at train.py:7 keeps its graph (create_graph=True) 3 times, and no later "
        "backward uses the graph.",
        [idle(DropoutInEvalMode, function="dropout")],
    ),
    "scheduler-out-of-step": Case(
        idle(SchedulerStepsTooOften, scheduler="s", optimizer="o", count=8, steps=4),
        "warning",
        "s stepped 8 times at train.py:7, while o stepped 4 times: the learning rate changes "
        "faster than intended.",
        [idle(RecreatedOptimizer, name="o")],
    ),
    "recreated-optimizer": Case(
        idle(RecreatedOptimizer, name="o", count=4),
        "warning",
        "o, which steps at train.py:7, was re-created for each of 4 steps: its moments start at "
        "zero each time.",
        [idle(SchedulerStepsTooOften, scheduler="s", optimizer="o")],
    ),
    "step-without-gradients": Case(
        idle(StepWithoutGradients, optimizer="o", count=4, nodes=(0,)),
        "warning",
        "o stepped 4 times at train.py:7, but none of its parameters had a gradient, because no "
        "backward had reached them.",
        [idle(EmptyParameterGroup, optimizer="o")],
    ),
    "empty-parameter-group": Case(
        idle(EmptyParameterGroup, optimizer="o", group=1, groups=2),
        "info",
        "Group 1 of 2 in o, which steps at train.py:7, is empty: no parameter matched, so its "
        "options apply to nothing.",
        [idle(RecreatedOptimizer, name="o")],
    ),
    "unknown-group-option": Case(
        idle(
            UnknownGroupOption,
            optimizer="o",
            owner="SGD",
            option="wd",
            meant="weight_decay",
            groups=2,
            value="0.1",
            used="0",
        ),
        "warning",
        "Group 0 of 2 in o, which steps at train.py:7, has the option wd=0.1, which SGD does not "
        "know: its weight_decay is 0.",
        [idle(EmptyParameterGroup, optimizer="o", group=1, groups=2)],
    ),
    "weight-decay-on-norms": Case(
        idle(DecayedNorms, optimizer="o", group=1, groups=2, decay=0.1, nodes=(0,)),
        "info",
        "Group 1 of 2 in o, which steps at train.py:7, applies weight decay of 0.1 to "
        "body.weight. Another group exempts biases and norms from weight decay.",
        [
            idle(DecayedNorms, optimizer="o", group=1, groups=2),
            idle(EmptyParameterGroup, optimizer="o"),
        ],
    ),
    "parameter-in-two-optimizers": Case(
        idle(SharedParameters, optimizer="o", other="p", nodes=(0,)),
        "info",
        "o, which steps at train.py:7, and p both hold body.weight, and both steps change these "
        "values.",
        [
            idle(SharedParameters, optimizer="o", other="p"),
            idle(DecayedNorms, optimizer="o", nodes=(0,)),
        ],
    ),
    "zero-learning-rate": Case(
        idle(ZeroLearningRate, optimizer="o", count=4),
        "warning",
        "o stepped at train.py:7 with a learning rate of 0, in each of 4 steps, which change "
        "nothing.",
        [idle(RecreatedOptimizer, name="o", count=4)],
    ),
    "epsilon-underflow (of an optimizer)": Case(
        idle(VanishedEpsilon, optimizer="o", epsilon=1e-8, nodes=(0,)),
        "warning",
        "The eps of o, which steps at train.py:7, is 1e-08, which is 0 in float16: a step "
        "divides by 0 for gradients that were 0.",
        [idle(ZeroLearningRate, optimizer="o")],
    ),
    "single-row": Case(
        replace(
            idle(RowOfData, labels=("x", "y"), shapes=("[1, 4]", "[1]"), rows=32, steps=2),
            untracked=ROWS,
        ),
        "warning",
        "The loss uses one of 32 rows of x and y at train.py:7, in each of 2 steps, and the other "
        "rows are not used.",
        [idle(RowOfData, labels=("x", "y"), shapes=("[1, 4]", "[1]"), rows=32, steps=2)],
    ),
    "rate-set-by-hand": Case(
        idle(RateSetByHand, what="group", optimizer="o", groups=2, assigned="train.py:5", steps=9),
        "warning",
        "The learning rate of group 0 of 2 in o is set at train.py:5 in each step, and the other "
        "groups keep the rate that group 0 began with or reached, in 9 steps at train.py:7.",
        [idle(CallPerSample, module="Net")],
    ),
    "update-outside-loop": Case(
        idle(LineOfOneParameter, optimizer="o", parameters=6, other="train.py:9", nodes=(0,)),
        "warning",
        "Each step of o changes only body.weight at train.py:7, but all 6 parameters at "
        "train.py:9.",
        [idle(CallPerSample, module="Net")],
    ),
    "overwritten-weights (after the recorded steps)": Case(
        idle(UnrestoredWeights, kept="ema.stored", source="ema.shadow", step=9),
        "warning",
        "The values of ema.shadow replace the trained weights at train.py:7, and step 9 continues "
        "from them: ema.stored, which has the trained weights, was not copied back.",
        [idle(CallPerSample, module="Net")],
    ),
    "replaced-parameters": Case(
        idle(ReplacedParameters, parameters=("a", "b"), count=3, backward="train.py:5", steps=3),
        "error",
        "backward at train.py:5 gives the gradient of a, b and 1 more to temporary parameters "
        "of these names, and the parameters that the optimizer holds get no gradient: they were "
        "replaced during the forward, and put back before the step at train.py:7, in 3 steps.",
        [idle(CallPerSample, module="Net")],
    ),
    "nonfinite-loss": Case(
        idle(NonfiniteLoss, spoilt=True, step=8, steps=20, recorded=3),
        "error",
        "The loss of backward at train.py:7 is NaN from step 9 of 20 on, because step 8 had made "
        "parameters NaN or infinite. It was finite in the recorded steps, up to step 3.",
        [idle(CallPerSample, module="Net")],
    ),
    "nonfinite-loss (on a device)": Case(
        idle(NonfiniteLoss, step=8, steps=20, recorded=3),
        "error",
        "The loss of backward at train.py:7 is NaN or Inf from step 9 of 20 on. It was finite in "
        "the recorded steps, up to step 3.",
        [idle(CallPerSample, module="Net")],
    ),
    "scheduler-out-of-step (no steps)": Case(
        idle(UnusedScheduler, scheduler="s", count=4),
        "warning",
        "s stepped 4 times at train.py:7, but its optimizer never stepped, so its rates have no "
        "effect.",
        [idle(CallPerSample, module="Net")],
    ),
    "extreme-clip-norm": Case(
        idle(ExtremeClipNorm, function="clip_grad_norm_", count=6, share=0.02),
        "info",
        "clip_grad_norm_() at train.py:7 scaled each of 6 gradients to the norm of the bound, "
        "0.02 of the gradient's own norm (median).",
        [idle(CallPerSample, module="Net")],
    ),
    "called-for-each-sample": Case(
        idle(CallPerSample, module="Net", count=32),
        "info",
        "Net ran 32 times at train.py:7, each time on a different slice of the same tensor: one "
        "call on the whole tensor does the same work in less time.",
        [idle(ExtremeClipNorm, function="clip_grad_norm_", count=6, share=200.0)],
    ),
    "repeated-batch": Case(
        told(event(RepeatedBatch, what="workers", count=4, among=8, workers=2)),
        "warning",
        "4 of 8 batches of the DataLoader at train.py:7 are equal to a batch that another of its "
        "2 workers had just returned.",
        [idle(CallPerSample, module="Net")],
    ),
}
