"""Start a module of tests in new processes, and read the result that it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .forks import forked

ROOT = Path(__file__).parents[3]


def launched(*command: str, ranks: int = 0) -> dict[str, Any]:
    """Run `python -m command`, and return the content of its line "RESULT {...}".

    Args:
        command: a module and its arguments.
        ranks: number of processes that run the module, as with `torchrun`; 0 runs it without
            `torchrun`.
    """
    done = forked("-m", *command, folder=ROOT, ranks=ranks)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout + done.stderr
    return dict(json.loads(lines[0].removeprefix("RESULT ")))
