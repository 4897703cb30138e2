"""The figures of a comparison in words: what each means, which direction is better, and how it stands between its floor
and ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.evaluation.meanings import Meaning, placed
from unmask.evaluation.shown import Printed, Shown

CEILING = "another sample of real rows"
FLOOR = "columns shuffled one by one"


MEANINGS: dict[str, Meaning] = {
    "mean_log_hr_difference": Meaning(
        "Difference of log hazard ratios",
        "lower",
        0,
        "How far hazard ratios fitted to synthetic rows are from those of real rows, on average; 0.1 is a ratio off by "
        "a tenth.",
        "hazard ratios",
    ),
    "interval_overlap": Meaning(
        "Overlap of 95 % intervals",
        "higher",
        1,
        "How much the confidence intervals of synthetic and real hazard ratios share; 1 is all, below 0 they are "
        "apart.",
        "intervals",
    ),
    "sign_flips": Meaning(
        "Sign flips",
        "lower",
        0,
        "Covariates that clearly harm in one table and clearly protect in the other.",
        "signs",
    ),
    "km_area": Meaning(
        "Area between survival curves",
        "lower",
        0,
        "Mean distance of the Kaplan-Meier curves; 0.02 is two percentage points of survival.",
        "survival",
    ),
    "incidence_area": Meaning(
        "Area between cumulative incidences",
        "lower",
        0,
        "Mean distance of the Aalen-Johansen curves of competing causes, on average over causes.",
        "incidence",
    ),
    "censoring_area": Meaning(
        "Area between censoring curves", "lower", 0, "The same for how long patients were followed.", "censoring"
    ),
    "c_index_synthetic": Meaning(
        "C-index of a model from synthetic rows",
        "higher",
        1,
        "How well a Cox regression fitted to synthetic rows ranks real patients; 0.5 is chance.",
        "C-index",
    ),
    "marginal_distance": Meaning(
        "Distance of single columns",
        "lower",
        0,
        "How far the distribution of a column is from the real one, on average over columns.",
        "columns",
    ),
    "correlation_gap": Meaning(
        "Difference of correlations",
        "lower",
        0,
        "Mean absolute difference of all pairwise correlations.",
        "correlations",
    ),
    "two_sample_auc": Meaning(
        "Told apart by a classifier (AUC)",
        "near 0.5",
        0.5,
        "How well boosted trees tell synthetic rows from real ones: 0.5 not at all, 1 without fail.",
    ),
    "alpha_precision": Meaning(
        "Alpha-precision",
        "higher",
        1,
        "Whether synthetic rows lie as deep inside the cloud of real rows as real ones do.",
    ),
    "beta_recall": Meaning("Beta-recall", "higher", 1, "Whether synthetic rows cover all of the cloud of real rows."),
    "identical_rows": Meaning(
        "Copies of real rows", "lower", 0, "Share of synthetic rows that equal a real one in all cells."
    ),
    "identical_cells": Meaning(
        "Cells shared with the most alike real row",
        "lower",
        0,
        "Mean share of equal cells; tables of few categories share many by chance.",
    ),
    "dcr_share": Meaning(
        "Nearer to training than to held-out rows",
        "near 0.5",
        0.5,
        "Share of synthetic rows nearer to a training row than to a held-out one: 0.5 means no memory of training "
        "rows, 1 copying.",
    ),
    "membership_auc": Meaning(
        "Membership attack on the rows (AUC)",
        "near 0.5",
        0.5,
        "How well someone who holds the synthetic rows tells who was in the training data; 0.5 is chance.",
    ),
    "model_membership_auc": Meaning(
        "Membership attack on the model (AUC)",
        "near 0.5",
        0.5,
        "How well someone who holds the model folder itself tells who was in the training data; 0.5 is chance.",
    ),
}
"""Figures of `unmask evaluate` for tables, in the order in which they are shown."""


@dataclass(frozen=True)
class ShownFigure:
    """A figure as it is shown.

    Attributes:
        ceiling, floor: the same figure of another sample of real rows and of shuffled columns, where there are any.
        share: of the way from the floor (0) to the ceiling (1); None without both, or where they are the wrong way
            round.
        marked: whether the floor is at least as good as the ceiling, so that the figure is not informative here.
    """

    key: str
    meaning: Meaning
    value: float
    ceiling: float | None
    floor: float | None
    share: float | None
    marked: bool
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        m, rest = self.meaning, {k: v for k, v in vars(self).items() if k not in ("key", "meaning", "value")}
        about = {"key": self.key, "label": m.label, "value": self.value, "better": m.better, "best": m.best}
        return about | rest | {"sentence": m.sentence}


def readings(found: Mapping[str, Any]) -> list[ShownFigure]:
    """All figures of a comparison that are there; see `evaluate.compare` and `privacy.privacy`."""
    ends = [found.get(end, {}) for end in ("ceiling", "floor")]
    card = found.get("privacy", {})
    out = []
    for key, meaning in MEANINGS.items():
        value = card.get(key, found.get(key))
        if value is None or not math.isfinite(value):
            continue
        ceiling, floor = (end.get(key) for end in ends)
        share, marked = placed(meaning, value, ceiling, floor)
        verdict = _verdict(key, meaning, value, card, ceiling, share, marked)
        out.append(ShownFigure(key, meaning, value, ceiling, floor, share, marked, verdict))
    return out


def _verdict(
    key: str,
    meaning: Meaning,
    value: float,
    card: Mapping[str, float],
    ceiling: float | None,
    share: float | None,
    marked: bool,
) -> str:
    if key == "marginal_distance" and marked and ceiling:
        return f"{value / ceiling:.1f} times that of {CEILING}; shuffling keeps single columns as they are."
    if marked:
        return "Cannot tell good rows from bad ones here: the floor is as good as the ceiling."
    if share is not None:
        if share >= 1:
            return f"As good as {CEILING}."
        return "No better than the floor." if share <= 0 else f"{share:.0%} of the way from the floor to the ceiling."
    if meaning.better == "near 0.5" and value < 0.2 and key != "model_membership_auc":
        return "Far below chance, as beside synthetic rows given for real ones: are tables mixed up?"
    if key.endswith("_auc") and (low := card.get(f"{key[:-4]}_low")) is not None:
        high, copies = card.get(f"{key[:-4]}_high", math.nan), card.get(f"{key}_copies")
        scale = f"; on copies of the training rows it reaches {copies:.2f}" if copies is not None else ""
        if low <= 0.5:
            return f"No attack shown: the 95 % interval, {low:.2f} to {high:.2f}, holds 0.5 or less{scale}."
        return f"An attack works to this degree: 95 % interval {low:.2f} to {high:.2f}{scale}."
    if meaning.better == "near 0.5":
        off = max(value - 0.5, 0.0)
        return "Near chance." if off < 0.05 else "A little beyond chance." if off < 0.15 else "Far beyond chance."
    if key == "identical_rows":
        chance = card.get("identical_rows_held_out")
        among = f"; among held-out rows chance makes {chance:.1%}" if chance is not None else ""
        return ("None" if value == 0 else f"{value:.1%} of the rows") + among
    return f"The best is {meaning.best:g}." if value != meaning.best else "The best there is."


DIRECTIONS = {"lower": "↓\u00a0lower", "higher": "↑\u00a0higher", "near 0.5": "→\u00a00.5"}


class SyntheticFigures(Printed, dict[str, Any]):
    """Figures of synthetic rows beside real ones, by name; `print` shows value, direction, both ends, and words."""

    def shown(self) -> Shown:
        """The figures as `print` shows them."""
        rows = [
            (r.meaning.label, _text(r.value), DIRECTIONS[r.meaning.better], _text(r.ceiling), _text(r.floor), r.verdict)
            for r in readings(self)
        ]
        more = ("overlap", "compared_rows", "note", "report")
        return Shown(
            title=f"Synthetic rows beside {self['rows']:,} real ones",
            columns=("figure", "value", "better", "ceiling", "floor", "in words"),
            rows=rows,
            notes=[
                f"ceiling: {CEILING}; floor: {FLOOR}",
                *(f"{key.replace('_', ' ')}: {self[key]}" for key in more if key in self),
            ],
        )


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def add_figures(report: Any, found: Mapping[str, Any]) -> None:
    """The figures onto a report: a picture of where each stands between floor and ceiling, a table, and
    what they mean."""
    from unmask.evaluation.charts import bars, table

    shown = readings(found)
    between = [r for r in shown if r.share is not None]
    if between:
        report.section(
            "How alike",
            "How far each figure has come from the floor to the ceiling.",
            note=f"The floor (0 %) is {FLOOR}: right columns, no structure. The ceiling (100 %, with a tick from 95 % "
            f"on) is {CEILING}: "
            "what chance alone does.",
        )
        report.chart(
            bars([(r.meaning.short, min(max(r.share or 0.0, 0.0), 1.0), (r.share or 0.0) >= 0.95) for r in between])
        )
    rows, meant = [], []
    for r in shown:
        m, verdict = r.meaning, ("⚠ " if r.marked else "") + r.verdict
        rows.append((m.label, r.value, DIRECTIONS[m.better], r.ceiling, r.floor, verdict))
        meant.append((m.label, m.sentence))
    report.section(
        "Figures",
        table(("figure", "synthetic", "better", "ceiling", "floor", "in words"), rows),
        note=f"Ceiling: {CEILING}. Floor: {FLOOR}. ⚠: the floor is at least as good as the ceiling.",
    )
    report.section("What the figures mean", table(("figure", "meaning"), meant))
