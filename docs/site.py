"""A Sphinx extension that prepares the repository's pages for the site.

The pages are plain Markdown, so that they can be read in the repository. When the site is built:

- the lines of a page's program are numbered;
- the headings and links of an index become the sidebar;
- a Chinese page names its language;
- a page of the reference gets the signatures and docstrings below its table of names;
- a picture of the gallery opens the interactive view of its model.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from docs import gallery, reference
from docs.page_outputs import APART, SHOWN

_LINK = re.compile(r"\]\(([\w./-]+?)\.md(?:#[\w-]+)?\)")
_NAME = re.compile(r"^\| `(\w+)` \|", re.M)
_PICTURE = re.compile(r"\[(!\[[^]]*\]\(gallery/([\w-]+)\.svg\))\]\([^)]*\)")
_TRANSLATION = re.compile(r"^\[(?:English|中文)\]\(.*\)$", re.M)
_CHINESE = "zh/"


def rewrite(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn a page of the repository into a page of the site."""
    text = numbered(source[0], page)
    text = with_repository_links(text, Path(app.srcdir), page, app.config.html_theme_options)
    if page.endswith("index"):
        text += contents(text)
    if page.startswith("reference/"):
        text += docstrings(text)
    if page == "gallery":
        text = _PICTURE.sub(r'<a href="views/\2.html">\1</a>', text)
    source[0] = text


def numbered(text: str, page: str) -> str:
    """Return a page with line numbers in its programs; findings refer to these numbers."""
    line = 1

    def shown(block: re.Match[str]) -> str:
        nonlocal line
        first = 1 if page.startswith(APART) else line
        line += block["program"].count("\n") + 1
        text = f"```{{code-block}} python\n:lineno-start: {first}\n\n{block['program']}```\n"
        if block["printed"]:
            text += f"\n```{{code-block}} text\n:class: printed\n\n{block['printed']}```\n"
        return text + block["drawn"]

    return SHOWN.sub(shown, text)


def with_repository_links(text: str, pages: Path, page: str, theme: dict[str, Any]) -> str:
    """Return a page whose links to Markdown files outside of the site lead to the repository."""

    def address(link: re.Match[str]) -> str:
        file = (pages / page).parent.joinpath(f"{link[1]}.md").resolve()
        if file.is_relative_to(pages) or not file.exists():
            return link[0]
        place = file.relative_to(pages.parent)
        return f"]({theme['source_repository']}/blob/{theme['source_branch']}/{place})"

    return _LINK.sub(address, text)


def contents(index: str) -> str:
    """Return the sidebar: for each heading of the index, the pages that are linked below it."""
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

    A name that several namespaces have is indexed only on the page of the first one.
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
    """Return the first namespace that has this value under this name."""
    paths = [reference.ROOT, *(f"{reference.ROOT}.{each}" for each in reference.NAMESPACES)]
    return next(path for path in paths if getattr(import_module(path), name, None) is value)


def name_language(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Set the language of a Chinese page, which browsers use for fonts and screen readers."""
    if page.startswith(_CHINESE):
        context["language"] = "zh-CN"


def write_views(app: Sphinx, error: Exception | None) -> None:
    """Write the interactive view of each model of the gallery, unless the site already has it."""
    if error is None and app.builder.name == "html":
        titles = [title for title in app.config.gallery_models.split(",") if title]
        gallery.write_views(Path(app.outdir) / "views", titles or list(gallery.STEPS))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension; Sphinx calls this function."""
    app.add_config_value("gallery_models", "", "", str)  # titles separated by commas; "" means all
    app.connect("source-read", rewrite)
    app.connect("html-page-context", name_language)
    app.connect("build-finished", write_views)
    return {"parallel_read_safe": False}
