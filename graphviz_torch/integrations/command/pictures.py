"""`draw`, `html`, `view`, `mermaid`, `text`, `tensorboard`: a saved graph in other forms."""

from __future__ import annotations

import argparse
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import FirstDifference, Graph, GraphDiff, Training, TrainingStep
from .files import PIPE, beside, colored, read_saved, write_text
from .options import add_options, given

FILE = (
    "a graph or a training, .json or .json.gz; run.json.gz@10: its step 10, else the last; "
    "- reads what comes in"
)


def add_draw(parser: argparse.ArgumentParser) -> None:
    """Arguments of `draw`."""
    from ... import draw_graph

    _add_file(parser, "FILE.svg", _draw)
    parser.add_argument("--format", help="svg, png, pdf or dot; default: as OUT ends, else svg")
    _add_findings(parser)
    add_options(parser, draw_graph)


def add_html(parser: argparse.ArgumentParser) -> None:
    """Arguments of `html`."""
    from ... import to_html

    _add_file(parser, "FILE.html", _html)
    _add_findings(parser)
    add_options(parser, to_html)


def add_view(parser: argparse.ArgumentParser) -> None:
    """Arguments of `view`."""
    from ... import to_html

    _add_file(parser, "a temporary file", _view)
    _add_findings(parser)
    add_options(parser, to_html)


def add_text(parser: argparse.ArgumentParser) -> None:
    """Arguments of `text`."""
    from ... import to_text

    _add_file(parser, "print it", _text)
    _add_findings(parser)
    add_options(parser, to_text)


def add_mermaid(parser: argparse.ArgumentParser) -> None:
    """Arguments of `mermaid`."""
    from ... import to_mermaid

    _add_file(parser, "print it", _mermaid)
    _add_findings(parser)
    add_options(parser, to_mermaid)


def add_tensorboard(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tensorboard`."""
    from ... import to_tensorboard

    parser.add_argument("file", type=Path, metavar="FILE", help=FILE)
    parser.add_argument(
        "logdir", type=Path, metavar="LOGDIR", help="where `tensorboard --logdir` looks"
    )
    parser.set_defaults(run=_tensorboard)
    add_options(parser, to_tensorboard)


def draw(
    graph: Graph | Training | TrainingStep | GraphDiff | FirstDifference,
    out: Path,
    format: str | None,
    **options: Any,
) -> None:
    """Draw a graph, a step, or two that differ, to a file, whose name is printed, or out."""
    from ... import draw_graph

    picture = draw_graph(graph, **options)
    if out == PIPE:
        sys.stdout.flush()
        drawn = picture.pipe(format=format or "svg")
        sys.stdout.buffer.write(drawn if isinstance(drawn, bytes) else drawn.encode())
    else:
        print(picture.render(outfile=out, format=format))


def _add_file(parser: argparse.ArgumentParser, default: str, run: Any) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help=FILE)
    says = f"default: {default}; - writes to stdout"
    parser.add_argument("-o", "--out", type=Path, help=says)
    parser.set_defaults(run=run)


def _add_findings(parser: argparse.ArgumentParser) -> None:
    how = argparse.BooleanOptionalAction
    parser.add_argument("--findings", action=how, default=True, help="mark what is wrong")


def _given(parsed: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """The keywords of `function`; what is wrong is marked unless the user wants it not."""
    return {**given(parsed, function), "findings": "auto" if parsed.findings else None}


def _draw(parsed: argparse.Namespace) -> int:
    from ... import draw_graph

    graph = read_saved(parsed.file)
    out = parsed.out or beside(parsed.file, f".{parsed.format or 'svg'}")
    draw(graph, out, parsed.format, **_given(parsed, draw_graph))
    return 0


def _html(parsed: argparse.Namespace) -> int:
    write_text(_page(parsed), parsed.out or beside(parsed.file, ".html"))
    return 0


def _view(parsed: argparse.Namespace) -> int:
    name = "graph" if parsed.file == PIPE else beside(parsed.file, "").name
    page = _page(parsed)
    out = parsed.out or Path(tempfile.mkdtemp(prefix="graphviz-torch-")) / f"{name}.html"
    if out == PIPE:
        raise ValueError("-o -: a browser opens a file; name one, or leave out -o.")
    write_text(page, out)
    if not webbrowser.open(out.absolute().as_uri()):
        print("graphviz-torch: no browser was found; open this file in one.", file=sys.stderr)
    return 0


def _page(parsed: argparse.Namespace) -> str:
    from ... import to_html

    graph, options = read_saved(parsed.file), _given(parsed, to_html)
    options.setdefault("title", "" if parsed.file == PIPE else parsed.file.name)
    return to_html(graph, **options)


def _text(parsed: argparse.Namespace) -> int:
    from ... import to_text

    text = to_text(read_saved(parsed.file), **_given(parsed, to_text))
    if parsed.out in (None, PIPE):
        print(colored(text.rstrip(), sys.stdout))
    else:
        write_text(text, parsed.out)
    return 0


def _mermaid(parsed: argparse.Namespace) -> int:
    from ... import to_mermaid

    text = to_mermaid(read_saved(parsed.file), **_given(parsed, to_mermaid))
    write_text(text, parsed.out or PIPE)
    return 0


def _tensorboard(parsed: argparse.Namespace) -> int:
    from ... import to_tensorboard

    to_tensorboard(read_saved(parsed.file), parsed.logdir, **given(parsed, to_tensorboard))
    print(f"tensorboard --logdir {parsed.logdir}")
    return 0
