"""`graphviz-torch draw`, `view`, `export`, `summary` and `explain`: show a saved graph."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import webbrowser
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from ... import Graph
from ...compare import FirstDifference, GraphDiff
from ...export import Summary
from ...graph import Training, TrainingStep
from ...graph.text import listing
from .files import PIPE, SEVERITIES, default_output, read_saved, say, write_text
from .formats import FORMATS, Format, format_of
from .lifeline import page_folder, remove_leftovers
from .options import add_options, given_options

FILE = (
    "a saved graph or training (.json, .json.gz); run.json.gz@10 is its step 10 (default: the "
    "last); - reads stdin"
)


_TENSORBOARD = "tensorboard"
_TARGETS = (*(name for name in FORMATS if name != "draw"), _TENSORBOARD)


def add_draw(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `draw`."""
    _add_file(parser, "FILE.svg", _draw)
    kinds = FORMATS["draw"].choices
    text = f"{listing(kinds, len(kinds), ' or ')}; default: by the suffix of OUT, or {kinds[0]}"
    parser.add_argument("--format", help=text)
    _add_options(parser, FORMATS["draw"])


def add_export(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add the arguments of `export`, including options of the format that --to or -o selects."""
    _add_file(parser, "stdout for text formats, else a file next to FILE", _export)
    text = "; ".join(f"{name}: {each.help}" for name, each in FORMATS.items() if name != "draw")
    parser.add_argument(
        "--to",
        choices=_TARGETS,
        metavar="FORMAT",
        help=f"{text}; {_TENSORBOARD}: log directory OUT. `--to FORMAT --help` lists more options",
    )
    target = _target(arguments)
    if target == _TENSORBOARD:
        from ... import to_tensorboard

        add_options(parser, to_tensorboard)
    elif target in _TARGETS:
        _add_options(parser, FORMATS[target])


def add_view(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `view`."""
    _add_file(parser, "a temporary file", _view)
    _add_options(parser, FORMATS["html"])


def _target(arguments: Sequence[str]) -> str:
    """Return the format that --to or -o in the arguments selects; "" if neither does."""
    first = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    first.add_argument("--to", default="")
    first.add_argument("-o", "--out", type=Path, default=Path())
    try:
        known, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError:  # reported later, by the parser of the command
        return ""
    return str(known.to or format_of(known.out))


def _add_options(parser: argparse.ArgumentParser, chosen: Format) -> None:
    keywords = signature(chosen.make).parameters
    if "findings" in keywords:
        how = argparse.BooleanOptionalAction
        text = "mark the findings in the picture (default)"
        parser.add_argument("--findings", action=how, default=True, help=text)
    if "after" in keywords:
        text = "a second graph to draw beside the first: the same step after a repair"
        parser.add_argument("--after", type=Path, metavar="FILE", help=text)
    add_options(parser, chosen.make)


def draw(
    graph: Graph | Training | TrainingStep | GraphDiff | FirstDifference,
    out: Path,
    format: str | None,
    **options: Any,
) -> None:
    """Draw a graph or a difference into a file, and print the name of the file.

    Args:
        graph: a graph, a training run, a step of a run, or a difference.
        out: the file to write; "-" writes to stdout.
        format: "svg", "png", "pdf" or "dot". None decides by the suffix of `out`.
        options: keyword arguments of `draw_graph`.
    """
    from ... import draw_graph

    _put(draw_graph(graph, **options), out, format)


def _put(picture: Any, out: Path, format: str | None) -> None:
    """Write a picture to `out` and print the file's name; "-" writes to stdout."""
    if out == PIPE:
        sys.stdout.flush()
        drawn = picture.pipe(format=format or "svg")
        sys.stdout.buffer.write(drawn if isinstance(drawn, bytes) else drawn.encode())
    else:
        say(str(picture.render(outfile=out, format=format)))


def _add_file(parser: argparse.ArgumentParser, default: str, run: Any) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help=FILE)
    text = f"default: {default}; - writes to stdout"
    parser.add_argument("-o", "--out", type=Path, help=text)
    parser.set_defaults(run=run)


