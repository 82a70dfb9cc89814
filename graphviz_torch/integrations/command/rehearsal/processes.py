"""Rehearse several ranks, each in a new process, and check that their collectives match."""

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
    """Rehearse each rank of `--rank` in a new process, and print all reports.

    Return 0, or the exit status of the first rehearsal that failed.
    """
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
    """Check that the ranks call the same collectives in the same order.

    Of ranks with the same role, only one is rehearsed. Return 1 if the ranks differ, else 0; if a
    rehearsal fails, return its exit status.
    """
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
    common = f"{count_text(len(shared), 'process group')} shared by at least two of them"
    say(f"rehearsed {ranks_text(orders)}, with {common}{same}")
    return 1 if found else 0


def rehearse_in_process(
    parsed: argparse.Namespace,
    rank: int,
    format: str,
    plans: Sequence[str] = (),
    args: Sequence[str] = (),
) -> tuple[int, str]:
    """Rehearse one rank in a child process.

    Args:
        parsed: the arguments of this command, most of which are passed to the child.
        rank: the rank to rehearse.
        format: `--format` for the child.
        plans: further plans, in addition to those of the command line.
        args: further arguments of the script.

    Returns:
        The exit status of the child, and its output to stdout. If the child fails with `plans` or
        `args`, the last line of its stderr replaces the output.
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
