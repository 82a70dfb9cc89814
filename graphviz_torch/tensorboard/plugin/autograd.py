"""The plugin of the tab "Autograd", which shows written graphs in the interactive view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin  # type: ignore[import-untyped]
from werkzeug import Request, Response

from ...findings.check import find
from ...render.view import view_script
from ...render.view.payload import view_payload
from ..events import GRAPHS
from .store import Store
from .wsgi import refuse, request_context, respond, routes

_PAGE = Path(__file__).parent / "static" / "index.js"


class AutogradPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The plugin of the tab "Autograd", which lists all written graphs and shows one of them."""

    plugin_name = GRAPHS

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._store = Store(context.data_provider)

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return the routes: the scripts of the page, and the data that the scripts read."""
        return routes(index__js=self.page, view__js=self.view, graphs=self.graphs, graph=self.graph)

    def is_active(self) -> bool:
        """Return False. TensorBoard shows the tab anyway if there is data for it."""
        return False

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the name of the tab and the path of its script."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Autograd")

    def page(self, request: Request) -> Response:
        """Return the script of the tab."""
        return respond(request, _PAGE.read_text(encoding="utf-8"), "text/javascript")

    def view(self, request: Request) -> Response:
        """Return the script of the interactive view."""
        try:
            return respond(request, view_script(), "text/javascript")
        except FileNotFoundError as error:
            return refuse(request, str(error), 404)

    def graphs(self, request: Request) -> Response:
        """Return the steps of all written graphs as `{run: {tag: [step, ...]}}`."""
        ctx, experiment = request_context(request)
        listing = self._store.listing(ctx, experiment)
        steps = {
            run: {tag: [written.step for written in series] for tag, series in tags.items()}
            for run, tags in listing.items()
        }
        return respond(request, steps)

    def graph(self, request: Request) -> Response:
        """Return the data from which the view draws the graph of a `run`, `tag` and `step`."""
        run, tag = request.args.get("run"), request.args.get("tag")
        step = request.args.get("step", type=int)
        if run is None or tag is None or step is None:
            return refuse(request, "pass run, tag and step (an integer)", 400)
        ctx, experiment = request_context(request)
        listing = self._store.listing(ctx, experiment)
        series = [w for w in listing.get(run, {}).get(tag, []) if w.step == step]
        if not series:
            text = f"there is no graph with run {run!r}, tag {tag!r} and step {step}"
            return refuse(request, text, 404)
        try:
            graph = self._store.graph(ctx, series[-1])
        except ValueError as error:
            return refuse(request, str(error), 404)
        payload = view_payload(graph, find(graph), title=f"{tag}, step {step}")
        return respond(request, payload, "text/plain")
