"""Save a graph or a training as a JSON file, and load such a file.

The loaded value equals the saved value.
"""

from __future__ import annotations

from pathlib import Path
from typing import overload

from .files.file import read, text_of, value_of
from .files.limits import MAX_BYTES
from .graph import Graph, GraphLike, graph_of
from .text import listing, printable
from .training import Training
from .training_file import is_training, read_steps
from .training_step import TrainingStep

__all__ = ["MAX_BYTES", "from_json", "load", "save", "to_json"]


def save(graph: GraphLike, path: str | Path) -> Path:
    """Write a graph, or all steps of a training run, to a file, and return the path.

    Args:
        graph: a graph, a recording or a `Training`.
        path: the file. It is compressed if `path` ends in ".gz".

    Raises:
        ValueError: for a graph that could not be loaded again (see `load`). Nothing is written.
        OSError: as `open` does.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(Graph((), (), ()), Path(folder) / "step.json.gz")
    ...     load(file) == Graph((), (), ())
    True
    """
    return (graph if isinstance(graph, Training) else graph_of(graph)).save(path)


@overload
def load(path: str | Path, *, step: None = None, max_bytes: int = ...) -> Graph | Training: ...


@overload
def load(path: str | Path, *, step: int, max_bytes: int = ...) -> TrainingStep: ...


def load(
    path: str | Path, *, step: int | None = None, max_bytes: int = MAX_BYTES
) -> Graph | Training | TrainingStep:
    """Return the graph or training in a file that `save` wrote, compressed or not.

    For a training run that was killed or is still running, the steps written so far are returned.
    Functions that take a graph also take a `Training`, and use its last step; `load(path).steps[3]`
    is one step.

    Args:
        path: the file.
        step: number of the step to return, if the file contains a training. Other steps are not
            decoded, so that loading one of thousands is fast.
        max_bytes: maximum number of bytes of uncompressed text. The limits on the numbers of lists
            and values grow with `max_bytes`; docs/compatibility.md lists them.

    Raises:
        ValueError: if the file is truncated or of a newer version; if it exceeds a limit; if it has
            a value of a wrong type, an id out of range, or an edge from a later to an earlier node;
            or if the training has no step with the number `step`.
        OSError: as `open` does.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(Graph((), (), ()), Path(folder) / "step.json")
    ...     len(load(file).nodes)
    0
    """
    name = printable(str(path))
    if not is_training(path, max_bytes):
        graph = read(path, Graph, max_bytes)
        if step is not None:
            raise ValueError(f"{name} is one graph, not a training run: it has no step {step}.")
        return graph
    steps = read_steps(path, max_bytes, step)
    wanted = steps if step is None else tuple(each for each in steps if each.number == step)
    if not wanted:
        numbers = [str(each.number) for each in steps]
        has = f"has one step, {numbers[0]}, and no step {step}"
        if len(numbers) > 1:
            has = f"has no step {step}, but {listing(numbers, 5)}"
        raise ValueError(f"{name} {has}.")
    training = Training(wanted)
    try:
        training.check()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return training if step is None else training.steps[0]


def to_json(graph: Graph) -> str:
    """Return the JSON text of a graph, as `save` writes it.

    >>> from_json(to_json(Graph(nodes=()))) == Graph(nodes=())
    True
    """
    return text_of(graph)


def from_json(text: str) -> Graph:
    """Return the graph in a JSON text that `to_json` returned.

    Raises:
        ValueError: if `to_json` cannot have returned `text`; the reasons are those of `load`.
    """
    return value_of(text, Graph)
