"""Compare rehearsals with the memory and messages of real ranks, for docs/rehearsal.md.

    python -m tests.rehearsal.truth [2 4] [FSDP2 ...]
    python -m tests.rehearsal.truth cells     combinations on four ranks, also with "cuda" devices
    python -m tests.rehearsal.truth every     all combinations
    python -m tests.rehearsal.truth gpu [CELL]   combinations, compared with one rank on a GPU

"=" means equal to the byte. Each training runs over gloo, and its second step is counted without
graphviz_torch (`tests/support/processes/trainings.py`). The peak is counted twice. Over gloo it
differs from run to run, because gloo copies tensors that it reduces or scatters, and its threads
release tensors late. The second count uses a group that sends nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import Any

from graphviz_torch.rehearsal import Rehearsal, rehearse
from tests.support.processes import cells
from tests.support.processes.launch import launched
from tests.support.processes.trainings import TRAININGS, train

MODULE = "tests.support.processes.trainings"
CELL_COLUMNS = ("parameters", "gradients", "optimizer", "gathered")
COLUMNS = ("parameters", "gradients", "optimizer", "activations", "flops", "sent")


def told(found: Rehearsal) -> dict[str, Any]:
    """Return the report of a rehearsal in the form of `counted()`."""
    count, nbytes = Counter[str](), Counter[str]()
    for each in found.collectives:
        count[each.kind] += each.count
        nbytes[each.kind] += each.nbytes
    return {
        "parameters": found.parameters_bytes,
        "gradients": found.gradients_bytes,
        "optimizer": found.optimizer_bytes,
        "activations": found.activations_bytes,
        "flops": found.flops,
        "sent": {kind: [count[kind], nbytes[kind]] for kind in sorted(count)},
        "peak": found.peak_bytes,
    }


def rows(ranks: int, names: list[str]) -> list[list[str]]:
    real = launched(MODULE, *names, ranks=ranks)
    alone = launched(MODULE, "fake", str(ranks), *names)
    found = []
    for name in names:
        mine, theirs = told(rehearse(partial(train, TRAININGS[name]), ranks=ranks)), real[name][0]
        cells = [
            "=" if mine[key] == theirs[key] else f"{mine[key]}, {theirs[key]}" for key in COLUMNS
        ]
        most = (alone[name], theirs["peak"])
        peaks = [f"{mine['peak'] / each - 1:+.1%}" for each in most]
        found.append([name, str(ranks), *cells, *peaks])
    return found


def cell_row(cell: str, real: dict[str, Any]) -> str:
    """A row of the table of combinations: each number beside that of real tensors on the CPU.

    What is offloaded lies on the CPU of a script that says "cuda", and not on its device: there is
    no peak to compare with, and the row has none.
    """
    if "refused" in real:
        return f"| {cell} |{' PyTorch refuses it |' * 6}"
    columns: dict[str, list[str]] = {name: [] for name in CELL_COLUMNS}
    peaks = []
    for device in ("cpu", "cuda"):
        found = rehearse(partial(cells.train, cell, device), ranks=4)
        assert sum(share.nbytes for share in found.at_peak) == found.peak_bytes
        for name in CELL_COLUMNS:
            mine = getattr(found, f"{name}_bytes")
            columns[name].append("=" if mine == real[name] else f"{mine}, {real[name]}")
        offloaded = device == "cuda" and "offloading" in cell
        peak = found.peak_bytes / real["peak"] - 1
        peaks.append("" if offloaded else f"{peak:+.1%}")
    same = ["; ".join(dict.fromkeys(each)) for each in columns.values()]
    return f"| {' | '.join([cell, *same, *peaks])} |".replace("-0.0%", "+0.0%")


def cell_table(*, every: bool = False) -> None:
    """Print the table of some or all combinations."""
    head = ["training", *CELL_COLUMNS, "peak, cpu", "peak, cuda"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    names = list(cells.cells(every=every))
    for i in range(0, len(names), 4):
        real = launched(cells.__name__, "fake", "4", *names[i : i + 4])
        for name, numbers in real.items():
            print(cell_row(name, numbers), flush=True)


def gpu_table(names: list[str]) -> None:
    """Print the table of combinations, compared with real tensors on a GPU."""
    head = ["training", *CELL_COLUMNS, "peak on the GPU", "peak of the rehearsal"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for i in range(0, len(names), 7):
        for name, real in launched(cells.__name__, "fake", "4", "cuda", *names[i : i + 7]).items():
            if "refused" in real:
                print(f"| {name} | {real['refused']} |")
                continue
            found = rehearse(partial(cells.train, name, "cuda"), ranks=4)
            columns = {column: getattr(found, f"{column}_bytes") for column in CELL_COLUMNS}
            same = [
                "=" if mine == real[column] else f"{mine}, {real[column]}"
                for column, mine in columns.items()
            ]
            peak = f"{found.peak_bytes / real['peak'] - 1:+.1%}"
            print(f"| {' | '.join([name, *same, str(real['peak']), peak])} |", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["gpu"]:
        return gpu_table(sys.argv[2:] or list(cells.cells()))
    if sys.argv[1:] in (["cells"], ["every"]):
        return cell_table(every=sys.argv[1] == "every")
    sizes = [int(word) for word in sys.argv[1:] if word.isdecimal()] or [2, 4]
    names = [word for word in sys.argv[1:] if word in TRAININGS] or list(TRAININGS)
    head = ["training", "ranks", *COLUMNS, "peak", "peak on gloo"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for size in sizes:
        for row in rows(size, names):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
