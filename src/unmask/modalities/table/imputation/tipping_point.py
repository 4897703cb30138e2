"""How far from "missing at random" a conclusion holds: the tipping point of a shift, and its picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.errors import UserError
from unmask.modalities.table.imputation.multiple import MultipleImputation


class TippingPoint(list[dict[str, float]]):
    """One record per shift (delta, estimate, low, high, significant), and where the conclusion changes.

    Attributes:
        delta: the shift nearest to 0 at which the interval's end reaches the null value, found by interpolation between
            the shifts tried; None where the conclusion is the same at all of them.
        column: the shifted column; of a category with the level that a shift above 0 makes likelier.
        null: the value of no effect.
    """

    def __init__(self, records: Sequence[dict[str, float]], *, column: str, null: float) -> None:
        super().__init__(records)
        self.column, self.null = column, null
        self.delta = _tips(records, null)

    def __str__(self) -> str:
        if not self:
            return "no shift tried"
        deltas = [r["delta"] for r in self]
        if self.delta is None:
            verdict = "significant" if self[0]["significant"] else "not significant"
            return f"{self.column}: {verdict} for every shift from {min(deltas):g} to {max(deltas):g}"
        return f"{self.column}: the conclusion changes at a shift of {self.delta:.3g}"

    def chart(self) -> Markup:
        """The estimate and its interval over the shift, as inline SVG."""
        from unmask.evaluation.charts import line_chart

        at = [r["delta"] for r in self]
        lines = {name: (at, [r[key] for r in self]) for name, key in _LINES}
        lines["no effect"] = ([min(at), max(at)], [self.null, self.null])
        if self.delta is not None:
            reach = [min(r["low"] for r in self), max(r["high"] for r in self)]
            lines[f"tips at {self.delta:.3g}"] = ([self.delta, self.delta], reach)
        return line_chart(lines, f"Tipping point: {self.column}", f"shift of {self.column}", "effect")

    def write(self, path: str | Path) -> Path:
        """The picture and its figures as an HTML page."""
        from unmask.evaluation.charts import table
        from unmask.evaluation.report import Report

        page = Report(f"Tipping point: {self.column}", str(self))
        page.section("Effect by shift", "Imputed values are moved by the shift; observed ones stay.").chart(
            self.chart()
        )
        keys = ("delta", "estimate", "low", "high")
        rows = [[*(r[k] for k in keys), "yes" if r["significant"] else "no"] for r in self]
        page.section("Figures", table(["shift", "effect", "from", "to", "significant"], rows))
        sentence = (
            "Ask of the shift at which the conclusion changes whether it is plausible: whether patients whose value is "
            "missing can differ by that much from those alike in all else whose value is known. If they can, say so "
            "beside the result."
        )
        return page.use(sentence, heading="Use this figure").write(path)


_LINES = (("estimate", "estimate"), ("lower end", "low"), ("upper end", "high"))


def _tips(records: Sequence[dict[str, float]], null: float) -> float | None:
    found = []
    ordered = sorted(records, key=lambda r: r["delta"])
    for a, b in itertools.pairwise(ordered):
        turned = (a["estimate"] - null) * (
            b["estimate"] - null
        ) < 0  # from an effect to its opposite, between two shifts
        if a["significant"] == b["significant"] and not (a["significant"] and turned):
            continue
        for end in ("low", "high"):
            before, after = a[end] - null, b[end] - null
            if before * after <= 0 and before != after:
                found.append(a["delta"] + (b["delta"] - a["delta"]) * before / (before - after))
    return min(found, key=abs) if found else None


def tipping_point(
    data: Any,
    column: str,
    analyse: Callable[[Any], Any] | str,
    deltas: Sequence[float],
    *,
    where: str | None = None,
    effect: str | None = None,
    null: float = 0.0,
    **options: Any,
) -> TippingPoint:
    """How far imputed values of a column must be moved before a conclusion changes (values missing not at random).

    The table is imputed once; every shift is applied to the same draws, so the curve is smooth.

    Args:
        data: a table, or a fitted `MultipleImputation`.
        analyse: as in `MultipleImputation.pool`: a function of a completed table, or a formula.
        deltas: shifts to try, in the column's unit (of a category: log odds ratios).
        where: shift only rows that meet this condition, e.g. "arm == 1".
        effect: the estimate in question where the analysis gives several; by default the only one.
        null: the value of no effect.
        options: of `MultipleImputation`.
    """

    def one(delta: float) -> dict[str, float | Mapping[str, float]]:
        return {column: {where: delta} if where else delta}

    if isinstance(data, MultipleImputation):
        if options:
            raise UserError(
                f"options {sorted(options)} of a fitted imputation", hint="Give them to MultipleImputation."
            )
        done = data
    else:
        done = MultipleImputation(**options).fit(data)
    done.refuse_idle(one(1.0))
    records = []
    for delta in map(float, deltas):
        pooled = done.shifted(one(delta)).pool(analyse)
        at = 0
        if effect is not None:
            if effect not in pooled.names:
                raise UserError(f"effect {effect!r}", hint=f"The analysis gives {', '.join(pooled.names)}.")
            at = pooled.names.index(effect)
        elif len(pooled.names) > 1:
            raise UserError(f"the analysis gives {', '.join(pooled.names)}", hint="Name one of them: effect=")
        low, high = float(pooled.low[at]), float(pooled.high[at])
        records.append(
            {
                "delta": delta,
                "estimate": float(pooled.estimate[at]),
                "low": low,
                "high": high,
                "significant": bool(not low <= null <= high),
            }
        )
    if not np.isfinite([r["estimate"] for r in records]).all():
        raise UserError("an estimate is not finite", hint="Look at the analysis under the largest shift.")
    moved = done.schema_.columns[done.schema_.number(column)]
    named = column if moved.is_quantity else f"{column}={moved.categories[-1]}"
    return TippingPoint(records, column=named, null=null)
