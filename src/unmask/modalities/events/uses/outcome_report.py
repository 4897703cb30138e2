"""report.html of a fine-tuned outcome: figures beside the baselines', calibration, subgroups, a patient's timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.errors import quoted
from unmask.evaluation.charts import drawn, line_chart, scatter_chart, table
from unmask.evaluation.charts import number as amount
from unmask.evaluation.metrics import bootstrap_mean
from unmask.evaluation.report import Report
from unmask.evaluation.resampling import FEWEST as FEWEST_CASES
from unmask.modalities.events.outcome import clinical
from unmask.modalities.events.outcome.scoring import FIGURES, scored
from unmask.modalities.events.outcome.targets import Binary, Classes, NumberTarget, Target, TimeToEvent
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, STATIC, Labels
from unmask.modalities.events.records.vocabulary import FIRST
from unmask.modalities.events.uses.card import KINDS
from unmask.modalities.events.uses.fill import timeline
from unmask.modalities.events.uses.folder import EventFolder
from unmask.writing import final_place

LEAST = 30
"""Points that a subgroup needs to be shown."""
MOST_GROUPS, MOST_EVENTS = 24, 60
PERSONAL = ("GENDER//", "SEX//", "RACE//", "ETHNICITY//", "INSURANCE//", "LANGUAGE//", "MARITAL_STATUS//")
"""Codes that subgroups go by though they may have a time: an admission or a coverage says them anew."""
BANDS = (0, 18, 40, 65, 80, 200)
SHOWN = tuple(FIGURES)
MINUTE = "%Y\u2011%m\u2011%d\u00a0%H:%M"
"""Date and minute, with hyphens and a space that keep them on one line of a table."""
IN_UNITS = ("rmse", "mae")
"""Figures in the unit of the labels, of any size."""
WORTH = (
    "Measured on the training patients alone, in five folds: how much better the head does with all parts than without "
    "this one, with 95 % intervals over patients. What is worth nothing is left out."
)


def worth_rows(worth: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows of what each part is worth."""
    keys = [k for k in ("log_likelihood", "auroc") if all(k in p for p in worth["parts"].values())]
    rows = []
    for part, found in worth["parts"].items():
        shares = [f"{found[k]:+.4f} ({' to '.join(f'{b:+.4f}' for b in found['intervals'][k])})" for k in keys]
        rows.append([part, *shares, "left out" if part in worth["left_out"] else "kept"])
    return ["part", *(("log-likelihood, nats per point", "AUROC")[: len(keys)]), ""], rows


