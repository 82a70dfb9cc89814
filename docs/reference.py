"""Write the reference, which has a page for each namespace: `python -m docs.reference`.

A page has the namespace's docstring and, for each name, the first sentence of its docstring.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "reference"
ROOT = "graphviz_torch"
NAMESPACES = [
    "graph",
    "compare",
    "experiments",
    "distributed",
    "rehearsal",
    "devices",
    "checkpoint",
    "export",
    "tensorboard",
    "compat",
    "tracing",
    "integrations",
    "testing",
]


def names(module: Any) -> list[str]:
    """Return the names of a namespace that have an example, in the namespace's order."""
    return [name for name in module.__all__ if ">>>" in (getattr(module, name).__doc__ or "")]


def first_sentence(value: Any) -> str:
    """Return the first paragraph of an object's docstring on one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def page(path: str) -> str:
    """Return the page of a module: the module's docstring and a table of its names."""
    module = import_module(path)
    rows = [f"| `{name}` | {first_sentence(getattr(module, name))} |" for name in names(module)]
    return "\n".join(
        [f"# {path}", "", first_sentence(module), "", "| name | what it does |", "|---|---|", *rows]
    )


def pages() -> dict[str, str]:
    """Return the text of each page of the reference, by the name of its file."""
    paths = [ROOT, *(f"{ROOT}.{name}" for name in NAMESPACES)]
    files = {path: f"{path.rpartition('.')[2]}.md" for path in paths}
    lines = [f"- [{p}]({file}): {first_sentence(import_module(p))}" for p, file in files.items()]
    index = [
        "# Reference",
        "",
        "The names that most programs need are in `graphviz_torch`, the others in its namespaces.",
        "The site adds the arguments of each, and so does `help(graphviz_torch.record)`.",
        "",
        *lines,
    ]
    return {"index.md": "\n".join(index) + "\n"} | {
        file: page(path) + "\n" for path, file in files.items()
    }


if __name__ == "__main__":
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for file, text in pages().items():
        (FOLDER / file).write_text(text)
