"""Which module call and which line made each node: sequence numbers in, names out.

Every autograd node has a number, counted up in the thread that made it. What is noted is the number
at which a module call begins or ends, and the line of every call that made nodes. Here are numbers
and names alone, nothing of PyTorch's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Generic, TypeVar

Names = tuple[str, str]  # a module's path, and the scope of a call of it
Line = TypeVar("Line")  # what stands for a line


class Origins(Generic[Line]):
    """What made the nodes from `first` on.

    >>> origins = Origins[str](10)
    >>> origins.enter(12, ("fc", "fc"))
    >>> origins.made(12, 14, "train.py:3")
    >>> origins.enter(14, None)
    >>> columns = origins.columns([11, 13, 14, -1], str, {"fc": "Linear(4, 2)"})
    >>> columns["module"], columns["module_class"]
    (['', 'fc', '', ''], ['', 'Linear(4, 2)', '', ''])
    >>> columns["source"]
    ['', 'train.py:3', '', '']
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first  # the nodes before this number have been looked at
        # From this number on, nodes were made in this module and scope, or in no module.
        self._entered: list[tuple[int, Names | None]] = [(first, None)]
        self.moments = 1  # calls of modules that have begun or ended so far, and the beginning
        self._lines: list[tuple[int, int, Line]] = []  # start <= number < end were made there

    def forget(self, before: int) -> None:
        """Know of no node before this number."""
        self.first = max(before, self.first)
        begin = bisect_right(self._entered, before, key=itemgetter(0)) - 1
        del self._entered[: max(begin, 0)]
        del self._lines[: bisect_right(self._lines, before, key=itemgetter(1))]

    def enter(self, number: int, names: Names | None) -> None:
        """The nodes from this number on are made in this module and scope; None: in none."""
        self.moments += 1
        if number == self._entered[-1][0]:  # no node was made since, as under no_grad
            self._entered[-1] = number, names
        else:
            self._entered.append((number, names))

    def made(self, start: int, end: int, line: Line | None) -> None:
        """The nodes start <= number < end were made by this line; None if it is not known."""
        self.end = end
        if line is not None:
            self._lines.append((start, end, line))

    def skip(self, end: int) -> None:
        """Of the nodes before this number no line is known."""
        self.end = end

    def source(self, number: int, text: Callable[[Line], str]) -> str:
        """The line that made one node; "" where that is not known."""
        return self.columns([number], text, {})["source"][0]

    def columns(
        self, numbers: Sequence[int], text: Callable[[Line], str], classes: Mapping[str, str]
    ) -> dict[str, list[str]]:
        """Columns for the nodes with these numbers: module, module_class, scope, source.

        "" where one is not known. `text` writes a line, `classes` has those along each path.
        """
        # Those of one backward lie close together, among those of all that the block has made.
        last = max(self.end, self._entered[-1][0])
        known = [min(number, last) for number in numbers if number >= self.first]
        first = min(known, default=last)
        length = max(known, default=last) + 1 - first
        nowhere = ("", "", "")  # path, class and scope
        names = [nowhere] * length
        begin = bisect_right(self._entered, first, key=itemgetter(0)) - 1
        stop = bisect_left(self._entered, first + length, key=itemgetter(0))
        entered = self._entered[begin:stop]
        spans = pairwise([first, *(number for number, _ in entered[1:]), first + length])
        for (_, name), (start, end) in zip(entered, spans, strict=True):
            if name is not None:
                here = (name[0], classes.get(name[0], ""), name[1])
                names[start - first : end - first] = [here] * (end - start)
        sources = [""] * length
        begin = bisect_right(self._lines, first, key=itemgetter(1))
        stop = bisect_left(self._lines, first + length, key=itemgetter(0))
        for start, end, line in self._lines[begin:stop]:
            if end - start == 1:
                sources[start - first] = text(line)
            else:
                start, end = max(start - first, 0), min(end - first, length)
                sources[start:end] = [text(line)] * (end - start)
        # Before the block nothing is known, and a leaf has the number -1.
        names.append(nowhere)
        sources.append("")
        before = self.first
        places = [(n if n < last else last) - first if n >= before else -1 for n in numbers]
        made_in = list(map(names.__getitem__, places))
        paths, kinds, scopes = (list(map(itemgetter(k), made_in)) for k in range(3))
        return {
            "module": paths,
            "module_class": kinds,
            "scope": scopes,
            "source": list(map(sources.__getitem__, places)),
        }
