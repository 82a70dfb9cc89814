"""`graphviz-torch explain`: print a gradient's path, or which loss trains which network."""

from __future__ import annotations

import argparse
from pathlib import Path

from .files import read_saved, say
from .pictures import FILE, draw


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
