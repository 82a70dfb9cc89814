"""Lay out DOT text with Graphviz, in a child process with a timeout and with fixed fonts.

The child runs the Graphviz of pygraphviz, so that a picture is the same on every machine. Without
pygraphviz, the child is the `dot` on the PATH. The environment variable GRAPHVIZ_DOT overrides
both. Graphviz never runs in this process, because it holds the GIL, and a layout cannot be stopped.
Titles over edges and the colors of dark mode are added to the SVG afterwards.

Text is escaped for HTML-like labels and for quoted strings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from ...graph.files.replacement import replacement
from ..labels import clip
from ..style import Theme, dark_rules

FORMATS = ("svg", "png", "pdf", "jpg", "ps", "json", "xdot", "plain", "dot", "gv")
BITMAPS = ("png", "jpg")
FONTS = Path(__file__).with_name("fonts")

_DPI = 144  # resolution of bitmaps: twice Graphviz' 72 points per inch
_OWN = Path(__file__).with_name("engine.py")


class LayoutError(RuntimeError):
    """Raised if Graphviz is missing or fails. The message contains the reason.

    The DOT text of the picture (`Picture.source`) can still be read and saved.
    """


class LayoutTimeout(LayoutError):
    """Raised if a layout exceeded its time limit and was stopped."""


def layout(dot: str, format: str = "svg", *, timeout: float = 10.0) -> bytes:
    """Return the drawing of a DOT text, laid out by `dot` in a child process.

    Args:
        dot: the text of one digraph.
        format: one of FORMATS; "dot" and "gv" return the text itself, without a layout.
        timeout: seconds after which the child is stopped.

    Raises:
        ValueError: for a format that is not in FORMATS.
        LayoutTimeout: if the layout did not end within `timeout`.
        LayoutError: if Graphviz is missing or fails.
    """
    check_format(format)
    if format in ("dot", "gv"):
        return dot.encode()
    if format in BITMAPS:
        dot = dot.replace("{", f"{{\n\tgraph [dpi={_DPI}]", 1)
    fonts = _fonts(FONTS)
    environment = {**os.environ, "FONTCONFIG_FILE": str(fonts / "fonts.conf")}
    engine = _engine()
    try:
        done = subprocess.run(
            [*engine, format],
            input=dot.encode(),
            capture_output=True,
            env=environment,
            # Old versions of fontconfig search the working folder if fonts.conf contains ".".
            cwd=fonts,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise LayoutTimeout(
            f"the layout did not end within {timeout:g} s. Pass a larger timeout=, or draw "
            "less: depth= or module=."
        ) from None
    except OSError as error:
        raise LayoutError(
            f"GRAPHVIZ_DOT={engine[0]!r} could not be run: {error.strerror}."
        ) from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode or not done.stdout:
        raise LayoutError(f"Graphviz failed with code {done.returncode}: {_last_lines(said)}")
    if "too large" in said and format in BITMAPS:
        warnings.warn(
            f"the picture is too large for {format} and was scaled down until text is hard to "
            "read. Use svg or pdf, or draw less: depth= or module=.",
            stacklevel=2,
        )
    return done.stdout


def check_format(format: str) -> None:
    """Raise ValueError if `format` is not one of FORMATS."""
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is unknown. Choose from {', '.join(FORMATS)}.")


def _engine() -> list[str]:
    """Return the command line that runs Graphviz, without the output format at its end."""
    if dot := os.environ.get("GRAPHVIZ_DOT"):
        return [dot, "-T"]
    if find_spec("pygraphviz") is not None:
        return [sys.executable, str(_OWN)]
    if dot := shutil.which("dot"):
        return [dot, "-T"]
    raise LayoutError(
        "Graphviz was not found: pygraphviz is not installed, and no `dot` is on the PATH. Run "
        "`pip install pygraphviz`, which contains Graphviz on most machines. Until then, use "
        "to_html, which does not need Graphviz, or format='dot'."
    )


@cache
def _fonts(source: Path) -> Path:
    """Copy the fonts to a folder in which fontconfig may write, and return this folder."""
    files = sorted(file for file in source.iterdir() if file.suffix in (".ttf", ".conf"))
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home, "graphviz_torch", f"fonts-{digest}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # the home folder is not writable
        folder = Path(tempfile.mkdtemp(prefix="graphviz_torch-fonts-"))
    for file in files:
        copy = folder / file.name
        if not copy.exists():
            # The copy is written atomically, so that no other process reads half a file.
            with replacement(copy) as written:
                written.write(file.read_bytes())
    return folder


def _last_lines(text: str) -> str:
    return "; ".join(map(str.strip, text.splitlines()[-3:])) or "it wrote no message."


_FRAME = re.compile(
    r'<g id="[^"]*" class="cluster">\n<title>.*?</title>\n'
    r'(?:<g id="[^"]*"><a [^>]*>\n)?<(?:path|polygon) fill="(?P<fill>[^"]*)".*?</g>\n',
    re.S,
)
_TITLE = re.compile(r"<text .*?</text>\n", re.S)


def finish(svg: str, theme: Theme) -> str:
    """Return the SVG with titles drawn over edges and, for theme="auto", CSS for dark mode."""
    # Graphviz turns the second of two spaces into a no-break space.
    svg = _titles_above_edges(svg.replace("&#160;", " "))
    if theme == "auto":
        svg = svg.replace("<g id=", f"<style>{dark_rules()}</style>\n<g id=", 1)
    return svg


def _titles_above_edges(svg: str) -> str:
    """Move the titles of clusters to the end of the SVG, so that no edge crosses a title.

    Each title gets a rim in the fill color of its cluster.
    """
    titles: list[str] = []

    def without_title(frame: re.Match[str]) -> str:
        rim = f'stroke="{frame["fill"]}" stroke-width="4" paint-order="stroke"'
        found = _TITLE.findall(frame[0])
        titles.extend(text.replace("<text ", f"<text {rim} ", 1) for text in found)
        return _TITLE.sub("", frame[0])

    svg = _FRAME.sub(without_title, svg)
    if not titles:
        return svg
    end = svg.rindex("</g>\n</svg>")
    return f'{svg[:end]}<g class="titles">\n{"".join(titles)}</g>\n{svg[end:]}'


SMALL_POINTS = 9.5  # size of small text; main lines have 12 points

# Vertical space between a main line and the small text below it.
SPACE = '<FONT POINT-SIZE="13">\N{HAIR SPACE}</FONT>'

_ESCAPES = {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord('"'): "&quot;",
    ord("\\"): "\\\\",  # Graphviz expands \N and \G in labels
    ord("\n"): "<BR/>",
}
_SAFE = re.compile(r"[\w .,:;#+*/=()\[\]-]*", re.ASCII).fullmatch
# Graphviz decodes entities in quoted strings too: it would turn "&#27;" into a control character.
_QUOTED = {ord("&"): "&amp;", ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n"}


def escape(text: str) -> str:
    r"""Escape a text for an HTML-like label.

    >>> escape('<b> "5" \\N')
    '&lt;b&gt; &quot;5&quot; \\\\N'
    """
    text = clip(text)
    return text if _SAFE(text) else text.translate(_ESCAPES)


def quote(text: str) -> str:
    """Quote and escape a text as a DOT string, such as for a tooltip."""
    return f'"{clip(text).translate(_QUOTED)}"'


def small(text: str, color: str) -> str:
    """Return markup for a line of small text."""
    return f'<FONT POINT-SIZE="{SMALL_POINTS}" COLOR="{color}">{text}</FONT>'


def dot_id(key: int) -> str:
    """Return the DOT name of a drawn element, given its key."""
    return str(key) if key >= 0 else f"g{~key}"
