"""Show gradient health in TensorBoard's Graphs tab, as its "health pills".

The tab requests them from a plugin named "debugger", which TensorBoard itself no longer contains. A
request does not say which run and tag are shown, only the names of nodes. If several graphs have
those nodes, the one written last is used.

A pill describes the absolute values of the gradients at a node: how many are NaN, zero, positive
and Inf, and their range from 0 to the largest. A scope's pill counts all of its nodes.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from tensorboard.plugins import base_plugin  # type: ignore[import-untyped]
from werkzeug import Request, Response

from ...graph import Graph, Node
from ..names import device, names
from .store import Store, Written
from .wsgi import refuse, respond, routes, where

Pill = dict[str, Any]
Step = tuple[Written, dict[str, Pill]]

_TRIED = 16  # graphs that are read to find the one shown, newest first
_MOST_TABLES = 32  # tables of pills
_ALERTS = 100  # rows


class HealthPillsPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Answers the Graphs tab's requests for health pills; has no tab of its own."""

    plugin_name = "debugger"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._store = Store(context.data_provider)
        self._pills: dict[Written, dict[str, Pill]] = {}

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return the two routes that the tab requests."""
        return routes(health_pills=self.health_pills, numerics_alert_report=self.alerts)

    def is_active(self) -> bool:
        """Return False: there is no tab to show."""
        return False

    def data_plugin_names(self) -> tuple[str, ...]:
        """Return (): a plugin with data of its own would be shown as a tab."""
        return ()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the name shown in the list of inactive tabs."""
        return base_plugin.FrontendMetadata(tab_name="Gradient health (in Graphs)")

    def health_pills(self, request: Request) -> Response:
        """Return for each requested node one pill per step of the newest graph."""
        try:
            wanted = json.loads(request.form.get("node_names", ""))
            only = request.form.get("step", type=int)
            if not (isinstance(wanted, list) and all(isinstance(name, str) for name in wanted)):
                raise ValueError
        except (RecursionError, ValueError):
            return refuse(request, "node_names must be a JSON list of names", 400)
        ctx, experiment = where(request)
        try:
            found = self._shown(ctx, experiment, set(wanted))
        except ValueError as error:
            return refuse(request, str(error), 404)
        if only is not None:
            found = [(written, steps) for written, steps in found if written.step == only]
        return respond(request, _columns(wanted, found))

    def alerts(self, request: Request) -> Response:
        """Return the nodes of the latest graph that had NaN or Inf at any step.

        They are ordered by step and then by order of the backward, so the first row is the origin.
        The request does not say which graph the tab shows.
        """
        ctx, experiment = where(request)
        rows: dict[str, dict[str, Any]] = {}
        try:
            found = self._shown(ctx, experiment, set())
        except ValueError as error:
            return refuse(request, str(error), 404)
        for written, steps in found:
            for path, pill in steps.items():
                nan, inf = pill["value"][2], pill["value"][7]
                if pill["own"] and (nan or inf) and (path in rows or len(rows) < _ALERTS):
                    row = rows.setdefault(path, _alert(pill, written))
                    row["nan_event_count"] += nan
                    row["pos_inf_event_count"] += inf
        return respond(request, list(rows.values()))

    def _shown(self, ctx: Any, experiment: str, wanted: set[str]) -> list[Step]:
        """Return all steps of the run and tag that have most of these nodes.

        If none match, those of the run and tag written last.
        """
        listing = self._store.listing(ctx, experiment)
        series = [steps for tags in listing.values() for steps in tags.values() if steps]
        series.sort(key=lambda steps: max(written.wall_time for written in steps), reverse=True)
        best = series[0] if series else []
        most = 0
        for steps in series[:_TRIED] if wanted else ():
            matching = len(wanted & self._of(ctx, steps[-1]).keys())
            if matching > most:
                best, most = steps, matching
        return [(written, self._of(ctx, written)) for written in best]

    def _of(self, ctx: Any, written: Written) -> dict[str, Pill]:
        if written not in self._pills:
            found = pills(self._store.graph(ctx, written))
            for pill in found.values():
                pill.update(step=written.step, wall_time=written.wall_time)
            while len(self._pills) >= _MOST_TABLES:
                self._pills.pop(next(iter(self._pills)))
            self._pills[written] = found
        return self._pills[written]


