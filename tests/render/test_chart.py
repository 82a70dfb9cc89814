"""Test charts of measured times."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from graphviz_torch.render.chart import _Axis, line_chart


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1.0, 10_000.0], [1, 10, 100, 1_000, 10_000]),  # powers of ten where these are enough
        ([1.0, 100.0], [1, 2, 5, 10, 20, 50, 100]),
        ([3.0, 6.0], [5]),
        ([1.0, 1e12], [10.0**n for n in range(0, 13, 2)]),  # eight at most
    ],
)
def test_an_axis_has_round_numbers_between_its_ends(values: list[float], ticks: list[int]) -> None:
    assert _Axis(values, 0, 100).ticks() == pytest.approx(ticks)


def test_an_axis_is_logarithmic() -> None:
    axis = _Axis([1.0, 10.0, 100.0], 0, 100)
    low, middle, high = map(axis, (1.0, 10.0, 100.0))
    assert middle == pytest.approx((low + high) / 2)
    assert 0 < low < high < 100


@pytest.mark.timeout(60)
def test_the_names_of_lines_that_end_at_one_point_stand_below_each_other() -> None:
    lines = {name: [(1, first), (10, 9.0)] for name, first in (("a", 2.0), ("b", 3.0), ("c", 4.0))}
    drawn = ET.fromstring(line_chart(lines, title="t", x="n", y="s").source)
    heights = [float(part.get("y", "")) for part in drawn.iter() if part.text in lines]
    assert heights[1] - heights[0] == heights[2] - heights[1] == 15


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing was measured" in line_chart({"a": []}, title="t", x="n", y="s").source
