"""Define the name, type, default and description of each drawing option.

`draw_graph`, `to_dot` and `to_mermaid`, the command line and the app share these options. Type
checkers read `DrawingOptions`. The decorator `drawing_options` adds the options to the signature
and the docstring of a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from textwrap import fill
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

from ..graph.immutable import NamedTuple
from ..graph.terminal import option
from .color_by import ColorBy
from .resolve import FindingsLike
from .style import Theme

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack

Direction = Literal["TB", "BT", "LR", "RL"]
Parameters = Literal["fold", "nodes"]
Mark = Literal["added", "removed", "changed"]
Detail = Literal["short", "gradients", "full"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLACEHOLDER = "        options: those of `DrawingOptions`.\n"


class Option(NamedTuple):
    """Default value and description of a drawing option."""

    default: Any
    meaning: str


class DrawingOptions(TypedDict, total=False):
    """The drawing options that a user can pass."""

    direction: Annotated[
        Direction, Option("TB", 'direction of data flow: "TB" is from top to bottom.')
    ]
    theme: Annotated[
        Theme,
        Option(
            "light", '"light", "dark", or "auto" for an SVG that follows the setting of its reader.'
        ),
    ]
    color_by: Annotated[
        ColorBy | None,
        Option(
            None,
            'value that fills nodes: "device", "dtype", "module", "mode" (train or eval), '
            '"trainable" (whether the parameters of its module require grad), "gradient" (norm), '
            '"time" (seconds in backward), "saved" (bytes kept for backward) or "influence" (how '
            "much changes); None fills them by role. Closed groups show the sum of time and bytes "
            "inside, and the largest gradient. In Python also a function that maps a Node to a "
            "number, a category as text, or None; groups show the largest number.",
        ),
    ]
    depth: Annotated[
        int | None,
        Option(None, "levels of nested modules to open; None opens as many as fit a page."),
    ]
    module: Annotated[str | None, Option(None, "draw the inside of this module only.")]
    detail: Annotated[
        Detail,
        Option(
            "short",
            'text in boxes: "short" is name and shape; "gradients" adds the norms of gradients, '
            'also of parameters; "full" draws every operation of autograd under its own name, '
            "views included, with its device and the tensors saved for backward.",
        ),
    ]
    findings: Annotated[
        FindingsLike,
        Option(
            "auto",
            'findings to mark, with their messages below the picture: "auto" for those that `find` '
            "reports, a list of findings, or None.",
        ),
    ]
    explain: Annotated[bool, Option(True, "explain shapes and colors below the picture.")]


class DrawingSettings(DrawingOptions, total=False):
    """All drawing options: those of the user, and those that only this package sets.

    This package sets, for example, `marks` to draw a `diff`.
    """

    # "fold" draws parameters inside operations, "nodes" as boxes; None chooses by the graph.
    parameters: Parameters | None
    fold: bool | None  # True to draw identical blocks once; None: only if this is needed to fit
    limit: int | None  # maximum number of boxes; None: as many as fit a page
    marks: Mapping[int, Mark] | None  # node id -> "added", "removed" or "changed"


# Name of an option -> (default and description, type).
OPTIONS: Mapping[str, tuple[Option, Any]] = {
    name: (get_args(hint)[1], get_args(hint)[0])
    for name, hint in get_type_hints(DrawingOptions, include_extras=True).items()
}
_SETTINGS = ("parameters", "fold", "limit", "marks")
_DEFAULTS = {
    **{name: option.default for name, (option, _) in OPTIONS.items()},
    **dict.fromkeys(_SETTINGS),
}
# Name of an option with few possible values -> these values.
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "direction": get_args(Direction),
    "theme": get_args(Theme),
    "parameters": (None, *get_args(Parameters)),
    "detail": get_args(Detail),
}


def complete(options: DrawingOptions) -> DrawingSettings:
    """Check the given options, and return them together with the defaults of the others.

    Raises:
        TypeError: for an unknown option.
        ValueError: for a value that the option does not allow.
    """
    for name, value in options.items():
        if name not in _DEFAULTS:
            near = get_close_matches(name, OPTIONS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"a drawing has no option {name!r}.{hint}")
        if name in _CHOICES:
            _check(name, value, _CHOICES[name])
    found = cast(DrawingSettings, {**_DEFAULTS, **options})
    if found["depth"] is not None and found["depth"] < 0:
        raise ValueError(
            f"{option('depth', found['depth'])} is not a number of levels: pass 0 or more."
        )
    if found["limit"] is not None and found["limit"] < 1:
        raise ValueError(
            f"{option('limit', found['limit'])} leaves nothing to show: pass 1 or more."
        )
    for mark in (found["marks"] or {}).values():
        _check("marks: mark", mark, get_args(Mark))
    return found


def _check(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"{option}={value!r} is unknown. Choose from {', '.join(map(repr, known))}."
        )


def drawing_options(function: _Function) -> _Function:
    """List each drawing option in the signature and docstring of the decorated function.

    The function has a parameter `**options: Unpack[DrawingOptions]`. `help()`, notebook editors and
    the command line read the signature and the docstring.
    """
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hint
        )
        for name, (option, hint) in OPTIONS.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    function.__annotations__ = {
        **{name: hint for name, hint in function.__annotations__.items() if name != "options"},
        **{name: hint for name, (_, hint) in OPTIONS.items()},
    }
    if function.__doc__:  # None under python -OO
        rows = "".join(f"{_row(name, option.meaning)}\n" for name, (option, _) in OPTIONS.items())
        function.__doc__ = function.__doc__.replace(_PLACEHOLDER, rows)
    return function


def _row(name: str, meaning: str) -> str:
    return fill(
        f"{name}: {meaning}",
        100,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_on_hyphens=False,
    )
