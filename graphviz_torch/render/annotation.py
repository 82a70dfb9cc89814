"""Annotate lines of source with the shapes, copies and cuts that a recording has for them.

A graph stores lines as "train.py:41", without a folder. Unless the caller passes a path, the file
is searched for in the current folder and among the files that Python has loaded.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..graph import Graph, GraphLike, graph_of
from ..graph.text import Text, first_items
from . import labels

_MAX_CODE_WIDTH = 60  # annotations of longer lines (in characters) are not aligned
_MAX_RESULTS = 3  # maximum number of results listed for one line
_PACKAGE = Path(__file__).parents[1]
_SOURCE_LINE = re.compile(r"(?<![^\s()])([^\s()]+):(\d{1,9})(?!\d)")


def annotate_source(graph: GraphLike, file: str | Path | None = None) -> Text:
    r"""Return the source of a program with the shapes of the results beside each line.

    The text also contains copies between devices, and calls that cut a gradient. Results that
    require no gradient are missing, because they are not in the graph.

    Args:
        graph: a recording, or the Graph of a recording.
        file: the source file; None chooses the file whose lines created the most nodes.

    Returns:
        The text of the file. A line with many results lists three and counts the others.

    Raises:
        ValueError: if the graph has no source lines, or none in `file`.
        FileNotFoundError: if the source cannot be found.

    >>> import tempfile
    >>> from graphviz_torch.graph import Graph, Node, TensorMeta
    >>> made = (TensorMeta((2, 3), "float32", "cpu"),)
    >>> exp = Node(0, "ExpBackward0", made, operation="exp", where="train.py:2")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "train.py"
    ...     _ = file.write_text("x = load()\ny = x.exp()\n")
    ...     print(annotate_source(Graph((exp,), (), ((0, 0),)), file))
    1  x = load()
    2  y = x.exp()  # exp f32[2, 3]
    """
    graph = graph_of(graph)
    facts = list(_facts(graph))
    files = Counter(name for name, _, _ in facts)
    if not files:
        raise ValueError("the graph has no source lines: record the step with record().")
    if file is None:
        [(name, _)] = files.most_common(1)
        text = _find(name)
    else:
        named = [
            each for each in files if Path(file).parts[-len(Path(each).parts) :] == Path(each).parts
        ]
        if not named:
            raise ValueError(
                f"no node of this graph was created in {file}, only in {', '.join(files)}."
            )
        name = named[0]
        text = Path(file).read_text(encoding="utf-8")
    made: dict[int, list[str]] = {}
    for each, line, says in facts:
        if each == name:
            made.setdefault(line, []).append(says)
    return Text(_annotate(text.splitlines(), made))


def _facts(graph: Graph) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line, text) for each cut, node, copy between devices and collective.

    Nodes are in topological order.
    """
    for where, how in dict.fromkeys((cut.where, cut.how) for cut in graph.cuts):
        yield from _at_lines(where, f"cut by {how}")
    for node in graph.nodes:
        shapes = ", ".join(labels.shape(meta) for meta in node.outputs if meta is not None)
        yield from _at_lines(node.where, f"{node.title} {shapes}".rstrip())
    for copy in graph.transfers:
        says = (
            f"{copy.operation or 'copy'} {labels.shape(copy.tensor)} {copy.source} -> {copy.target}"
        )
        yield from _at_lines(copy.where, says if copy.phase == "forward" else f"backward: {says}")
    for sent in graph.collectives:
        yield from _at_lines(sent.where, f"{sent.phase}: {sent}")


def _at_lines(places: str, says: str) -> Iterator[tuple[str, int, str]]:
    for name, line in _SOURCE_LINE.findall(places):
        yield name, int(line), says


def _path_ends_with(file: Path, name: str) -> bool:
    parts = Path(name).parts
    return file.parts[-len(parts) :] == parts


def _annotate(lines: list[str], made: dict[int, list[str]]) -> str:
    number = len(str(len(lines)))
    width = min(
        _MAX_CODE_WIDTH, max((len(lines[i - 1]) for i in made if i <= len(lines)), default=0)
    )
    rows = []
    for i, line in enumerate(lines, 1):
        beside = f"{line:<{width}}  # {_results_text(made[i])}" if i in made else line
        rows.append(f"{i:>{number}}  {beside}".rstrip())
    return "\n".join(rows)


def _results_text(says: Iterable[str]) -> str:
    counts = Counter(says)
    shown = [text if n == 1 else f"{text} {labels.TIMES}{n}" for text, n in counts.items()]
    return "; ".join(first_items(shown, _MAX_RESULTS))


def _find(name: str) -> str:
    """Return the text of a file that is in the current folder or that Python has loaded.

    In a notebook, "In[3]" is the third cell.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and (number := re.fullmatch(r"In\[(\d+)\]", name)):
        return str(shell.history_manager.input_hist_raw[int(number[1])])
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    read = [*linecache.cache, *(file for file in modules if isinstance(file, str))]
    here = Path.cwd()
    below = [str(here / part) for part in (name, Path(name).name) if ".." not in Path(part).parts]
    # An untrusted graph may name a file outside of the current folder, which must not be read.
    below = [file for file in below if Path(file).is_relative_to(here)]
    for file in dict.fromkeys([*below, *read]):
        own = Path(file).is_relative_to(_PACKAGE) and _PACKAGE.name not in Path(name).parts
        if not own and _path_ends_with(Path(file), name) and (lines := linecache.getlines(file)):
            return "".join(lines)
    raise FileNotFoundError(f"{name} was not found. Pass its path: annotate_source(graph, path).")
