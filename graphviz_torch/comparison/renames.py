"""Find renamed modules by comparing the modules of matched nodes in two graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Path = tuple[str, ...]


def renamed_modules(modules: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the sorted (path before, path after) of modules whose own name changed.

    A changed number is not a rename, because a module that is inserted into an `nn.Sequential`
    changes the numbers of all later modules. A module whose nodes are in several modules afterwards
    is not renamed either.

    Args:
        modules: (module in the first graph, module in the second graph) of each matched node.

    >>> renamed_modules([("enc.fc", "encoder.fc"), ("enc.norm", "encoder.norm"), ("0", "1")])
    (('enc', 'encoder'),)
    >>> renamed_modules([("fc", "module.fc")])
    (('', 'module'),)
    """
    to: dict[Path, dict[Path, None]] = {}
    for before, after in modules:
        for old, new in _levels(tuple(before.split(".")), tuple(after.split("."))):
            to.setdefault(old, {})[new] = None
    return tuple(
        (".".join(old), ".".join(new))
        for old, (new, *others) in sorted(to.items())
        if not others and _is_renamed(old, new)
    )


def _levels(before: Path, after: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (path before, path after) of the modules that contain a matched node."""
    if len(before) == len(after):
        yield from ((before[:end], after[:end]) for end in range(1, len(before) + 1))
        return
    same = 0  # number of equal names at the end of both paths
    while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
        same += 1
    yield before[: len(before) - same], after[: len(after) - same]


def _is_renamed(old: Path, new: Path) -> bool:
    if not old or not new:
        return True
    numbers = old[-1].isdigit() and new[-1].isdigit()
    return old[-1] != new[-1] and not numbers and "" not in (old[-1], new[-1])
