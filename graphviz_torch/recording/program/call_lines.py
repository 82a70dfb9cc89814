"""Compare the call stacks of two forwards, to report the line at which they differ."""

from __future__ import annotations

from collections.abc import Sequence

from ...internals.frames import CodePosition

Lines = tuple[CodePosition, ...]  # call stack of a forward, outermost first


def first_difference(first: Lines, second: Lines) -> int:
    """Return the index of the first line in which two call stacks differ.

    If no line differs, it is the index of the last line.
    """
    pairs = zip(first, second, strict=False)
    differ = next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))
    return min(differ, len(first) - 1, len(second) - 1)


def own_line(lines: Lines, used: Sequence[Lines]) -> CodePosition:
    """Return the source line to report for a forward whose result the program discarded.

    This is the line that calls the module. If this line also calls used forwards, it is the line of
    the call stack at which the discarded forward differs from the used ones.

    Args:
        lines: call stack of the discarded forward.
        used: call stacks of used forwards.
    """
    if all(lines[-1] != other[-1] for other in used):
        return lines[-1]
    return lines[max(first_difference(lines, other) for other in used)]
