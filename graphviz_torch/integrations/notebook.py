"""`%%record`: record a notebook cell, and show the findings and the graph below the cell."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..graph import Finding, Graph
from ..graph.units import count_text
from .command.reports import to_lines
from .excerpt import Lines, excerpt, no_lines, without_place

_COLORS = {"error": "#c22a1e", "warning": "#9a6700", "info": "#5b6875"}


class RecordedCell:
    """The result of a recorded cell: the graph of its last backward pass, and the findings.

    Args:
        graph: the graph of the last backward.
        findings: the findings of the cell.
        view: the interactive view as HTML; "" if the view is not installed.
        source: returns the lines of a cell by the cell's name, such as "In[3]".
    """

    def __init__(
        self, graph: Graph, findings: Sequence[Finding], view: str = "", source: Lines = no_lines
    ) -> None:
        self.graph, self.findings, self._view, self._source = graph, list(findings), view, source

    def __repr__(self) -> str:
        nodes = count_text(len(self.graph.nodes), "node")
        return f"{nodes}\n{to_lines(self.findings, source=self._source)}"

    def _repr_html_(self) -> str:
        rows = "".join(self._row(each) for each in self.findings)
        return f"<ul>{rows or '<li>nothing found</li>'}</ul>{self._view}"

    def _row(self, finding: Finding) -> str:
        shown = excerpt(finding, self._source)
        message, advice = (
            html.escape(without_place(text, finding.where, shown.names))
            for text in (finding.message, finding.advice)
        )
        head = f'<b style="color: {_COLORS[finding.severity]}">{finding.severity}</b>'
        lines = f"<pre>{html.escape(chr(10).join(shown.lines))}</pre>" if shown.lines else "<br>"
        return f"<li>{head} {message}{lines}<i>{advice}</i></li>"


def load(shell: Any) -> None:
    """Register the magic `%%record` in an IPython shell."""

    def record_cell(line: str, cell: str) -> RecordedCell | None:
        """%%record [MODEL]: record this cell; parameters get their names in the variable MODEL."""
        from .. import find, record, view

        name = line.strip()
        if name and name not in shell.user_ns:
            raise NameError(f"%%record {name}: there is no variable {name}.")
        recording = record(shell.user_ns[name] if name else None)
        recording.__enter__()
        error: BaseException | None = None
        try:
            result = _run(shell, cell)
            error = result.error_before_exec or result.error_in_exec
        finally:
            recording.__exit__(type(error) if error else None, error, None)
        if not recording.graphs:
            print("nothing was recorded: no backward ran in this cell.")
            return None
        found = find(recording)
        try:
            page = view(recording, findings=found)._repr_html_()
        except FileNotFoundError:  # in a checkout, the view may not be built
            page = ""
        return RecordedCell(recording.graph, found, page, partial(_lines, shell))

    shell.register_magic_function(record_cell, magic_kind="cell", magic_name="record")


def _lines(shell: Any, name: str) -> list[str]:
    """Return the lines of a cell by its name, such as "In[3]"; [] if there is no such cell."""
    number = name[len("In[") : -1]
    cells: list[str] = shell.history_manager.input_hist_raw
    there = name.startswith("In[") and number.isdecimal() and int(number) < len(cells)
    return cells[int(number)].splitlines() if there else []


def _run(shell: Any, cell: str) -> Any:
    """Run the body of a cell so that tracebacks show the cell's own number and line numbers."""
    after = shell.execution_count  # in IPython 9, this cell is already counted here
    shell.execution_count = len(shell.history_manager.input_hist_raw) - 1 or after
    try:
        return shell.run_cell(cell if cell.startswith("%%") else f"# %%record\n{cell}")
    finally:
        shell.execution_count = after
