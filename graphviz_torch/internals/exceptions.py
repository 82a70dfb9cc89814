"""Ignore the exceptions of a recording, but not those that end the program.

A recording reads objects of the program, which may raise any exception. The program does not see
these exceptions. A signal handler of the program may run while the recording reads, and may raise
an exception, too. The program expects this exception, such as one that ends the training after a
time limit.
"""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType
from typing import Any

_SIGNALS = signal.valid_signals()  # listing them takes longer than all else here


class ignore_exceptions:
    """A context that ignores exceptions, except those of the program's signal handlers.

    >>> with ignore_exceptions():
    ...     print([][0])
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, Exception) and not raised_by_signal_handler(error)


def raised_by_signal_handler(error: BaseException) -> bool:
    """Return True if a signal handler of the program raised an exception in our code."""
    handlers = {_code_of(signal.getsignal(each)) for each in _SIGNALS}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal handler; None if it is not written in Python."""
    if isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):  # a method or another callable
        handler = getattr(handler, "__func__", type(handler).__call__)
    return getattr(handler, "__code__", None)
