"""Looking at a multiple imputation: whether its chains have converged, imputed values beside observed ones, and what
speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import logit

from unmask.errors import option
from unmask.modalities.table.imputation.chained import DrawPlan
from unmask.modalities.table.imputation.formula import Formula
from unmask.modalities.table.imputation.regressions import draw_shares
from unmask.modalities.table.imputation.scales import spike
from unmask.modalities.table.schema.schema import Column

CHAINS = 8
"""Chains drawn in a trace plot."""
MIXED = 1.2
"""R-hat above which chains have not mixed (Gelman & Rubin 1992; Brooks & Gelman 1998, 3). The 1.01 of Vehtari et al.
(2021) is for estimates from within a chain; of each chain here only the last round is used."""
CHANCE = 0.05
REMEMBERED = 0.05
"""Share of a difference between chains at their start that may be left after the last round."""
DEVIATIONS, RATIO = 2.0, 2.0
"""Imputed values are far from observed ones where their means differ by two standard deviations, or one variance is
twice the other (Stuart, Azur, Frangakis & Leaf 2009), or the odds of a single value that many cells have; all given the
other columns (Raghunathan & Bondarenko 2007)."""
EXAMINED = 5
"""Completed tables in which imputed values are set beside observed ones."""


@dataclass(frozen=True, kw_only=True)
class ImputedColumn:
    """A column that was imputed in every table.

    Attributes:
        method, why: of its imputation; `why` where the data chose it.
        missing: share of the rows whose cell was imputed.
        observed: (rows,) observed values (category numbers).
        imputed: (tables x rows,) imputed values of all tables.
        trace: (tables, rounds) mean of the imputed values in every round of each chain.
    """

    column: Column
    method: str
    why: str | None
    missing: float
    observed: np.ndarray
    imputed: np.ndarray
    trace: np.ndarray


def diagnostics(columns: Sequence[ImputedColumn]) -> list[dict[str, Any]]:
    """One record per imputed column.

    Keys: column, method, why (where the data chose the method), missing (share), r_hat (of the mean of imputed values;
    near 1 when the chains have mixed; None for a single round, whose draws are independent), and observed_ and imputed_
    mean, deviation, low and high of a quantity. For a category: observed and imputed, the share of each level. Imputed
    values may differ from observed ones: under missing at random they should, where who is missing differs.
    """
    out = []
    for one in columns:
        record: dict[str, Any] = {
            "column": one.column.name,
            "method": one.method,
            "why": one.why,
            "missing": one.missing,
            "r_hat": r_hat(one.trace),
        }
        for kind, x in (("observed", one.observed), ("imputed", one.imputed)):
            if one.column.is_quantity:
                figures = (x.mean(), x.std(), x.min(), x.max()) if len(x) else (np.nan,) * 4
                names = ("mean", "deviation", "low", "high")
                record |= {f"{kind}_{k}": float(v) for k, v in zip(names, figures, strict=True)}
            else:
                share = np.bincount(x.astype(int), minlength=len(one.column.categories)) / max(len(x), 1)
                record[kind] = dict(zip(one.column.categories, share.tolist(), strict=True))
        out.append(record)
    return out


def r_hat(traces: np.ndarray) -> float | None:
    """Potential scale reduction over the second half of (chains, rounds), each chain cut in two (Gelman et al. 2013,
    11.4); infinite where chains stand still at different values."""
    found = _reduction(traces)
    return None if found is None else float(np.sqrt((found[0] - 1) / found[0] + found[2]))


def _reduction(traces: np.ndarray) -> tuple[int, int, float] | None:
    """(length, number, variance between by variance within) of the parts that R-hat compares; None of too few
    rounds."""
    half = traces[:, traces.shape[1] // 2 :]
    length = half.shape[1] // 2
    if length < 2 or not np.isfinite(half).all():
        return None
    parts = half[:, : 2 * length].reshape(-1, length)
    within, between = float(parts.var(1, ddof=1).mean()), float(parts.mean(1).var(ddof=1))
    tiny = 1e-20 * float((half**2).mean())
    if within <= tiny:
        return length, len(parts), 1 / length if between <= tiny else np.inf
    return length, len(parts), between / within


def unmixed(traces: np.ndarray) -> bool:
    """Whether R-hat is above `MIXED` and more than chance makes of so few independent rounds: beyond 1 by the F
    distribution that Gelman & Rubin (1992) give its interval by."""
    found = _reduction(traces)
    if found is None:
        return False
    length, parts, ratio = found
    chance = stats.f.ppf(1 - CHANCE / 2, parts - 1, parts * (length - 1)) / length
    return (length - 1) / length + ratio > MIXED**2 and ratio > chance


def doubtful(traces: np.ndarray, columns: int) -> bool:
    """Whether chains are `unmixed` because they remember where they began, or stand apart: not because rounds resemble
    those before them, while each chain has forgotten its beginning.

    They remember it where the correlation of a round with the one before leaves more than `REMEMBERED` over all rounds,
    and stand apart where their means differ by more than those of chains with that correlation do, by chance.

    Args:
        columns: that are judged at once; chance has as many tries.
    """
    found = _reduction(traces)
    if found is None or not unmixed(traces):
        return False
    length, parts, ratio = found
    rounds = traces.shape[1]
    centred = traces - traces.mean(1, keepdims=True)
    raw = float((centred[:, 1:] * centred[:, :-1]).sum() / max(float((centred**2).sum()), 1e-300))
    alike = float(np.clip((rounds * raw + 1) / (rounds - 4), 0, 0.999)) if rounds > 4 else 0.0  # Kendall 1954
    if alike**rounds > REMEMBERED:
        return True
    lag = np.arange(1, length)
    of_mean = (1 + 2 * float(((1 - lag / length) * alike**lag).sum())) / length  # variance of a part's mean
    expected = of_mean * (length - 1) / (length * (1 - of_mean))
    freedom = max(parts * (length - 1) * (1 - alike) / (1 + alike), 1)
    return ratio / expected > float(stats.f.ppf(1 - CHANCE / 2 / columns, parts - 1, freedom))


def doubts(
    plan: DrawPlan,
    traces: np.ndarray,
    drawn: Sequence[Sequence[np.ndarray]],
    gaps: Sequence[np.ndarray],
    *,
    stuck: int,
    formula: Formula | None,
) -> list[str]:
    """What speaks against completed tables, in plain words.

    Args:
        traces: (incomplete columns, tables, rounds) as `r_hat` takes them.
        drawn: columns of every completed table.
        gaps: of every column, the cells that are imputed: not those that are empty by their meaning.
        stuck: draws that found no value.
        formula: the analysis that imputation agrees with.
    """
    found = []
    judged = {
        plan.name(p): trace for p, trace in zip(plan.order, traces, strict=True) if gaps[p].any() or p in plan.censored
    }
    slow = {name: r_hat(trace) or 1.0 for name, trace in judged.items() if doubtful(trace, len(judged))}
    if slow:
        worst = max(slow, key=lambda name: slow[name])
        rounds = traces.shape[2]
        found.append(
            f"the chains have not mixed after {rounds} rounds in {len(slow)} of {len(judged)} imputed columns: R-hat "
            f"is {slow[worst]:.2f} for {worst!r}, and {MIXED} is the most that passes; pooled estimates may be off. "
            f"Give more ({option('rounds', 4 * rounds)}); where that does not help, impute fewer columns at once"
        )
    if stuck:
        found.append(
            f"{stuck} draws of covariates found no value that the analysis accepts, and left the cell as it was: look "
            "for outcomes that the formula does not allow"
        )
    return found + _far(plan, drawn, gaps) + _complete_rows(plan, formula)


def _far(plan: DrawPlan, drawn: Sequence[Sequence[np.ndarray]], gaps: Sequence[np.ndarray]) -> list[str]:
    """Quantities whose imputed values differ from observed ones given the other columns: both less what a regression
    of the observed ones predicts, which are weighted to resemble the incomplete rows in the other columns (by the odds
    of being missing)."""
    shown = drawn[:EXAMINED]
    found: dict[int, list[tuple[float, ...]]] = {}
    shares: dict[int, list[tuple[float, ...]]] = {}
    for columns in shown:
        table = plan.regressors(columns, plan.scales)
        for place in plan.order:
            filled, seen = gaps[place], ~plan.missing[place]
            x = table.matrix[:, plan.chosen[place]]
            if plan.sizes[place] or filled.sum() < 2 or seen.sum() < 2 * x.shape[1] or not np.ptp(columns[place][seen]):
                continue
            odds = np.exp(
                np.clip(
                    x[seen] @ draw_shares(x[filled | seen], filled[filled | seen], np.random.default_rng(0)).estimate,
                    -30,
                    30,
                )
            )
            weight = odds / odds.sum()
            if (single := spike(columns[place][seen])) is not None:
                held, cells = columns[place] == single, int(filled.sum())
                share, other = np.clip([weight @ held[seen], held[filled].mean()], 0.5 / cells, 1 - 0.5 / cells)
                doubt = (weight @ weight) / (share * (1 - share)) + 1 / (cells * other * (1 - other))
                shares.setdefault(place, []).append((single, share, other, doubt, cells))
            if place in plan.spikes:
                continue
            y = plan.scales[place].to(columns[place]) if place in plan.scales else columns[place]
            root = np.sqrt(weight)[:, None]
            left = y - x @ np.linalg.lstsq(root * x[seen], root[:, 0] * y[seen], rcond=None)[0]
            parts = ((left[seen], weight), (left[filled], np.full(filled.sum(), 1 / filled.sum())))
            (center, variance, doubt), (other, others, more) = (_moments(v, w) for v, w in parts)
            near = 0.01 * float(y[seen].var())  # a tenth of the column's own deviation
            variance, others = max(variance, near), max(others, near)
            difference, own = (other - center) / variance**0.5, max(others / variance, 1.0) / filled.sum()
            found.setdefault(place, []).append((difference, own, others / variance, doubt + more, filled.sum()))
    far = []
    for place, figures in found.items():
        difference, own, ratio, doubt, cells = np.mean(figures, 0)
        if abs(difference) - stats.t.ppf(1 - CHANCE / 2, cells - 1) * own**0.5 > DEVIATIONS:
            side = "above" if difference > 0 else "below"
            far.append(f"{plan.name(place)!r} (by {abs(difference):.1f} standard deviations {side})")
        elif abs(np.log(ratio)) - stats.t.ppf(1 - CHANCE / 2, cells - 1) * doubt**0.5 > np.log(RATIO):
            far.append(f"{plan.name(place)!r} ({ratio:.2g} times the variance)")
    for place, figures in shares.items():
        single, share, other, doubt, cells = np.mean(figures, 0)
        chance = stats.t.ppf(1 - CHANCE / 2, cells - 1) * doubt**0.5
        if abs(logit(other) - logit(share)) - chance > np.log(RATIO):
            far.append(f"{plan.name(place)!r} ({other:.0%} of the cells are {single:g}, of observed ones {share:.0%})")
    if not far:
        return []
    others_too = f" and {len(far) - 5} more" if len(far) > 5 else ""
    return [
        f"imputed values are far from observed ones, given the other columns: {', '.join(far[:5])}{others_too}. Look "
        "at the report; impute fewer columns at once, or choose another method"
    ]


def _moments(values: np.ndarray, weight: np.ndarray) -> tuple[float, float, float]:
    """Mean, variance, and the variance of the latter's logarithm, by the fourth moment (Layard 1973)."""
    center = float(weight @ values)
    second, fourth = (float(weight @ (values - center) ** power) for power in (2, 4))
    rough = max(fourth / max(second**2, 1e-300) - 1, 2.0)  # few values have no tails: a normal's at least
    return center, second, rough * float(weight @ weight)