def _given(parsed: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options on the command line as keyword arguments of `function`."""
    options = given_options(parsed, function)
    if "findings" in parsed:
        options["findings"] = "auto" if parsed.findings else None
    return options


def _draw(parsed: argparse.Namespace) -> int:
    _check_out(parsed.out, "draw")
    graph, options = read_saved(parsed.file), _given(parsed, FORMATS["draw"].make)
    out = parsed.out or default_output(parsed.file, f".{parsed.format or 'svg'}")
    _put(FORMATS["draw"].make(graph, **options), out, parsed.format)
    return 0


def _export(parsed: argparse.Namespace) -> int:
    name = parsed.to or ("" if parsed.out is None else format_of(parsed.out))
    if name == _TENSORBOARD:
        return _tensorboard(parsed)
    if name not in _TARGETS:
        wrong = f"-o {parsed.out}: use `graphviz-torch draw` for this format, or " if name else ""
        raise ValueError(f"{wrong}name a format: --to {listing(_TARGETS, len(_TARGETS), ' or ')}.")
    _check_out(parsed.out, name)
    chosen = FORMATS[name]
    graph, options = read_saved(parsed.file), _given(parsed, chosen.make)
    if getattr(parsed, "after", None) is not None:
        options["after"] = read_saved(parsed.after)
    if chosen.titled:
        options.setdefault("title", _title(parsed.file))
    made = chosen.make(graph, **options)
    if not isinstance(made, str):
        _put(made, parsed.out or default_output(parsed.file, chosen.suffixes[0]), None)
        return 0
    out = parsed.out or (
        PIPE if chosen.printed else default_output(parsed.file, chosen.suffixes[0])
    )
    if out == PIPE:
        text = made.rstrip("\n")
        say(text, SEVERITIES if name == "text" else None)
    else:
        write_text(made, out)
    return 0


def _check_out(out: Path | None, name: str) -> None:
    """Raise ValueError if the suffix of `out` belongs to another format."""
    other = "" if out is None else format_of(out)
    suffixes = FORMATS[name].suffixes
    if out is None or other in ("", name):
        return
    if not any(suffix.endswith(out.suffix) for suffix in suffixes):
        command = "draw" if other == "draw" else f"export --to {other}"
        raise ValueError(f"-o {out}: use `graphviz-torch {command}` for this format.")


def _view(parsed: argparse.Namespace) -> int:
    from ... import to_html

    options = _given(parsed, to_html)
    name = "graph" if parsed.file == PIPE else default_output(parsed.file, "").name
    page = to_html(read_saved(parsed.file), **{"title": _title(parsed.file), **options})
    remove_leftovers()
    out = parsed.out or page_folder() / f"{name}.html"
    if out == PIPE:
        raise ValueError("-o -: a browser can only open a file. Pass a file name, or omit -o.")
    write_text(page, out)
    if not webbrowser.open(out.absolute().as_uri()):
        say("graphviz-torch: no browser was found; open the file yourself.", file=sys.stderr)
    return 0


def _title(file: Path) -> str:
    return "" if file == PIPE else file.name


def _tensorboard(parsed: argparse.Namespace) -> int:
    from ... import to_tensorboard

    if parsed.out is None or parsed.out == PIPE:
        raise ValueError("--to tensorboard needs -o LOGDIR, a folder for `tensorboard --logdir`.")
    to_tensorboard(read_saved(parsed.file), parsed.out, **given_options(parsed, to_tensorboard))
    say(f"tensorboard --logdir {parsed.out}")
    return 0


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `summary`."""
    from ... import summary

    parser.add_argument("file", type=Path, metavar="FILE", help=FILE)
    add_options(parser, summary)
    text = "show all columns, even if lines get longer than the terminal"
    parser.add_argument("--wide", action="store_true", help=text)
    text = "format of the table on stdout (default text)"
    parser.add_argument("--format", choices=("text", *_TABLE_FORMATS), default="text", help=text)
    parser.set_defaults(run=_summary)


def _summary(parsed: argparse.Namespace) -> int:
    from ... import summary

    made = summary(read_saved(parsed.file), **given_options(parsed, summary))
    if parsed.format == "text":
        say(made.to_text(wide=parsed.wide))
    else:
        say(_TABLE_FORMATS[parsed.format](made))
    return 0


def _csv(made: Summary) -> str:
    rows, out = made.rows(), io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


_TABLE_FORMATS: dict[str, Callable[[Summary], str]] = {
    "json": lambda made: json.dumps(made.rows()),
    "csv": _csv,
}


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `explain`."""
    parser.add_argument("file", type=Path, metavar="FILE", help=FILE)
    text = "a parameter's name, a label, or a node's id; "
    text += "without NAME, print which loss trains which network"
    parser.add_argument("target", metavar="NAME", nargs="?", help=text)
    text = "draw the graph with the path marked; - writes to stdout"
    parser.add_argument("-o", "--out", type=Path, help=text)
    parser.set_defaults(run=_explain)


def _explain(parsed: argparse.Namespace) -> int:
    from ... import explain

    graph = read_saved(parsed.file)
    if parsed.target is None:
        say(explain(graph))
        return 0
    path = explain(graph, parsed.target)
    if parsed.out != Path("-"):
        say(path)
    if parsed.out is not None:
        draw(graph, parsed.out, None, findings=[path.mark()])
    return 0
