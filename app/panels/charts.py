"""Build Vega-Lite charts from dicts, because importing Altair takes half a second.

All scales have an explicit domain. A chart is drawn before its data arrive, and Vega would warn
about an infinite domain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def quantity(field: str, **options: Any) -> dict[str, Any]:
    """Return the encoding of a numeric column."""
    return {"field": field, "type": "quantitative", "title": field, **options}


def scale(values: Iterable[float], **options: Any) -> dict[str, Any]:
    """Return a scale from the smallest to the largest value, or from 1 to 10 without values.

    >>> scale([3, 1, 2], type="log")
    {'domain': [1, 3], 'nice': True, 'type': 'log'}
    """
    known = [value for value in values if math.isfinite(value)] or [1, 10]
    low, high = min(known), max(known)
    return {"domain": [low, high if high > low else low + (abs(low) or 1)], "nice": True, **options}
