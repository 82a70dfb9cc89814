"""Run PyTorch's own tests inside `record()`, and print those whose result changes.

    python tests/bench/pytorch_suite.py FOLDER                  all of FILES, about an hour
    python tests/bench/pytorch_suite.py FOLDER --sample 100     at most 100 tests of each file
    python tests/bench/pytorch_suite.py FOLDER test_autograd nn/test_lazy_modules
    python tests/bench/pytorch_suite.py FOLDER --trace          trace before every backward, too
    python tests/bench/pytorch_suite.py AO/test 'dtypes/*' 'quantization/*' 'float8/*'     torchao's

FOLDER is the `test` folder of PyTorch's sources. The sources of 2.6.0 are in Debian's source
package: `apt-get source --download-only pytorch`. The tests also need expecttest, hypothesis and
scipy. AO is a checkout of github.com/pytorch/ao, of the installed version; its tests also need
parameterized. tests/recording/test_databases.py runs PyTorch's tests that are installed with it.

Each test runs bare, and again with its body inside `record()`, after which `recording.graph` is
read. The script prints each test with another result, grouped by message, and each test that leaves
a hook, a mode, a dispatch key or a live tensor behind. Such a test runs once more, bare and
recorded, in new processes, and counts if it differs again. Not compared are tests that are skipped
bare, or that exceed the time limit bare. KNOWN has the tests whose result a recording changes on
purpose. The results of the bare tests are stored (`--bare`), so that a second run takes half the
time. The exit status is 1 if any test differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

FILES = [
    "test_autograd",
    "autograd/*",
    "test_custom_ops",
    "test_subclass",
    "test_overrides",
    "test_sparse",
    "test_sparse_csr",
    "test_optim",
    "optim/*",
    "nn/*",
    "functorch/test_eager_transforms",
    "dynamo/test_hooks",
    "test_nn",
    "test_modules",
    "test_torch::*grad*",  # file::test
    "distributed/_tensor/*",  # in one process, as rank 0 of a fake group
]

_CYCLE = "it leaves a cycle behind, bare too: tensors in it that were read are Python objects then"

# file::test (* matches any text) -> reason why its result may differ.
KNOWN = {
    "nn/test_module_hooks::*.test_always_called_forward_hooks": (
        "it counts the global hooks that are always called, and a recording has one"
    ),
    "test_overrides::*.test_get_mode_stack": (
        "it compares the stack of function modes with an empty one, and a recording is a mode"
    ),
    "nn/test_multihead_attention::*.test_multihead_self_attn_two_masks_fast_path_mock*": (
        "PyTorch leaves the fast path wherever a function mode is on, and a recording is one"
    ),
    "optim/test_lrscheduler::*.test_closed_form_*": (
        "its body calls setUp, which counts the function modes for tearDown to compare"
    ),
    "test_autograd::*.test_backward_with_nonleaf_inputs": _CYCLE,
    "test_autograd::*.test_create_graph_and_full_backward_hook_cycle": _CYCLE,
    "test_autograd::*.test_will_engine_execute_node": _CYCLE,
    "dynamo/test_hooks::*.test_tensor_only_register_hook_in_graph_*": (
        "the compiler's own cycle, which it collects right after compiling, waits for the next time"
    ),
}

Result = dict[str, Any]
Results = dict[str, Result]  # by test id


class Difference(NamedTuple):
    test: str
    group: str  # text that similar differences share
    detail: str


class Comparison(NamedTuple):
    file: str
    compared: int
    seconds: tuple[float, float]  # bare, recorded
    otherwise: list[Difference]
    left: list[Difference]
    known: list[str]
    unloaded: str = ""  # reason why the file cannot be loaded; "" if it can


class Options(NamedTuple):
    folder: Path
    tests: dict[str, str]  # tests by file; * matches any text
    bare: Path
    trace: bool
    sample: int | None
    seed: int
    limit: float


def child(
    options: Options, file: str, ids: list[str] | None, *, recorded: bool, twice: bool = False
) -> Results:
    """Return the results of tests in a new process, and in another one after each crash."""
    results: Results = {}
    todo = ids
    while todo or todo is None:
        with tempfile.TemporaryDirectory() as folder:
            report, names, output = (Path(folder, name) for name in ("report", "ids", "output"))
            report.touch()
            command = [sys.executable, str(Path(__file__).with_name("pytorch_tests.py"))]
            command += [str(options.folder), f"{file}.py", str(report), f"--limit={options.limit}"]
            if todo is not None:
                names.write_text("\n".join(todo))
                command += ["--ids", str(names)] + ["--twice"] * twice
            if recorded:
                command += ["--recorded"] + ["--trace"] * options.trace
            with output.open("w") as stream:
                status = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    cwd=folder,
                    env=os.environ | {"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"},
                ).returncode
            lines = [json.loads(line) for line in report.read_text().splitlines()]
            begun = [line for line in lines if isinstance(line, str)]
            if todo is None:
                if status:
                    raise RuntimeError(f"{file} does not load: {output.read_text()[-2000:]}")
                return {name: {} for name in begun}
            ended = {line["id"]: line for line in lines if not isinstance(line, str)}
            results |= ended
            if begun and begun[-1] not in ended:
                stacks = Path(f"{report}.log").read_text()
                results[begun[-1]] = interrupted(stacks, status, options.limit, begun[-1])
            elif not begun:
                raise RuntimeError(f"{file} does not load: {output.read_text()[-2000:]}")
            todo = [name for name in todo if name not in results]
    return results


def interrupted(stacks: str, status: int, limit: float, test: str) -> Result:
    """Return the result of a test that ended its process."""
    ours = [line.strip() for line in stacks.splitlines() if "graphviz_torch/" in line]
    where = re.sub(r'File ".*?graphviz_torch/(.*?)", line \d+ in', r"\1", ours[0]) if ours else ""
    hung = status == -signal.SIGXCPU or "Timeout" in stacks
    cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    end, message = ("no end", "takes longer than the limit") if hung else ("crash", cause)
    return {
        "id": test,
        "end": end,
        "message": message,
        "where": where,
        "seconds": limit,
        "changed": [],
        "alive": {},
        "collected": 0,
    }


def bare(options: Options, file: str) -> Results:
    """Return the bare results of a file's tests; read them from the store, or run them now."""
    store = options.bare / f"{file.replace('/', '.')}.json"
    stored = json.loads(store.read_text()) if store.exists() else {}
    if not stored:
        stored = child(options, file, None, recorded=False)
    wanted = fnmatch.filter(stored, options.tests[file])
    if options.sample is not None and options.sample < len(wanted):
        drawn = set(random.Random(f"{options.seed} {file}").sample(wanted, options.sample))
        wanted = [name for name in wanted if name in drawn]
    if missing := [name for name in wanted if not stored[name]]:
        stored |= child(options, file, missing, recorded=False)
        store.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(json.dumps(stored))
    return {name: stored[name] for name in wanted}


