"""Small charts as inline SVG and HTML: no JavaScript, no fonts, no file beside the page.

Colours are CSS variables with a fallback, so that a chart follows the light or dark page it stands in and is
still readable outside of one. Everything that comes from outside is escaped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike, NDArray

from unmask.evaluation.metrics import Estimate

_WIDTH, _HEIGHT = 480, 270
_COLOURS = ("#2563eb", "#d97706", "#0d9488", "#be185d", "#7c3aed", "#57534e")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "10 4", "4 2")  # a series is told by more than its colour
_MOST_VERTICES, _MOST_TOOLTIPS = 2000, 120


@functools.cache
def templates() -> Any:
    """The templates of pages; everything in them is escaped unless it is `Markup`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("unmask.evaluation")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters |= {"px": _px, "number": number}
    return found


def drawn(part: str, *values: Any, **options: Any) -> Markup:
    """A piece of a page: a macro of parts.html.jinja."""
    return Markup(getattr(templates().get_template("parts.html.jinja").module, part)(*values, **options))


def line_chart(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    title: str,
    x_label: str = "",
    y_label: str = "",
    *,
    percent: bool = False,
    from_zero: bool = False,
) -> Markup:
    """Lines, name -> (x, y), over a common pair of axes, with ticks, a legend (for several series) and tooltips on the
    points. A value that is not finite breaks its line; a lone point is drawn as a dot; no point at all gives a chart
    that says so. Above 2000 points a line is thinned to every k-th. `percent`: ticks and tooltips of y in percent;
    `from_zero`: the y axis starts at zero, for shares and speeds; a loss needs it not."""
    lines = {str(name): _points(x, y) for name, (x, y) in series.items()}
    whole = np.concatenate([xy[np.isfinite(xy).all(1)] for xy in lines.values()] or [np.empty((0, 2))])
    keys = [(name, *_style(i)) for i, name in enumerate(lines)]
    if not len(whole):
        return drawn("figure", title, keys)
    axes = _Axes(whole, percent, from_zero)
    pictures = [_line(points, axes, name, number) for number, (name, points) in enumerate(lines.items())]
    return drawn("figure", title, keys, axes, _described(title, lines, axes), x_label, y_label, pictures)


def scatter_chart(points: NDArray[np.float64], title: str, x_label: str = "", y_label: str = "") -> Markup:
    """Points (count, 2) over a pair of axes of one range, with a dashed line where y equals x; those that are not
    finite are left out."""
    known = points[np.isfinite(points).all(1)]
    if not len(known):
        return drawn("figure", title, ())
    low, high = float(known.min()), float(known.max())
    axes = _Axes(np.array([[low, low], [high, high]]), False, False)
    x_low, x_high = number(float(known[:, 0].min())), number(float(known[:, 0].max()))
    return drawn(
        "figure",
        title,
        [("", *_style(0))],
        axes,
        f"{title}: {len(known)} points, x {x_low} to {x_high}",
        x_label,
        y_label,
        points=known.tolist(),
        diagonal=[axes.x(low), axes.y(low), axes.x(high), axes.y(high)],
    )


