"""Rules about wrong gradients: of custom Functions, and of forwards that run again in backward."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at


@immutable
class UnreadArgument(Event):
    """An argument that a function of the program never reads.

    The argument is a tensor passed to forward, or a gradient passed to the backward of a custom
    Function. `where` is the line that calls forward; `nodes` are the ids of the Function's nodes.
    """

    owner: str = ""  # class of the module or the Function
    argument: str = ""  # name of the argument
    gradient: bool = False  # True if the argument is a gradient
    defined: str = ""  # line at which backward is defined


@rule("warning", of=(UnreadArgument,))
def ignored_gradient(reading: Reading) -> Iterator[Finding]:
    """The backward of a custom Function never reads the gradient that it receives.

    ## Why it matters

    The gradient that the backward returns does not depend on later operations: the weight of the
    loss, the scale of a GradScaler, and all operations between the Function and the loss have no
    effect on this gradient. With a loss scale, the unscaled gradient is too small by the factor of
    the scale.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class SetGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gradient):
            ctx.save_for_backward(gradient)
            return x.new_ones(())

        @staticmethod
        def backward(ctx, grad_output):
            return ctx.saved_tensors[0], None


    model = nn.Linear(4, 2)
    with record(model) as recording:
        y = model(torch.randn(8, 4))
        loss = 0.1 * SetGradient.apply(y, torch.randn(8, 2))  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class SetGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gradient):
            ctx.save_for_backward(gradient)
            return x.new_ones(())

        @staticmethod
        def backward(ctx, grad_output):
            return ctx.saved_tensors[0] * grad_output, None


    model = nn.Linear(4, 2)
    with record(model) as recording:
        y = model(torch.randn(8, 4))
        loss = 0.1 * SetGradient.apply(y, torch.randn(8, 2))
        loss.backward()
    ```

    ## When it is intended

    A Function may compute the loss itself, on which backward is called directly. The gradient that
    the Function receives is then always 1.

    ## Not detected

    A backward that reads only a part of the gradient, or that is not written in Python, is not
    detected.

    ## See also

    - [Extending torch.autograd](https://docs.pytorch.org/docs/stable/notes/extending.html)
    """
    for event in reading.events(UnreadArgument):
        dropping = {*reading.last_with_gradient.values()}  # reported as backward-returned-none
        if event.gradient and event.nodes and dropping.isdisjoint(event.nodes):
            where = reading.graph.nodes[event.nodes[0]].where
            yield finding(
                "warning",
                f"{event.owner}{at(where)} ignores the gradient that it receives: its backward"
                f"{at(event.defined)} never reads {event.argument}.",
                cause="a gradient is ignored",
                advice=f"Multiply the gradients that backward{at(event.defined)} returns by "
                f"{event.argument}.",
                where=where,
                nodes=event.nodes,
            )


@immutable
class RedrawnDropout(Event):
    """A dropout that drew another mask when a backward pass ran its forward again.

    The random state of the first forward was not restored. `where` is the line that calls the
    checkpoint, or that runs the forward again; `nodes` is the id of the node whose backward runs
    the forward again.
    """

    module: str = ""  # path of the dropout module
    # True if torch.utils.checkpoint ran the forward again, with preserve_rng_state=False
    checkpoint: bool = False


@rule("warning", of=(RedrawnDropout,))
def redrawn_dropout(reading: Reading) -> Iterator[Finding]:
    """Backward ran a forward again, and dropout drew a different mask than in the first run.

    ## Why it matters

    The gradients belong to different activations from those that the loss was computed from. The
    error is as large as the change of the activations by dropout, and training may diverge.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from graphviz_torch import record

    block = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    x = torch.randn(8, 4)
    with record(block) as recording:
        y = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # <- reported
        y.square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from graphviz_torch import record

    block = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    x = torch.randn(8, 4)
    with record(block) as recording:
        y = checkpoint(block, x, use_reentrant=False)
        y.square().mean().backward()
    ```

    ## When it is intended

    Different dropout masks in forward and recomputation are never intended. A checkpoint without
    random operations may set `preserve_rng_state=False` to save time; it is not reported.

    ## Not detected

    Only `nn.Dropout` on a CPU, in the forward of a module, is checked. Other random operations,
    random numbers of a GPU, and functions outside of modules are not.

    ## See also

    - [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)
    """
    for event in reading.events(RedrawnDropout):
        name = event.module or "dropout"
        if event.checkpoint:
            where = event.where or reading.graph.nodes[event.nodes[0]].where
            message = (
                f"The checkpoint{at(where)} runs its forward again with other random numbers: it "
                f"has preserve_rng_state=False, and {name} drew a different mask."
            )
            advice = f"Leave out preserve_rng_state=False{at(where)}."
        else:
            where = event.where
            message = (
                f"{name} drew a different mask when backward ran the forward "
                f"again{at(event.where)}: its random state was not restored."
            )
            advice = (
                "Store torch.get_rng_state() in forward, and set this state before the second "
                "run, inside torch.random.fork_rng(). Or use torch.utils.checkpoint, which "
                "does both."
            )
        yield finding(
            "warning",
            message,
            cause="a different dropout mask",
            advice=advice,
            where=where,
            nodes=event.nodes,
        )


@rule("warning", reads="end", caused_by=("exception",))
@immutable
class CheckpointDiffers(Event):
    """A checkpoint with `use_reentrant=True` ran other modules in backward than in forward.

    ## Why it matters

    The loss is computed from the first run of the segment, and the gradients from the second one.
    A module that only the first run called gets no gradient, and the other gradients of the segment
    belong to another function than the loss. With `use_reentrant=True`, PyTorch does not compare
    the two runs.

    Usually forward depends on state that changes before backward, such as an attribute that a
    context manager sets and resets.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from graphviz_torch import record


    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.adapter = nn.Linear(4, 4), nn.Linear(4, 4)
            self.active = False

        def forward(self, x):
            return self.base(x) + self.adapter(x) if self.active else self.base(x)


    block, x = Block(), torch.randn(8, 4, requires_grad=True)
    with record(block) as recording:
        block.active = True
        y = checkpoint(block, x, use_reentrant=True)  # <- reported
        block.active = False
        y.square().mean().backward()
    ```

    ## Use instead

    Change the state after backward, or pass it to the checkpoint as an argument:

    ```python
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from graphviz_torch import record


    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.adapter = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, active):
            return self.base(x) + self.adapter(x) if active else self.base(x)


    block, x = Block(), torch.randn(8, 4, requires_grad=True)
    with record(block) as recording:
        y = checkpoint(block, x, True, use_reentrant=True)
        y.square().mean().backward()
    ```

    ## When it is intended

    The first run may compute a value without a gradient, and keep it for the second run. Compute
    such a value before the checkpoint: then nothing is reported.

    ## Not detected

    Only modules that have trainable parameters of their own are compared, in segments of which both
    runs call a module. Checkpoints with
    `use_reentrant=False` are not, because PyTorch itself compares the tensors that both runs save.
    Segments that a GPU's own backward thread runs again are not recorded.

    ## See also

    - [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)
    """

    skipped: tuple[str, ...] = ()  # paths of the modules that only the first run called
    added: tuple[str, ...] = ()  # paths of the modules that only the second run called

    def report(self) -> Finding:
        skipped, added = listing(self.skipped), listing(self.added)
        if self.skipped:
            instead = f", which called {added} instead" if added else ""
            message = f"The checkpoint{at(self.where)} called {skipped} in forward, but not when "
            message += f"backward ran it again{instead}."
        else:
            message = f"The checkpoint{at(self.where)} called {added} only when backward ran it "
            message += "again, and not in forward."
        return finding(
            "warning",
            message + " The gradients may not be those of the loss.",
            cause="a second run that differs",
            advice="Let the checkpointed function depend on its arguments only: pass what changes "
            f"between forward and backward to the checkpoint{at(self.where)} as an argument, or "
            "change it after backward.",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class ResultOnContext(Event):
    """A custom Function keeps its own result as an attribute of ctx, which is a reference cycle.

    ## Why it matters

    `ctx` is the node of the result, so the result and the node refer to each other. Neither is
    freed when the program drops the result, but only when Python's garbage collector runs: memory
    grows from step to step, and the CUDA allocator may run out of memory before. Changes of the
    tensor in place are not noticed either.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.result = x.exp()  # <- reported
            return ctx.result

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.result


    model = nn.Linear(4, 1)
    with record(model) as recording:
        Exp.apply(model(torch.randn(8, 4))).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, gradient):
            (result,) = ctx.saved_tensors
            return gradient * result


    model = nn.Linear(4, 1)
    with record(model) as recording:
        Exp.apply(model(torch.randn(8, 4))).mean().backward()
    ```

    ## When it is intended

    It is never intended: `save_for_backward` keeps a result without a cycle.

    ## Not detected

    Inputs and intermediate results that are attributes of ctx make no cycle, and are not reported.

    ## See also

    - [Extending torch.autograd](https://docs.pytorch.org/docs/stable/notes/extending.html)
    - [FunctionCtx.save_for_backward](https://docs.pytorch.org/docs/stable/generated/torch.autograd.function.FunctionCtx.save_for_backward.html)
    """

    # `where` is the line that sets the attribute; `nodes` are the ids of the Function's nodes.
    function: str = ""
    attribute: str = ""

    def report(self) -> Finding:
        return finding(
            "warning",
            f"{self.function} keeps its own result as ctx.{self.attribute}{at(self.where)}: the "
            "result and its node refer to each other, so their memory is freed only by Python's "
            "garbage collector.",
            cause="reference cycle of a custom Function",
            advice=f"Call ctx.save_for_backward(result) in place of ctx.{self.attribute} = ..., "
            "and read ctx.saved_tensors in backward.",
            where=self.where,
            nodes=self.nodes,
        )
