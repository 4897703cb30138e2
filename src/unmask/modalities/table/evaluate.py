"""`unmask evaluate` for tables: synthetic rows of a model beside real ones, as figures, JSON and one HTML page."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.kernels.threads import one_core
from unmask.modalities.table.evaluation import fidelity, privacy
from unmask.modalities.table.evaluation.figures import SyntheticFigures, add_figures, readings
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.imputation.training_range import encode_warned
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import widened
from unmask.modalities.table.survival.hazards import MOST_LEVELS
from unmask.modalities.table.synthesis.survival_outcome import covariates, entries, pair_places, regressors
from unmask.modalities.table.synthesis.synthesize import synthesize


@one_core()
def evaluate_model(
    model: FittedTable,
    data: Any,
    *,
    train: Any = None,
    rows: int | None = None,
    seed: int = 0,
    report: str | Path | None = None,
    folder: str | Path | None = None,
) -> SyntheticFigures:
    """Compare `rows` synthetic rows with real ones; `print` shows the figures.

    Copies, distances and recall compare rows with all others: of at most `privacy.COMPARED` rows, a sample where there
    are more (`compared_rows` says how many).

    Args:
        data: real rows, best those that the model has not seen; missing cells are drawn from the model.
        train: the training rows, for the privacy card; left out, the card says only what `data` allows.
        rows: synthetic rows, default as many as real ones.
        report: where to write the HTML page.
        folder: of the model, for the end of the page.

    Raises:
        UserError: the table does not fit the model, there are fewer than 20 rows of either kind, or the held-out rows
            are the training rows, or those that the model draws.
    """
    seen = _encoded(model, data)
    before = None if train is None else _encoded(model, train)
    overlap = _overlap(model, before, seen)
    real = _filled(model.table.draw(seen, seed=seed))
    rows = len(real[0]) if rows is None else rows
    if min(len(real[0]), rows) < 20:
        raise UserError(
            f"{len(real[0])} real rows, {rows} synthetic ones", hint="At least 20 are needed to compare anything."
        )
    made = synthesize(model, rows, seed=seed)
    if _drawn(seen, made.released):
        raise UserError(
            "the first table holds the very rows that the model draws: synthetic rows, where real ones belong",
            hint="Give real rows, best held-out ones: synthetic rows are drawn anew from the model, and need no table.",
        )
    synthetic = _filled(made.columns)
    found = {"rows": len(real[0])} | compare(model, real, synthetic, seed=seed, observed=(seen, made.released))
    if overlap is not None:
        found["overlap"] = overlap
        warnings.warn(overlap, stacklevel=2)
    if before is not None:
        found["privacy"] = (
            privacy.privacy(before, seen, made.released, model.schema.sizes, seed=seed)
            | privacy.copies(before, made.released, seed)
            | privacy.likelihood_attack(model.table.log_prob(before), model.table.log_prob(seen))
        )
    found["figures"] = [r.to_dict() for r in readings(found)]
    if report is not None:
        write_report(model, found, real, synthetic, Path(report), folder)
        found["report"] = str(report)
    return SyntheticFigures(found)


def _encoded(model: FittedTable, data: Any) -> list[np.ndarray]:
    """The modelled columns; those that are not modelled (row names, identifiers) may be lacking."""
    frame, lacking = widened(read_frame(data), model.schema)
    if lacking:
        raise UserError(f"{frame.source}: no column {', '.join(map(repr, lacking))}", hint="Give the same columns.")
    return encode_warned(model, frame)


def _overlap(model: FittedTable, train: list[np.ndarray] | None, held_out: list[np.ndarray]) -> str | None:
    """What to say of held-out rows that are training rows (more of them than the training rows are alike among
    themselves), and of training rows that the model was not fitted to.
    """
    if train is None:
        own = "the model was fitted to these rows: figures look better than they are beside rows it has not seen"
        return own if model.fitted_to(held_out) else None
    rows = [[r.tobytes() for r in np.column_stack(t)] for t in (train, held_out)]
    count = Counter(rows[0])
    again = sum(n for n in count.values() if n > 1) / max(len(rows[0]), 1)
    both = sum(r in count for r in rows[1])
    if both < len(rows[1]) and model.fitted_to(held_out):
        raise UserError(
            "the first table is the one that the model was fitted to, the second is not",
            hint="Give the held-out table first, then the training table.",
        )
    if both <= (again + 0.05) * len(rows[1]):
        other = "the model was not fitted to these training rows: figures of privacy are not of it"
        return None if model.fitted_to(train) else other
    text = f"{both} of {len(rows[1])} held-out rows are training rows"
    if both == len(rows[1]):
        raise UserError(text, hint="Privacy can only be judged beside rows that the model was not fitted on.")
    return f"{text}: figures of privacy look better than they are"


def _drawn(rows: list[np.ndarray], drawn: list[np.ndarray]) -> bool:
    """Whether rows are those drawn, in their order, which rows of a few levels alone are not."""
    count = min(len(rows[0]), len(drawn[0]))
    a, b = (np.nan_to_num(np.column_stack(t)[:count], nan=-1.0) for t in (rows, drawn))
    same, shifted = (np.isclose(a, x).all(1).mean() for x in (b, np.roll(b, 1, axis=0)))
    return bool(same > 0.95 > 2 * shifted)


def complete(model: FittedTable, data: Any, seed: int) -> list[np.ndarray]:
    """The modelled columns of a table with missing cells drawn; cells empty by their meaning get a category
    of chance."""
    return _filled(model.table.draw(encode_warned(model, read_frame(data)), seed=seed))


def _filled(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.nan_to_num(x) for x in columns]


def outcome_of(model: FittedTable, columns: Sequence[np.ndarray]) -> tuple[fidelity.Cohort, list[str]]:
    """Regressors and outcomes, and the names of the regressors."""
    x, names = regressors(model, columns)
    time, event = pair_places(model)
    entry = entries(model, columns)
    if entry is not None:  # drawn apart from the time, as in the shuffled floor, it may lie beyond it
        entry = np.minimum(entry, np.nextafter(columns[time], -np.inf))
    return fidelity.Cohort(x, columns[time], columns[event], entry), names


def no_survival(model: FittedTable, **tables: list[np.ndarray]) -> str | None:
    """Why there are no hazard ratios to compare; None where there are. Tables are named for people."""
    if model.schema.duration is None:
        return "no survival pair"
    if all(model.schema.sizes[place] > MOST_LEVELS for place in covariates(model)):
        return f"nothing explains the outcome but categories of more than {MOST_LEVELS} levels"
    _, event = pair_places(model)
    without = [name for name, columns in tables.items() if not (columns[event] > 0).any()]
    return f"no event among the {without[0]} rows" if without else None


def compare(
    model: FittedTable,
    real: list[np.ndarray],
    synthetic: list[np.ndarray],
    *,
    seed: int = 0,
    observed: tuple[list[np.ndarray], list[np.ndarray]] | None = None,
) -> dict[str, Any]:
    """All figures, and beside them those of a bootstrap of the real rows (ceiling) and of shuffled columns (floor).

    Args:
        observed: both tables with NaN where nothing was observed, for the search for copies; default the tables.

    Without events, or covariates, figures of survival are left out, which `note` then says.
    """
    sizes = model.schema.sizes
    names = [model.schema.columns[i].name for i in model.schema.modelled]

    def figures(other: list[np.ndarray]) -> dict[str, Any]:
        distance = fidelity.marginals(real, other, sizes)
        out: dict[str, Any] = {
            "marginal_distance": float(np.mean(distance)),
            "correlation_gap": fidelity.correlation_gap(real, other, sizes),
        }
        if no_survival(model, real=real, synthetic=other) is None:
            (a, shown), (b, _) = outcome_of(model, real), outcome_of(model, other)
            out |= fidelity.survival_figures(a, b, shown, model.schema.causes)
        return out

    found = figures(synthetic)
    clouds = [fidelity.wide(c, sizes, real) for c in (real, synthetic)]
    found["alpha_precision"], found["beta_recall"] = fidelity.precision_recall(
        *clouds, most=privacy.COMPARED, seed=seed
    )
    found["two_sample_auc"] = fidelity.two_sample_auc(real, synthetic, seed)
    found |= privacy.copies(*(observed or (real, synthetic)), seed)
    found["compared_rows"] = min(len(synthetic[0]), privacy.COMPARED)
    found["marginals"] = dict(zip(names, fidelity.marginals(real, synthetic, sizes), strict=True))
    ceiling, floor = fidelity.bootstrap(real, seed, len(synthetic[0])), fidelity.independent(real, seed)
    for name, other in (("ceiling", ceiling), ("floor", floor)):
        found[name] = {k: v for k, v in figures(other).items() if isinstance(v, float | int)}
    why = no_survival(model, real=real, synthetic=synthetic)
    if why is None:
        found["calibration"] = strata(model, real, synthetic)
    elif model.schema.duration is not None:
        found["note"] = f"figures of survival are left out: {why}"
    return found


def strata(model: FittedTable, real: list[np.ndarray], synthetic: list[np.ndarray]) -> list[dict[str, Any]]:
    """Calibration on real rows of risks learnt from synthetic ones, at the quartiles of follow-up, whole and per
    category of two-valued columns; observed rates are those inside the stratum."""
    (a, _), (b, _) = outcome_of(model, real), outcome_of(model, synthetic)
    times = np.quantile(a[1], [0.25, 0.5, 0.75])
    risk, _ = fidelity.risks(b, a[0], times)
    groups = [("all", np.ones(len(a[1]), bool))]
    _, event = pair_places(model)
    for place, i in enumerate(model.schema.modelled):
        c = model.schema.columns[i]
        if place != event and len(c.categories) == 2:
            groups += [(f"{c.name} = {level}", real[place] == k) for k, level in enumerate(c.categories)]
    out = []
    for name, here in groups:
        if here.sum() < 40:
            continue
        for k, at in enumerate(times):
            slope, error = fidelity.calibration(
                risk[here, k],
                a[1][here],
                a[2][here],
                at,
                bins=10 if here.sum() > 200 else 5,
                entry=None if a.entry is None else a.entry[here],
            )
            out.append({"stratum": name, "time": float(at), "rows": int(here.sum()), "slope": slope, "error": error})
    return out


def write_report(
    model: FittedTable,
    found: dict[str, Any],
    real: list[np.ndarray],
    synthetic: list[np.ndarray],
    path: Path,
    folder: str | Path | None = None,
) -> Path:
    """One HTML page.

    Args:
        folder: of the model, to end with how to use it.
    """
    from unmask.evaluation.report import Report

    report = Report("Synthetic rows beside real ones", f"{len(synthetic[0])} synthetic, {len(real[0])} real")
    add_sections(report, model, found, real, synthetic)
    if folder is not None:
        report.of_model(folder)
    return report.write(path)


def add_sections(
    report: Any, model: FittedTable, found: dict[str, Any], real: list[np.ndarray], synthetic: list[np.ndarray]
) -> None:
    """The figures, curves and tables of a comparison, onto a report."""
    from unmask.evaluation.charts import line_chart, table

    add_figures(report, found)
    if "note" in found:
        report.section("Survival", found["note"])
    if "hazard_ratios" in found:
        (a, _), (b, _) = outcome_of(model, real), outcome_of(model, synthetic)
        grid = np.linspace(0, float(a[1].max()), 200)
        curves = {name: (grid, g.survival(grid)) for name, g in (("real", a), ("synthetic", b))}
        report.section("Survival").chart(
            line_chart(curves, "Kaplan-Meier", model.schema.duration or "time", "share without event", percent=True)
        )
        if len(model.schema.causes) > 1:
            curves = {
                f"{cause}, {name}": (grid, g.incidence(k, grid))
                for k, cause in enumerate(model.schema.causes, 1)
                for name, g in (("real", a), ("synthetic", b))
            }
            report.section("Causes").chart(
                line_chart(curves, "Cumulative incidence", model.schema.duration or "time", "share", percent=True)
            )
            keys = ("incidence_area", "mean_log_hr_difference", "interval_overlap", "c_index_real", "c_index_synthetic")
            absent = ", ".join(found.get("causes_left_out", ()))
            report.section(
                "Figures by cause",
                table(("cause", *keys), [(c, *(r[k] for k in keys)) for c, r in found["causes"].items()]),
                note="Each with the other causes censored."
                + (f" Left out, for one table lacks it: {absent}." if absent else ""),
            )
        ratios = [
            (
                r["name"],
                f"{r['real']:.2f} ({r['real_low']:.2f}–{r['real_high']:.2f})",
                f"{r['synthetic']:.2f} ({r['synthetic_low']:.2f}–{r['synthetic_high']:.2f})",
                r["overlap"],
                r["standardised_difference"],
            )
            for r in found["hazard_ratios"]
        ]
        report.section(
            "Will my hazard ratios survive?",
            table(
                ("covariate", "real HR (95% CI)", "synthetic HR (95% CI)", "overlap", "standardised difference"), ratios
            ),
            note="Overlap of the two intervals: higher is better, 1 is all. Standardised difference: lower is better; "
            "above 2 chance does "
            "not explain it. Quantities per standard deviation. Levels with a standard error above 2 are left out.",
        )
    marginal = [(n, v) for n, v in sorted(found["marginals"].items(), key=lambda kv: -kv[1])]
    report.section(
        "Columns",
        table(("column", "distance of marginals"), marginal),
        note="Lower is better, 0 is equal: Kolmogorov-Smirnov distance of quantities, total variation of categories.",
    )
    if "calibration" in found:
        lines = [(r["stratum"], r["rows"], r["time"], r["slope"], r["error"]) for r in found["calibration"]]
        report.section(
            "Calibration of risks learnt from synthetic rows",
            table(("stratum", "rows", "time", "slope", "error"), lines),
            note="Slope: 1 is best, below 1 risks are too spread out. Error: mean distance of predicted and observed "
            "risk, lower is better. "
            "At the quartiles of follow-up; observed rates are Kaplan-Meier rates inside the stratum.",
        )
