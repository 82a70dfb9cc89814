"""Calls and optimizers: calls and groups of parameters that do not do what they are for."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Edge, Finding
from ....graph.events import CopiedValues, RepeatedBatch, ineffective_calls
from ....graph.text import listing
from ....graph.units import bytes_text
from ...axes import attribute
from ...graph_reading import Reading
from ...rule import finding, finds, rule
from ...words import at
from ..cuts import explained, upstream

_PRODUCTS = ("mm", "addmm", "linear", "mv", "addmv")
_VIEWS = ("t", "transpose", "view", "unsqueeze", "squeeze")
_ENOUGH = 8  # calls on one slice each
_KEEPS = {
    "retain_graph": "Leave out retain_graph=True.",
    "create_graph": "If these gradients are to be learned through, look for what cuts them before "
    "the loss: detach(), .data, no_grad, load_state_dict(). Else leave out create_graph=True.",
}


@rule("warning", reads="end", of=(ineffective_calls.FunctionalDropoutInEval,))
def dropout_in_eval_mode(reading: Reading) -> Iterator[Finding]:
    """A function drops values while the model is in eval mode, as it does in train mode.

    ## Why it matters

    Predictions and validation scores are then random, and worse than they need to be.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5)  # <- reported


    model = Net(6, 3)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        model.eval()(torch.randn(8, 6))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, training=self.training)


    model = Net(6, 3)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        model.eval()(torch.randn(8, 6))
    ```

    ## When it is intended

    Monte Carlo dropout samples predictions on purpose.

    ## Not detected

    Randomness of other kinds, such as noise that is added: `experiment` finds it as
    `random-in-eval-mode`.

    ## See also

    - [torch.nn.functional.dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html)
    """
    for event in reading.events(ineffective_calls.FunctionalDropoutInEval):
        attention = event.function == "scaled_dot_product_attention"
        passed = "dropout_p=p if self.training else 0.0" if attention else "training=self.training"
        yield finding(
            "warning",
            f"{event.function}(){at(event.where)} drops values in eval mode, too: its dropout does "
            "not follow the mode of the model.",
            cause="dropout in eval mode",
            advice=f"Pass {passed}"
            + ("" if attention else ", or make an nn.Dropout in __init__")
            + "; do nothing if it is to drop in evaluation, as Monte Carlo dropout does.",
            where=event.where,
        )


@rule("warning", reads="end", of=(ineffective_calls.UnneededRetainGraph,))
def unneeded_retain_graph(reading: Reading) -> Iterator[Finding]:
    """A backward keeps its graph with retain_graph or create_graph, and no other one runs through
    it.

    ## Why it matters

    The tensors that backward would free are kept until the next step: the peak of memory grows by
    all of them. With create_graph the backward is recorded too, and takes longer.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward(retain_graph=True)  # <- reported
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A second backward through the same graph, in the same step: it is then not reported.

    ## Not detected

    A graph that code outside of the recording uses later.

    ## See also

    - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    """
    kept = sum(saved.nbytes for node in reading.graph.nodes for saved in node.saved)
    copies = reading.events(CopiedValues)
    for event in reading.events(ineffective_calls.UnneededRetainGraph):
        if copies and event.by == "create_graph":
            copy = copies[0]
            yield finding(
                "warning",
                f"{copy.operation}{at(copy.where)} copies values and leaves their history behind: "
                f"nothing learns through what backward{at(event.where)} gives with "
                "create_graph=True.",
                cause="values copied out of a history",
                advice="Run the module with the tensors themselves: torch.func.functional_call("
                "model, tensors, (x,)).",
                where=copy.where,
            )
            continue
        memory = f": {bytes_text(kept)} are kept until the next one" if kept else ""
        yield finding(
            "info",
            f"backward{at(event.where)} keeps its graph ({event.by}=True) {event.count} times, and "
            f"nothing runs through it again{memory}.",
            cause="a graph kept for nothing",
            advice=_KEEPS[event.by],
            where=event.where,
        )


@rule(
    "warning",
    reads="end",
    of=(ineffective_calls.SchedulerStepsTooOften, ineffective_calls.SchedulerPastEnd),
)
def scheduler_out_of_step(reading: Reading) -> Iterator[Finding]:
    """A learning rate scheduler steps at other times than its optimizer: before its first step,
    more often, without it, or past the end of the schedule.

    ## Why it matters

    A schedule counts its own steps. Where it steps more often than the optimizer, the rate falls
    too fast; where its optimizer never steps, the schedule has no effect; where it steps first, the
    first rate is skipped; past its end a cosine rises again.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            for _ in range(2):
                scheduler.step()  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer = torch.optim.Adam(model.parameters())
    with record(model) as recording:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with record(model) as recording:
        for _ in range(3):
            scheduler.step()  # <- reported
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with record(model) as recording:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    ```

    ## When it is intended

    A scheduler that counts samples or batches rather than steps.

    ## Not detected

    A scheduler that steps too rarely: once for each epoch is as usual as once for each step.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """
    for event in reading.events(ineffective_calls.SchedulerStepsTooOften):
        yield finding(
            "warning",
            f"{event.scheduler} stepped {event.count} times{at(event.where)}, while "
            f"{event.optimizer} stepped {event.steps} times: the rate changes faster than the "
            "schedule was made for.",
            cause="a scheduler steps more often than its optimizer",
            advice=f"Call {event.scheduler}.step() once for each step of the optimizer, or once "
            "for each epoch.",
            where=event.where,
        )
    for end in reading.events(ineffective_calls.SchedulerPastEnd):
        yield finding(
            "info",
            f"{end.scheduler}{at(end.where)} is past its end: T_max is {end.end}, and it has "
            f"stepped {end.count} times. From its end on the rate of {end.optimizer} rises again.",
            cause="a scheduler past its end",
            advice="Make T_max the number of steps that the scheduler will take.",
            where=end.where,
        )


_LOSES = {
    "optimizer": "its moments begin at zero each time",
    "scheduler": "it begins at its first rate each time, and never comes to the next",
    "scaler": "it begins with its first scale each time, and learns none",
}


@rule("warning", reads="end", of=(ineffective_calls.RecreatedObject,), also=("watch",))
def recreated_optimizer(reading: Reading) -> Iterator[Finding]:
    """An optimizer that keeps moments, a scheduler or a scaler is made anew for each step, and
    loses what it has learnt or counted.

    ## Why it matters

    Adam and SGD with momentum remember earlier gradients. A new optimizer in each step has no
    memory: momentum does nothing, Adam takes steps of the same length for all parameters, and a
    scheduler stays at its first rate.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        for _ in range(3):
            optimizer = torch.optim.Adam(model.parameters())
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    An inner loop of meta-learning, which begins anew for each task.

    ## Not detected

    An optimizer that is made once in each epoch.

    ## See also

    - [Constructing an optimizer](https://docs.pytorch.org/docs/stable/optim.html#constructing-it)
    """
    for event in reading.events(ineffective_calls.RecreatedObject):
        steps = f"{event.name}, which steps{at(event.where)}, was made anew for each of "
        if event.what != "optimizer":
            steps = f"The {event.what} {event.name} of the step{at(event.where)} was made anew for "
            steps += "each of "
        yield finding(
            "warning",
            f"{steps}{event.count} steps: {_LOSES[event.what]}.",
            cause=f"{'a' if event.what[0] == 's' else 'an'} {event.what} made anew",
            advice=f"Make the {event.what} once, before the loop.",
            where=event.where,
        )


@rule("warning", reads="end", of=(ineffective_calls.StepWithoutGradients,))
def step_without_gradients(reading: Reading) -> Iterator[Finding]:
    """An optimizer steps, and no backward has given any of its parameters a gradient.

    ## Why it matters

    The step changes nothing, or only applies weight decay and old momentum. Its network is not
    trained.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    first = torch.optim.Adam(maker.parameters())
    second = torch.optim.Adam(judge.parameters())
    with record(judge) as recording:
        for _ in range(3):
            judge(maker(torch.randn(8, 6)).detach()).mean().backward()
            first.step()  # <- reported
            second.step()
            second.zero_grad()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    first = torch.optim.Adam(maker.parameters())
    second = torch.optim.Adam(judge.parameters())
    with record(judge) as recording:
        for _ in range(3):
            judge(maker(torch.randn(8, 6))).mean().backward()
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
    ```

    ## When it is intended

    A warm-up in which one network waits: do not step its optimizer, so that its state stays as it
    is.

    ## Not detected

    Parameters of which some have a gradient.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """
    if reading.leaf_losses:
        return
    told = {parameter.node for _, parameter in explained(reading)}
    for event in reading.events(ineffective_calls.StepWithoutGradients):
        if event.nodes and told.issuperset(event.nodes):
            continue  # cut-gradient tells why
        yield finding(
            "warning",
            f"{event.optimizer} stepped {event.count} times{at(event.where)}, and none of its "
            "parameters had a gradient then: no backward had reached them.",
            cause="steps without gradients",
            where=event.where,
            nodes=event.nodes,
        )


@rule("info", reads="end", of=(ineffective_calls.EmptyParameterGroup,))
def empty_parameter_group(reading: Reading) -> Iterator[Finding]:
    """A group of an optimizer has no parameters: its options apply to nothing.

    ## Why it matters

    Groups are often picked by name, such as "LayerNorm" or "bias". Where no name fits, the group is
    empty, and its learning rate or weight decay applies to nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    rest = list(model.parameters())
    none = [p for n, p in model.named_parameters() if "LayerNorm" in n]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": none, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    rest = [p for n, p in model.named_parameters() if "bias" not in n]
    none = [p for n, p in model.named_parameters() if "bias" in n]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": none, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A script for several models, some of which have no such parameters.

    ## Not detected

    Groups that contain the wrong parameters.

    ## See also

    - [Per-parameter options](https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options)
    """
    for event in reading.events(ineffective_calls.EmptyParameterGroup):
        yield finding(
            "info",
            f"Group {event.group} of the {event.groups} groups of {event.optimizer}, which "
            f"steps{at(event.where)}, is empty: no parameter fitted it, and its options apply to "
            "nothing.",
            cause="an empty group",
            advice="Compare the names by which parameters are picked with "
            "dict(model.named_parameters()).",
            where=event.where,
        )


@rule("info", reads="end", of=(ineffective_calls.DecayedNorms,))
def weight_decay_on_norms(reading: Reading) -> Iterator[Finding]:
    """A group decays biases and weights of norms, while another group is there to not decay.

    ## Why it matters

    Names of parameters in a norm are often "weight", which a rule for names does not see. Decay
    pulls the scale of the norm towards 0.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    biases = [p for n, p in model.named_parameters() if "bias" in n or "LayerNorm" in n]
    others = [p for n, p in model.named_parameters() if not ("bias" in n or "LayerNorm" in n)]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    biases = [p for n, p in model.named_parameters() if p.ndim < 2]
    others = [p for n, p in model.named_parameters() if p.ndim >= 2]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    Decay of everything, with one group: it is not reported.

    ## Not detected

    Groups whose decay is the same.

    ## See also

    - [AdamW](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html)
    - [Per-parameter options](https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options)
    """
    for event in reading.events(ineffective_calls.DecayedNorms):
        names = listing(reading.call(node) for node in event.nodes)
        if event.nodes:
            yield finding(
                "info",
                f"Group {event.group} of the {event.groups} groups of {event.optimizer}, which "
                f"steps{at(event.where)}, decays {names} by {event.decay:g}, while another group "
                "is there for biases and norms that are not to decay.",
                cause="biases and norms that decay",
                advice="Pick by the number of dimensions, p.ndim < 2, rather than by names.",
                where=event.where,
                nodes=event.nodes,
            )


@rule("info", reads="end", of=(ineffective_calls.SharedParameters,))
def parameter_in_two_optimizers(reading: Reading) -> Iterator[Finding]:
    """Two optimizers that step hold the same parameter: each of them changes it, by its own
    moments and rate.

    ## Why it matters

    Both optimizers change the parameter in each step, with moments that do not know of each other:
    it moves twice as far, and a schedule of one does not hold for the other.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, head)
    first = torch.optim.Adam(model.parameters())
    second = torch.optim.Adam(head.parameters())
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        first.step()
        second.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, head)
    first = torch.optim.Adam(body.parameters())
    second = torch.optim.Adam(head.parameters())
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        first.step()
        second.step()
    ```

    ## When it is intended

    Training in phases, in which only one of them steps: that is not reported.

    ## Not detected

    Copies of a parameter that share its memory.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """
    for event in reading.events(ineffective_calls.SharedParameters):
        # Under one name, as in a function that steps several, they cannot be told apart.
        if event.nodes and event.other != event.optimizer:
            yield finding(
                "info",
                f"{event.optimizer}, which steps{at(event.where)}, and {event.other} both hold "
                f"{listing(reading.call(node) for node in event.nodes)}: each of them changes it.",
                cause="a parameter of two optimizers",
                where=event.where,
                nodes=event.nodes,
            )


@rule("warning", reads="end", of=(ineffective_calls.ZeroLearningRate,), also=("watch",))
def zero_learning_rate(reading: Reading) -> Iterator[Finding]:
    """The steps of an optimizer, or of one of its groups, have a learning rate of 0 and change
    nothing; or one below 0, which makes the loss larger.

    ## Why it matters

    A step with a rate of 0 changes nothing; one with a rate below 0 climbs. Both come from
    schedules: past their end, counted in other units, or with a factor that is rounded to 0.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A warm-up that begins at 0 for a step, and groups that are switched off by a rate of 0, are
    notes.

    ## Not detected

    Rates that are small but not 0.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """
    for event in reading.events(ineffective_calls.ZeroLearningRate):
        yield finding(
            "info" if event.what == "group" else "warning",
            _RATES[event.what].format(
                name=event.optimizer,
                at=at(event.where),
                count=event.count,
                steps=event.steps,
                group=event.group,
                groups=event.groups,
            ),
            cause="a learning rate below 0" if event.what == "negative" else "a learning rate of 0",
            advice=""
            if event.what == "group"
            else f"Look at what sets the lr of {event.optimizer}: a schedule that is past its end, "
            "or counts epochs where it is stepped by batches.",
            where=event.where,
        )


_RATES = {
    "all": "{name} stepped{at} with a learning rate of 0, in each of {count} steps: they change "
    "nothing.",
    "end": "{name} stepped{at} with a learning rate of 0 in the last {count} of {steps} steps: "
    "they change nothing.",
    "group": "Group {group} of the {groups} groups of {name}, which steps{at}, had a learning rate "
    "of 0 in each of {count} steps: its parameters stay as they are.",
    "negative": "{name} stepped{at} with a learning rate below 0, in {count} of {steps} steps: "
    "they go up where the loss is to go down.",
}


@finds("epsilon-underflow", reads="end", of=(ineffective_calls.VanishedEpsilon,))
def optimizer_epsilon(reading: Reading) -> Iterator[Finding]:
    """The eps of an optimizer is 0 in float16: where a gradient was 0, its step divides by 0."""
    for event in reading.events(ineffective_calls.VanishedEpsilon):
        yield finding(
            "warning",
            f"The eps of {event.optimizer}, which steps{at(event.where)}, is {event.epsilon:g}: in "
            "float16 that is 0, and a step divides by 0 where the gradients were 0.",
            cause="a number that float16 does not have",
            advice="Keep the parameters in float32 and compute under torch.autocast; or pass "
            "eps=1e-4.",
            where=event.where,
            nodes=event.nodes,
        )


@finds("scheduler-out-of-step", reads="end", of=(ineffective_calls.UnusedScheduler,))
def scheduler_without_steps(reading: Reading) -> Iterator[Finding]:
    """A scheduler steps, and the optimizer that it was made for never does."""
    for event in reading.events(ineffective_calls.UnusedScheduler):
        yield finding(
            "warning",
            f"{event.scheduler} stepped {event.count} times{at(event.where)}, but the optimizer "
            "that it was made for never did: nothing uses its rates.",
            cause="a scheduler of an optimizer that never steps",
            advice="Make the scheduler after the optimizer that steps, and for that one.",
            where=event.where,
        )


@rule("info", reads="end", of=(ineffective_calls.ExtremeClipNorm,))
def extreme_clip_norm(reading: Reading) -> Iterator[Finding]:
    """Clipping shortens each gradient to a small part of it, so that its length no longer
    matters; or its bound is far above all of them.

    ## Why it matters

    A bound far below all norms makes every gradient equally long: the size of the gradient no
    longer matters, and the learning rate alone sets the length of a step. A bound far above never
    acts.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.001)  # <- reported
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    ```

    ## When it is intended

    Normalised gradient descent clips every step on purpose, and a high bound may be a safety net.

    ## Not detected

    Clipping by value.

    ## See also

    - [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """
    for event in reading.events(ineffective_calls.ExtremeClipNorm):
        low, values = event.share < 1, event.function == "clip_grad_value_"
        yield finding(
            "info",
            f"{event.function}(){at(event.where)} {_clipped(event, low=low, values=values)}",
            cause="a bound that is always reached" if low else "a bound that is never reached",
            advice=_RAISE[values] if low else "",
            where=event.where,
        )


_RAISE = {
    False: "Raise max_norm to about the norm that most gradients have, so that it "
    "clips only those that are far larger.",
    True: "Raise clip_value to the size of the largest values that most gradients have, so that "
    "it cuts only what is far larger.",
}


def _clipped(event: ineffective_calls.ExtremeClipNorm, *, low: bool, values: bool) -> str:
    count, share = event.count, f"{event.share:.2g}"
    if values and low:
        return (
            f"cut each of {count} gradients at {share} of the mean size of their values, in the "
            "median: little more than their signs is left."
        )
    if values:
        return f"cut none of {count} gradients: its bound is {share} times their largest value."
    if low:
        return (
            f"shortened each of {count} gradients, to {share} of their norm in the "
            "median: each then has the norm of the bound."
        )
    return (
        f"shortened none of {count} gradients: its bound is {share} times their norm in the median."
    )


@rule("info", reads="end", of=(ineffective_calls.CallPerSample, "select", "unbind"), advanced=True)
def called_for_each_sample(reading: Reading) -> Iterator[Finding]:
    """A module or a function is called once for each sample of a batch, on one slice of a tensor
    after the other.

    ## Why it matters

    Each call launches its own small kernels: a batch of 64 takes up to 64 times as long as one call
    for all samples.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        x, y = torch.randn(16, 6), torch.arange(16) % 3
        out = torch.stack([model(row) for row in x])  # <- reported
        F.cross_entropy(out, y).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        x, y = torch.randn(16, 6), torch.arange(16) % 3
        out = model(x)
        F.cross_entropy(out, y).backward()
    ```

    ## When it is intended

    Samples of different lengths, which do not fit one tensor.

    ## Not detected

    Loops over other axes, such as the time of a recurrent model.

    ## See also

    - [torch.func.vmap](https://docs.pytorch.org/docs/stable/generated/torch.func.vmap.html)
    """
    calls = [(e.module, e.count, e.where) for e in reading.events(ineffective_calls.CallPerSample)]
    for what, count, where in calls or _products_of_slices(reading):
        yield finding(
            "info",
            f"{what} ran {count} times{at(where)}, on one slice after the "
            "other of the same tensor: one call for all of them does the same work in less time.",
            cause="a call for each sample",
            advice="Call it once, on the whole tensor: dimension 0 is the batch.",
            where=where,
        )


def _products_of_slices(reading: Reading) -> Iterator[tuple[str, int, str]]:
    """Products of one weight with each row of one result, none of which needs another: how they
    are called, how many there are, and where."""
    rows: dict[tuple[int, int, str], list[int]] = {}
    for node in reading.of(_PRODUCTS):
        sources = [_origin(reading, edge) for edge in reading.inputs[node.id]]
        weights = [i for i, _ in sources if reading.graph.nodes[i].leaf == "parameter"]
        sliced = [i for i, is_row in sources if is_row]
        if weights and len(sliced) == 1:
            rows.setdefault((sliced[0], weights[-1], node.where), []).append(node.id)
    for (_, weight, where), ids in rows.items():
        if len(ids) >= _ENOUGH and upstream(reading, ids[-1], set()).isdisjoint(ids[:-1]):
            product = f"The product with {reading.call(weight)}"
            yield reading.graph.nodes[ids[0]].module or product, len(ids), where


def _origin(reading: Reading, edge: Edge) -> tuple[int, bool]:
    """What a tensor is a view of, and is it one row of that: a vector."""
    for _ in range(8):
        node = reading.graph.nodes[edge.source]
        before = reading.inputs[node.id]
        if node.operation in ("select", "unbind") and before:
            meta = reading.meta(node.id)
            first = attribute(node, "dim") == "0"
            return before[0].source, first and meta is not None and len(meta.shape) == 1
        if node.operation not in _VIEWS or not before:
            break
        edge = before[0]
    return edge.source, False


@rule("warning", reads="end", of=(RepeatedBatch,))
def repeated_batch(reading: Reading) -> Iterator[Finding]:
    """The same batch comes again: workers that make the same ones, the first batch of a new
    iterator in each step, or one batch on all ranks.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from graphviz_torch import record

    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.arange(32) % 3), batch_size=8)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            x, y = next(iter(loader))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    ```

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from graphviz_torch import record

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, batch, ranks = nn.Linear(4, 1), torch.randn(8, 4), []
    for rank in range(2):
        model.zero_grad()
        with record(model) as recording:
            model(batch).mean().backward()
            dist.all_reduce(model.weight.grad)
        ranks.append(recording.graph)
    dist.destroy_process_group()
    ```
    """
    for event in reading.events(RepeatedBatch):
        if event.what == "first":
            text = (
                f"Each step begins a new pass through the DataLoader{at(event.where)} and takes "
                f"the first batch, which was the same in {event.count} steps: the other samples "
                "are never seen."
            )
            cause = "a new pass for each step"
            advice = "Loop over it, for batch in loader; or keep one iter(loader), and make a new "
            advice += "one at its end."
        else:
            text = (
                f"{event.count} of {event.among} batches of the DataLoader{at(event.where)} are "
                f"equal to one that another of its {event.workers} workers had just given."
            )
            cause, advice = _WORKERS[event.what]
        yield finding("warning", text, cause=cause, advice=advice, where=event.where)


_WORKERS = {
    "stream": (
        "workers that each go through all of the data",
        "Let each worker yield a part of it, by torch.utils.data.get_worker_info() in __iter__.",
    ),
    "workers": (
        "workers that draw the same numbers",
        "Draw by torch, which each worker seeds for itself; or seed what draws in worker_init_fn, "
        "by torch.initial_seed().",
    ),
}
