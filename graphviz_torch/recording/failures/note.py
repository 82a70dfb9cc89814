"""Add a note with the cause and a remedy to an exception that ends a recorded block."""

from __future__ import annotations

import sys

from ...graph import Graph
from ...graph.text import printable
from ...internals.exceptions import ignore_exceptions


def add_note(error: BaseException, graph: Graph) -> None:
    """Add the findings about an exception to the exception, as a note.

    Python 3.10 does not show notes, so the note is printed to stderr there. An exception that
    propagates through several recordings gets one note. Exceptions that end the program on purpose
    (SystemExit, KeyboardInterrupt) get none. This function raises no exception of its own.

    Args:
        error: the exception.
        graph: the graph up to the failure.
    """
    with ignore_exceptions():
        from ...findings.check import diagnosis  # imported late: the rules are slow to load

        notes = getattr(error, "__notes__", [])
        told = any(str(note).startswith("graphviz_torch:") for note in notes)
        if not isinstance(error, Exception) or told or not (text := diagnosis(graph)):
            return
        note = f"graphviz_torch: {printable(text, lines=True)}"
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:
            vars(error)["__notes__"] = [*notes, note]
            sys.stderr.write(f"{note}\n")
