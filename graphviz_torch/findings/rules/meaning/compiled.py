"""Rules about `torch.compile`: graph breaks, skipped functions, and recompilations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import BreakingCall, Event, GraphBreak
from ....graph.immutable import immutable
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at, group_by_key

# Kind of call that Dynamo cannot trace -> the reason and advice.
_CALLS: dict[BreakingCall, tuple[str, str]] = {
    "print": (
        "print() is not compiled",
        "Move the print() out of the compiled function, or add print to "
        "torch._dynamo.config.reorderable_logging_functions: the output is then printed at the "
        "end.",
    ),
    "log": (
        "a logger is not compiled",
        "Move the call out of the compiled function.",
    ),
    "item": (
        "item() returns a Python number",
        "Compute with the tensor, or set torch._dynamo.config.capture_scalar_outputs = True.",
    ),
    "branch": (
        "a Python branch depends on the value of a tensor",
        "Compute both branches and select with torch.where(), or use torch.cond().",
    ),
    "shape": (
        "the size of a result depends on values",
        "Use a mask and torch.where(), which keep the size, or set "
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True.",
    ),
    "backward": (
        "backward() is called in the compiled function",
        "Call backward() outside of the compiled function.",
    ),
    "recurrent": (
        "an RNN, GRU or LSTM is not compiled",
        "Compile the modules around it one by one, or set torch._dynamo.config.allow_rnn = True.",
    ),
    "asked": (
        "the program requests a graph break",
        "Move the graph break out of the loop or block.",
    ),
}
_NUMBER = re.compile(r"(\w+) == -?\d+\.\d+")  # a guard on a float


@rule("info", reads="end", of=(GraphBreak,))
def compile_graph_break(reading: Reading) -> Iterator[Finding]:
    """Dynamo could not trace a call and made a graph break: Python runs the call, and the code
    after it is compiled as another region.

    ## Why it matters

    Operations are not fused across a graph break. Each region has its own guards, which are checked
    in every call, and the results that the next region needs are written to memory.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            if h.sum() > 0:  # <- reported
                h = h * 2
            return h.square().mean()


    model = torch.compile(Net(6, 3), backend="aot_eager")
    with record(model) as recording:
        model(torch.randn(8, 6)).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            h = torch.where(h.sum() > 0, h * 2, h)
            return h.square().mean()


    model = torch.compile(Net(6, 3), backend="aot_eager")
    with record(model) as recording:
        model(torch.randn(8, 6)).backward()
    ```

    ## When it is intended

    `torch.compiler.disable` makes a break on purpose. A graph break at the end of the forward, or
    in code that seldom runs, costs little.

    ## Not detected

    Graph breaks in code that does not run in the recording are not reported.

    ## See also

    - [torch.compile: fixing graph breaks](https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html)
    - [torch.cond](https://docs.pytorch.org/docs/stable/cond.html)
    """
    for (where, call), events in group_by_key(
        ((event.where, event.call), event) for event in reading.events(GraphBreak)
    ):
        why, advice = _CALLS.get(call, (events[0].reason, ""))
        yield finding(
            "info",
            f"Graph break{at(where)}: {why}. Code after it is compiled as another region.",
            cause="a graph break",
            advice=advice,
            where=where,
        )


@immutable
class SkippedFunction(Event):
    """A function that torch.compile runs uncompiled.

    torch.compile could neither compile the function nor continue after a graph break in it. `where`
    is the line at which compilation stopped, or the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason; "" if the function was skipped before the recording
    call: BreakingCall = ""


@rule("info", reads="end", of=(SkippedFunction,))
def compile_skipped(reading: Reading) -> Iterator[Finding]:
    """`torch.compile` does not compile a function, because of a graph break after which compilation
    cannot resume, such as one in a loop, or because the function was recompiled too often.

    ## Why it matters

    The function runs as slowly as without `torch.compile`, and no warning is shown. Only the
    functions that it calls can still be compiled, one by one.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            for _ in range(3):
                if h.sum() > 0:  # <- reported
                    h = h / 2
            return h.square().mean()


    model = torch.compile(Net(6, 3), backend="aot_eager")
    with record(model) as recording:
        model(torch.randn(8, 6)).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            for _ in range(3):
                h = torch.where(h.sum() > 0, h / 2, h)
            return h.square().mean()


    model = torch.compile(Net(6, 3), backend="aot_eager")
    with record(model) as recording:
        model(torch.randn(8, 6)).backward()
    ```

    ## When it is intended

    A function that seldom runs, or that calls only code that cannot be compiled, needs no
    compilation. Decorate it with `torch.compiler.disable`: the graph break at its call is then
    reported as `compile-graph-break`.

    ## Not detected

    The reason is unknown if the function was skipped before the recording began. Record the first
    call to see the reason.

    ## See also

    - [torch.compile troubleshooting](https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html)
    """
    for (where, name, call), events in group_by_key(
        ((event.where, event.function, event.call), event)
        for event in reading.events(SkippedFunction)
    ):
        why, advice = _CALLS.get(call, (events[0].reason, ""))
        runs = "Python runs it, and only the functions that it calls may be compiled."
        if call == "limit":
            message = (
                f"torch.compile no longer compiles {name}(){at(where)}: it was recompiled as "
                "often as torch._dynamo.config.recompile_limit allows. Python runs the calls "
                "whose guards fail for all compiled versions."
            )
            advice = "Record a step in which the function is recompiled to see which guard fails."
        elif why:
            message = f"Graph break{at(where)}: {why}. torch.compile cannot resume there and skips "
            message += f"{name}(): {runs}"
        else:
            message = f"torch.compile skipped {name}(){at(where)} before this recording: {runs}"
            advice = "Record the first call of the compiled model to see the reason."
        yield finding(
            "info",
            message,
            cause="a function that is not compiled",
            advice=advice,
            where=where,
        )


@immutable
class Recompilation(Event):
    """A recompilation of a function, because a guard of the compiled code failed.

    `where` is the first line of the function.
    """

    function: str = ""  # "forward"
    reason: str = ""  # Dynamo's reason: "tensor 'x' size mismatch at index 0. expected 4, ..."
    count: int = 1  # number of earlier compilations


@rule("info", reads="end", of=(Recompilation,))
def compile_recompile(reading: Reading) -> Iterator[Finding]:
    """A compiled function was recompiled because a guard failed: a size, a number or a type had
    changed.

    ## Why it matters

    A recompilation takes seconds to minutes in the middle of training. After
    `torch._dynamo.config.recompile_limit` recompilations (8 by default), the function is no longer
    compiled.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)


    @torch.compile(backend="aot_eager")  # <- reported
    def loss(x, temperature):
        return (model(x) / temperature).square().mean()


    loss(torch.randn(8, 6), 0.5).backward()
    with record(model) as recording:
        loss(torch.randn(8, 6), 0.4).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)


    @torch.compile(backend="aot_eager")
    def loss(x, temperature):
        return (model(x) / temperature).square().mean()


    loss(torch.randn(8, 6), torch.tensor(0.5)).backward()
    with record(model) as recording:
        loss(torch.randn(8, 6), torch.tensor(0.4)).backward()
    ```

    ## When it is intended

    One recompilation per changing size is normal: when Dynamo sees a second value of a size, it
    compiles the function for dynamic sizes.

    ## Not detected

    Recompilations outside of the recorded block are not reported.

    ## See also

    - [Recompilation](https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html)
    - [Dynamic shapes](https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html)
    """
    for (where, name), events in group_by_key(
        ((event.where, event.function), event) for event in reading.events(Recompilation)
    ):
        last = events[-1]
        advice = ""
        if "size mismatch" in last.reason:
            advice = (
                "Compile the function for all sizes with torch.compile(dynamic=True), or keep "
                "sizes constant: pad the inputs, and drop the last batch of an epoch."
            )
        elif number := _NUMBER.match(last.reason):
            advice = (
                f"Pass {number[1]} as a tensor, because a Python number becomes a constant of "
                "the compiled code."
            )
        yield finding(
            "info",
            f"{name}(){at(where)} was compiled {last.count + 1} times. The last failed guard: "
            f"{last.reason}.",
            cause="a recompilation",
            advice=advice,
            where=where,
        )
