"""Show which loss trains which network: a table of gradient norms by backward and network."""

from __future__ import annotations

import math

from ..graph import Graph
from ..graph.immutable import immutable
from ..graph.terminal import TableColumn, hidden_columns_text, line_width, table
from ..graph.text import print_text, printable
from ..graph.units import number_text
from .graph_reading import Reading
from .rules.terms import terms_of
from .words import at

_MAX_NETWORKS = 8  # a model with more children is shown as one network


@immutable
class LossRow:
    """The loss of one backward, and the gradients that this backward computed."""

    loss: str  # the loss's name in the program or, if unknown, its operation
    where: str  # the line that computed the loss
    norms: tuple[float | None, ...]  # norm of each network's gradient; None without a gradient
    # Terms of the loss, each with its line; () if the loss is not a sum.
    terms: tuple[str, ...] = ()


@immutable(slots=False)
class LossTable:
    """The norms of each network's gradient by backward; `print` shows a table.

    Backwards of the same line, such as those of a loop, share one row, which shows the last of
    them. The networks are the model's children, and the parameters outside of the model. Returned
    by `explain`.

    >>> import torch
    >>> from graphviz_torch import explain, record
    >>> actor, critic = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    >>> critic.weight.data.fill_(0.5)
    tensor([[0.5000]])
    >>> with record(torch.nn.ModuleDict({"actor": actor, "critic": critic})) as recording:
    ...     loss = critic(torch.zeros(1, 1)).sum()
    ...     loss.backward()
    ...     gain = critic(actor(torch.zeros(1, 1))).sum()
    ...     gain.backward()
    >>> explain(recording).rows[0].norms
    (None, 1.0)

    If the loss is a sum, its row names each term with its line.

    >>> with record(torch.nn.ModuleDict({"actor": actor, "critic": critic})) as recording:
    ...     value = critic(torch.ones(4, 1)).mean()
    ...     bonus = actor(torch.ones(4, 1)).square().mean()
    ...     loss = value + 0.1 * bonus
    ...     loss.backward()
    >>> [term.split()[0] for term in explain(recording).rows[0].terms]
    ['value', 'bonus']
    """

    networks: tuple[str, ...]
    rows: tuple[LossRow, ...]
    # For each network: True if an optimizer updated it; None if no step was recorded.
    stepped: tuple[bool | None, ...]

    def to_text(self, *, wide: bool = False) -> str:
        """Return the table.

        Columns that do not fit into the terminal are left out, unless `wide` is true.
        """
        cells = [
            [("" if norm is None else number_text(norm)) for norm in column]
            for column in zip(*(row.norms for row in self.rows), strict=True)
        ]
        columns = [
            TableColumn("loss", [row.loss for row in self.rows], 12),
            TableColumn("where", [row.where for row in self.rows], 12, tail=True),
        ]
        columns += [
            TableColumn(name, column, right=True)
            for name, column in zip(self.networks, cells, strict=True)
        ]
        width = line_width(wide)
        lines, missing = table(columns, width, ["loss", *self.networks, "where"])
        notes = [f"terms of {row.loss}: {', '.join(row.terms)}" for row in self.rows if row.terms]
        silent = [n for n, column in zip(self.networks, cells, strict=True) if not any(column)]
        if silent:
            notes.append(f"no gradient: {', '.join(silent)}")
        still = [n for n, did in zip(self.networks, self.stepped, strict=True) if did is False]
        if still:
            notes.append(f"no optimizer stepped: {', '.join(still)}")
        if missing:
            notes.append(hidden_columns_text(missing, width))
        said = ["The norm of the gradient that each loss gave", *lines, *notes]
        return "\n".join(map(printable, said))

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        return self.to_text()


def loss_table(graph: Graph) -> LossTable:
    """Return the table of a graph, with one row for each backward (each segment of the graph)."""
    names = _names(graph)
    networks = {p.node: names[p.name] for p in graph.parameters if p.node is not None}
    for node in graph.nodes:
        if node.leaf == "parameter":
            networks.setdefault(node.id, node.label or "other parameters")
    own = sorted(set(names.values()), key=_order)
    titles = tuple(dict.fromkeys([*own, *networks.values()]))
    starts = [first for first, _ in graph.segments] or [0]
    ends = [*starts[1:], len(graph.nodes)]
    reading, rows = Reading(graph), []
    for start, end in zip(starts, ends, strict=True):
        norms: dict[str, float] = {}
        for node in graph.nodes[start:end]:
            stats = next(iter(node.grad_outputs), None)
            if node.id in networks and node.order is not None and stats is not None:
                name = networks[node.id]
                norms[name] = math.hypot(norms.get(name, 0.0), stats.norm)
        root = next((graph.nodes[i] for i, _ in graph.outputs if start <= i < end), None)
        loss, where = ("", "") if root is None else (root.label or root.title, root.where)
        terms = [] if root is None else [graph.nodes[i] for i in terms_of(reading, root.id)]
        texts = [f"{term.label or term.title}{at(term.where)}" for term in terms]
        rows.append(LossRow(loss, where, tuple(map(norms.get, titles)), tuple(texts)))
    steps: dict[str, list[bool]] = {}
    for parameter in graph.parameters:
        if parameter.stepped is not None:
            steps.setdefault(names[parameter.name], []).append(parameter.stepped)
    stepped = tuple(any(steps[title]) if title in steps else None for title in titles)
    return LossTable(titles, tuple(rows), stepped)


def _names(graph: Graph) -> dict[str, str]:
    """Return, by name of a parameter, the name of the network that has the parameter."""
    firsts = {p.name: p.name.rpartition(".")[0].partition(".")[0] for p in graph.parameters}
    few = len(set(firsts.values())) <= _MAX_NETWORKS
    return {name: first if first and few else "the model" for name, first in firsts.items()}


def _order(name: str) -> tuple[bool, int, str]:
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name
