"""Graphs that trigger the rules on axes, and similar ones that do not."""

from __future__ import annotations

from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, made

SCORES = (("w", (4, 2, 8), ()), ("v", (4, 8, 5), ()), ("sin", (4, 2, 8), (0,)))


def viewed(*shape: int, pad: bool = False) -> Graph:
    made_by = "constant_pad_nd" if pad else "sin"
    return made(("w", (3, 5, 2, 4), ()), (made_by, (3, 5, 2, 4), (0,)), ("view", shape, (1,)))


def attention(dim: int, other: str = "cos") -> Graph:
    """Scores of two results, their softmax, and its product with a third."""
    return made(
        *SCORES,
        ("cos", (4, 8, 5), (1,)),
        ("bmm", (4, 2, 5), (2, 3)),
        ("softmax", (4, 2, 5), (4,)),
        (other, (4, 5, 6), (1,)),
        ("bmm", (4, 2, 6), (5, 6)),
        softmax=f"dim={dim}",
    )


def normed(dim: int) -> Graph:
    kept = (4, 1, 8) if dim == 1 else (4, 2, 1)
    return made(
        *SCORES,
        ("linalg_vector_norm", kept, (2,)),
        ("div", (4, 2, 8), (2, 3)),
        ("transpose", (4, 8, 2), (4,)),
        ("bmm", (4, 2, 2), (4, 5)),
        linalg_vector_norm=f"dim=({dim},)",
        transpose="dim0=1, dim1=2",
    )


def recurrent(*, flat: bool) -> Graph:
    shape = (63, 2) if flat else (9, 14)
    return made(
        ("w", (9, 7, 4), ()),
        ("sin", (9, 7, 4), (0,)),
        ("mkldnn_rnn_layer", (9, 7, 2), (1,)),
        ("view", shape, (2,)),
        ("log_softmax", shape, (3,)),
        ("nll_loss", (), (4,)),
    )


CASES: dict[str, Case] = {
    "view-across-axes": Case(
        viewed(3, 2, 5, 4),
        "warning",
        "view at net.py:2 turns [3, 5, 2, 4] into [3, 2, 5, 4] without keeping the order of the "
        "axes: it mixes values of several samples or positions.",
        [viewed(3, 5, 8), viewed(15, 2, 2, 2), viewed(3, 2, 5, 4, pad=True)],
    ),
    "normalization-axis": Case(
        attention(1),
        "warning",
        "softmax at net.py:5 runs over dimension 1 of [4, 2, 5], and the product at net.py:7 sums "
        "over a different dimension, so the weights of a sum do not add up to 1.",
        [attention(-1), attention(2)],
    ),
    "normalization-axis (norm)": Case(
        normed(1),
        "warning",
        "The norm at net.py:3 runs over dimension 1 of [4, 2, 8], and the product at net.py:6 sums "
        "over a different dimension, so the product is not a cosine similarity.",
        [normed(2)],
    ),
    "batch-taken-for-time": Case(
        recurrent(flat=False),
        "warning",
        "mkldnn_rnn_layer at net.py:2 mixes along dimension 0 of the input, across the samples "
        "of the loss: it takes the batch for time.",
        [recurrent(flat=True)],
    ),
}
