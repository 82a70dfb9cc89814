"""The formats in which a graph is written, by `draw`, `export` and `run -o`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

_PACKAGE = __name__.partition(".")[0]
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Format(NamedTuple):
    """A format: the function that writes it, whose keywords are the options of the command."""

    help: str
    function: str  # module and name below this package; it returns a text or a picture
    suffixes: tuple[str, ...] = ()  # file names that select the format
    printed: bool = False  # printed if no file is named; else the file is put beside the graph
    titled: bool = False  # the title defaults to the file's name
    slow: bool = False  # may take seconds, as a layout does: `run` writes it at the end alone
    run_options: Mapping[str, Any] = _NOTHING  # keywords of the function for `run -o`

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of the option `--format`; () if there is only one."""
        return tuple([suffix[1:] for suffix in self.suffixes]) if len(self.suffixes) > 1 else ()

    @property
    def make(self) -> Callable[..., Any]:
        """The function that writes the format."""
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
    "html": Format("one page with the interactive view", "export.to_html", (".html",), titled=True),
    "mermaid": Format("a Mermaid flowchart", "export.to_mermaid", (".mmd",), printed=True),
    "text": Format(
        "an outline", "export.to_text", (".txt",), printed=True, run_options={"wide": True}
    ),
    "dot": Format("DOT text", "export.to_dot", printed=True),
    "flow": Format("the gradient flow of a step, as SVG", "draw_flow", (".flow.svg",)),
}
SUFFIXES: Final = tuple([suffix for each in FORMATS.values() for suffix in each.suffixes])


def format_of(path: Path) -> str:
    """Return the name of the format that a file's name ends with, the longest one; "" if none."""
    ends = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
    fits = [suffix for suffix in ends if path.name.endswith(suffix)]
    return ends[max(fits, key=len)] if fits else ""
