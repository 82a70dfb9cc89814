"""Jobs of the page "Will it fit?": a rehearsal of the sample, and one from a file."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from graphviz_torch.rehearsal import draw_memory, rehearse

from ..models import gallery
from .values import Fit

GIB = 2**30
_SIZES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
_NUMBERS = ("ranks", "rank", "peak_bytes", "flops", *_SIZES)
_MOST = 16  # ranks of a file
_LARGEST = 8 << 20  # bytes of it: sixteen ranks with a thousand collectives each have less
_ROWS = 1_000  # collectives of a rank


def sample(ranks: int, tp: int, gib: float) -> Fit:
    """The sample's second step on rank 0.

    Args:
        ranks: how many there would be.
        tp: how many of them share a batch.
        gib: memory of a device.
    """
    train = partial(gallery.module(gallery.LARGE).train, tp)
    found = rehearse(train, ranks=ranks, device_memory=int(gib * GIB))
    return _fit(found.to_dict(), draw_memory(found))


def read(data: bytes, name: str) -> list[Fit]:
    """What `graphviz-torch rehearse --format json` printed: of one rank or of several.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        given = json.loads(data) if len(data) <= _LARGEST else None
        each = given if isinstance(given, list) else [given]
        if 0 < len(each) <= _MOST:
            return [_fit(_checked(one)) for one in each]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError(
        f"{name} is not a rehearsal. Pass what `graphviz-torch rehearse --format json` printed, "
        f"for at most {_MOST} ranks."
    )


def _checked(given: Any) -> dict[str, Any]:
    """One rank's part of a file, if every value is of its type.

    Raises:
        ValueError, TypeError, KeyError: if one is not.
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


def _fit(given: dict[str, Any], chart: str = "") -> Fit:
    sums: dict[tuple[str, str, str, str], tuple[int, int]] = {}  # blocks that are alike together
    for row in given["collectives"]:
        module = re.sub(r"(?<![^.])\d+(?![^.])", "*", row["module"])
        place = row["kind"], row["group"], module, row["where"]
        count, nbytes = sums.get(place, (0, 0))
        sums[place] = count + row["count"], nbytes + row["nbytes"]
    rows = sorted(sums.items(), key=lambda row: -row[1][1])[:_ROWS]
    return Fit(
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
