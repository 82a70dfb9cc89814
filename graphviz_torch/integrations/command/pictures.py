"""`draw`, `flow`, `html`, `view`, `mermaid`, `text`, `tensorboard`: a saved graph in a form."""

from __future__ import annotations

import argparse
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from ... import Graph
from ...compare import FirstDifference, GraphDiff
from ...graph import Training, TrainingStep
from ...graph.text import listing
from .files import PIPE, beside, colored, read_saved, say, write_text
from .forms import FORMS, form_of
from .options import add_options, given

FILE = (
    "a graph or a training, .json or .json.gz; run.json.gz@10: its step 10, else the last; "
    "- reads stdin"
)


def add_form(parser: argparse.ArgumentParser) -> None:
    """Arguments of a command that writes a graph in one of the forms."""
    name = parser.prog.rpartition(" ")[2]
    form = FORMS[name]
    _add_file(parser, "print it" if form.printed else f"FILE{form.suffixes[0]}", _written)
    if kinds := form.formats:
        says = f"{listing(kinds, len(kinds), ' or ')}; default: as OUT ends, else {kinds[0]}"
        parser.add_argument("--format", help=says)
    if "findings" in signature(form.make).parameters:
        _add_findings(parser)
    if "after" in signature(form.make).parameters:
        says = "another one to draw beside it, after a repair"
        parser.add_argument("--after", type=Path, metavar="FILE", help=says)
    add_options(parser, form.make)
    parser.set_defaults(form=name)


def add_view(parser: argparse.ArgumentParser) -> None:
    """Arguments of `view`."""
    from ... import to_html

    _add_file(parser, "a temporary file", _view)
    _add_findings(parser)
    add_options(parser, to_html)


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

    _put(draw_graph(graph, **options), out, format)


def _put(picture: Any, out: Path, format: str | None) -> None:
    """Write a picture to a file, whose name is printed, or out."""
    if out == PIPE:
        sys.stdout.flush()
        drawn = picture.pipe(format=format or "svg")
        sys.stdout.buffer.write(drawn if isinstance(drawn, bytes) else drawn.encode())
    else:
        say(str(picture.render(outfile=out, format=format)))


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
    options = given(parsed, function)
    if "findings" in parsed:
        options["findings"] = "auto" if parsed.findings else None
    return options


def _written(parsed: argparse.Namespace) -> int:
    form = FORMS[parsed.form]
    other = None if parsed.out is None else form_of(parsed.out)
    if other is not None and other is not form and parsed.out.suffix not in form.suffixes[0]:
        command = next(name for name, each in FORMS.items() if each is other)
        raise ValueError(
            f"-o {parsed.out}: {parsed.form} writes {form.suffixes[0]}; {command} writes that."
        )
    graph, options = read_saved(parsed.file), _given(parsed, form.make)
    if getattr(parsed, "after", None) is not None:
        options["after"] = read_saved(parsed.after)
    if form.titled:
        options.setdefault("title", _title(parsed.file))
    made = form.make(graph, **options)
    if not isinstance(made, str):
        out = parsed.out or beside(parsed.file, f".{parsed.format or form.suffixes[0][1:]}")
        _put(made, out, parsed.format)
        return 0
    out = parsed.out or (PIPE if form.printed else beside(parsed.file, form.suffixes[0]))
    if out == PIPE:
        text = made.rstrip("\n")
        print(colored(text, sys.stdout) if parsed.form == "text" else text)
    else:
        write_text(made, out)
    return 0


def _view(parsed: argparse.Namespace) -> int:
    from ... import to_html

    options = _given(parsed, to_html)
    name = "graph" if parsed.file == PIPE else beside(parsed.file, "").name
    page = to_html(read_saved(parsed.file), **{"title": _title(parsed.file), **options})
    out = parsed.out or Path(tempfile.mkdtemp(prefix="graphviz-torch-")) / f"{name}.html"
    if out == PIPE:
        raise ValueError("-o -: a browser opens a file; name one, or leave out -o.")
    write_text(page, out)
    if not webbrowser.open(out.absolute().as_uri()):
        print("graphviz-torch: no browser was found; open this file in one.", file=sys.stderr)
    return 0


def _title(file: Path) -> str:
    return "" if file == PIPE else file.name


def _tensorboard(parsed: argparse.Namespace) -> int:
    from ... import to_tensorboard

    to_tensorboard(read_saved(parsed.file), parsed.logdir, **given(parsed, to_tensorboard))
    print(f"tensorboard --logdir {parsed.logdir}")
    return 0