def write(
    out: Path,
    found: dict[str, Any],
    histories: Histories,
    points: Labels,
    predicted: dict[str, np.ndarray],
    target: Target,
    folder: EventFolder,
    words: dict[str, str] | None = None,
    examples: bool = False,
) -> list[dict[str, Any]]:
    """Write the page about the held-out `points`, with codes in `words`, and with `examples` the record of the patient
    at highest risk; returns the figures by subgroup."""
    words = words or {}
    outcome = str(found.get("outcome", "the outcome"))
    page = Report(f"Prediction of {outcome} from patient events", str(final_place(out)))
    page.facts(
        {
            "Outcome": outcome,
            "Training labels": _count(found, "training"),
            "Held-out labels": _count(found, "held_out"),
            "Kind": KINDS[target.kind],
            "Time": f"{found['seconds']:.0f} s",
        }
    )
    if len(points):
        page.section(
            "When predictions are asked for", clinical.when_predicted(histories, points) + " (held-out points)."
        )
    if found.get("unseen_classes"):
        listed = ", ".join(f"{quoted(name)} ({count})" for name, count in found["unseen_classes"].items())
        page.facts({"Held-out labels of classes that training did not have": listed})
    counts = next((name for name in found["results"] if name.endswith("number of events")), "number of events")
    page.section(
        "On held-out patients",
        figures_table(found["results"], "model"),
        note="95 % bootstrap intervals, resampling patients with all of their points; of fewer than "
        f"{FEWEST_CASES} patients with or without the outcome AUROC alone has one (Newcombe's); no model saw these "
        "patients' labels. Higher is better for AUROC, AUPRC, accuracy and C-index, lower for Brier score, log loss "
        "and calibration error (10 bins of equal count, less what chance adds; beside it what right predictions would "
        "show by chance alone); a calibration slope of 1 and an intercept of 0 are right. The "
        "row 'prevalence' is what a rule that knows nothing of the patient scores, "
        f"'{counts}' one that knows no more than that."
        if not isinstance(target, NumberTarget)
        else "95 % bootstrap intervals, resampling patients with all of their points; no model saw these patients' "
        "labels. RMSE and the mean error (both in the unit of the labels) are better when lower; R² (share of the "
        f"variance that is explained) and rank correlation when higher; of the intervals {target.level:.0%} should "
        "hold the number. 'training mean' is a rule that knows nothing of the patient, "
        f"'{counts}' one that knows no more than that, 'last value of ...' one that knows a single value.",
    )
    if isinstance(target, Binary) and len(points) >= 20 and predicted:
        assert points.value is not None
        truth = points.value.astype(np.int64)
        ours = found["results"]["ours"]
        shown: dict[str, np.ndarray] = {n: predicted[n][:, 0] for n in ("ours", "gradient boosting") if n in predicted}
        if 0 < truth.sum() < len(truth):
            page.section(
                "Calibration and ROC", note=clinical.calibration_words(truth, shown["ours"], ours["intervals"])
            )
            page.chart(clinical.roc_chart(truth, shown)).chart(clinical.calibration_chart(truth, shown))
            found["thresholds"] = clinical.thresholds(truth, shown["ours"], points.subject)
            page.section(
                "If patients were flagged at a threshold",
                clinical.threshold_table(found["thresholds"]),
                note="Ours, on held-out prediction points. PPV: of those flagged, the share that had the outcome; "
                "NPV: of those not flagged, the share that did not. Thresholds are fixed, not chosen on these "
                "patients; intervals of 95 % resample patients.",
            )
    if isinstance(target, TimeToEvent) and len(points) >= 20 and predicted:
        page.section("Calibration", note="Held-out points; who was censored counts as Kaplan and Meier count them.")
        for chart in clinical.time_calibration(points, predicted["ours"], target.cuts):
            page.chart(chart)
    if isinstance(target, NumberTarget) and len(points) and predicted:
        sections(page, points, predicted["ours"], target, outcome)
    key = next((k for k in SHOWN if any(k in row for row in found.get("curve", ()))), None)
    if "worth" in found:
        page.section("What each part is worth", table(*worth_rows(found["worth"])), note=WORTH)
    if key is not None:
        lines: dict[str, tuple[list[float], list[float]]] = {}
        for row in found["curve"]:
            lines.setdefault(row["model"], ([], []))[0].append(row["labels"])
            lines[row["model"]][1].append(row.get(key, float("nan")))
        for name, result in found["results"].items():
            x, y = lines.setdefault(name, ([], []))
            x.append(found["training"])
            y.append(result.get(key, float("nan")))
        title = FIGURES[key]
        page.section("Learning curve", line_chart(lines, f"{title} by labels", "training labels", title))
    groups = by_subgroup(histories, points, target, predicted["ours"]) if predicted else []
    if groups:
        page.section(
            "By subgroup",
            figures_table({g["group"]: g for g in groups}, "group, ours"),
            note=f"Age bands, static facts and what was last said of a person, with {LEAST} held-out points or more.",
        )
    if examples and len(points) and predicted:
        _draw_timeline(page, folder, histories, points, predicted["ours"], target, words)
    page.write(out / "report.html")
    return groups


def _count(found: dict[str, Any], part: str) -> str:
    """How many labels, of how many patients, and how many of a yes or no are yes."""
    who, yes = found.get("patients", {}).get(part), found.get("positives", {}).get(part)
    text = f"{found[part]:,}" + ("" if who is None else f" of {who:,} patients")
    return text if yes is None or not found[part] else f"{text}; {yes:,} positive ({yes / found[part]:.1%})"


def figures_table(results: dict[str, dict[str, Any]], first: str) -> Any:
    """One row a name, one column a figure, its interval behind it."""
    shown = [k for k in SHOWN if any(k in r for r in results.values())]
    rows = [[name, result["n"], *(_cell(k, result) for k in shown)] for name, result in results.items()]
    return table([first, "n", *(FIGURES[k] for k in shown)], rows)


def figure_text(name: str, value: float) -> str:
    """A figure with three decimals, or with four digits where it is in the unit of the labels.

    >>> figure_text("auroc", 0.81234), figure_text("rmse", 12345.6), figure_text("mae", 0.00012)
    ('0.812', '12,346', '1.2e-4')
    """
    return amount(value) if name in IN_UNITS else f"{value:.3f}"


def figure_cell(name: str, result: Mapping[str, Any]) -> str:
    """A figure, and its interval behind it; "" where it is not among the results."""
    ends = result["intervals"].get(name)
    span = "" if ends is None else f" ({figure_text(name, ends[0])} to {figure_text(name, ends[1])})"
    return figure_text(name, result[name]) + span if name in result else ""


def _cell(name: str, result: dict[str, Any]) -> Markup:
    """`figure_cell`, the interval below the figure."""
    value, _, span = figure_cell(name, result).partition(" (")
    return drawn("ranged", value, span.removesuffix(")"))


