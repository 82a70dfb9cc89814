"""A pytest plugin that saves the graph of a failing test's last backward as an artifact.

`pytest --graphviz-torch[=FOLDER]` records every test. If a test fails, the graph is written to
FOLDER, and the findings are added to the test's output. `pytest --graphviz-torch-update` makes
`assert_same_graph` rewrite the stored graphs. Without these options torch is not imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_FOLDER = "graphviz-torch"
_UPDATE = "GRAPHVIZ_TORCH_UPDATE"
_RECORDING: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--graphviz-torch` and `--graphviz-torch-update`."""
    group = parser.getgroup("graphviz_torch", "autograd graphs")
    group.addoption(
        "--graphviz-torch",
        nargs="?",
        const=_FOLDER,
        default=None,
        metavar="FOLDER",
        help="save the autograd graph of each failing test in FOLDER (default graphviz-torch)",
    )
    text = "rewrite the stored graphs of assert_same_graph"
    group.addoption("--graphviz-torch-update", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Make `assert_same_graph` rewrite stored graphs, in child processes too, if requested."""
    if config.getoption("--graphviz-torch-update"):
        os.environ[_UPDATE] = "1"
        config.add_cleanup(_unset_update)


def _unset_update() -> None:
    os.environ.pop(_UPDATE, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the test if `--graphviz-torch` is given."""
    if item.config.getoption("--graphviz-torch") is None:
        return (yield)
    from .. import record

    recording = item.stash[_RECORDING] = record()
    recording.__enter__()
    error: BaseException | None = None
    try:
        return (yield)
    except AssertionError:  # a failed assertion is not an error of the recorded program
        raise
    except BaseException as raised:
        error = raised
        raise
    finally:
        recording.__exit__(type(error) if error else None, error, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Save the graph if the test failed, and add the findings to its report."""
    report = yield
    recording = item.stash.get(_RECORDING, None)
    if call.when == "call" and recording is not None:
        del item.stash[_RECORDING]
        if report.failed and recording.graphs:
            summary = _save(recording.graphs[-1], item)
            report.sections.append(("autograd graph", summary))
    return report


def _save(graph: Any, item: pytest.Item) -> str:
    from .. import find, to_html

    folder = Path(item.config.getoption("--graphviz-torch"))
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", item.nodeid)[-150:]
    found = find(graph)
    saved = graph.save(folder / f"{name}.json.gz")
    lines = [str(saved)]
    try:
        to_html(graph, folder / f"{name}.html", findings=found, title=item.nodeid)
        lines.append(str(folder / f"{name}.html"))
    except FileNotFoundError:  # in a checkout, the view may not be built
        pass
    lines += [f"{each.severity}: {each.message} [{each.rule}]" for each in found]
    return "\n".join(lines)
