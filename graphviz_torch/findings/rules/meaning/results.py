"""Rules about results that the program drops."""

from __future__ import annotations

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...rule import finding, rule
from ...words import at


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
