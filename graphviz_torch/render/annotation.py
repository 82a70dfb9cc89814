"""A source file with what each of its lines made: shapes, copies and cuts beside the code.

A graph knows lines as "train.py:41", not where the file lies: it is looked for among the files that
Python has read, the current folder first, unless its path is given.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..graph import Graph, GraphLike, graph_of
from ..graph.shown_text import Text
from ..graph.text import at_most
from . import labels

_WIDEST = 60  # characters of a line of code before what it made
_LISTED = 3  # things that one line made
_PACKAGE = Path(__file__).parents[1]
_PLACE = re.compile(r"(?<![^\s()])([^\s()]+):(\d{1,9})(?!\d)")


def annotate_source(graph: GraphLike, file: str | Path | None = None) -> Text:
    r"""The source of a program, and beside each line the shapes of what it made.

    Results that need no gradient are in no graph; copies between devices and cuts are named.

    Args:
        graph: a recording, or a Graph of one.
        file: the source. None: the file that made most nodes, if it is at hand.

    Returns:
        The text of the file. A line that made several things lists three and counts the others.

    Raises:
        ValueError: for a graph that knows no lines, or none of this file.
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
        raise ValueError("the graph knows no lines: record a step with record() to have them.")
    if file is None:
        [(name, _)] = files.most_common(1)
        text = _find(name)
    else:
        named = [
            each for each in files if Path(file).parts[-len(Path(each).parts) :] == Path(each).parts
        ]
        if not named:
            raise ValueError(f"{file} made nothing in this graph; it knows {', '.join(files)}.")
        name = named[0]
        text = Path(file).read_text(encoding="utf-8")
    made: dict[int, list[str]] = {}
    for each, line, says in facts:
        if each == name:
            made.setdefault(line, []).append(says)
    return Text(_beside(text.splitlines(), made))


def _facts(graph: Graph) -> Iterator[tuple[str, int, str]]:
    """File, line, and what was made there, inputs before users; cuts first."""
    for where, how in dict.fromkeys((cut.where, cut.how) for cut in graph.cuts):
        yield from _at(where, f"cut by {how}")
    for node in graph.nodes:
        shapes = ", ".join(labels.shape(meta) for meta in node.outputs if meta is not None)
        yield from _at(node.where, f"{node.title} {shapes}".rstrip())
    for copy in graph.transfers:
        says = (
            f"{copy.operation or 'copy'} {labels.shape(copy.tensor)} {copy.source} -> {copy.target}"
        )
        yield from _at(copy.where, says if copy.phase == "forward" else f"backward: {says}")
    for sent in graph.collectives:
        yield from _at(sent.where, f"{sent.phase}: {sent}")


def _at(places: str, says: str) -> Iterator[tuple[str, int, str]]:
    for name, line in _PLACE.findall(places):
        yield name, int(line), says


def _ends(file: Path, name: str) -> bool:
    parts = Path(name).parts
    return file.parts[-len(parts) :] == parts


def _beside(lines: list[str], made: dict[int, list[str]]) -> str:
    number = len(str(len(lines)))
    width = min(_WIDEST, max((len(lines[i - 1]) for i in made if i <= len(lines)), default=0))
    rows = []
    for i, line in enumerate(lines, 1):
        beside = f"{line:<{width}}  # {_listed(made[i])}" if i in made else line
        rows.append(f"{i:>{number}}  {beside}".rstrip())
    return "\n".join(rows)


def _listed(says: Iterable[str]) -> str:
    counts = Counter(says)
    shown = [text if n == 1 else f"{text} {labels.TIMES}{n}" for text, n in counts.items()]
    return "; ".join(at_most(shown, _LISTED))


def _find(name: str) -> str:
    """The text of the one file of this name that Python has read or that lies here.

    Of "In[3]", the third cell of the notebook that runs.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and (number := re.fullmatch(r"In\[(\d+)\]", name)):
        return str(shell.history_manager.input_hist_raw[int(number[1])])
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    read = [*linecache.cache, *(file for file in modules if isinstance(file, str))]
    here = Path.cwd()
    below = [str(here / part) for part in (name, Path(name).name) if ".." not in Path(part).parts]
    below = [file for file in below if Path(file).is_relative_to(here)]  # a graph's word for it
    for file in dict.fromkeys([*below, *read]):
        own = Path(file).is_relative_to(_PACKAGE) and _PACKAGE.name not in Path(name).parts
        if not own and _ends(Path(file), name) and (lines := linecache.getlines(file)):
            return "".join(lines)
    raise FileNotFoundError(f"{name} is not at hand: pass its path, annotate_source(graph, file).")
