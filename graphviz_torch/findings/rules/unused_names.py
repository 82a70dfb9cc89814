"""Rules about functions, variables, arguments and values in a script that nothing uses."""

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
