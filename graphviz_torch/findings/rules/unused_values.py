"""Rules about names, losses and results in a script that nothing uses."""

from __future__ import annotations

from typing import Literal

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ..rule import finding, rule
from ..words import at

NameKind = Literal["variable", "argument", "function", "method"]


@rule("info", reads="end")
@immutable
class UnusedName(Event):
    """The script computes a mask, a loss or the end of an episode that it never reads, passes one
    to a function that never reads it, or never calls a function of the training, such as `update`.

    ## Why it matters

    A mask that is not used lets padding into the loss, and an average of weights that is not
    updated stays at the first weights. Nothing fails, because the program is complete without them.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            x = torch.randn(8, 4)
            mask = torch.rand(8, 4).gt(0.5)  # <- reported
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            x = torch.randn(8, 4)
            mask = torch.rand(8, 4).gt(0.5)
            optimizer.zero_grad()
            (model(x) - x)[mask].square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A function may return more values than a script needs. Name the others `_`, or silence the rule
    at the line.

    ## Not detected

    Only the file of the script is searched, for names that usually belong to a training: functions
    with words such as `loss`, `update` or `reset`, and variables and arguments with words such as
    `mask`, `done` or `scheduler`.

    Methods of classes with bases other than `nn.Module` are not reported, because a base class may
    call them, and neither are arguments of methods.

    ## See also

    - [torch.where](https://docs.pytorch.org/docs/stable/generated/torch.where.html)
    """

    # `where` is the line of the definition, of the assignment, or of the call with the argument.
    kind: NameKind = "variable"
    name: str = ""
    # Variable with an instance of the method's class, or the class's name; function of an argument
    owner: str = ""
    assigned: str = ""  # line that assigns this variable, or that defines this function

    def report(self) -> Finding:
        name, where = self.name, self.where
        if self.kind == "variable":
            text = f"{name}, assigned{at(where)}, is never read: it has no effect on the training."
            advice = f"Use {name} where it is meant to act, or name it _ if it is not needed."
        elif self.kind == "argument":
            text = f"{self.owner}(){at(self.assigned)} never reads its argument {name}, which "
            text += f"is passed{at(where)}: it has no effect on the training."
            advice = f"Use {name} in {self.owner}(), or do not pass it."
        else:
            text = f"{name}(), defined{at(where)}, is never called"
            used = f": {self.owner}{at(self.assigned)} is used without it" if self.owner else ""
            text += f"{used}."
            call = f"{self.owner}.{name}" if self.owner else name
            advice = f"Call {call}() in the training loop, or remove it."
        return finding(
            "info", text, cause=f"a {self.kind} that nothing uses", advice=advice, where=where
        )


@rule("warning", reads="end")
@immutable
class UnusedValue(Event):
    """The script assigns a computed value to a variable, and assigns the variable again before
    anything reads it.

    ## Why it matters

    The computation has no effect. Often a term of the loss is lost, because `=` was written where
    `+=` was meant, or the rest of the function reads another variable that was computed earlier.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            y = model(torch.randn(8, 4))
            loss = y.square().mean()  # <- reported
            loss = y.mean(0).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            y = model(torch.randn(8, 4))
            loss = y.square().mean()
            loss = loss + y.mean(0).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## When it is intended

    A call may be needed for its side effects, not for its result. Drop the result, or name it `_`.

    ## Not detected

    Only the file of the script is searched. Values that are assigned inside of `try` or `match`,
    several variables that are assigned together, attributes and items of containers are not
    checked.

    ## See also

    - [Assignment statements](https://docs.python.org/3/reference/simple_stmts.html#assignment-statements)
    """

    # `where` is the line of the assignment.
    name: str = ""
    assigned: str = ""  # line of the next assignment to the variable

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The value of {self.name}{at(self.where)} is never read: {self.name} is assigned again"
            f"{at(self.assigned)}.",
            cause="a value that is overwritten before it is read",
            advice=f"If both values of {self.name} are needed, combine them, as in "
            f"{self.name} = {self.name} + ...; or read this value where it is meant to act.",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class UnusedLoss(Event):
    """A loss is computed in each step and its value is read, but no backward uses it.

    ## Why it matters

    The loss trains nothing. Often the program forgets to add it to the other terms, or an option
    that adds it is off by default.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(3):
            scores = model(torch.randn(8, 4))
            loss, balance_loss = scores.square().mean(), scores.softmax(-1).mean(0).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item(), balance_loss.item())  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(3):
            scores = model(torch.randn(8, 4))
            loss, balance_loss = scores.square().mean(), scores.softmax(-1).mean(0).square().sum()
            optimizer.zero_grad()
            (loss + balance_loss).backward()
            optimizer.step()
            print(loss.item(), balance_loss.item())
    ```

    ## When it is intended

    A loss may be computed only for a log. Under `torch.no_grad()`, it is not reported. A loss that
    only compares results on which the used loss depends, too, such as a cross entropy without label
    smoothing, is reported as a note.

    ## Not detected

    A loss is recognized by the name of its variable, which contains "loss", "penalty" or "aux". A
    loss whose value is not read is not reported, nor one that shares no operation with the loss
    that is used, such as a validation loss.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """

    # `where` is the line that reads the value.
    label: str = ""  # name of the variable
    made: str = ""  # line that computes the loss
    steps: int = 0
    compares: bool = (
        False  # True for a loss function of results on which the used loss depends, too
    )

    def report(self) -> Finding:
        return finding(
            "info" if self.compares else "warning",
            f"{self.label}{at(self.made)} is read{at(self.where)} in {self.steps} steps, but no "
            "backward uses it: it trains nothing.",
            cause="an unused loss",
            advice=f"Add {self.label} to the loss on which backward is called. If it is only "
            "logged, compute it under torch.no_grad().",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class IgnoredResult(Event):
    """The result of a call is dropped, although the call has no other effect: it returns a new
    tensor.

    ## Why it matters

    `scores.masked_fill(mask, value)` does not change `scores`. The program continues with the
    unmasked scores, and no error is raised. A custom Function whose result is not used passes on no
    gradient.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        scores = model(torch.randn(4, 4))
        scores.masked_fill(torch.eye(4).bool(), -1e9)  # <- reported
        scores.softmax(-1)[:, 0].mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        scores = model(torch.randn(4, 4))
        scores = scores.masked_fill(torch.eye(4).bool(), -1e9)
        scores.softmax(-1)[:, 0].mean().backward()
    ```

    ## When it is intended

    A custom Function may be called for a side effect of its forward.

    ## Not detected

    Methods that other objects have with an effect, such as `to` of a module and `add` of a set, are
    not checked. Neither are functions without a source file.

    ## See also

    - [Tensor.masked_fill](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.masked_fill.html)
    - [In-place operations](https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd)
    """

    call: str = ""  # "scores.masked_fill()"

    def report(self) -> Finding:
        function = self.call.endswith(".apply()")
        why = "the Function is not a part of the graph" if function else "it changes no tensor"
        return finding(
            "warning",
            f"The result of {self.call}{at(self.where)} is dropped: {why}.",
            cause="result not used",
            advice="Assign the result to the variable that the next lines use"
            + ("." if function else ", or call the method whose name ends with an underscore."),
            where=self.where,
        )