def compared(test: str, bare: Result, ours: Result) -> tuple[Difference | None, Difference | None]:
    """Return how a test's result and its remaining objects differ, or None for each."""
    otherwise = left = None
    if bare["end"] != ours["end"]:
        message = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e-?\d+)?", "N", ours["message"])
        group = f"{bare['end']} -> {ours['end']}: {message[:160]} [{ours['where']}]"
        otherwise = Difference(test, group, f"{ours['message']} [{ours['where']}]")
    else:
        more = [name for name in ours["changed"] if name not in bare["changed"]]
        alive = {n: ours["alive"][n] - bare["alive"].get(n, 0) for n in ours["alive"]}
        more += [f"{name} alive" for name, number in alive.items() if number > 0]
        # If a test makes reference cycles, a wrapper made by the recorder may stay alive with them.
        if ours["collected"] and not bare["collected"]:
            more.append("tensors that wait for the garbage collector")
        if more:
            numbers = f"{alive}, {ours['collected']} where bare {bare['collected']}"
            left = Difference(test, ", ".join(more), numbers)
    return otherwise, left


def compare(options: Options, file: str) -> Comparison:
    """Run all tests of a file, bare and recorded, and compare the results."""
    try:
        expected = bare(options, file)
    except RuntimeError as error:  # the file is for another version
        return Comparison(file, 0, (0.0, 0.0), [], [], [], str(error).strip().splitlines()[-1])
    names = [n for n, result in expected.items() if result["end"] not in ("skipped", "no end")]
    ours = child(options, file, names, recorded=True)
    if differing := [n for n in names if any(compared(n, expected[n], ours[n]))]:
        again = child(options, file, differing, recorded=False, twice=True)
        ours_again = child(options, file, differing, recorded=True, twice=True)
        differing = [n for n in differing if any(compared(n, again[n], ours_again[n]))]
    pairs = {n: compared(n, again[n], ours_again[n]) for n in differing}
    lines = [f"{file}: {len(names)} tests, {len(pairs)} differ"]
    lines += [f"    {n}: {o or left}" for n, (o, left) in pairs.items()]
    print("\n".join(lines), file=sys.stderr, flush=True)
    known = [n for n in differing if any(fnmatch.fnmatch(f"{file}::{n}", k) for k in KNOWN)]
    return Comparison(
        file,
        len(names),
        (sum(expected[n]["seconds"] for n in names), sum(ours[n]["seconds"] for n in names)),
        [o for n, (o, _) in pairs.items() if o is not None and n not in known],
        [left for n, (_, left) in pairs.items() if left is not None and n not in known],
        known,
    )


