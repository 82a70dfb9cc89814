"""Check that damaged files are refused with a message, or read and shown correctly.

    python -m tests.bench.attack.files [--seed 1] [--count 2000]

Files are changed at random, and one process reads them, with at most 500 MB more memory than at its
start. The script prints each file that raised another exception than `ValueError`, that took more
than two seconds of processor time to be refused, or that differs after saving and loading. Every
fourth file that can be read is also passed to all exporters and renderers: the script prints those
that raised, or that returned control characters for a terminal. At the end it prints how many files
were read and how many were refused.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import json
import random
import re
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import graphviz_torch as gt
from graphviz_torch.export import view_script
from graphviz_torch.graph import Graph, Training, TrainingStep
from graphviz_torch.graph.json import to_json
from graphviz_torch.graph.training_file import TrainingFile
from tests.graph.test_hostile_files import RENDERERS, VALUES, places
from tests.graph.test_hostile_text import GRAPHS, HOSTILE, obeyed
from tests.graph.test_hostile_values import leaves

_SECONDS, _MEMORY = 2.0, 500 << 20  # largest processor time in seconds, and bytes of memory
_ONE_IN = 4  # every fourth readable file is passed to all functions
_HANG = 60  # seconds after which a file counts as a hang
_PIECES = [b"", b"\x00", b'"', b"[", b"{}", b"]", b",", b"\n", b"-", b"9" * 400, b"\xff", b"e999"]
# Renderers whose text is read by programs, not by people.
_FOR_PROGRAMS = {"payload", "dict", "networkx", "saved", "steps", "ranks", "collectives"}


def originals(folder: Path) -> list[bytes]:
    """Return files of graphs and of trainings, uncompressed and compressed."""
    found = [to_json(graph).encode() for graph in GRAPHS]
    first, *_, last = GRAPHS
    steps = [TrainingStep(number, (first, last)[: 1 + number % 2]) for number in range(4)]
    path = folder / "run.json"
    TrainingFile(path).append(*steps)
    found.append(path.read_bytes())
    return found + [gzip.compress(data, mtime=0) for data in found]


def changed_values(data: bytes, chance: random.Random) -> bytes:
    """Return JSON with one to three values replaced, swapped, moved or removed."""
    lines = [json.loads(line) for line in data.splitlines()]
    for _ in range(chance.choice([1, 1, 2, 3])):
        line = chance.choice(lines)
        container, key = chance.choice(list(leaves(line)) or list(places(line)))
        kind = chance.randrange(12)
        if kind < 8:
            same = [value for value in VALUES if type(value) is type(container[key])]
            container[key] = chance.choice(same or [None])
            continue
        container, key = chance.choice(list(places(line)))
        if kind == 8 and isinstance(container, dict):
            del container[key]
        elif kind == 8:
            chance.shuffle(container)
        elif kind == 9 and isinstance(container, list):
            container += copy.deepcopy(container) * chance.choice([1, 100])
        elif kind == 10 and isinstance(container, dict):
            container[chance.choice(["", HOSTILE, "id", "a" * 9999])] = container.pop(key)
        elif isinstance(container[key], str):
            container[key] += HOSTILE
        else:
            container[key] = copy.deepcopy(chance.choice(VALUES))
    return "\n".join(map(json.dumps, lines)).encode() + b"\n"


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes that are overwritten, cut, doubled or filled at one to three positions."""
    made = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 3])):
        start = chance.randrange(len(made) + 1)
        end = min(len(made), start + chance.choice([0, 1, 1, 2, 64, 4096]))
        kind = chance.randrange(5)
        if kind == 0:
            made[start:end] = bytes(chance.randrange(256) for _ in range(end - start))
        elif kind == 1:
            made[start:end] = chance.choice(_PIECES)
        elif kind == 2:
            made[start:start] = made[start:end] * chance.choice([1, 2, 50])
        elif kind == 3:
            made[start:start] = chance.choice(_PIECES) * chance.choice([1, 1000, 100_000])
        elif len(made) > 1:
            del made[start:]
    return bytes(made)