def by_subgroup(histories: Histories, points: Labels, target: Target, p: np.ndarray) -> list[dict[str, Any]]:
    """Figures of each subgroup that has `LEAST` points, with its name as `group`."""
    return [
        {"group": name, **scored(target, points.take(chosen), p[chosen], draws=200)}
        for name, chosen in subgroups(histories, points).items()
    ]


def subgroups(histories: Histories, points: Labels) -> dict[str, np.ndarray]:
    """Name -> which points, `LEAST` of them at least: age at the prediction time in bands, static codes, halves of
    static values, and of `PERSONAL` codes with a time the last one known."""
    both = list(zip(points.subject.tolist(), points.time.tolist(), strict=True))
    years = np.array([histories.age(s, t, t) for s, t in both])
    out: dict[str, np.ndarray] = {}
    for low, high in pairwise(BANDS):
        chosen = (years >= max(low, 1e-9)) & (years < high)
        out[f"age {low} to {high}" if high < 200 else f"age {low} or more"] = chosen
    events, codes = histories.events, histories.vocabulary.codes
    personal = np.array([False] * FIRST + [code.startswith(PERSONAL) for code in codes])
    value: dict[int, np.ndarray] = {}
    for i, (subject, moment) in enumerate(both):
        rows, last = histories.rows(subject, moment), dict[str, int]()
        static = events.time[rows] == STATIC
        for row in rows[static | personal[histories.code[rows]]]:
            code = int(histories.code[row])
            if code < FIRST:
                continue
            if events.time[row] != STATIC:
                last[codes[code - FIRST].split("//")[0]] = code
                continue
            known = events.value[row] if math.isfinite(events.value[row]) else math.inf
            value.setdefault(code, np.full(len(both), np.nan))[i] = known
        for code in last.values():
            value.setdefault(code, np.full(len(both), np.nan))[i] = math.inf
    for code, found in value.items():
        name = codes[code - FIRST]
        if np.isinf(found).any():
            out[name] = np.isinf(found)
        elif np.isfinite(found).sum() >= 2 * LEAST:
            middle = float(np.nanmedian(found))
            out |= {f"{name} up to {middle:g}": found <= middle, f"{name} above {middle:g}": found > middle}
    out = {name: chosen for name, chosen in out.items() if not chosen.all() and chosen.sum() >= LEAST}
    return dict([*out.items()][:MOST_GROUPS])


def _draw_timeline(
    page: Report,
    folder: EventFolder,
    histories: Histories,
    points: Labels,
    p: np.ndarray,
    target: Target,
    words: dict[str, str],
) -> None:
    """The held-out patient of highest predicted risk (of classes, of the last; of numbers, the highest): each visit
    hidden alone, what was expected of it."""
    at = int(p[:, 0 if isinstance(target, NumberTarget) else -1].argmax())
    subject, moment = int(points.subject[at]), int(points.time[at])
    rows = timeline(folder, histories, subject, moment)
    if not rows:
        return
    risk = f"probability of {target.names[-1]}" if isinstance(target, Classes) else "risk"
    risk = "number" if isinstance(target, NumberTarget) else risk
    note = (
        f"Subject {int(histories.events.subjects[subject])}, the one of highest predicted {risk} among the held out. "
        "Each visit was hidden alone and predicted from all others; the interval is of 80 %."
    )
    page.section("A patient's timeline", "", note=note)
    begin = rows[0]["time"]
    measured = [r for r in rows if r["value"] is not None and r["expected"] is not None]
    counts: dict[str, int] = {}
    for r in measured:
        counts[r["code"]] = counts.get(r["code"], 0) + 1
    for code in sorted(counts, key=lambda c: -counts[c])[:3]:
        selected = [r for r in measured if r["code"] == code]
        if len(selected) > 1:
            unit, size = clinical.unit_for((selected[-1]["time"] - begin) / HOUR)
            since = [(r["time"] - begin) / HOUR / size for r in selected]
            lines = {
                n: (since, [r[k] for r in selected])
                for n, k in (("measured", "value"), ("expected", "expected"), ("low", "low"), ("high", "high"))
            }
            page.chart(line_chart(lines, clinical.named(code, words), f"{unit} since the first event shown", ""))
    shown = [
        [
            datetime.fromtimestamp(r["time"] / 1e6, UTC).strftime(MINUTE),
            clinical.named(r["code"], words),
            "" if r["value"] is None else f"{r['value']:.4g}",
            "" if r["expected"] is None else f"{r['expected']:.3g} ({r['low']:.3g} to {r['high']:.3g})",
            f"{r['probability']:.1%}",
            clinical.named(r["likeliest"], words),
        ]
        for r in rows[-MOST_EVENTS:]
    ]
    headers = ["time", "event", "value", "value expected", "probability given to it", "likeliest there"]
    page.section("Its last events, hidden visit by visit", table(headers, shown))


