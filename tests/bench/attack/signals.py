"""Send signals to `run`, `app` and `view` at random moments, and check that they end cleanly.

    python -m tests.bench.attack.signals [--seed 1] [--count 30]

Each command runs in a session of its own and gets SIGINT, SIGTERM, SIGHUP or SIGKILL, alone or with
its process group, at a random moment. The script prints the exit code of each command, and all
problems: a process of the session that is still alive, a folder that the next start does not
remove, a file that remains next to the output, or an output that cannot be read.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from graphviz_torch import load
from graphviz_torch.integrations.command.lifeline import remove_leftovers
from tests.graph.test_hostile_files import SAVED

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
_HANG = 60  # seconds after the signal; a command that is then alive hangs
_SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
"""


def command(name: str, folder: Path, port: int) -> list[str]:
    """Return the arguments of a command that works in a folder."""
    if name == "view":
        return ["view", str(SAVED / "recording.json")]
    if name == "app":
        return ["app", "--no-browser", "--port", str(port), "train.py"]
    return ["run", "--steps", "0", "-o", "run.json.gz", "train.py"]


def in_session(session: int) -> list[str]:
    """Return the processes of a session that are alive."""
    listed = subprocess.run(["ps", "-eo", "sid=,pid=,stat=,args="], capture_output=True, text=True)
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    return [" ".join(row[1:]) for row in rows if int(row[0]) == session and row[2][0] != "Z"]


def attack(name: str, moment: float, sent: str, group: bool, port: int) -> tuple[int, list[str]]:
    """Send a signal to a command; return the exit code of the command, and the problems."""
    with tempfile.TemporaryDirectory() as made:
        folder, temporary = Path(made), Path(made) / "tmp"
        temporary.mkdir()
        (folder / "train.py").write_text(_SCRIPT)
        process = subprocess.Popen(
            [sys.executable, "-m", "graphviz_torch", *command(name, folder, port)],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(temporary), "BROWSER": "true"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            (os.killpg if group else os.kill)(process.pid, getattr(signal, sent))
        wrong = []
        try:
            process.wait(_HANG)
            end = time.monotonic() + _HANG
            while (left := in_session(process.pid)) and time.monotonic() < end:
                time.sleep(0.2)
            wrong += [f"lives on: {line}" for line in left]
        except subprocess.TimeoutExpired:
            wrong.append("hangs")
        for line in in_session(process.pid):
            os.kill(int(line.split()[0]), signal.SIGKILL)
        process.wait()
        tempfile.tempdir = str(temporary)
        remove_leftovers()  # as at the next start
        tempfile.tempdir = None
        pages = list(temporary.glob("graphviz_torch-page-*")) if name == "view" else []
        kept = [*pages[:1], *temporary.glob("torchinductor_*")]  # PyTorch's own
        wrong += [f"stays: {path.name}" for path in temporary.iterdir() if path not in kept]
        wrong += [
            f"stays: {path.name}"
            for path in folder.iterdir()
            if path.name not in ("tmp", "train.py", "run.json.gz")
        ]
        if (folder / "run.json.gz").exists():
            try:
                load(folder / "run.json.gz")
            except ValueError as error:
                wrong.append(str(error))
        return process.returncode, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument(
        "--life", type=float, default=20, help="longest time until the signal, in seconds"
    )
    options = parser.parse_args()
    chance, new = random.Random(options.seed), 0
    for number in range(options.count):
        name = ("run", "app", "view")[number % 3]
        moment = chance.uniform(0, options.life / 4 if name == "view" else options.life)
        sent, group = chance.choice(_SIGNALS), chance.random() < 0.5
        code, wrong = attack(name, moment, sent, group, 18600 + number)
        new += len(wrong)
        to = "group" if group else "alone"
        print(f"{number} {name} {sent} {to} after {moment:.1f} s: {code} {wrong}", flush=True)
    print(f"seed {options.seed}: {options.count} signals; {new} new")


if __name__ == "__main__":
    main()
