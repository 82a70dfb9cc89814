"""What class the modules are of: "Linear(4, 16)", with the sizes that tell one from another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from torch import nn

# What is told of PyTorch's own modules. Of others the class alone: reading could run their code.
_SIZES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
    nn.LayerNorm: ("normalized_shape",),
    nn.Dropout: ("p",),
    nn.RNN: ("input_size", "hidden_size"),
    nn.LSTM: ("input_size", "hidden_size"),
    nn.GRU: ("input_size", "hidden_size"),
    nn.RNNCell: ("input_size", "hidden_size"),
    nn.LSTMCell: ("input_size", "hidden_size"),
    nn.GRUCell: ("input_size", "hidden_size"),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), ("num_features",)),
    **dict.fromkeys(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d),
        ("in_channels", "out_channels", "kernel_size"),
    ),
}


def class_of(module: nn.Module) -> str:
    """The class of a module, with its sizes.

    >>> class_of(nn.Linear(4, 16)), class_of(nn.Conv2d(3, 8, 5)), class_of(nn.ReLU())
    ('Linear(4, 16)', 'Conv2d(3, 8, 5x5)', 'ReLU')
    """
    kind = type(module)
    if kind in _SIZES:
        try:
            return _sized(kind.__name__, *map(module.__dict__.__getitem__, _SIZES[kind]))
        except (LookupError, TypeError):  # never initialised, or with sizes of the user's own kind
            return kind.__name__
    return kind.__name__.replace("/", "|")


@lru_cache(typed=True)  # a model has many alike
def _sized(name: str, *sizes: object) -> str:
    return f"{name}({', '.join(map(_text, sizes))})"


def classes_along(modules: Iterable[tuple[str, nn.Module]]) -> Mapping[str, str]:
    """For each path the classes along it, outermost first, as `Node.module_class` has them.

    The root's class stands at "" alone.
    """
    own = {path: class_of(module) for path, module in modules}
    found = {"": own.get("", "")}
    for path in own:
        parent, dot, _ = path.rpartition(".")
        if path and parent in found:  # as it is in a model, where parents come first
            found[path] = f"{found[parent]}/{own[path]}" if dot else own[path]
        elif path:
            parts = path.split(".")
            found[path] = "/".join(own.get(".".join(parts[: i + 1]), "") for i in range(len(parts)))
    return found


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
