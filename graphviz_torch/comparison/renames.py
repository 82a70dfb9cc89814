"""Which modules go by another name in the second of two graphs, from the nodes that are in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Path = tuple[str, ...]


def renamed_modules(modules: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Paths before and after of the modules whose own name changed, in order of the alphabet.

    Numbers that change are no new names: a module put into an `nn.Sequential` moves all behind it.
    Neither is a module renamed whose nodes went to several.

    Args:
        modules: for each node that is in both graphs, its module in the first and in the second.

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
    """Each module around a node in the one graph, with the one that stands for it in the other."""
    if len(before) == len(after):
        yield from ((before[:end], after[:end]) for end in range(1, len(before) + 1))
        return
    same = 0  # names at the end that are the same; modules around them came or went
    while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
        same += 1
    yield before[: len(before) - same], after[: len(after) - same]


def _is_renamed(old: Path, new: Path) -> bool:
    if not old or not new:
        return True
    numbers = old[-1].isdigit() and new[-1].isdigit()
    return old[-1] != new[-1] and not numbers and "" not in (old[-1], new[-1])
