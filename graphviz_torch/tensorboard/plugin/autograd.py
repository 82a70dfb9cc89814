"""The plugin of the tab "Autograd", which shows written graphs in the interactive view.

The graphs are read from the log directory through TensorBoard's data provider.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard import plugin_util  # type: ignore[import-untyped]
from tensorboard.backend import http_util  # type: ignore[import-untyped]
from tensorboard.plugins import base_plugin  # type: ignore[import-untyped]
from werkzeug import Request, Response

from ...findings.check import find
from ...graph import Graph
from ...graph.immutable import NamedTuple
from ...render.view import view_script
from ...render.view.payload import view_payload
from ..events import GRAPHS, PREFIX, unpack

# Maximum number of graphs of a tag to request; the data servers keep fewer than this.
_MAX_PER_TAG = 1000
# Number of graphs in the cache. Parsing 100,000 nodes takes about a second and 100 MB.
_MAX_PARSED_GRAPHS = 8


class Written(NamedTuple):
    """A graph that was written to the log directory: its step, time and key."""

    step: int
    wall_time: float
    key: str


class Store:
    """A reader of graphs, with a cache.

    Args:
        provider: TensorBoard's data provider.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._graphs: dict[Written, Graph] = {}

    def listing(self, ctx: Any, experiment: str) -> dict[str, dict[str, list[Written]]]:
        """Return run -> tag -> written graphs, in the order of their steps."""
        found = self._provider.read_blob_sequences(
            ctx, experiment_id=experiment, plugin_name=GRAPHS, downsample=_MAX_PER_TAG
        )
        return {
            run: {
                tag.removeprefix(PREFIX): [
                    Written(datum.step, datum.wall_time, datum.values[0].blob_key)
                    for datum in data
                    if datum.values
                ]
                for tag, data in tags.items()
            }
            for run, tags in found.items()
        }

    def graph(self, ctx: Any, written: Written) -> Graph:
        """Return the graph that was written; raise ValueError if it cannot be read."""
        if written not in self._graphs:
            content = unpack(self._provider.read_blob(ctx, blob_key=written.key))
            while len(self._graphs) >= _MAX_PARSED_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[written] = content
        return self._graphs[written]


def routes(**answers: Callable[[Request], Response]) -> dict[str, Any]:
    """Return path -> WSGI application, as TensorBoard expects the routes of a plugin.

    Args:
        answers: path -> function that returns the response to a request. "__" in a path becomes
            ".".
    """
    return {
        "/" + name.replace("__", "."): Request.application(answer)
        for name, answer in answers.items()
    }


def respond(
    request: Request, content: object, kind: str = "application/json", code: int = 200
) -> Response:
    """Return a response with TensorBoard's headers, compressed if the browser accepts it."""
    response: Response = http_util.Respond(request, content, kind, code=code)
    return response


def refuse(request: Request, message: str, code: int) -> Response:
    """Return a plain-text response that describes an error."""
    return respond(request, message, "text/plain", code)


def request_context(request: Request) -> tuple[Any, str]:
    """Return the context that TensorBoard's data provider needs, and the id of the experiment."""
    return plugin_util.context(request.environ), plugin_util.experiment_id(request.environ)


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
