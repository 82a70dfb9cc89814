"""The pytest plugin: the graph of a failing test's last backward, saved as an artifact.

`pytest --graphviz-torch[=FOLDER]` records every test; of one that fails, it writes the graph to the
folder and says what `find` found below the test's output. `--graphviz-torch-update` has
`assert_same_graph` write its stored graphs anew. Without either, nothing of torch is loaded here.
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
    """The two options."""
    group = parser.getgroup("graphviz_torch", "autograd graphs")
    group.addoption(
        "--graphviz-torch",
        nargs="?",
        const=_FOLDER,
        default=None,
        metavar="FOLDER",
        help="save the autograd graph of each failing test in FOLDER (default graphviz-torch)",
    )
    says = "write the stored graphs of assert_same_graph anew"
    group.addoption("--graphviz-torch-update", action="store_true", help=says)


def pytest_configure(config: pytest.Config) -> None:
    """Tell `assert_same_graph` to write, in this process and those it starts."""
    if config.getoption("--graphviz-torch-update"):
        os.environ[_UPDATE] = "1"
        config.add_cleanup(_forget)


def _forget() -> None:
    os.environ.pop(_UPDATE, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the test, if asked to."""
    if item.config.getoption("--graphviz-torch") is None:
        return (yield)
    from .. import record

    recording = item.stash[_RECORDING] = record()
    recording.__enter__()
    error: BaseException | None = None
    try:
        return (yield)
    except AssertionError:  # the test's own: what ran before it was whole
        raise
    except BaseException as raised:
        error = raised
        raise
    finally:
        recording.__exit__(type(error) if error else None, error, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Save the graph of a test that failed."""
    report = yield
    recording = item.stash.get(_RECORDING, None)
    if call.when == "call" and recording is not None:
        del item.stash[_RECORDING]
        if report.failed and recording.graphs:
            said = _save(recording.graphs[-1], item)
            report.sections.append(("autograd graph", said))
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
    except FileNotFoundError:  # a checkout in which the view was not built
        pass
    lines += [f"{each.severity}: {each.message} [{each.rule}]" for each in found]
    return "\n".join(lines)