def _complete_rows(plan: DrawPlan, formula: Formula | None) -> list[str]:
    """Where complete rows may serve better."""
    covariates = () if formula is None else formula.covariates
    return [
        f"{plan.name(p)!r} enters the analysis by a curve and is drawn from its observed values (pmm: "
        f"{plan.reasons.get(p, 'asked for')}), which cannot pass the largest: estimates of the curve may be worse than "
        "those of complete rows, which are right where being missing has nothing to do with the outcome, given the "
        "covariates. Compare both"
        for p in plan.order
        if p in covariates and plan.methods[p] == "pmm" and _bent(plan, formula, p)
    ]


def _bent(plan: DrawPlan, formula: Formula | None, place: int) -> bool:
    """Whether a quantity enters an analysis by a curve."""
    if plan.sizes[place] or formula is None:
        return False
    seen = plan.columns[place][~plan.missing[place]]
    ends = np.array([seen.min(), (seen.min() + seen.max()) / 2, seen.max()])
    columns = [
        np.zeros(3) if size else np.full(3, np.nanmean(x)) for x, size in zip(plan.columns, plan.sizes, strict=True)
    ]
    columns[place] = ends
    with np.errstate(all="ignore"):
        low, middle, high = np.nan_to_num(formula.design(columns))
    return bool((np.abs(middle - (low + high) / 2) > 1e-6 * (np.abs(high - low) + np.abs(middle) + 1e-300)).any())


