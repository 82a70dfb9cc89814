"""Start a module of tests in processes of its own, and read what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .forks import forked

ROOT = Path(__file__).parents[3]


def launched(*command: str, ranks: int = 0) -> dict[str, Any]:
    """What `python -m command` says in its line "RESULT {...}".

    Args:
        command: a module, and its arguments.
        ranks: how many processes `torchrun` starts of it; 0: one, without torchrun.
    """
    if ranks:
        torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m")
        done = subprocess.run(
            [sys.executable, "-m", *torchrun, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
    else:
        done = forked("-m", *command, folder=ROOT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout + done.stderr
    return dict(json.loads(lines[0].removeprefix("RESULT ")))
