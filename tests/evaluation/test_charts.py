import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from markupsafe import Markup

from unmask.evaluation.charts import _scale, _tick_text, bars, line_chart, number, table
from unmask.evaluation.metrics import Estimate

NAN, INF = float("nan"), float("inf")
SERIES = {
    "none": {},
    "empty": {"a": ([], [])},
    "all NaN": {"a": ([1, 2], [NAN, NAN])},
    "one point": {"a": ([3], [0.5])},
    "gaps": {"a": (range(6), [1, 2, NAN, 4, INF, 3]), "b": (range(2), [2, 2])},
    "zeros": {"a": ([0, 1], [0, 0])},
    "tiny": {"a": ([0, 1e6], [1e-9, 2e-9])},
    "huge": {"a": ([0, 1], [-1e12, 1e12])},
    "long": {"a": (np.arange(100_000), np.sin(np.arange(100_000)))},
}


@pytest.mark.parametrize("series", SERIES.values(), ids=SERIES)
@pytest.mark.parametrize("options", [{}, {"percent": True, "from_zero": True}])
def test_every_line_chart_is_well_formed_and_finite(series, options):
    chart = line_chart(series, "A title", "step", "loss", **options)
    assert isinstance(chart, Markup)
    ET.fromstring(chart)
    assert "A title" in chart
    assert not re.search(r'="[^"]*\b(nan|inf)\b', chart)
    assert len(chart) < 100_000


def test_a_chart_without_data_says_so_and_one_point_is_seen():
    assert "no data" in line_chart({"a": ([], [])}, "t")
    assert 'class="dot"' in line_chart(SERIES["one point"], "t")


def test_a_gap_breaks_the_line_and_a_lone_point_gets_a_dot():
    long = np.ones(60)
    long[30], long[32] = NAN, NAN
    chart = line_chart({"a": (range(60), long)}, "t")
    assert re.search(r'<path d="([^"]*)"', chart)[1].count("M") == 3
    assert chart.count('class="dot"') == 1


def test_points_stay_inside_the_frame_and_larger_is_higher():
    chart = line_chart({"a": ([0, 1, 2], [3.0, 9.7, 1.2])}, "t")
    heights = [float(v) for v in re.findall(r'<circle[^>]* cy="([\d.]+)"', chart)]
    assert heights[1] < heights[0] < heights[2]
    assert all(0 <= h <= 270 for h in heights)


def test_a_chart_is_told_in_words_and_shows_tooltips():
    chart = line_chart({"training": ([0, 1], [2.5, 0.5])}, "Loss", "step")
    assert 'aria-label="Loss: training from 2.5 to 0.5"' in chart
    assert "<title>training: 0.5 at step 1</title>" in chart


def test_hostile_names_are_escaped():
    evil = '<script>alert("x")</script>'
    made = [
        line_chart({evil: ([0, 1], [0, 1]), "b": ([], [])}, evil, evil, evil),
        bars([(evil, 0.5, True)], label=evil),
        table([evil], [[evil]]),
    ]
    for markup in made:
        assert "<script" not in markup
        ET.fromstring(markup)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (-3, 7), (1e-5, 3e-5), (9.99, 10.01), (5, 5), (0, 0), (0, 123456), (1e-4, 1e-4), (1e5, 1e5 + 4)],
)
def test_ticks_enclose_the_data_and_are_few(low, high):
    ticks, (bottom, top) = _scale(low, high, 5)
    assert bottom <= low <= high <= top
    assert 2 <= len(ticks) <= 8
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0])
    assert len({_tick_text(tick, ticks) for tick in ticks}) == len(ticks)


def test_bars_draw_shares_and_mark_the_right_one():
    drawn = bars([("a", 0.25, False), ("b", NAN, True), ("c", 7.0, False)])
    assert re.findall(r'class="fill" width="([\d.]+)%"', drawn) == ["25.00", "0.00", "100.00"]
    assert drawn.count('class="right"') == 1
    assert "25.0%" in drawn
    assert bars([]) == '<ul class="bars"></ul>'


def test_table_sets_numbers_right_and_reads_missing_ones():
    drawn = table(("name", "n"), [("a", 12345), ("b", NAN), ("c", Estimate(0.5, 0.4, 0.6, 9))])
    assert drawn.count('<td class="number">') == 3
    assert "12,345" in drawn
    assert "0.4 to 0.6" in drawn
    assert "nan" not in drawn
    with pytest.raises(ValueError, match="headers"):
        table(("a", "b"), [(1,)])


def test_numbers_read_well():
    assert [number(v) for v in (0, 0.5, 3e-4, 1234.5, -INF, np.int64(7))] == ["0", "0.5", "3e-4", "1,234", "−∞", "7"]