def pills(graph: Graph) -> dict[str, Pill]:
    """Return the pill of each path in the Graphs tab, nodes and scopes.

    The tab's layout of `value` is: initialized, elements, NaN, -Inf, negative, zero, positive,
    +Inf, minimum, maximum, mean. The mean of absolute values is not recorded.
    """
    found: dict[str, Pill] = {}
    paths = names(graph)
    for node in sorted(graph.nodes, key=lambda node: (node.order is None, node.order)):
        counts = _counts(node)
        if counts is None:
            continue
        path = paths.nodes[node.id]
        for end in (path, f"{paths.backward}/{path}"):
            while end:
                pill = found.setdefault(end, _pill(end, node, own=end == path))
                _add(pill["value"], *counts)
                end = end.rpartition("/")[0]
    return found


def _pill(path: str, node: Node, *, own: bool) -> Pill:
    return {
        "node_name": path,
        "output_slot": 0,
        "device_name": device(node.device),
        "dtype": "absolute values of the gradient",
        "shape": [],
        "own": own,  # True for a node; False for a scope or the backward's node
        "value": [1, 0, 0, 0, 0, 0, 0, 0, None, None, None],
    }


def _alert(pill: Pill, written: Written) -> dict[str, Any]:
    return {
        "device_name": pill["device_name"],
        "tensor_name": pill["node_name"],
        "first_timestamp": written.wall_time * 1e6,
        "neg_inf_event_count": 0,
        "pos_inf_event_count": 0,
        "nan_event_count": 0,
    }


class _Counts(NamedTuple):
    """Element counts of all gradients at a node, and bounds of finite absolute values."""

    elements: int
    nan: int
    zero: int
    inf: int
    smallest: float
    largest: float


def _counts(node: Node) -> _Counts | None:
    elements = nan = zero = inf = 0
    smallest, largest = math.inf, 0.0
    for stats in node.grad_outputs:
        if stats is None or stats.tensor is None or min(stats.tensor.shape, default=0) < 0:
            continue
        count = math.prod(stats.tensor.shape)
        elements += count
        nan += stats.nan
        inf += stats.inf
        zero += round(stats.zero_fraction * count)
        largest = max(largest, stats.max_abs)
        # If the values were not kept, 0 is only a lower bound.
        smallest = min(smallest, stats.max_abs if count == 1 else 0.0)
    return _Counts(elements, nan, zero, inf, smallest, largest) if elements > 0 else None


def _add(
    value: list[Any], elements: int, nan: int, zero: int, inf: int, smallest: float, largest: float
) -> None:
    finite = elements - nan - inf
    value[1] += elements
    value[2] += nan
    value[5] += zero
    value[6] += finite - zero
    value[7] += inf
    if finite:
        value[8] = smallest if value[8] is None else min(smallest, value[8])
        value[9] = max(largest, value[9] or 0.0)


def _columns(wanted: list[str], found: list[Step]) -> dict[str, list[Pill | None]]:
    """Return the pills of each name, step by step, with None for a step without a pill.

    The tab reads the steps from the first name, which must therefore have a pill at every step.
    """
    columns = {name: [steps.get(name) for _, steps in found] for name in wanted}
    columns = {name: column for name, column in columns.items() if any(column)}
    first = min(columns, key=lambda name: columns[name].count(None), default=None)
    if first is None:
        return {}
    kept = [i for i, pill in enumerate(columns[first]) if pill is not None]
    order = [first, *(name for name in columns if name != first)]
    return {name: [columns[name][i] for i in kept] for name in order}
