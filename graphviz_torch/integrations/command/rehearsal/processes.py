"""Rehearsals in processes of their own: several ranks, and whether their collectives match."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from ....graph.text import ranks_text
from ....graph.units import count_text
from ....rehearsal import CollectiveCall, compare_order, representative_ranks
from ..files import say


def rehearse_ranks(parsed: argparse.Namespace) -> int:
    """Rehearse each of `--rank` in a process of its own, and print all reports."""
    results: list[str] = []
    for rank in parsed.rank:
        code, text = rehearse_in_process(parsed, rank, parsed.format)
        if code:
            return code
        results.append(text)
    if parsed.format == "text":
        say("\n".join(results).rstrip())
    else:
        say(json.dumps([json.loads(text) for text in results]))
    return 0


def compare_ranks(parsed: argparse.Namespace) -> int:
    """Rehearse one rank of each kind, print where their collectives differ; return 1 if they do."""
    orders: dict[int, list[CollectiveCall]] = {}
    wanted = [*parsed.rank] or [0]
    while wanted:
        rank = wanted.pop(0)
        code, text = rehearse_in_process(parsed, rank, "order")
        if code:
            return code
        rows = [{**row, "ranks": tuple(row["ranks"])} for row in json.loads(text)]
        orders[rank] = [CollectiveCall(**row) for row in rows]
        if len(orders) == 1 and len(parsed.rank) < 2:
            wanted = representative_ranks(rank, orders[rank])
    found = compare_order(orders)
    for each in found:
        say(f"{each} [mismatched-collectives]")
    groups = {each.ranks for order in orders.values() for each in order}
    shared = [ranks for ranks in groups if len(orders.keys() & set(ranks)) > 1]
    same = "" if found else ": they call the same collectives, in the same order"
    say(f"rehearsed: {ranks_text(orders)}, which share {count_text(len(shared), 'group')}{same}")
    return 1 if found else 0


def rehearse_in_process(
    parsed: argparse.Namespace,
    rank: int,
    format: str,
    plans: Sequence[str] = (),
    args: Sequence[str] = (),
) -> tuple[int, str]:
    """Run the same command for one rank in a child process; return its exit status and output.

    Args:
        format: value of `--format`.
        plans: plans to add to those of the command.
        args: arguments to append to the script's own.

    With `plans` or `args`, stderr is captured, and its last line is the output of a command that
    fails.
    """
    if parsed.out:
        raise ValueError("-o writes the graph of one rank: pass one --rank.")
    given: list[str] = []
    for name in ("ranks", "device_memory", "steps", "tflops", "bandwidth"):
        value = getattr(parsed, name)
        given += [] if value is None else [f"--{name.replace('_', '-')}={value}"]
    given += [f"--plan={plan}" for plan in (*parsed.plan, *plans)]
    given += [f"--value={value}" for value in parsed.value]
    mesh = ",".join(f"{name}={size}" for name, size in parsed.mesh.items())
    given += [f"--mesh={mesh}"] * bool(mesh) + ["-m"] * parsed.module
    command = ["rehearse", *given, f"--rank={rank}", f"--format={format}"]
    done = subprocess.run(
        [sys.executable, "-m", "graphviz_torch", *command, parsed.script, *parsed.args, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if plans or args else None,
        text=True,
        check=False,
    )
    if done.returncode and done.stderr:
        return done.returncode, done.stderr.rstrip().rpartition("\n")[2]
    return done.returncode, done.stdout
