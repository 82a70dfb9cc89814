"""Rules about values that parameters should have before training, but do not get."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import IneffectiveCall
from ...graph.immutable import immutable
from ...graph.text import listing
from ..rule import finding, rule
from ..words import at

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