RANGES = 5
ENDS = ("value", "low", "high")
POINTS = 500
"""Points drawn, evenly taken."""


def sections(page: Report, points: Labels, p: np.ndarray, target: NumberTarget, name: str) -> None:
    """Write how far predictions of the held-out `points` are off: in words, point by point, by range."""
    y, seen = points.amounts, target.judged(p)
    page.section("How far off", in_words(y, seen, target))
    some = np.unique(np.linspace(0, len(y) - 1, min(POINTS, len(y))).astype(int))
    page.chart(
        scatter_chart(
            np.stack([seen[some, 0], y[some]], 1), f"Observed {name} against predicted", "predicted", "observed"
        )
    )
    note = (
        "Held-out points in {} ranges of equal count by what was {}, each mean and share with its 95 % interval over "
        "resampled patients. {}"
    )
    for by, way in (("predicted", seen[:, 0]), ("observed", y)):
        more = {
            "predicted": "Where the observed mean is not near the predicted one, predictions of that size are off as "
            "a whole.",
            "observed": "The lowest are predicted too high and the highest too low by every model that is not perfect.",
        }[by]
        page.section(
            f"Error by {by} value", range_table(y, seen, way, points.subject), note=note.format(RANGES, by, more)
        )


def in_words(y: np.ndarray, seen: np.ndarray, target: NumberTarget) -> str:
    """A paragraph about the errors, beside those of always saying the training mean, and the intervals."""
    off, rule = np.abs(y - seen[:, 0]), np.abs(y - target.centre)
    half, most = np.quantile(off, [0.5, 0.9])
    words = [
        f"Half of the predictions are off by {amount(half)} or less, nine in ten by {amount(most)} or less; "
        f"{amount(off.mean())} on average. Who always says {amount(target.centre)}, the mean of the training labels, "
        f"is off by {amount(rule.mean())} on average."
    ]
    if target.rule is not None and target.rule.weight:
        words.append(
            f"Every prediction is {target.rule.weight:.0%} the {target.rule.name.removeprefix('the ')}, which came "
            "nearer to training patients set apart than networks and trees without it."
        )
    elif target.rule is not None:
        words.append(f"Mixing in the {target.rule.name} gained nothing for training patients set apart.")
    if seen.shape[1] > 1:
        held = float(((y >= seen[:, 1]) & (y <= seen[:, 2])).mean())
        words.append(
            f"The intervals are meant to hold {target.level:.0%} of the numbers and hold {held:.1%}; in the middle "
            f"they are {amount(float(np.median(seen[:, 2] - seen[:, 1])))} wide. Their width comes from "
            f"{target.points:,} training points that the predictions about them were not fitted on."
        )
    if target.points and target.points < 2 / (1 - target.level):
        words.append("So few say little of how wide intervals must be.")
    if target.least is not None:
        words.append(f"No training label is below {amount(target.least)}: nothing below is predicted.")
    return " ".join(words)


def ranges(y: np.ndarray, seen: np.ndarray, by: np.ndarray, patients: np.ndarray) -> list[dict[str, Any]]:
    """For points in `RANGES` of equal count by some number: count; and means, mean error and share within the interval,
    as estimates whose intervals resample patients."""
    out = []
    edges = np.unique(np.quantile(by, np.linspace(0, 1, RANGES + 1)))
    part = np.clip(np.searchsorted(edges, by, side="right") - 1, 0, max(len(edges) - 2, 0))
    for k in np.unique(part):
        selected = part == k
        row: dict[str, Any] = {"from": by[selected].min(), "to": by[selected].max(), "points": int(selected.sum())}
        columns = {"predicted": seen[selected, 0], "observed": y[selected], "off": np.abs(y - seen[:, 0])[selected]}
        if seen.shape[1] > 1:
            columns["held"] = ((y >= seen[:, 1]) & (y <= seen[:, 2]))[selected]
        out.append(row | {name: bootstrap_mean(column, patients[selected]) for name, column in columns.items()})
    return out


def range_table(y: np.ndarray, seen: np.ndarray, by: np.ndarray, patients: np.ndarray) -> Markup:
    rows = []
    for row in ranges(y, seen, by, patients):
        cells = [f"{amount(row['from'])} to {amount(row['to'])}", row["points"]]
        for name in ("predicted", "observed", "off", "held"):
            if name in row:
                value, low, high = (amount(getattr(row[name], end), percent=name == "held") for end in ENDS)
                cells.append(value if np.isnan(row[name].low) else f"{value} ({low} to {high})")
        rows.append(cells)
    headers = ["range", "points", "predicted, mean", "observed, mean", "off by, mean"]
    return table(headers + ["within the interval"] * (seen.shape[1] > 1), rows)
