"""Define the shape and the light and dark colors of each role of a node, for all drawings.

Hues follow the palette of Okabe and Ito, which people with the common types of color blindness can
distinguish. Each hue has a pale fill and a strong line. Every role also has its own shape.

Each color has a name, a light value and a dark value. No two colors share a light value, so that
`dark_rules` can turn a light drawing dark by replacing values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal

from ..graph import Node
from ..graph.immutable import NamedTuple

Theme = Literal["light", "dark", "auto"]  # "auto": the SVG follows the reader's dark mode
Pair = tuple[str, str]  # (light value, dark value) of a color
Role = Literal[
    "input",
    "parameter",
    "buffer",
    "operation",
    "transfer",
    "collective",
    "output",
    "group",
    "stack",
]

# Name -> (light value, dark value).
COLORS: Final[dict[str, tuple[str, str]]] = {
    "background": ("#ffffff", "#12161b"),
    "ink": ("#1c2630", "#e8edf2"),
    "muted": ("#5b6875", "#9eabb8"),
    "edge": ("#758391", "#8190a0"),
    "cluster": ("#f6f8fa", "#191f26"),
    "cluster_line": ("#ccd5dd", "#36424e"),
    "operation": ("#fdfefe", "#212a33"),
    "operation_line": ("#687684", "#8796a5"),
    "input": ("#deedfa", "#0d3150"),
    "input_line": ("#0072b2", "#56b4e9"),
    "parameter": ("#fdefcf", "#3f300b"),
    "parameter_line": ("#b37a00", "#e6a925"),
    "buffer": ("#fcf4e2", "#332c1b"),
    "buffer_line": ("#a08040", "#bd9d5c"),
    "transfer": ("#fde2d2", "#4a220c"),
    "transfer_line": ("#d05500", "#ff8d4d"),
    "collective": ("#eae4f8", "#2f2150"),
    "collective_line": ("#6f4bb3", "#b79cf0"),
    "output": ("#d9f1e8", "#0b3c2e"),
    "output_line": ("#007a58", "#2ecc9b"),
    "group": ("#edf1f5", "#28323c"),
    "group_line": ("#4f5d6b", "#a3b1bf"),
    "stack": ("#edf1f6", "#28323d"),
    "stack_line": ("#4f5d6c", "#a3b1c0"),
    "data": ("#fbfcfd", "#171d23"),
    "data_line": ("#b5bfc9", "#4a5662"),
    "untracked": ("#e9edf0", "#242c34"),
    "untracked_line": ("#9aa6b1", "#6a7683"),
    "error": ("#c40233", "#ff6b81"),
    "warning": ("#a86a00", "#ffc247"),
    "info": ("#0a6ebd", "#6cbcf5"),
    "added": ("#008864", "#33d3a4"),
    "removed": ("#c4310a", "#ff7a52"),
    "changed": ("#9b4f80", "#e08fc3"),
}

# Fills for numbers from low to high: one hue, ordered by lightness.
SCALE: Final[tuple[tuple[str, str], ...]] = (
    ("#f1f6fb", "#1a2733"),
    ("#d2e3f3", "#1b3c58"),
    ("#a6cae6", "#205680"),
    ("#72abd5", "#266a9c"),
    ("#3079b2", "#4d9acd"),
    ("#1a5a91", "#8ac3e8"),
    ("#0a3a6e", "#cde6f8"),
)
# Fills in SCALE are strong from this index on: text on them needs the color ON_STRONG.
FIRST_STRONG_STEP: Final = 4
ON_STRONG: Final = ("#fefffe", "#10202e")
NONFINITE: Final = ("#f3c6de", "#6b1f49")  # fill for NaN and Inf, which are not on the scale

# Fills for names (devices, modules, dtypes): distinct colors without an order.
CATEGORIES: Final[tuple[tuple[str, str], ...]] = (
    ("#e4e8ec", "#2f3a45"),
    ("#cfe6f7", "#0f3d5f"),
    ("#c9ecdd", "#10493a"),
    ("#fbdcc4", "#54290d"),
    ("#f5d5e6", "#502540"),
    ("#fae8b0", "#4a3a08"),
    ("#d9d8f3", "#322f63"),
    ("#d5e7b5", "#34450f"),
)
# Backgrounds for clusters of devices, in the order of CATEGORIES, and paler than any node's fill.
GROUNDS: Final[tuple[tuple[str, str], ...]] = (
    ("#f2f4f6", "#1b2229"),
    ("#eaf4fc", "#11222f"),
    ("#e7f6f0", "#11261f"),
    ("#fdf0e6", "#2a1a10"),
    ("#fbedf5", "#28161f"),
    ("#fcf6dd", "#262009"),
    ("#efeefb", "#1d1c33"),
    ("#f0f6e2", "#1d2410"),
)


class NodeShape(NamedTuple):
    """The shape of a role, as Graphviz attributes."""

    shape: str
    style: str
    peripheries: int = 1
    margin: str = "0.14,0.06"  # inches


NODE_SHAPES: Final[dict[Role, NodeShape]] = {
    "input": NodeShape("ellipse", "filled", margin="0.01,0.01"),
    "parameter": NodeShape("cylinder", "filled", margin="0.1,0.05"),
    "buffer": NodeShape("cylinder", "filled,dashed", margin="0.1,0.05"),
    "operation": NodeShape("box", "rounded,filled"),
    "transfer": NodeShape("octagon", "filled", margin="0.03,0.01"),
    "collective": NodeShape("hexagon", "filled", margin="0.01,0.03"),
    "output": NodeShape("box", "rounded,filled", 2),
    "group": NodeShape("box", "rounded,filled"),
    "stack": NodeShape("box3d", "filled", margin="0.14,0.1"),
}
MEANINGS: Final[dict[Role, str]] = {
    "input": "input",
    "parameter": "parameter",
    "buffer": "buffer",
    "operation": "operation",
    "transfer": "copy between devices",
    "collective": "sent between ranks",
    "output": "output",
    "group": "closed group",
    "stack": "identical closed groups",
}


def role(
    node: Node,
    outputs: Collection[int],
    transfers: Collection[int],
    collectives: Collection[int] = (),
) -> Role:
    """Return the role of a node.

    Args:
        node: the node.
        outputs: ids of the graph's outputs.
        transfers: ids of nodes that copy between devices.
        collectives: ids of nodes that are drawn as collectives.
    """
    if node.leaf:
        return "input" if node.leaf == "tensor" else node.leaf
    if node.id in transfers:
        return "transfer"
    if node.id in collectives:
        return "collective"
    return "output" if node.id in outputs else "operation"


@lru_cache
def palette(theme: Theme) -> Mapping[str, str]:
    """Return name -> color value for a theme.

    For "auto", the values are the light ones. In dark mode, the CSS of `dark_rules` replaces them.
    """
    return MappingProxyType({name: pick(pair, theme) for name, pair in COLORS.items()})


def pick(pair: tuple[str, str], theme: Theme) -> str:
    """Return the value of a color in a theme."""
    return pair[theme == "dark"]


def dark_rules() -> str:
    """Return CSS that turns a light SVG dark if the reader's system is set to dark."""
    pairs = [*COLORS.values(), *SCALE, ON_STRONG, NONFINITE, *CATEGORIES, *GROUNDS]
    rules = "".join(
        f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}'
        for light, dark in pairs
    )
    return f"@media(prefers-color-scheme:dark){{{rules}}}"


def category(names: Collection[str]) -> dict[str, int]:
    """Return name -> index of its color in CATEGORIES and GROUNDS.

    "cpu" and "" have index 0, which is gray.
    """
    rest = [name for name in dict.fromkeys(names) if name not in ("", "cpu")]
    numbers = {name: 1 + i % (len(CATEGORIES) - 1) for i, name in enumerate(rest)}
    return {"": 0, "cpu": 0, **numbers}
