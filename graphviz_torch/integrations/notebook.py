"""`%%record`: a notebook's cell recorded, its findings and its graph shown below it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from ..graph import Finding, Graph
from ..graph.units import count_text

_COLORS = {"error": "#c22a1e", "warning": "#9a6700", "info": "#5b6875"}


class RecordedCell:
    """The last backward of a cell and what is wrong in it, as the value of the cell."""

    def __init__(self, graph: Graph, findings: Sequence[Finding], view: str = "") -> None:
        self.graph, self.findings, self._view = graph, list(findings), view

    def __repr__(self) -> str:
        nodes, findings = len(self.graph.nodes), len(self.findings)
        lines = [f"{count_text(nodes, 'node')}, {count_text(findings, 'finding')}"]
        lines += [f"{each.severity}: {each.message} [{each.rule}]" for each in self.findings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<li><b style="color: {_COLORS[each.severity]}">{each.severity}</b> '
            f"{html.escape(each.message)} <i>{html.escape(each.advice)}</i></li>"
            for each in self.findings
        )
        return f"<ul>{rows or '<li>nothing found</li>'}</ul>{self._view}"


def load(shell: Any) -> None:
    """Add the magic to an IPython shell."""

    def record_cell(line: str, cell: str) -> RecordedCell | None:
        """%%record [MODEL]: record this cell; MODEL is the name of a variable."""
        from .. import find, record, view_graph

        name = line.strip()
        if name and name not in shell.user_ns:
            raise NameError(f"%%record {name}: no variable is called {name}.")
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
            view = view_graph(recording, findings=found)._repr_html_()
        except FileNotFoundError:  # a checkout in which the view was not built
            view = ""
        return RecordedCell(recording.graph, found, view)

    shell.register_magic_function(record_cell, magic_kind="cell", magic_name="record")


def _run(shell: Any, cell: str) -> Any:
    """Run what stands below `%%record`, with the cell's own number and the lines' on the screen."""
    after = shell.execution_count  # of the next cell, from IPython 9 on
    shell.execution_count = len(shell.history_manager.input_hist_raw) - 1 or after
    try:
        return shell.run_cell(cell if cell.startswith("%%") else f"# %%record\n{cell}")
    finally:
        shell.execution_count = after
