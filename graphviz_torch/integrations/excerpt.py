"""Print the source lines of a finding, and underline the names that its message contains.

     --> train.py:16
      |
   16 |     features = self.encoder(x).detach()
      |                     ^^^^^^^    ^^^^^^

A line is read only if exactly one file matches the name, and if this file was not changed after the
program ran. Otherwise the finding is printed without a source line.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..graph import Finding
from ..graph.immutable import NamedTuple
from ..graph.terminal import width_of
from ..graph.text import printable

Lines = Callable[[str], Sequence[str]]  # file name ("train.py") -> lines of the file; () if unknown

_MAX_FOLDERS_SEARCHED = 5000
_MAX_LINES_SHOWN = 3
_SKIPPED = ("node_modules", "site-packages", "__pycache__")
_PLACE = re.compile(r"(?:[\w./-]+\.py|In\[\d+\]):\d+")
_WORD = re.compile(r"[^\W\d]\w*")
# English words in messages. They are not underlined, even if a variable has the same name.
_WORDS = """
a an the of at by to no on it its was were be been are that this these those all so than then when
where which who has have had do does did into out up down over got only one two each nothing what
how i s t e g self
"""
_ENGLISH = {*keyword.kwlist, *_WORDS.split()}


def no_lines(_: str) -> Sequence[str]:
    """Return no lines, so that reports are printed without source."""
    return ()


class SourceReader:
    """A reader of source files, which returns the lines of a file for a file name in a finding.

    Args:
        folders: folders to search for the file, in this order. Subfolders of the last folder are
            searched as well.
        unchanged_since: time in seconds since the epoch. A file changed later is not read.
        loaded: True if this process runs the program, so that files of loaded modules are searched
            before subfolders.
    """

    def __init__(
        self, folders: Sequence[Path], unchanged_since: float, *, loaded: bool = False
    ) -> None:
        self._folders, self._since, self._loaded = folders, unchanged_since, loaded
        self._known: dict[str, Sequence[str]] = {}

    def __call__(self, name: str) -> Sequence[str]:
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Sequence[str]:
        try:
            path = self._path(name)
            if path is None or path.stat().st_mtime > self._since:
                return ()
            return path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return ()

    def _path(self, name: str) -> Path | None:
        # A recording may be hostile: read no file outside the given folders.
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return None
        for folder in self._folders:
            if (folder / name).is_file():
                return folder / name
        found: Iterable[Path] = loaded_files(name) if self._loaded else ()
        different = {path.resolve() for path in found or files_below(self._folders[-1], name)}
        if len(different) > 1:  # prefer files of the program to files of libraries
            different = {path for path in different if not {*_SKIPPED} & {*path.parts}}
        return different.pop() if len(different) == 1 else None


def loaded_files(name: str) -> list[Path]:
    """Return the files of loaded modules whose path ends with `name`, such as "net/train.py"."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [Path(file) for file in files if isinstance(file, str) and _ends(file, name)]


def files_below(root: Path, name: str) -> Iterator[Path]:
    """Yield files in `root` and its subfolders whose path ends with `name`.

    Hidden folders and installed packages are skipped, and the search ends after 5,000 folders.
    """
    for count, (folder, folders, files) in enumerate(os.walk(root)):
        folders[:] = sorted(
            each for each in folders if not each.startswith(".") and each not in _SKIPPED
        )
        path = Path(folder) / Path(name).name
        if path.name in files and _ends(path.as_posix(), name):
            yield path
        if count >= _MAX_FOLDERS_SEARCHED:
            return


def _ends(file: str, name: str) -> bool:
    return file.replace(os.sep, "/").endswith(f"/{name}")


class Excerpt(NamedTuple):
    """The lines to print for a finding, and the names that are underlined in them."""

    lines: list[str]
    names: frozenset[str]
    margin: int  # number of characters left of the "|"


def excerpt(finding: Finding, lines: Lines) -> Excerpt:
    r"""Return the source lines that a finding names, with the names in its message underlined.

    The finding's own line comes first, then other lines that its message names: at most three
    lines, and only from files that are found.

    >>> found = Finding("cut", "warning", "x was cut by detach().", where="train.py:2")
    >>> program = ["import torch", "y = f(x).detach()  # x"]
    >>> print("\n".join(excerpt(found, lambda _: program).lines))
     --> train.py:2
      |
    2 | y = f(x).detach()  # x
      |       ^  ^^^^^^
    """
    places = [each for each in _PLACE.findall(finding.message) if each != finding.where]
    read = {
        place: text
        for place in dict.fromkeys([finding.where, *places])
        if (text := _line(place, lines))
    }
    shown = [finding.where] * bool(finding.where)
    shown += [each for each in read if each != finding.where][: _MAX_LINES_SHOWN - len(shown)]
    margin = max([len(place.rpartition(":")[2]) for place in shown if place in read], default=1) + 1
    words = frozenset(_WORD.findall(finding.message)) - _ENGLISH
    rows, names = [], set[str]()
    for place in shown:
        rows.append(
            f"{' ' * (margin - 1)}{'-->' if place == finding.where else ':::'} {printable(place)}"
        )
        if place not in read:
            continue
        text = read[place]
        below, found = _underline(text, words)
        number = place.rpartition(":")[2]
        rows += [f"{' ' * margin}|", f"{number:>{margin - 1}} | {text}"]
        rows += [f"{' ' * margin}| {below}"] * bool(below)
        names |= found
    return Excerpt(rows, frozenset(names), margin)


def _line(place: str, lines: Lines) -> str:
    """Return the text of the source line "train.py:16"; "" if it is not found."""
    name, _, number = place.rpartition(":")
    read = lines(name) if name and number.isdecimal() else ()
    text = read[int(number) - 1] if 0 < int(number or 0) <= len(read) else ""
    return printable(text.expandtabs(4).rstrip())


def _underline(text: str, words: frozenset[str]) -> tuple[str, set[str]]:
    """Return (row of "^" that underlines words in a source line, the words that were found)."""
    below, names = "", set[str]()
    for match in _WORD.finditer(text.partition("  #")[0]):
        if match[0] in words:
            below += " " * (width_of(text[: match.start()]) - len(below))
            below += "^" * width_of(match[0])
            names.add(match[0])
    return below, names


def without_place(text: str, where: str, names: frozenset[str]) -> str:
    """Remove " at train.py:16" after names that are underlined in this line of the excerpt.

    >>> without_place("x was cut by detach() at a.py:2, not at a.py:21.", "a.py:2", {"detach"})
    'x was cut by detach(), not at a.py:21.'
    """
    behind = re.compile(rf"\b(\w+)(\(\))? at {re.escape(where)}(?![\w:]|\.\w| and| or)")
    return behind.sub(lambda m: m[1] + (m[2] or "") if m[1] in names else m[0], text)
