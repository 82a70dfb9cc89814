"""The forms in which a graph is written: each row is a command, and a file of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Form(NamedTuple):
    """How a graph is written; the options of its command are those of the function."""

    says: str  # what the command does
    function: str  # of this package; it makes a text or a picture
    suffixes: tuple[str, ...]  # of a file that `run -o` writes so
    printed: bool = False  # is it printed, where no file is named; else it stands beside the graph
    titled: bool = False  # is its title the name of the file
    slow: bool = False  # may it take seconds, as a layout does: of a run, only at its end
    in_a_run: Mapping[str, Any] = _NOTHING  # keywords of the function

    @property
    def formats(self) -> tuple[str, ...]:
        """What its option `--format` takes; () where there is one alone."""
        return tuple([suffix[1:] for suffix in self.suffixes]) if len(self.suffixes) > 1 else ()

    @property
    def make(self) -> Callable[..., Any]:
        """The function."""
        import graphviz_torch

        made: Callable[..., Any] = getattr(graphviz_torch, self.function)
        return made


FORMS: Final = {
    "draw": Form(
        "Draw a graph as svg, png, pdf or dot, with its findings marked.",
        "draw_graph",
        (".svg", ".png", ".pdf", ".dot"),
        slow=True,
    ),
    "flow": Form(
        "Draw the gradient of a step as a river: what learns, what does not, and where it is cut.",
        "draw_flow",
        (".flow.svg",),
    ),
    "html": Form(
        "Write one HTML page with the interactive view.", "to_html", (".html",), titled=True
    ),
    "mermaid": Form(
        "Print a graph as a Mermaid flowchart, for Markdown.", "to_mermaid", (".mmd",), printed=True
    ),
    "text": Form("Print a graph.", "to_text", (".txt",), printed=True, in_a_run={"wide": True}),
}
SUFFIXES: Final = tuple([suffix for form in FORMS.values() for suffix in form.suffixes])


def form_of(path: Path) -> Form | None:
    """The form of a file, as its name ends: the longest ending of one."""
    ends = {suffix: form for form in FORMS.values() for suffix in form.suffixes}
    fits = [suffix for suffix in ends if path.name.endswith(suffix)]
    return ends[max(fits, key=len)] if fits else None