def mutated(files: list[bytes], chance: random.Random) -> bytes:
    """Return one file with an error: in its values, its bytes, or its compressed members."""
    data = chance.choice(files)
    packed = data[:2] == b"\x1f\x8b"
    kind = chance.random()
    if kind < 0.2:
        return changed_bytes(data, chance)
    text = gzip.decompress(data) if packed else data
    text = changed_values(text, chance) if kind < 0.85 else changed_bytes(text, chance)
    if not packed:
        return text
    parts = chance.choice([1, 1, 2, 5, 1000])
    size = max(1, len(text) // parts)
    members = [gzip.compress(text[at : at + size], 1) for at in range(0, len(text), size)]
    return b"".join(members) + chance.choice([*[b""] * 6, b"\0" * 100, b"junk", members[0]])


def doors(graph: Graph, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the functions that read or show a graph, by name."""
    found: dict[str, Callable[[], Any]] = {
        name: partial(render, graph, folder) for name, render in RENDERERS.items()
    }
    found |= {
        "flow": lambda: gt.draw_flow(graph).source,
        "html": lambda: gt.to_html(graph).replace(view_script(), ""),
        "find": lambda: str(gt.find(graph)),
        "wide": lambda: gt.find(graph).to_text(wide=True),
        "repr": lambda: repr(graph),
    }
    return found


def problems(path: Path, folder: Path, counts: Counter[str]) -> list[str]:
    """Return the problems in reading a file, and count the file as read or refused."""
    found: list[str] = []
    began = time.process_time()
    try:
        saved = gt.load(path)
    except ValueError as error:
        took = time.process_time() - began
        counts["refused"] += 1
        counts["slowest ms"] = max(counts["slowest ms"], round(1000 * took))
        if took > _SECONDS:
            found.append(f"refused after {took:.1f} s: {error}")
        if obeyed(str(error)):
            found.append(f"the refusal drives a terminal: {str(error)!a}")
        return found
    except BaseException as error:
        return [f"load raised {type(error).__name__}: {error!s:.200}"]
    counts["read"] += 1
    again = gt.load(saved.save(folder / "again.json.gz"))
    if isinstance(saved, Graph) and isinstance(again, Graph) and to_json(again) != to_json(saved):
        found.append("it is not equal to its own saving")
    if counts["read"] % _ONE_IN:
        return found
    graphs = saved.graphs if isinstance(saved, Training) else [saved]
    for name, show in doors(graphs[-1], folder).items():
        try:
            shown = show()
        except ValueError as error:
            shown = str(error)
        except BaseException as error:
            found.append(f"{name} raised {type(error).__name__}: {error!s:.200}")
            continue
        if isinstance(shown, str) and name not in _FOR_PROGRAMS and (wrong := obeyed(shown)):
            found.append(f"{name} drives a terminal: {''.join(sorted(wrong))!a}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--keep", type=Path, help="folder for files that cause a problem")
    options = parser.parse_args()
    chance, counts = random.Random(options.seed), Counter[str]()

    def hang(*_: object) -> None:
        raise TimeoutError(f"more than {_HANG} s")

    signal.signal(signal.SIGALRM, hang)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text("x = 1\n" * 9)
        files = originals(folder)
        for graph in GRAPHS:  # imports the modules that the functions import
            for show in doors(graph, folder).values():
                with contextlib.suppress(ValueError):
                    show()
        used = int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
        began = time.monotonic()
        for number in range(options.count):
            data = mutated(files, chance)
            path = folder / "mutated.json"
            path.write_bytes(data)
            signal.alarm(_HANG)
            found = problems(path, folder, counts)
            signal.alarm(0)
            if number % 200 == 199:
                print(f"{number + 1} files: {dict(counts)}", flush=True)
            for line in found:
                counts["new"] += 1
                print(f"{number} ({len(data):,} bytes): {line}", flush=True)
            if found and options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{options.seed}-{number}").write_bytes(data)
    print(
        f"seed {options.seed}: {counts['read']} read, {counts['refused']} refused, the slowest in "
        f"{counts['slowest ms']} ms; {counts['new']} new; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