def show(comparisons: list[Comparison]) -> None:
    for title in ("otherwise", "left"):
        groups: dict[str, list[tuple[str, Difference]]] = defaultdict(list)
        for comparison in comparisons:
            for difference in getattr(comparison, title):
                groups[difference.group].append((comparison.file, difference))
        for group, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            print(f"\n{'ends' if title == 'otherwise' else 'leaves'} {group}  ({len(members)})")
            for file, difference in members:
                print(f"    {file}::{difference.test}")
            print(f"        the first: {members[0][1].detail}")
    for c in comparisons:
        if c.unloaded:
            print(f"\n{c.file} does not load: {c.unloaded}")
    row = "{:34}{:>8}{:>10}{:>10}{:>10}{:>8}{:>10}"
    print("\n" + row.format("file", "tests", "bare s", "recorded", "otherwise", "leave", "known"))
    for c in comparisons:
        seconds = [f"{value:.1f}" for value in c.seconds]
        counts = len(c.otherwise), len(c.left), len(c.known)
        print(row.format(c.file, c.compared, *seconds, *counts))
    sums = [sum(len(getattr(c, n)) for c in comparisons) for n in ("otherwise", "left", "known")]
    print(row.format("all", sum(c.compared for c in comparisons), "", "", *sums))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the `test` folder of PyTorch's sources")
    parser.add_argument(
        "files",
        nargs="*",
        default=FILES,
        help="files without .py; * matches any text; ::test selects a test",
    )
    parser.add_argument("--trace", action="store_true", help="trace before every backward")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N tests of each file")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of files to run at the same time"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        metavar="S",
        help="limit for a test in seconds of CPU time",
    )
    parser.add_argument(
        "--bare", type=Path, help="folder of the bare results (default: FOLDER/../bare)"
    )
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    store = (chosen.bare or folder.parent / "bare") / torch.__version__
    wanted = {
        str(path.relative_to(folder).with_suffix("")): pattern.partition("::")[2] or "*"
        for pattern in chosen.files
        for path in sorted(folder.glob(f"{pattern.partition('::')[0]}.py"))
        if path.name.startswith("test_")
    }
    options = Options(folder, wanted, store, chosen.trace, chosen.sample, chosen.seed, chosen.limit)
    if not wanted:
        parser.error(f"{folder} has none of {', '.join(chosen.files)}")
    with ThreadPoolExecutor(chosen.jobs) as pool:
        comparisons = list(pool.map(lambda file: compare(options, file), wanted))
    show(comparisons)
    return int(any(c.otherwise or c.left for c in comparisons))


if __name__ == "__main__":
    sys.exit(main())
