"""Run a training step of models from other projects: bare, recorded, drawn and checked.

    python -m tests.bench.foreign run RESULTS.jsonl SOURCE ...   one line of JSON for each model
    python -m tests.bench.foreign table RESULTS.jsonl            totals, errors, warnings by rule
    python -m tests.bench.foreign page RESULTS.jsonl [SCALED]    docs/models.md
    python -m tests.bench.foreign gallery FOLDER SOURCE ...      docs/architectures.md

A SOURCE is "transformers", "libraries", or a folder of files that assign `MENAGERIE_ENTRIES`. Each
model runs in forks of a process that has imported PyTorch, with limits of time and memory. Models
that are already in RESULTS.jsonl are skipped, unless `--again` is given. `--only TEXT` selects the
models whose name contains the text, and `--pictures FOLDER` keeps their pictures. SCALED is a file
of results with `--scale 8`.

Two bare steps show whether the model is deterministic. If it is, the loss, gradients and weights of
the recorded step must be bit-equal to theirs. `checks.py` has the other checks.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .sources import Entry, folder

Facts = dict[str, Any]


def forked(run: Callable[[], Facts], seconds: float) -> Facts:
    """Call `run` in a fork, and return its facts, or an "error".

    The fork may use `seconds` of CPU time, and ten times as many seconds of wall-clock time.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        os.close(reading)
        most = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        try:
            text = json.dumps(run())
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            text = json.dumps({"error": f"{type(error).__name__} at {place}: {error}"[:600]})
        with os.fdopen(writing, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    text, until = b"", time.monotonic() + 10 * seconds
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(reading, 1 << 20)
        text += part
        if not part:
            break
    else:
        os.killpg(process, signal.SIGKILL)
        text = json.dumps({"error": f"not ended after {10 * seconds:g} s"}).encode()
    os.close(reading)
    _, status = os.waitpid(process, 0)
    if not text:
        signals = (signal.SIGXCPU, signal.SIGKILL)
        limit = f"not ended after {seconds:g} s on the CPU"
        own = f"the process ended with status {status}"
        return {"error": limit if os.WTERMSIG(status) in signals else own}
    facts: Facts = json.loads(text)
    return facts


def examine(entry: Entry, seconds: float, picture: Path | None) -> Facts:
    """Build a model and run its step three times, each time in a fork of this process."""
    from . import checks

    sink = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(sink, stream)
    torch.manual_seed(0)
    random.seed(0)
    try:
        with cpu_limit(seconds):
            training = checks.Training(*entry.build())
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return {"stage": "build", "error": f"{type(error).__name__} at {place}: {error}"[:400]}
    if not training.parameters:
        return {"stage": "build", "error": "no parameter requires a gradient"}
    bare = forked(lambda: checks.bare(training), seconds / 3)
    if "more than 1 value per channel" in bare.get("error", ""):
        training.freeze_statistics()
        bare = forked(lambda: checks.bare(training), seconds / 3)
    if "error" in bare:
        return {"stage": "bare", **bare}
    walked = forked(lambda: checks.hooked(training), seconds / 3)
    if "error" in walked:
        return {"stage": "hooked", **walked}
    facts = forked(lambda: checks.recorded(training, bare, walked, picture), seconds)
    return {"stage": "recorded", **facts}


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block after `seconds` of CPU time."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not ended after {seconds:g} s on the CPU")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory(gigabytes: float) -> None:
    most = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def entries(sources: list[str], scale: int = 1) -> Iterator[Entry]:
    for source in sources:
        if source == "transformers":
            from . import transformers_models

            yield from transformers_models.entries(scale)
        elif source == "libraries":
            from . import libraries

            yield from libraries.entries()
        else:
            yield from folder(Path(source))


def read(results: Path) -> dict[tuple[str, str], Facts]:
    """Return the last line of each model."""
    rows = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        row = json.loads(line)
        rows[row["library"], row["name"]] = row
    return rows


def run(chosen: argparse.Namespace) -> None:
    done = read(chosen.results)
    again = chosen.again
    waiting = list(entries(chosen.sources, chosen.scale))
    if chosen.seed is not None:
        random.Random(chosen.seed).shuffle(waiting)
    waiting = [
        each
        for each in waiting
        if any(text in each.name for text in chosen.only)
        and ((each.library, each.name) not in done or again)
    ]
    preload()
    until = time.monotonic() + chosen.minutes * 60
    for count, entry in enumerate(waiting[: chosen.limit]):
        if time.monotonic() > until:
            break
        picture = None
        if chosen.pictures:
            chosen.pictures.mkdir(parents=True, exist_ok=True)
            picture = chosen.pictures / f"{entry.library}-{entry.name}".replace("/", "_")
        start = time.monotonic()

        def one(entry: Entry = entry, picture: Path | None = picture) -> Facts:
            limit_memory(chosen.memory)
            return examine(entry, chosen.seconds, picture)

        facts = forked(one, 3 * chosen.seconds)
        row = {"library": entry.library, "name": entry.name, **facts}
        row["wall"] = round(time.monotonic() - start, 2)
        row["torch"] = torch.__version__
        with chosen.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        faults = ", ".join(row.get("faults", {})) or row.get("error", "")[:100]
        print(f"{count + 1}/{len(waiting)} {entry.name}: {row.get('stage')} {faults}", flush=True)


def preload() -> None:
    """Import and warm up the parts of libraries that each model needs.

    No backward runs, because autograd's threads do not exist in a fork. The objects are frozen,
    because garbage collections would otherwise copy the memory in each fork.
    """
    from . import checks

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    training = checks.Training(model, lambda: model(torch.ones(1, 2)))
    checks.without_backward(training)
    gc.collect()
    gc.freeze()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "table", "page", "gallery"))
    parser.add_argument("results", type=Path, help="the file of results, or the gallery's folder")
    parser.add_argument("sources", nargs="*")
    parser.add_argument(
        "--only", action="append", help="run the models whose name contains this text"
    )
    parser.add_argument(
        "--again", action="store_true", help="run also models that are in RESULTS.jsonl"
    )
    parser.add_argument("--limit", type=int, help="largest number of models to run")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="minutes after which no further model begins"
    )
    parser.add_argument(
        "--seconds", type=float, default=30, help="CPU seconds for the checks of one model"
    )
    parser.add_argument(
        "--memory", type=float, default=8, help="memory limit in GiB for the process of a model"
    )
    parser.add_argument(
        "--scale",
        type=int,
        default=1,
        help="factor of the widths and batch of transformers' models",
    )
    parser.add_argument("--seed", type=int, help="shuffle the models with this seed")
    parser.add_argument("--pictures", type=Path, help="keep each picture in this folder")
    chosen = parser.parse_args()
    chosen.only = chosen.only or [""]
    if chosen.command == "run":
        run(chosen)
        return
    if chosen.command == "gallery":
        from . import gallery

        preload()
        gallery.write(chosen.results, entries(chosen.sources), forked)
        return
    from . import report

    rows = list(read(chosen.results).values())
    if chosen.command == "table":
        print(report.table(rows))
    else:
        scaled = [row for path in chosen.sources for row in read(Path(path)).values()]
        report.write_page(rows, scaled)


if __name__ == "__main__":
    sys.exit(main())
