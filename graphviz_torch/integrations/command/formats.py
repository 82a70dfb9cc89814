"""The file formats that `draw`, `export` and `run -o` can write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ...graph.immutable import NamedTuple

_PACKAGE = __name__.partition(".")[0]
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Format(NamedTuple):
    """A file format: the function that produces the content, and how commands call this function.

    The function's keyword arguments become options of the command.
    """

    help: str
    function: str  # "module.name" in this package; returns a str or a picture
    suffixes: tuple[str, ...] = ()  # suffixes of file names that select the format
    printed: bool = False  # True if `export` without -o prints the text instead of writing a file
    titled: bool = False  # True if `title` is an argument; the default is the name of the file
    # True if the layout may take seconds, so that `run` does not write this format in each step.
    slow: bool = False
    run_options: Mapping[str, Any] = _NOTHING  # keyword arguments for the function in `run -o`

    @property
    def choices(self) -> tuple[str, ...]:
        """Choices of the option `--format`; () if there would be only one."""
        return tuple([suffix[1:] for suffix in self.suffixes]) if len(self.suffixes) > 1 else ()

    @property
    def make(self) -> Callable[..., Any]:
        """The function that `function` names; importing its module may take time."""
        module, _, name = self.function.rpartition(".")
        made: Callable[..., Any] = getattr(import_module(f"{_PACKAGE}.{module}".rstrip(".")), name)
        return made


FORMATS: Final = {
    "draw": Format(
        "Draw a graph as svg, png, pdf or dot, with its findings marked.",
        "draw_graph",
        (".svg", ".png", ".pdf", ".dot"),
        slow=True,
    ),
    "html": Format("a page with the interactive view", "export.to_html", (".html",), titled=True),
    "mermaid": Format("a Mermaid flowchart", "export.to_mermaid", (".mmd",), printed=True),
    "text": Format(
        "an outline", "export.to_text", (".txt",), printed=True, run_options={"wide": True}
    ),
    "dot": Format("DOT text", "export.to_dot", printed=True),
    "flow": Format("the gradient flow of a step, as SVG", "draw_flow", (".flow.svg",)),
}
SUFFIXES: Final = tuple([suffix for each in FORMATS.values() for suffix in each.suffixes])


def format_of(path: Path) -> str:
    """Return the name of the format whose suffix `path` has; "" if no format has it.

    If several suffixes match, such as ".svg" and ".flow.svg", the longest one is used.
    """
    ends = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
    fits = [suffix for suffix in ends if path.name.endswith(suffix)]
    return ends[max(fits, key=len)] if fits else ""