def write_report(
    path: str | Path,
    columns: Sequence[ImputedColumn],
    *,
    tables: int,
    rounds: int,
    notes: Sequence[str],
    call: str,
    analysis: str = "",
) -> Path:
    """An HTML page: what was done, convergence, imputed beside observed, and trace plots of every column.

    Args:
        tables, rounds: how many were completed, after how many rounds each.
        notes: what was done that is not obvious.
        call: how the tables were made, as Python.
        analysis: the formula that imputation agrees with.
    """
    from unmask.evaluation.charts import line_chart, table
    from unmask.evaluation.report import Report

    records = diagnostics(columns)
    page = Report("Multiple imputation", f"{tables} completed tables")
    page.facts({"tables": tables, "rounds": rounds, "columns imputed": len(records)})
    agrees = f"Missing cells are drawn so that they agree with the analysis {analysis}." if analysis else ""
    page.section("What was done", "\n\n".join([agrees, *notes]).strip() or "Nothing to note.")
    about = []
    for one, r in zip(columns, records, strict=True):
        high = "not mixed" if doubtful(one.trace, len(columns)) else "may be chance"
        verdict = "" if r["r_hat"] is None else "mixed" if r["r_hat"] <= MIXED else high
        why = r["why"] or "asked for, or by its kind"
        about.append([r["column"], r["method"], why, f"{r['missing']:.1%}", r["r_hat"], verdict])
    page.section(
        "Columns",
        table(["column", "method", "why", "missing", "R-hat", "chains"], about),
        note=f"R-hat compares chains: at most {MIXED} they have mixed. Above, so few rounds may give that by chance: "
        "'not mixed' stands where they do not.",
    )
    rows = []
    for r in records:
        if "observed_mean" in r:
            rows.append([r["column"], *(r[f"{k}_{v}"] for k in ("observed", "imputed") for v in ("mean", "deviation"))])
        else:
            rows += [[f"{r['column']} = {v}", r["observed"][v], None, r["imputed"][v], None] for v in r["observed"]]
    heads = ["column or level", "observed mean or share", "deviation", "imputed mean or share", "deviation"]
    page.section(
        "Observed and imputed",
        table(heads, rows),
        note="They may differ: under missing at random, who is missing differs from who is not.",
    )
    page.section("Traces", "Mean of the imputed values by round; chains should cross and show no trend.")
    for one in columns:
        traces = one.trace[:CHAINS]
        if traces.shape[1] > 1 and np.isfinite(traces).all():
            at = np.arange(1, traces.shape[1] + 1)
            lines = {f"table {k + 1}": (at, t) for k, t in enumerate(traces)}
            page.chart(line_chart(lines, f"{one.column.name}: mean", "round", "mean of imputed values"))
    return page.use(_use(tables, call, analysis), heading="Use these tables").write(path)


def _use(tables: int, call: str, analysis: str) -> Any:
    """How the completed tables are analysed together."""
    from unmask.evaluation.card import Use

    code = (
        "from unmask.table import MultipleImputation\n\n"
        f'done = {call}.fit("table.csv")\n'
        f"print(done.pool({analysis or 'y ~ x + z'!r}))  # one estimate per term by Rubin's rules, with its interval\n"
        "done.pool(lambda table: ...)     # any analysis of one table that gives estimates and standard errors"
    )
    commands = (
        f"Analyse each of the {tables} tables by itself and pool the results. One of them alone, or their mean, has "
        "standard errors that are too small."
    )
    return Use(commands=(), python=code, without_unmask=commands).html()


def summary(record: dict[str, Any], kind: str) -> str:
    """Observed or imputed values of a column in a few characters."""
    if f"{kind}_mean" in record:
        mean, deviation = record[f"{kind}_mean"], record[f"{kind}_deviation"]
        return "–" if np.isnan(mean) else f"{mean:.4g} ({deviation:.3g})"
    shares = record["observed"]
    level = max(shares, key=lambda name: shares[name])
    return f"{level}: {record[kind][level]:.0%}"
