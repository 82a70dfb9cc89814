"""Run the tests with several versions of PyTorch and Python, and write docs/versions.md.

    python -m docs.versions FOLDER 2.8.0:3.10 2.13.0:3.11 -- tests/graph tests/tracing

For each pair, an environment in FOLDER is created once, with this version of torch and the packages
that the tests need. `2.8.0:3.10:lowest` also installs the oldest versions of all dependencies that
pyproject.toml allows. The arguments after `--` are passed to pytest.

The pairs run one after the other, at the lowest priority. Each result is written to FOLDER, and
docs/versions.md has a table of all results there. If an environment could not be created, its row
has the last line that pip printed. Tests that a version does not support are skipped, and their
reasons are counted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import tomllib

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "versions.md"
# Packages that most tests need, in addition to the dependencies of the project.
PACKAGES = [
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "expecttest",
    "jsonschema",
    "networkx",
    "scipy",
]
PACKAGES += [
    "streamlit",
    "transformers",
    "safetensors",
    "tensorboard>=2.20",
    "google-crc32c>=1.5",
    "setuptools",
]
PACKAGES += ["numpy>=1.26", "graphviz>=0.20", "shtab>=1.13", "pygraphviz>=2.0.4"]
ROOMS = ["tests/graph", "tests/tracing", "tests/recording"]

_HEAD = """# Versions

The table lists the tests that ran with each version of PyTorch and Python, on a machine without a
GPU. If a version could not be tested, its row contains the reason. `python -m docs.versions` writes
this page.

| PyTorch | Python | tests of | passed | failed | skipped, with the reason |
|---|---|---|---|---|---|
"""


class Pair(NamedTuple):
    """A version of PyTorch and a version of Python."""

    torch: str
    python: str
    lowest: str = ""  # "lowest" installs the oldest versions of all other packages

    @property
    def name(self) -> str:
        """The name of the pair's environment and result."""
        return "-".join(filter(None, ("torch", self.torch, "python", self.python, self.lowest)))


def interpreter(version: str) -> str | None:
    """Return a Python of this version, from the PATH or from pyenv; None if there is none."""
    found = shutil.which(f"python{version}")
    if (
        found is not None
        and subprocess.run([found, "--version"], capture_output=True).returncode == 0
    ):
        return found
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(installed[-1]) if installed else None


def environment(pair: Pair, folder: Path) -> tuple[Path | None, str]:
    """Return the Python of the pair's environment, or None and the reason why there is none."""
    place = folder / pair.name
    python = place / "bin" / "python"
    if not python.exists():
        base = interpreter(pair.python)
        if base is None:
            return None, f"there is no Python {pair.python}"
        subprocess.run([base, "-m", "venv", place], check=True)
    install = [python, "-m", "pip", "install", "--quiet", f"torch=={pair.torch}", *PACKAGES]
    if pair.lowest:
        depends = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        bounds = re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(depends), re.M)
        install += [f"{name}=={version}" for name, version in bounds if name != "torch"]
    done = subprocess.run(["nice", *install], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return None, (errors or ["pip failed"])[0].removeprefix("ERROR: ")
    return python, ""


def run(python: Path, rooms: list[str]) -> dict[str, Any]:
    """Run tests; return how many passed and failed, and how often each reason skipped tests."""
    command = ["nice", python, "-m", "pytest", *rooms, "-rs", "-p", "no:cacheprovider"]
    command += ["--timeout=600", "--continue-on-collection-errors", "--tb=line"]
    # The environment does not have this package, and some tests start Python in other folders.
    path = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **path}
    )
    return read(done.stdout)


def read(said: str) -> dict[str, Any]:
    """Return the counts in the last line of pytest, and the reasons why tests were skipped.

    >>> read("SKIPPED [2] tests/a.py:3: no GPU\\n5 passed, 2 skipped, 1 error in 0.1s\\n")
    {'passed': 5, 'failed': 1, 'skipped': {'no GPU': 2}}
    """
    counts: Counter[str] = Counter()
    for number, word in re.findall(r"(\d+) (passed|failed|errors?)\b", said):
        counts["passed" if word == "passed" else "failed"] += int(number)
    skipped: Counter[str] = Counter()
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] [^\n]*?: (.+)$", said, re.M):
        skipped[reason] += int(number)
    return {"passed": counts["passed"], "failed": counts["failed"], "skipped": dict(skipped)}


def line(pair: Pair, rooms: list[str], result: dict[str, Any]) -> str:
    """Return a row of the table."""
    versions = f"{pair.torch} | {pair.python}" + (", oldest packages" if pair.lowest else "")
    if "missing" in result:
        return f"| {versions} | | | | not run: {_cell(result['missing'])} |"
    reasons = "; ".join(f"{count:,}: {_cell(why)}" for why, count in result["skipped"].items())
    numbers = f"{result['passed']:,} | {result['failed']:,}"
    names = ", ".join(room.removeprefix("tests/") for room in rooms)
    names = re.sub(r", --ignore=tests/([\w/]+)", r" without \1", names)
    return f"| {versions} | {names} | {numbers} | {reasons} |"


def _cell(text: str) -> str:
    return re.sub(r"https?://\S+|/\S+/", "", text).replace("|", "/").strip(" .")[:120]


def main(arguments: list[str]) -> None:
    """Run the tests for each pair, and write the table."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    folder, *pairs = arguments[:at]
    rooms = arguments[at + 1 :] or ROOMS
    for text in pairs:
        pair = Pair(*text.split(":"))
        python, missing = environment(pair, Path(folder))
        result = {"missing": missing} if python is None else run(python, rooms)
        written = {"pair": pair, "rooms": rooms, "result": result}
        Path(folder, f"{pair.name}.json").write_text(json.dumps(written))
    lines = []
    for path in sorted(Path(folder).glob("torch-*.json")):
        each = json.loads(path.read_text())
        lines.append(line(Pair(*each["pair"]), each["rooms"], each["result"]))
    order = sorted(lines, key=lambda row: [int(n) for n in re.findall(r"\d+", row)[:5]])
    TABLE.write_text(_HEAD + "\n".join(order) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
