"""Read the graphs in a log directory through TensorBoard's data provider."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...graph import Graph
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
