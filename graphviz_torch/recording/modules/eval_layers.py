"""Find dropout and batch norm layers in eval mode, in a model that is about to learn."""

from __future__ import annotations

from torch.nn import Module

from ...internals.functions import BATCH_NORM, DROPOUT
from ..program.parameters import ParameterTable


def layers_in_eval_mode(table: ParameterTable) -> tuple[tuple[str, str], ...]:
    """Return path and class of the layers in eval mode, if the model and all its layers are in it.

    Layers that were not called, and layers of modules that do not learn, are left out. The result
    is () for a model in train mode, also if the program froze its batch norm layers on purpose.
    """
    every = table.modules()
    kinds = {type(module) for module, _ in every}
    kinds = {kind for kind in kinds if issubclass(kind, (DROPOUT, BATCH_NORM))}
    layers = []  # called layers that would return different results in train mode
    for module, path in every if kinds else ():
        if type(module) not in kinds:
            continue
        acts = isinstance(module, DROPOUT) and module.p > 0
        acts = acts or (isinstance(module, BATCH_NORM) and module.track_running_stats)
        if acts and table.ran(path):
            layers.append((path, module))
    if not layers:
        return ()
    training = [path for module, path in every if _is_in_train_mode(module)]
    if any(not t or f"{path}.".startswith(f"{t}.") for path, _ in layers for t in training):
        return ()
    return tuple([(path, type(module).__name__) for path, module in layers if table.learns(module)])


def _is_in_train_mode(module: Module) -> bool:
    """Return True if a module is in train mode, or has no `training` attribute."""
    return bool(getattr(module, "training", True))
