"""Pass hostile names of modules, tensors and files to all public functions and commands.

    python -m tests.bench.attack.names [--seed 1] [--count 20]

Each name is used for all free texts of three graphs, and for modules and parameters of a recorded
model. The script prints each function and command that raised another exception than `ValueError`,
or whose output has characters that control a terminal or a viewer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import graphviz_torch as gt
from graphviz_torch.integrations.command.main import main as command
from tests.graph import test_hostile_text as doors

# Three to eight of these parts are joined to a name.
_PARTS = [
    *("\x1b[2J", "\x1b]0;t\x07", "\x9b31m", "\r", "\n", "\0", "\x7f", "\x85", "\u202e", "\u2066"),
    *("\u2028", "\u2029", "\u200f", "\u061c", "<script>alert(1)</script>", "]]>", "-->", "&#x1b;"),
    *('"', "'", "`", "\\", "\\x1b", "%s%n", "{0}", "${x}", "$(x)", "../", "/", "|", "::", "||"),
    *("a" * 3000, "é", "漢字", "😀", "\u0301" * 40, " ", "__class__", "-o", "--", "end", "\t"),
    *(".", "..", "[link](javascript:x)", "![x](y)", "~~~", "```", "=cmd|' /C calc'!A0", "#", "%%"),
]


def names(count: int, seed: int) -> Iterator[str]:
    """Yield names; each has at least one character that controls a terminal."""
    chance = random.Random(seed)
    for number in range(count):
        parts = chance.choices(_PARTS, k=chance.randint(2, 7))
        parts.append(_PARTS[number % 18])  # so that all control characters are used
        chance.shuffle(parts)
        yield "".join(parts)


def wrong(text: str) -> str:
    """Return the characters of a text that control a terminal or a viewer, as ASCII."""
    return ascii("".join(sorted(doors.obeyed(text)))) if doors.obeyed(text) else ""


def functions(plain: gt.Graph, graph: gt.Graph, folder: Path) -> Iterator[str]:
    """Yield the problems of each public function."""
    for name, write in doors.texts(plain, graph, folder):
        try:
            text = write()
        except ValueError as error:
            text = str(error)
        except Exception as error:
            yield f"{name} raised {type(error).__name__}: {ascii(str(error))[:200]}"
            continue
        if found := wrong(text):
            yield f"{name} let through {found}"


def commands(plain: gt.Graph, graph: gt.Graph) -> Iterator[str]:
    """Yield the problems of each command, run in the current folder."""
    for each, name in ((plain, "plain"), (graph, "hostile")):
        each.save(f"{name}.json")
    for words in [*([name, *given] for name, given in doors.GIVEN.items()), *doors.MORE]:
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                command(words)
            except SystemExit:  # raised by argparse
                pass
            except BaseException as error:
                yield f"{words!r:.200} raised {type(error).__name__}: {ascii(str(error))[:200]}"
        shown = out.buffer.getvalue().decode()
        if found := wrong(shown):
            yield f"{ascii(' '.join(words))[:200]} let through {found}"


def recorded(name: str) -> gt.Graph:
    """Return the graph of a model with this name for a module and a parameter, if allowed."""
    own = name.replace(".", "") or "x"
    model = torch.nn.Sequential()
    inner = torch.nn.Linear(2, 2)
    inner.register_parameter(own, torch.nn.Parameter(torch.ones(2)))
    model.add_module(own, inner)
    with gt.record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    return recording.graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    os.environ["BROWSER"] = "true"
    new = 0
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for number, hostile in enumerate(names(options.count, options.seed)):
            doors.HOSTILE = hostile
            pairs = [(graph, doors.hostile(graph)) for graph in doors.GRAPHS]
            pairs.append((doors.GRAPHS[0], recorded(hostile)))
            for plain, graph in pairs:
                for line in (*functions(plain, graph, Path(name)), *commands(plain, graph)):
                    new += 1
                    print(f"{number} {ascii(hostile)[:80]}: {line}", flush=True)
    print(f"seed {options.seed}: {options.count} names at every door; {new} new")


if __name__ == "__main__":
    main()
