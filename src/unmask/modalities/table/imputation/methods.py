"""By which method every column is imputed: the one requested, else by its kind and its data, or the one whose draws are
like held-out values, by the energy score."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.special import ndtr

from unmask.errors import UserError, suggest
from unmask.modalities.table.imputation.chained import CATEGORY_METHODS, QUANTITY_METHODS, Chain, DrawPlan
from unmask.modalities.table.imputation.regressions import draw_linear
from unmask.modalities.table.imputation.scales import DISTINCT, SPIKE, MonotoneScale, best_scale, written
from unmask.modalities.table.reading.findings import setting
from unmask.modalities.table.schema.schema import Column

ORDER = 'kind = "ordinal", categories = ["lowest", ..., "highest"]'


def _check_method(method: str, column: Column, size: int) -> None:
    """Refuse a method that is none, or not for a column of this kind and so many categories."""
    allowed = CATEGORY_METHODS if size else QUANTITY_METHODS
    if method not in allowed:
        raise UserError(
            f"method of {column.name!r}: {method!r}", hint=f"A {column.kind} column takes one of {', '.join(allowed)}."
        )
    if method == "logreg" and size > 2:
        raise UserError(f"method of {column.name!r}: logreg, with {size} categories", hint="Use polyreg or polr.")
    if method == "polr" and not _ordered(column, size):
        raise UserError(
            f"method of {column.name!r}: polr, of {size} categories without an order",
            hint=f"Use polyreg, or give the order: {setting(column.name, ORDER)}",
        )


def _ordered(column: Column, size: int) -> bool:
    return column.kind == "ordinal" or size <= 2


def choose_methods(
    plan: DrawPlan,
    requested: Mapping[str, str] | str | None,
    rng: np.random.Generator,
    outcome: Collection[int] | None = None,
    *,
    trees: bool = False,
) -> None:
    """Set the method of every incomplete column: the one requested, else by its kind and its data.

    A quantity is drawn from a normal linear regression where the data do not speak against it, and by predictive mean
    matching (observed values of similar rows) where they do. Where covariates are drawn apart from their outcome, a
    skewed one has the regression on a scale where it is normal: relations to the outcome need no straight line then.
    Where no analysis has to be agreed with, a column is drawn by another method than its regression where values drawn
    by that are nearer to held-out ones (`better`).

    Args:
        outcome: places of the outcome that covariates are drawn apart from; None where there is none.
        trees: whether columns may be drawn by trees: they agree with no analysis, and know no clusters.
    """
    schema = plan.schema
    for name, wanted in requested.items() if isinstance(requested, Mapping) else ():
        place = schema.place(name, where="method: ")
        _check_method(wanted, schema.column(place), plan.sizes[place])  # of complete columns too
        if wanted == "cart" and not trees:
            raise UserError(
                f"method of {name!r}: cart, with an analysis that imputation agrees with, or with clusters",
                hint="Use norm or pmm of quantities, logreg, polyreg or polr of categories.",
            )
    unsettled = []
    for place in plan.order:
        column, size = schema.column(place), plan.sizes[place]
        allowed = CATEGORY_METHODS if size else QUANTITY_METHODS
        method = requested.get(column.name) if isinstance(requested, Mapping) else requested
        if isinstance(requested, str) and requested not in QUANTITY_METHODS + CATEGORY_METHODS:
            raise UserError(f"method {requested!r}", hint=suggest(requested, QUANTITY_METHODS + CATEGORY_METHODS))
        if isinstance(requested, str) and (
            requested not in allowed
            or (requested == "polr" and not _ordered(column, size))
            or (requested == "cart" and not trees)
        ):
            method = None  # one name for all columns: it holds for those it suits
        if method is not None:
            _check_method(method, column, size)
        if method is None:
            unsettled.append(place)
        if method is None and size:
            method = "logreg" if size == 2 else ("polr" if column.kind == "ordinal" else "polyreg")
        plan.methods[place] = method or "pmm"
    plan.select()
    quantities = [p for p in unsettled if not plan.sizes[p]]
    if not quantities and not trees:
        return
    trial = dataclasses.replace(plan, skip={}, chosen={}, notes=[])
    trial.select()
    alone, chain = np.ones((len(plan.columns[0]), 1)), trial.chain(rng)
    chain.run(2)
    chain.plan = plan  # a covariate of the analysis is judged by the regression that proposes it: without the outcome
    against = {p: _values(plan.units(p, alone)[1]) or _shape(chain, p) for p in quantities}
    if outcome is not None:
        against |= _choose_scales(chain, [p for p in quantities if against[p] and p not in outcome])
    for place, why in against.items():
        plan.methods[place] = "norm" if why is None else "pmm"
        plan.reasons[place] = why or _fits(plan, place)
    for place in unsettled if trees else ():
        usual = plan.methods[place]
        if place in plan.censored:
            continue
        plan.methods[place], gain = better(chain, place, usual, ["pmm", "cart"] if usual == "norm" else ["cart"])
        if plan.methods[place] != usual:
            plan.reasons[place] = f"its draws are nearer to held-out values than those of {usual}, by {gain:.0%}"


def _fits(plan: DrawPlan, place: int) -> str:
    """What a normal linear regression is of."""
    if place in plan.spikes:
        value, scale = plan.spikes[place]
        what = "the others" if scale is None else f"{scale.words} of the others".replace("its ", "the ")
        return f"many values are {value:g}: a logistic regression of these, a normal linear one of {what}"
    return "a normal linear regression fits" + (f" {plan.scales[place].words}" if place in plan.scales else "")


def _choose_scales(chain: Chain, places: Sequence[int]) -> dict[int, str | None]:
    """Set the scales, or the spikes, of columns that a normal linear regression does not fit as they are; returns what
    speaks against each then. Scales are chosen given the others on theirs."""
    plan = chain.plan
    found: dict[int, str | None] = {}
    alone = np.ones((len(plan.columns[0]), 1))
    smooth = [p for p in places if not _values(plan.columns[p][~plan.missing[p]])]
    for predictors in (lambda _: alone, chain.predictors):
        scales = {p: best_scale(chain.now[p], predictors(p)) for p in smooth}
        plan.scales = {p: scale for p, scale in scales.items() if scale is not None}
        chain.regressors = plan.regressors(chain.now, plan.scales)
    for p in smooth:
        found[p] = _shape(chain, p)
        if found[p]:
            plan.scales.pop(p, None)
    for p in set(places) - set(smooth):
        y = plan.columns[p][~plan.missing[p]]
        values, counts = np.unique(y, return_counts=True)
        spike = float(values[counts.argmax()])
        if counts.max() <= SPIKE * len(y) or _values(y[y != spike]):
            continue
        rest = ~plan.missing[p] & (plan.columns[p] != spike)
        scale = best_scale(plan.columns[p][rest], chain.predictors(p)[rest])
        if not _shape(chain, p, rest, scale):
            plan.spikes[p], found[p] = (spike, scale), None
    return found


def _values(y: np.ndarray) -> str | None:
    """What observed values alone say against a continuous distribution."""
    values, counts = np.unique(y, return_counts=True)
    if len(y) < 20:
        return "fewer than 20 observed values"
    if len(values) < DISTINCT:
        return f"{len(values)} distinct values"
    if counts.max() > SPIKE * len(y):
        return f"{counts.max() / len(y):.0%} of the values are {values[counts.argmax()]:g}"
    return None


def _shape(chain: Chain, place: int, rows: np.ndarray | None = None, scale: MonotoneScale | None = None) -> str | None:
    """What speaks against a normal linear regression of a column, on its scale, on the others; None where nothing does.

    Large departures are looked for, not significant ones: small ones do not matter to imputation.

    Args:
        rows: that it is a regression of, and `scale` the scale there; by default all rows, and the column's scale.
    """
    plan, x = chain.plan, chain.predictors(place)
    if rows is None:
        scale = plan.scales.get(place)
        design, y = plan.units(place, x)
    else:
        seen = rows & ~plan.missing[place]
        design, y = x[seen], plan.columns[place][seen]
    if scale is not None:
        y = scale.to(y)
    found = draw_linear(design, y, chain.rng)
    fitted = design @ found.beta
    left = (y - fitted) / found.sigma
    spread = left.std()
    if spread < 1e-6:
        return "the other columns determine it"
    skew, tail = float((left**3).mean() / spread**3), float((left**4).mean() / spread**4 - 3)
    if abs(skew) > 0.75 or tail > 2:
        return f"its residuals are {'skewed' if abs(skew) > 0.75 else 'heavy-tailed'}"
    bent = np.column_stack([np.ones(len(y)), fitted, fitted**2])
    bent[:, 1:] = (bent[:, 1:] - bent[:, 1:].mean(0)) / np.maximum(bent[:, 1:].std(0), 1e-12)
    rest = left - bent @ np.linalg.lstsq(bent, left, rcond=None)[0]
    gain = 1 - (rest**2).sum() / max((left**2).sum(), 1e-12)
    if gain > 0.02 and gain * len(y) > 11:
        return "its regression on the others is not a straight line"
    if scale is not None:
        return None
    low, high = plan.schema.column(place).bounds
    low = max(low, 0.0) if y.min() >= 0 else low
    there = x[plan.missing[place]] @ found.beta
    beyond = ndtr((low - there) / found.sigma) + ndtr((there - high) / found.sigma)
    if beyond.mean() > 0.005:
        return (
            "a normal would draw impossible values" if low or high < np.inf else "a normal would draw negative values"
        )
    return None


FOLDS, DRAWS, ROWS = 3, 6, 2000
"""Folds, values drawn per row, and rows that methods are judged on at most."""
ENOUGH = 60
"""Observed values without which no method is judged: folds of 20 say nothing."""


def energy_scores(chain: Chain, place: int, methods: list[str]) -> np.ndarray:
    """(methods, rows) energy scores of values drawn for observed cells that the method did not see: the mean distance
    of draws from the truth, less half that between two draws (Gneiting & Raftery 2007, eq. 21; 4.2). It is least in
    expectation for the true distribution. The distance of categories is 1 where they differ: half the Brier score."""
    plan, rng = chain.plan, chain.rng
    rows = np.flatnonzero(~plan.missing[place])
    rows = rng.permutation(rows)[:ROWS]
    truth, size = plan.columns[place][rows], plan.sizes[place]
    scores = np.empty((len(methods), len(rows)))
    for number in range(FOLDS):
        held = np.arange(len(rows)) % FOLDS == number
        for k, method in enumerate(methods):
            drawn = np.array([chain.by_method(method, place, rows[~held], rows[held]) for _ in range(DRAWS)])
            if not size:
                drawn, _ = written(drawn, plan.schema.column(place))
            far = drawn != truth[held] if size else np.abs(drawn - truth[held])
            between = drawn[:, None] != drawn if size else np.abs(drawn[:, None] - drawn)
            scores[k, held] = far.mean(0) - between.sum((0, 1)) / (2 * DRAWS * (DRAWS - 1))
    return scores


def better(chain: Chain, place: int, usual: str, others: list[str]) -> tuple[str, float]:
    """The method of a column: the usual one, or another whose draws are nearer to held-out values by more than the
    standard error of the difference; and by which share of the usual one's score."""
    if (~chain.plan.missing[place]).sum() < ENOUGH:
        return usual, 0.0
    scores = energy_scores(chain, place, [usual, *others])
    gains = scores[0] - scores[1:]
    gain, error = gains.mean(1), gains.std(1) / np.sqrt(gains.shape[1])
    best = int(np.argmax(gain))
    if gain[best] <= error[best]:
        return usual, 0.0
    return others[best], float(gain[best] / scores[0].mean())