def interval_chart(
    rows: Sequence[tuple[str, float, float, float]], title: str, x_label: str = "", *, ratios: bool = False
) -> Markup:
    """A forest plot: of each (name, estimate, low, high) a square, its interval and both in figures; one that is not
    finite has its name alone. `ratios`: a log scale, with the dashed line at 1, else at 0."""
    to = math.log if ratios else float
    known = [row for row in rows if all(map(math.isfinite, row[1:])) and (not ratios or min(row[1:]) > 0)]
    if not known:
        return drawn("figure", title, ())
    line = 1.0 if ratios else 0.0
    low, high = min(line, *(row[2] for row in known)), max(line, *(row[3] for row in known))
    ticks = _ratio_ticks(low, high) if ratios else _scale(low, high, 6, tight=True)[0]
    left, right = 24.0 + 7 * min(max(len(row[0]) for row in rows), 30), 480.0
    start, width = to(low), (to(high) - to(low)) or 1.0

    def place(value: float) -> float:
        return left + 8 + (to(value) - start) / width * (right - left - 16)

    def figures(values: Sequence[float]) -> str:
        return f"{values[0]:.2f} ({values[1]:.2f} to {values[2]:.2f})"

    drawn_rows = [
        {"name": row[0], "text": figures(row[1:]), "at": [place(value) for value in row[1:]]}
        if row in known
        else {"name": row[0], "text": "–", "at": ()}
        for row in rows
    ]
    marks = [(place(tick), _tick_text(tick, ticks)) for tick in ticks]
    described = f"{title}: " + ", ".join(f"{row['name']} {row['text']}" for row in drawn_rows)
    return drawn("forest", title, x_label, described, drawn_rows, marks, place(line), right)


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios within a range, always with 1.

    >>> _ratio_ticks(0.4, 2.3)
    [0.5, 0.7, 1.0, 1.5, 2.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        found = sorted({float(f"{step * 10.0**power:.6g}") for power in powers for step in steps})
        found = [tick for tick in found if low <= tick <= high or tick == 1]
        if len(found) <= 7:
            break
    return found


def bars(items: Iterable[tuple[str, float, bool]], *, label: str = "") -> Markup:
    """Horizontal bars, one per line: the label, the bar, the number in percent, of (label, share, highlight); a
    highlighted bar is drawn in the colour of a right answer and ticked. `label`: what the list is, for screen readers.
    """
    return drawn("bars", label, bar_rows(items))


def bar_rows(items: Iterable[tuple[str, float, bool]]) -> list[tuple[str, str, str, bool]]:
    """Rows of the macro `bars`."""
    return [(name, percent_of(share), number(share, percent=True), right) for name, share, right in items]


def percent_of(share: float) -> str:
    """The length of a bar, from 0 to 100; NaN is empty."""
    return f"{100 * (min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0):.2f}"


def histogram(counts: Sequence[int], label: str) -> Markup:
    """A small picture of how often each of a few values or ranges stands there, side by side."""
    if not counts:
        return Markup("")
    width, high = 120 / len(counts), max(*counts, 1)
    rects = [
        (f"{i * width:.1f}", f"{30 - 30 * n / high:.1f}", f"{max(width - 1, 0.5):.1f}", f"{30 * n / high:.1f}", n)
        for i, n in enumerate(counts)
    ]
    return drawn("histogram", label, rects, high)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table; columns of numbers only are set right, and numbers get readable digits (NaN is a dash).

    Cells may be text (escaped), Markup (kept), numbers, None or an `Estimate` (its interval is set small).
    """
    body = [list(row) for row in rows]
    for row in body:
        if len(row) != len(headers):
            raise ValueError(f"a row has {len(row)} cells for {len(headers)} headers: {row}")
    numeric = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(headers))]

    return drawn("table", [cell_text(h) for h in headers], [[cell_text(cell) for cell in row] for row in body], numeric)


def cell_text(value: Any) -> Markup:
    """Any value as a person reads it, escaped; – for nothing, an estimate with its interval."""
    if isinstance(value, Estimate):
        bounds = (
            Markup(' <small class="interval">{} to {}</small>').format(number(value.low), number(value.high))
            if math.isfinite(value.low)
            else ""
        )
        return Markup("{}{}").format(number(value.value), bounds)
    if value is None:
        return Markup("–")
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return Markup(number(value))
    return escape(value)


def number(value: Any, *, percent: bool = False) -> str:
    """A number in few characters.

    >>> number(1234567), number(0.00031), number(2.71828), number(float("nan")), number(0.1234, percent=True)
    ('1,234,567', '3.1e-4', '2.718', '–', '12.3%')
    """
    if isinstance(value, int | np.integer) and not percent:
        return f"{int(value):,}"
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if percent:
        return f"{value:.1%}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 0.001 or size == 0:
        return f"{value:.4g}"
    return _exponent(f"{value:.1e}")


class _Axes:
    """Where numbers land on the page: the ranges, their ticks and the margins these need."""

    def __init__(self, points: NDArray[np.float64], percent: bool, from_zero: bool) -> None:
        self.percent, self.width, self.height = percent, _WIDTH, _HEIGHT
        (x_low, y_low), (x_high, y_high) = points.min(0), points.max(0)
        self.x_ticks, self.x_range = _scale(float(x_low), float(x_high), 6, tight=True)
        if from_zero:
            y_low, y_high = min(0.0, y_low), y_high if y_high > 0 or y_low < 0 else 1.0
        self.y_ticks, self.y_range = _scale(float(y_low), float(y_high), 5)
        y_texts = [self.y_text(tick) for tick in self.y_ticks]
        self.left = 32.0 + 7 * max(map(len, y_texts))
        self.right, self.top, self.bottom = _WIDTH - 18.0, 12.0, _HEIGHT - 44.0

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def y_text(self, value: float) -> str:
        if not self.percent:
            return _tick_text(value, self.y_ticks)
        step = self.y_ticks[1] - self.y_ticks[0] if len(self.y_ticks) > 1 else 1.0
        return f"{value:.{0 if step >= 0.0099 else 1 if step >= 0.00099 else 2}%}"

    def x_text(self, value: float) -> str:
        return _tick_text(value, self.x_ticks)


def _line(points: NDArray[np.float64], axes: _Axes, name: str, index: int) -> dict[str, Any]:
    """One series: a path that breaks at gaps, and dots that carry the tooltips."""
    thinned = _every(points, _MOST_VERTICES)
    finite = np.isfinite(thinned).all(1)
    commands, pen_down = [], False
    for (x, y), good in zip(thinned, finite, strict=True):
        if good:
            commands.append(f"{'L' if pen_down else 'M'}{_px(axes.x(x))} {_px(axes.y(y))}")
        pen_down = bool(good)
    known, alone = thinned[finite], _alone(finite)[finite]
    keep = {int(i) for i in _every(np.arange(len(known))[:, None], _MOST_TOOLTIPS).ravel()}
    dots = [
        {
            "kind": "dot" if len(known) <= 25 or alone[i] else "dot hover",
            "x": axes.x(x),
            "y": axes.y(y),
            "value": number(float(y), percent=axes.percent),
            "where": number(int(x) if float(x).is_integer() else float(x)),
        }
        for i, (x, y) in enumerate(known)
        if i in keep or alone[i]
    ]
    colour, dash = _style(index)
    return {"name": name, "path": "".join(commands), "colour": colour, "dash": dash, "dots": dots}


def _described(title: str, lines: Mapping[str, NDArray[np.float64]], axes: _Axes) -> str:
    """The chart in words, for those who do not see it."""
    parts = []
    for name, points in lines.items():
        known = points[np.isfinite(points).all(1)]
        if len(known):
            first, last = (number(float(v), percent=axes.percent) for v in (known[0, 1], known[-1, 1]))
            parts.append(f"{name} from {first} to {last}" if len(known) > 1 else f"{name} {first}")
    return f"{title}: " + ", ".join(parts)


def _points(x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    xs, ys = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    if len(xs) != len(ys):
        raise ValueError(f"a series has {len(xs)} x values and {len(ys)} y values")
    return np.stack([xs, ys], axis=1)


def _every(points: NDArray[Any], most: int) -> NDArray[Any]:
    """At most about `most` rows, evenly taken, the last always among them."""
    if len(points) <= most:
        return points
    return points[np.unique(np.linspace(0, len(points) - 1, most).round().astype(np.int64))]


def _alone(finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Points without a neighbour, which a path alone would not show."""
    before, after = np.zeros_like(finite), np.zeros_like(finite)
    before[1:], after[:-1] = finite[:-1], finite[1:]
    return finite & ~before & ~after


def _scale(low: float, high: float, most: int, tight: bool = False) -> tuple[list[float], tuple[float, float]]:
    """Round ticks (1, 2, 5 x 10^k) and the range of the axis; `tight` keeps the range of the data.

    >>> _scale(0.0, 9.3, 5)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], (0.0, 10.0))
    """
    if not high - low > 1e-12 * max(abs(high), abs(low)):
        margin = abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]
    if tight:
        slack = 1e-9 * step
        return [t for t in ticks if low - slack <= t <= high + slack], (low, high)
    return ticks, (ticks[0], ticks[-1])


