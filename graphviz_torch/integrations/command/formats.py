"""The file formats that `draw`, `export` and `run -o` can write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

_PACKAGE = __name__.partition(".")[0]
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Format(NamedTuple):
    """A file format: the function that produces it, and how commands call this function.

    The function's keyword arguments become options of the command.
    """

    help: str
    function: str  # "module.name" in this package; returns a str or a picture
    suffixes: tuple[str, ...] = ()  # file names with these suffixes select the format
    printed: bool = False  # whether `export` without -o prints to stdout instead of writing a file
    titled: bool = False  # whether the title is the file's name by default
    slow: bool = False  # the layout may take seconds: `run` does not write it each step
    run_options: Mapping[str, Any] = _NOTHING  # keyword arguments that `run -o` passes

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the choices of the option `--format`; () if there would be only one."""
        return tuple([suffix[1:] for suffix in self.suffixes]) if len(self.suffixes) > 1 else ()

    @property
    def make(self) -> Callable[..., Any]:
        """Import and return the function that `function` names."""
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

    If several suffixes match, as ".svg" and ".flow.svg", the longest one decides.
    """
    ends = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
    fits = [suffix for suffix in ends if path.name.endswith(suffix)]
    return ends[max(fits, key=len)] if fits else ""
