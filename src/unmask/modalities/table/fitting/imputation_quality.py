"""How well each column is imputed: the error on hidden cells of held-out rows, compared with the mean or the mode.

The cells are those that calibrate the intervals (`CellTable.calibrate`). Each is predicted by the member of the
ensemble that its row was held out from, whose network, linear part and additive part never saw the row. Two choices
still did: the bins of quantities, and how long to train. The errors are those of single members; the whole ensemble is
a little better. The mean, median or mode is that of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.evaluation.shown import aligned
from unmask.modalities.table.schema.schema import Column, Schema

LEAST = 20
"""Rows with a judged cell; of fewer nothing is said."""
CLEARLY = 0.1
"""An error smaller by this share is called clearly smaller, if chance does not explain it."""
COVERAGE = 0.9


@dataclass(frozen=True)
class Judged:
    """Judged cells of one column.

    Attributes:
        row, member: where a cell is, and who predicted it.
        truth, point: its value or category number, observed and predicted.
        needed: how much of the predicted distribution an interval must hold to reach the truth; NaN of categories.
    """

    row: np.ndarray
    member: np.ndarray
    truth: np.ndarray
    point: np.ndarray
    needed: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Judged]) -> Judged:
        names = ("row", "member", "truth", "point", "needed")
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})

    def __len__(self) -> int:
        return len(self.row)


def needed_share(scores: np.ndarray, coverage: float) -> float:
    """How much of a predicted distribution an interval must hold, so that it reaches the truth as often as asked
    (split-conformal; Lei et al. 2018); the sorted scores say how much held-out cells needed."""
    rank = int(np.ceil((len(scores) + 1) * coverage)) - 1
    return min(float(scores[min(rank, len(scores) - 1)]) + 1e-4, 1.0)  # an atom is reached only beyond its border


def covered(judged: Judged, coverage: float, least: int) -> float | None:
    """How often the interval held the truth. The width for the cells of one member is calibrated on the cells of the
    other members (with a single member: each half of the rows on the other half); None where either side has fewer
    than `least` cells."""
    side = judged.member if len(np.unique(judged.member)) > 1 else judged.row % 2
    held = np.zeros(len(judged), bool)
    for k in np.unique(side):
        own = side == k
        if (~own).sum() < least:
            return None
        held[own] = judged.needed[own] <= needed_share(np.sort(judged.needed[~own]), coverage)
    return float(held.mean()) if len(held) else None


def best_constant(values: np.ndarray, rule: str) -> float:
    """The mean, the median or the mode of the observed values of all rows. Without the held-out rows it would be biased
    against these: of two equally frequent levels, the mode of the other rows is the one that is rarer in the held-out
    rows."""
    known = values[~np.isnan(values)]
    if rule == "mode":
        level, count = np.unique(known, return_counts=True)
        return float(level[count.argmax()])
    return float(known.mean() if rule == "mean" else np.median(known))


def column_figures(column: Column, judged: Judged, values: np.ndarray) -> dict[str, Any]:
    """The figures of one column; see `columns_imputed`. `values`: (rows,) of the column, NaN where missing."""
    rule = "mean" if column.is_quantity else "mode"
    plain = best_constant(values, rule)
    if column.is_quantity:
        losses = [(p - judged.truth) ** 2 for p in (judged.point, plain)]
        error, base = (math.sqrt(loss.mean()) if len(loss) else math.nan for loss in losses)
        more = {
            "mae": _mean(np.abs(judged.point - judged.truth)),
            "mae_of_median": _mean(np.abs(best_constant(values, "median") - judged.truth)),
            "coverage": covered(judged, COVERAGE, 30),
        }
    else:
        losses = [np.not_equal(p, judged.truth).astype(float) for p in (judged.point, plain)]
        error, base = (float(loss.mean()) if len(loss) else math.nan for loss in losses)
        more = {"mae": None, "mae_of_median": None, "coverage": None}
    verdict = judgement(losses[1] - losses[0], judged.row, error, base)
    if rule == "mode" and error < base:  # where levels are about as frequent, another one may lead in these cells
        other = np.not_equal(best_constant(judged.truth, rule), judged.truth).astype(float)
        if other.mean() < base:
            base = float(other.mean())
            verdict = judgement(other - losses[0], judged.row, error, base).replace("worse", "no_better")
    unit = "days" if column.kind == "datetime" else column.unit
    return {
        "column": column.name,
        "kind": column.kind,
        "measure": "rmse" if column.is_quantity else "share_wrong",
        "unit": unit,
        "error": _number(error),
        f"error_of_{rule}": _number(base),
        **more,
        "cells": len(judged),
        "verdict": verdict,
        "sentence": sentence(verdict, rule, more["coverage"]),
    }


def judgement(gain: np.ndarray, row: np.ndarray, error: float, base: float) -> str:
    """ "clearly_better", "slightly_better", "unclear", "no_better", "worse", "too_few" or "not_finite".

    Better means a mean gain of more than two standard errors; the cells of one row count as one observation.
    """
    rows, at = np.unique(row, return_inverse=True)
    if len(rows) < LEAST:
        return "too_few"
    each = np.bincount(at, gain) / np.bincount(at)
    with np.errstate(invalid="ignore"):
        deviation = each.std(ddof=1) / math.sqrt(len(each))
    if not np.isfinite([each.mean(), deviation, error, base]).all():
        return "not_finite"
    if each.mean() < -2 * deviation and error > base:
        return "worse"
    if each.mean() <= 2 * deviation or error >= base:
        return "unclear" if error < base and error <= (1 - CLEARLY) * base else "no_better"
    return "clearly_better" if error <= (1 - CLEARLY) * base else "slightly_better"


def sentence(verdict: str, rule: str, coverage: float | None) -> str:
    """The verdict in plain words."""
    words = {
        "clearly_better": f"Imputed clearly better than by the {rule}.",
        "slightly_better": f"Imputed a little better than by the {rule}: the other columns say little about it.",
        "unclear": f"Seems better than by the {rule}, but chance may explain it: judge it on more rows.",
        "no_better": f"No better than the {rule}: treat imputed values with care.",
        "worse": f"Worse than the {rule}: do not rely on its imputed values.",
        "too_few": "Too few observed cells to judge.",
        "not_finite": "Its errors are no finite numbers: do not rely on its imputed values.",
    }[verdict]
    if coverage is not None and verdict not in ("too_few", "not_finite") and abs(coverage - COVERAGE) > 0.05:
        words += (
            f" Its {COVERAGE:.0%} intervals held the truth in {coverage:.0%} of the cells: too "
            f"{'narrow' if coverage < COVERAGE else 'wide'}."
        )
    return words


def columns_imputed(schema: Schema, judged: dict[int, Judged], columns: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """One dict per modelled column with judged cells: how well held-out cells are imputed.

    Keys: column, kind, measure ("rmse", in the column's unit, of dates in days; or "share_wrong"), unit, error,
    error_of_mean or error_of_mode, mae, mae_of_median (mean absolute errors), coverage (of 90 % intervals), cells,
    verdict
    (see `judgement`), sentence. All errors: lower is better.
    """
    return [
        column_figures(schema.columns[i], judged[place], columns[place])
        for place, i in enumerate(schema.modelled)
        if place in judged and len(judged[place])
    ]


def figure_texts(figure: dict[str, Any]) -> tuple[str, str, str]:
    """(error, error of the mean or mode, coverage) of one column as texts: with the unit, or in percent."""
    base = figure.get("error_of_mean", figure.get("error_of_mode"))
    if figure["measure"] == "rmse":
        unit = f"\u00a0{figure['unit']}" if figure["unit"] else ""
        error, base = (f"{v:.4g}{unit}" if v is not None else "–" for v in (figure["error"], base))
    else:
        error, base = (f"{v:.1%}\u00a0wrong" if v is not None else "–" for v in (figure["error"], base))
    return error, base, f"{figure['coverage']:.0%}" if figure["coverage"] is not None else "–"


def text_table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """The figures as lines for a terminal, with a heading."""
    if not figures:
        return []
    rows = [("column", "held-out error", "mean or mode", "90% interval holds", "cells", "")]
    rows += [(f["column"], *figure_texts(f), str(f["cells"]), f["sentence"]) for f in figures]
    return aligned(rows)


def with_care(figures: Sequence[dict[str, Any]]) -> str:
    """A sentence that names the columns whose imputed values are no better than a mean; "" where there are none."""
    poor = [f["column"] for f in figures if f["verdict"] in ("no_better", "worse")]
    return f"treat imputed values of {', '.join(poor)} with care: no better than the mean or mode" if poor else ""


def error_removed(figure: dict[str, Any]) -> float:
    """The share of the mean's or mode's error that is gone: 1 nothing left, 0 no better, or by chance as it may be."""
    base = figure.get("error_of_mean", figure.get("error_of_mode"))
    return 1 - figure["error"] / base if figure["verdict"] in ("clearly_better", "slightly_better") else 0.0


def _mean(x: np.ndarray) -> float | None:
    return _number(float(x.mean())) if len(x) else None


def _number(x: float) -> float | None:
    return float(f"{x:.6g}") if math.isfinite(x) else None
