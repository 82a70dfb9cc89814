"""What the site shows beyond the pages of the repository, as an extension of Sphinx.

The pages are plain Markdown, so that they read well in a repository. When the site is built,

- what a block of Python printed and drew stands below the block, from a run of the page's program;
- the headings and links of an index become the sidebar;
- a Chinese page shows what the program of the English page did, and names its language;
- the signatures and docstrings of a page of the reference stand below its table of names;
- a picture of the gallery opens the interactive view of its model.
"""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

from docs import gallery, reference
from docs.programs import BLOCK, Output, blocks, outputs

_LINK = re.compile(r"\]\(([\w./-]+?)\.md(?:#[\w-]+)?\)")
_NAME = re.compile(r"^\| `(\w+)` \|", re.M)
_PICTURE = re.compile(r"\[(!\[[^]]*\]\(gallery/([\w-]+)\.svg\))\]\([^)]*\)")
_TRANSLATION = re.compile(r"^\[(?:English|中文)\]\(.*\)$", re.M)
_CHINESE = "zh/"
# Each program of these pages runs alone, and its finding is on the page.
_APART = ("findings/", "symptoms", f"{_CHINESE}findings/", f"{_CHINESE}symptoms")

_runs: dict[tuple[str, ...], Future[list[Output]]] = {}  # by the blocks of a page
_pool = ThreadPoolExecutor(1)  # beside the builder


def run_programs(app: Sphinx, env: Any, pages: list[str]) -> None:
    """Start the programs of the pages that are to be read."""
    for page in pages:
        text = (Path(app.srcdir) / f"{page}.md").read_text()
        program = tuple(blocks(text))
        if program and program not in _runs and not page.startswith(_APART):
            _runs[program] = _pool.submit(outputs, text)


def rewrite(app: Sphinx, page: str, source: list[str]) -> None:
    """Make a page of the repository a page of the site."""
    text = source[0]
    program = tuple(blocks(text))
    if page.startswith(_APART):
        text = BLOCK.sub(lambda block: numbered(block[1]), text)
    elif program:
        try:
            text = with_outputs(text, page, _runs[program].result(), Path(app.outdir))
        except RuntimeError as error:
            logging.getLogger(__name__).warning("%s.md does not run: %s", page, error)
    text = with_repository_links(text, Path(app.srcdir), page, app.config.html_theme_options)
    if page.endswith("index"):
        text += contents(text)
    if page.startswith("reference/"):
        text += docstrings(text)
    if page == "gallery":
        text = _PICTURE.sub(r'<a href="views/\2.html">\1</a>', text)
    source[0] = text


def with_outputs(text: str, page: str, done: list[Output], site: Path) -> str:
    """A page with the lines of its program numbered, and below each block what it did."""
    rest = iter(enumerate(done))
    root = "../" * page.count("/")

    def shown(block: re.Match[str]) -> str:
        number, output = next(rest)
        parts = [f"```{{code-block}} python\n:lineno-start: {output.line}\n\n{block[1]}```"]
        if output.printed.strip() and f"```text\n{output.printed}```" not in text:
            parts.append(
                f"```{{code-block}} text\n:class: printed\n\n{output.printed.rstrip()}\n```"
            )
        for which, svg in enumerate(output.drawn):
            file = site / "drawn" / f"{page.replace('/', '-')}-{number}-{which}.svg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(svg)
            parts.append(f'<p><img class="drawn" alt="Drawn" src="{root}drawn/{file.name}"></p>')
        return "\n\n".join(parts)

    return BLOCK.sub(shown, text)


def with_repository_links(text: str, pages: Path, page: str, theme: dict[str, Any]) -> str:
    """Return a page whose links to Markdown outside the site lead to the repository."""

    def address(link: re.Match[str]) -> str:
        file = (pages / page).parent.joinpath(f"{link[1]}.md").resolve()
        if file.is_relative_to(pages) or not file.exists():
            return link[0]
        place = file.relative_to(pages.parent)
        return f"]({theme['source_repository']}/blob/{theme['source_branch']}/{place})"

    return _LINK.sub(address, text)


def numbered(program: str, first: int = 1) -> str:
    """A block of Python with its lines numbered, as findings name them."""
    return f"```{{code-block}} python\n:lineno-start: {first}\n\n{program}```"


def contents(index: str) -> str:
    """For each heading of an index a part of the sidebar: the pages that it names first."""
    parts, listed = [], set[str]()
    for section in re.split(r"^#+ ", _TRANSLATION.sub("", index), flags=re.M)[1:]:
        pages = [page for page in dict.fromkeys(_LINK.findall(section)) if page not in listed]
        listed.update(pages)
        if pages:
            options = f":hidden:\n:maxdepth: 1\n:caption: {section.splitlines()[0]}"
            parts.append("\n```{toctree}\n" + options + "\n\n" + "\n".join(pages) + "\n```\n")
    return "".join(parts)


def docstrings(table: str) -> str:
    """Return the directives that write the signatures and docstrings of the names in a table.

    A name that several namespaces hand out is indexed on the first one's page alone.
    """
    parts = []
    module = table.partition("\n")[0].removeprefix("# ")
    for name in _NAME.findall(table):
        value = getattr(import_module(module), name)
        directive, options = "autofunction", ""
        if isinstance(value, type):
            directive, options = "autoclass", "\n   :members:"
        if module != _home(value, name):
            options += "\n   :no-index:"
        parts.append(f"\n```{{eval-rst}}\n.. {directive}:: {module}.{name}{options}\n```\n")
    return "".join(parts)


def _home(value: object, name: str) -> str:
    """Return the first namespace that hands out a value under this name."""
    paths = [reference.ROOT, *(f"{reference.ROOT}.{each}" for each in reference.NAMESPACES)]
    return next(path for path in paths if getattr(import_module(path), name, None) is value)


def name_language(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Name the language of a Chinese page, which fonts and screen readers go by."""
    if page.startswith(_CHINESE):
        context["language"] = "zh-CN"


def write_views(app: Sphinx, error: Exception | None) -> None:
    """The interactive view of each model of the gallery, where the site has none yet."""
    if error is None and app.builder.name == "html":
        titles = [title for title in app.config.gallery_models.split(",") if title]
        gallery.write_views(Path(app.outdir) / "views", titles or list(gallery.STEPS))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_config_value("gallery_models", "", "", str)  # titles with commas; "": all
    app.connect("env-before-read-docs", run_programs)
    app.connect("source-read", rewrite)
    app.connect("html-page-context", name_language)
    app.connect("build-finished", write_views)
    return {"parallel_read_safe": False}
