"""Run each program of a folder on several forked ranks, and print what each rank recorded.

    python -m tests.support.processes.examples 4 examples/parallel/fsdp2.py ...

Prints JSON: for each program and rank, the collectives of its last step by kind, phase and group,
the number of collectives with neither a line nor a module, and the findings.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import logging
import os
import runpy
import socket
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing import start_processes

from graphviz_torch import find, record
from tests.support.processes.parallelism import messages_of


def import_modules_of(program: str) -> None:
    """Import what a program imports at its top, so that no rank imports it again."""
    for node in ast.parse(Path(program).read_text()).body:
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            importlib.import_module(str(name))


def rank(number: int, ranks: int, port: int, program: str, folder: str) -> None:
    """Run a program as one rank, in torchrun's environment, and write the result to a file."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    own = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with record() as recording:
        runpy.run_path(program, run_name="__main__")
    if dist.is_initialized():
        dist.destroy_process_group()
    sent = recording.graph.collectives
    about = {
        "sent": dict(Counter(f"{c.kind} in {c.phase} · {c.group}" for c in sent)),
        "unnamed": sum(not (c.where or c.module) for c in sent),
        "findings": messages_of(find(recording)),
    }
    Path(folder, str(number)).write_text(json.dumps(about))


def main(ranks: int, programs: list[str]) -> None:
    results = {}
    for program in programs:
        import_modules_of(program)
    gc.freeze()  # otherwise a collection in a fork visits and copies a million objects
    for program in programs:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            arguments: Any = (ranks, port, program, folder)
            start_processes(rank, arguments, nprocs=ranks, start_method="fork")
            written = [json.loads(Path(folder, str(i)).read_text()) for i in range(ranks)]
        results[Path(program).stem] = written
    print("RESULT", json.dumps(results), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
