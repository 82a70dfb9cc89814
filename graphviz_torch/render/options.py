"""The options of drawing, defined once: name, type, default and meaning.

`draw_graph`, `to_dot` and `to_mermaid`, the command line and the app share them. Type checkers read
`DrawingOptions`; `drawing_options` completes signatures and docstrings from it.
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
    NamedTuple,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

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
    """Default and description of an option."""

    default: Any
    meaning: str


class DrawingOptions(TypedDict, total=False):
    """Options of drawing that a caller may pass."""

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
        Option(None, "levels of modules to open; None opens as many as fit a page."),
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
    explain: Annotated[bool, Option(True, "explain shapes and colours below the picture.")]


class Settings(DrawingOptions, total=False):
    """All options, including those that only this package sets, as for a diff or a slow layout."""

    parameters: Parameters | None  # inside operations, or as nodes; None: depends on the graph
    fold: bool | None  # draw identical blocks once; None: depends on the page
    limit: int | None  # maximum number of boxes; None: as many as fit a page
    marks: Mapping[int, Mark] | None  # by node id


# Option name -> (its default and description, its type).
OPTIONS: Mapping[str, tuple[Option, Any]] = {
    name: (get_args(hint)[1], get_args(hint)[0])
    for name, hint in get_type_hints(DrawingOptions, include_extras=True).items()
}
_SETTINGS = ("parameters", "fold", "limit", "marks")
_DEFAULTS = {
    **{name: option.default for name, (option, _) in OPTIONS.items()},
    **dict.fromkeys(_SETTINGS),
}
# Option name -> its possible values, if they are few.
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "direction": get_args(Direction),
    "theme": get_args(Theme),
    "parameters": (None, *get_args(Parameters)),
    "detail": get_args(Detail),
}


def complete(options: DrawingOptions) -> Settings:
    """Return the given options, checked, with the defaults of the others.

    Raises:
        TypeError: for an unknown option.
        ValueError: for a value that is not among the choices, or too small.
    """
    for name, value in options.items():
        if name not in _DEFAULTS:
            near = get_close_matches(name, OPTIONS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"a drawing has no option {name!r}.{hint}")
        if name in _CHOICES:
            _check(name, value, _CHOICES[name])
    found = cast(Settings, {**_DEFAULTS, **options})
    if found["depth"] is not None and found["depth"] < 0:
        raise ValueError(
            f"{option('depth', found['depth'])} is not a number of levels: give 0 or more."
        )
    if found["limit"] is not None and found["limit"] < 1:
        raise ValueError(
            f"{option('limit', found['limit'])} leaves nothing to show: give 1 or more."
        )
    for mark in (found["marks"] or {}).values():
        _check("marks: mark", mark, get_args(Mark))
    return found


def _check(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{option}={value!r} is unknown. Known are {', '.join(map(repr, known))}.")


def drawing_options(function: _Function) -> _Function:
    """Decorate a function with `**options: Unpack[DrawingOptions]` to show each option.

    `help()`, notebook editors and the command line see a keyword for each option in its signature,
    and the description of each in its docstring.
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
    if function.__doc__:  # python -OO has none
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
