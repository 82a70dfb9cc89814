"""Jobs of the page "Will it fit?": rehearse the sample, or read a rehearsal from a file."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from graphviz_torch.rehearsal import draw_memory, rehearse

from ..models import gallery
from .values import FitReport

GIB = 2**30
_SIZES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
_NUMBERS = ("ranks", "rank", "peak_bytes", "flops", *_SIZES)
_MAX_RANKS = 16  # largest number of ranks in a file
_MAX_BYTES = 8 << 20  # size limit of a file, enough for 16 ranks with 1,000 collectives
_MAX_COLLECTIVES = 1_000  # largest number of collectives of a rank


def sample(ranks: int, tp: int, gib: float) -> FitReport:
    """Rehearse the sample program, and report the second training step of rank 0.

    Args:
        ranks: number of ranks.
        tp: number of ranks that share a batch by tensor parallelism.
        gib: memory of a device in GiB.
    """
    train = partial(gallery.module(gallery.LARGE).train, tp)
    found = rehearse(train, ranks=ranks, device_memory=int(gib * GIB))
    return _fit(found.to_dict(), draw_memory(found).source)


def read(data: bytes, name: str) -> list[FitReport]:
    """Read the output of `graphviz-torch rehearse --format json` for one or several ranks.

    Raises:
        ValueError: if the file is not such an output.
    """
    try:
        given = json.loads(data) if len(data) <= _MAX_BYTES else None
        each = given if isinstance(given, list) else [given]
        if 0 < len(each) <= _MAX_RANKS:
            return [_fit(_check_report(one)) for one in each]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError(
        f"{name} is not a rehearsal. Pass the output of `graphviz-torch rehearse --format json`, "
        f"for at most {_MAX_RANKS} ranks."
    )


def _check_report(given: Any) -> dict[str, Any]:
    """Return `given` if it is the report of one rank with values of the right types.

    Raises:
        ValueError, TypeError, KeyError: if a value is missing or has the wrong type.
    """
    sizes = [given[key] for key in _NUMBERS]
    rows = given["collectives"]
    texts = [given["peak_at"], *(row[key] for row in rows for key in ("kind", "group"))]
    texts += [row[key] for row in rows for key in ("module", "where")]
    sizes += [row[key] for row in rows for key in ("count", "nbytes")]
    if not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
        raise ValueError(sizes)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(texts)
    checked: dict[str, Any] = given
    return checked


def _fit(given: dict[str, Any], chart: str = "") -> FitReport:
    # Collectives of numbered layers, "layers.0" and "layers.1", are added up under "layers.*".
    sums: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    for row in given["collectives"]:
        module = re.sub(r"(?<![^.])\d+(?![^.])", "*", row["module"])
        place = row["kind"], row["group"], module, row["where"]
        count, nbytes = sums.get(place, (0, 0))
        sums[place] = count + row["count"], nbytes + row["nbytes"]
    rows = sorted(sums.items(), key=lambda row: -row[1][1])[:_MAX_COLLECTIVES]
    return FitReport(
        ranks=given["ranks"],
        rank=given["rank"],
        parts=tuple((key.removesuffix("_bytes"), given[key]) for key in _SIZES),
        peak_bytes=given["peak_bytes"],
        peak_at=given["peak_at"],
        flops=given["flops"],
        collectives=tuple(
            (kind, group, count, nbytes, module, where)
            for (kind, group, module, where), (count, nbytes) in rows
        ),
        chart=chart,
    )