def _tick_text(value: float, ticks: Sequence[float]) -> str:
    """A tick as short as its neighbours allow.

    >>> _tick_text(20000, [0, 20000]), _tick_text(0.5, [0, 0.5]), _tick_text(2e-4, [0, 2e-4])
    ('20k', '0.5', '2e-4')
    """
    return next(
        written
        for digits in range(2, 16)
        for written in [_written(value, ticks, digits)]
        if digits == 15 or len({_written(tick, ticks, digits) for tick in ticks}) == len(set(ticks))
    )


def _written(value: float, ticks: Sequence[float], digits: int) -> str:
    size = max(abs(tick) for tick in ticks)
    if value == 0:
        return "0"
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * (1 if unit > 1e3 else 2):
            return f"{value / unit:.{max(digits, 4)}g}{letter}"
    if size < 0.01:
        return _exponent(f"{value:.{digits - 1}e}")
    return f"{value:.{max(digits, 6)}g}"


def _exponent(text: str) -> str:
    """'1.50e-04' -> '1.5e-4'."""
    digits, power = text.split("e")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}e{int(power)}"


def _style(index: int) -> tuple[str, str]:
    at = index % len(_COLOURS)
    return f"var(--series-{at + 1}, {_COLOURS[at]})", _DASHES[at]


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | np.number | Estimate) and not isinstance(value, bool))
