"""Rules about values that are written into parameters: before training, and between two steps."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event, IneffectiveCall
from ...graph.immutable import immutable
from ...graph.text import listing
from ..rule import finding, finds, rule
from ..words import at, times

_MAX_NAMES = 3


@rule("warning", reads="end")
@immutable
class IgnoredKeys(IneffectiveCall):
    """`load_state_dict(strict=False)` ignores values whose keys differ from the module's names only
    by a prefix, such as `module.`.

    ## Why it matters

    The parameters keep their random values, and training starts from a model that is only partly
    pretrained. No exception is raised, because `strict=False` permits missing and unexpected keys.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 3))
    saved = {f"module.{key}": value for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model.load_state_dict(saved, strict=False)  # <- reported
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 3))
    saved = {f"module.{key}": value for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model.load_state_dict({key.removeprefix("module."): x for key, x in saved.items()})
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    The state may contain a layer that the model does not have, with the shape and a similar name of
    a layer that is new.

    ## Not detected

    Missing keys without a similar unexpected key are not reported, because models with adapters or
    new heads are loaded like this.

    ## See also

    - [Module.load_state_dict](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict)
    """

    # Pairs of a name of the module and a key of the state.
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    def report(self) -> Finding:
        missing, keys = (listing(names[:_MAX_NAMES]) for names in (self.missing, self.unexpected))
        more = len(self.missing) - _MAX_NAMES
        rest = f" and {more} more" if more > 0 else ""
        return finding(
            "warning",
            f"load_state_dict{at(self.where)} with strict=False loads no values for {missing}"
            f"{rest}: the state contains them as {keys}{rest}, which it ignores.",
            cause="keys that do not match",
            advice="Rename the keys before loading, and check the missing_keys that "
            "load_state_dict returns.",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class ReinitializedWeights(IneffectiveCall):
    """A parameter is initialized again after the program wrote values into it, so these values are
    lost before training.

    ## Why it matters

    Values that were copied from another model, or loaded from a checkpoint, are replaced by random
    numbers. Training then starts without them.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    old, model = nn.Linear(4, 3), nn.Linear(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        nn.init.normal_(model.weight)
        with torch.no_grad():
            model.weight[:3] = old.weight
        nn.init.normal_(model.weight)  # <- reported
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    old, model = nn.Linear(4, 3), nn.Linear(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        nn.init.normal_(model.weight)
        with torch.no_grad():
            model.weight[:3] = old.weight
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A part of a loaded model, such as its head, is often initialized again. A loaded state is
    therefore reported only if all of its matrices are initialized again before the first step.
    Trained parameters that are reset are not reported.

    ## Not detected

    A parameter is checked only if its first initialization was recorded, too. Writes through
    `.data` are not detected. A parameter with a row of zeros, as that of a padding token, is not
    checked.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    """

    parameter: str = ""  # name of the parameter; of the first one, if a whole state was lost
    loaded: int = 0  # number of parameters, if these are all matrices of a loaded state

    def report(self) -> Finding:
        lost = (
            f"all {self.loaded} weight matrices that load_state_dict has loaded, such as "
            f"{self.parameter},"
            if self.loaded
            else f"{self.parameter}, into which the program has written values,"
        )
        return finding(
            "warning",
            f"The initialization{at(self.where)} overwrites {lost} before they were used: the "
            "values are lost.",
            cause="initialized again",
            advice="Initialize the parameters first, and load or copy the values afterwards.",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class OverwrittenWeights(Event):
    """Trained parameters are overwritten with other values between two optimizer steps, so the
    earlier updates are lost.

    ## Why it matters

    A program that evaluates an average of the weights, or a saved state, may copy it into the model
    that it trains. Training then continues from the copied weights, while the optimizer still has
    the moments of the lost weights.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, average = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with record(model) as recording:
        for epoch in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            model.load_state_dict(average.state_dict())  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, average = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with record(model) as recording:
        for epoch in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            average(torch.randn(8, 4)).detach()
    ```

    ## When it is intended

    Lookahead and Reptile set the weights back to slow weights, and a program may return to the best
    weights so far. The finding is a warning only if a variable still has the trained weights.

    ## Not detected

    Results of operations that are copied into a parameter, such as a projection of its own values,
    are not reported. Neither are weights that the program restores before the next step. After the
    recorded steps, only parameters on a CPU are compared.

    ## See also

    - [torch.optim.swa_utils](https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)
    """

    operation: str = ""  # "load_state_dict", "copy_"

    def report(self) -> Finding:
        return finding(
            "info",
            f"{self.operation}{at(self.where)} overwrites weights that an optimizer trains, and "
            "the next step continues from the copied values: the updates of earlier steps are "
            "lost.",
            cause="trained weights overwritten",
            advice="Copy into another model, such as copy.deepcopy(model), or restore the weights "
            "before the next step.",
            where=self.where,
        )


@finds("overwritten-weights", reads="end")
@immutable
class UnrestoredWeights(IneffectiveCall):
    """Trained parameters that were replaced, and not restored before the next optimizer step.

    `where` is the line that replaces them, or that of the step.
    """

    kept: str = ""  # variable that still has the trained values
    source: str = ""  # variable that has the values of the parameters now
    step: int = 0  # number of optimizer steps so far, including the next one

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The values of {self.source} replace the trained weights{at(self.where)}, and step "
            f"{self.step} continues from them: {self.kept}, which has the trained weights, was not "
            "copied back.",
            cause="trained weights not restored",
            advice=f"Copy {self.kept} back into the model before the next step, or evaluate a "
            "second model, such as copy.deepcopy(model).",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class CopyOntoItself(Event):
    """A trained parameter is copied onto itself, which changes nothing, because the saved state
    shares the memory of the parameters.

    ## Why it matters

    `state_dict()` returns the parameters themselves, not copies. A state that is kept without a
    copy changes with each step, so loading it does not bring back the best weights. Likewise, a
    target network that is the model itself never differs from the model.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        best = model.state_dict()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        model.load_state_dict(best)  # <- reported
    ```

    ## Use instead

    ```python
    import copy
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        best = copy.deepcopy(model.state_dict())
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        model.load_state_dict(best)
    ```

    ## When it is intended

    It is never intended, because nothing is copied.

    ## Not detected

    Only parameters that an optimizer has updated before the copy are checked.

    ## See also

    - [Saving and loading models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
    """

    operation: str = ""  # "load_state_dict", "copy_"

    def report(self) -> Finding:
        return finding(
            "warning",
            f"{self.operation}{at(self.where)} copies parameters onto themselves"
            f"{times(self)}, which changes nothing: the source shares their memory, so the "
            "steps have changed it, too.",
            cause="copy of a tensor onto itself",
            advice="Copy the values when they are saved: copy.deepcopy(model.state_dict()), or "
            "copy.deepcopy(model) for a second model.",
            where=self.where,
        )
