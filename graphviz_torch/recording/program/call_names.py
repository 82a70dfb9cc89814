"""Name the calls that create nodes, so that a picture can group the nodes of each call.

`F.cross_entropy` creates two nodes, and a loss function that the user wrote creates many. A call is
named after the function of torch and the user's functions that lead to it, as in
"dice_loss/sigmoid".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from types import CodeType
from typing import Any, Final

# The user's functions that lead to a call, outermost first. Each is given by its code object, and
# by the instruction offset in its caller, which distinguishes two calls of the same function.
from ...graph.immutable import NamedTuple

Functions = tuple[tuple[CodeType, int], ...]


class Call(NamedTuple):
    """A call into torch, with the user's functions that lead to it."""

    name: str  # name of torch's function, such as "cross_entropy", or "matmul" for `__matmul__`
    functions: Functions = ()  # the user's functions that lead to the call


NO_CALL: Final = Call("")


def bare_name(function: Any) -> str:
    """Return the name of a torch function without its outer underscores; "" if it has none."""
    name = getattr(function, "__name__", "")
    if name == "__get__":  # the getter of an attribute, such as `x.T`
        name = getattr(getattr(function, "__self__", None), "__name__", "")
    return name.strip("_") if type(name) is str else ""


class CallNames:
    """Names for calls, which must be passed to `name` in the order in which they happened.

    Args:
        leading: functions that names leave out, because they call modules or backward. A training
            loop is an example.

    >>> names = CallNames(())
    >>> [names.name(Call("normalize"), "head", several=True) for _ in range(2)]
    ['normalize#1', 'normalize#2']
    >>> names.name(Call("matmul"), "", several=False)
    'matmul'
    """

    def __init__(self, leading: Container[CodeType]) -> None:
        self._leading = leading
        self._counts: Counter[tuple[str, str]] = Counter()  # (scope, name) -> number of calls
        self._functions: Functions = ()  # functions that lead to the last call, without `leading`
        self._path = ""  # names of `_functions`, joined by "/"

    def name(self, call: Call, scope: str, several: bool) -> str:
        """Return the name of the next call, such as "dice_loss/sigmoid" or "normalize#1".

        Args:
            call: the call.
            scope: the module call that contains the call. "#" numbers start at 1 in each scope.
            several: True if the call created more than one node.
        """
        name = call.name
        if call.functions or self._functions:
            self._enter(call.functions)
            name = f"{self._path}{name}" if name else ""
        return f"{name}#{self._count(scope, name)}" if several and name else name

    def _enter(self, functions: Functions) -> None:
        """Name the functions that lead to a call; those of the last call keep their names."""
        inner = 0
        for at, (code, _) in enumerate(functions):
            if code in self._leading:
                inner = at + 1
        functions = functions[inner:]
        if functions == self._functions:
            return
        same = 0
        while functions[same : same + 1] == self._functions[same : same + 1] != ():
            same += 1
        path = "/".join(self._path.split("/")[:same])
        path += "/" if path else ""
        for code, _ in functions[same:]:
            path += code.co_name
            count = self._count("", path)
            path += f"#{count}/" if count > 1 else "/"
        self._functions, self._path = functions, path

    def _count(self, scope: str, name: str) -> int:
        self._counts[scope, name] += 1
        return self._counts[scope, name]
