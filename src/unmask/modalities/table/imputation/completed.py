"""Completed tables: by index, one after the other, below each other, printed; and analyses of them, pooled."""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from unmask.errors import UserError, option, outside
from unmask.evaluation.shown import Printed, Shown
from unmask.guessed import Guessed, also_called
from unmask.modalities.table.imputation.diagnostics import summary
from unmask.modalities.table.imputation.fitted_models import aligned, are_shares, estimates_of, predictions_of
from unmask.modalities.table.imputation.formula import Formula, cox_formula, terms_not_kept
from unmask.modalities.table.imputation.formula_fit import FormulaFit, fit_formula, log_likelihood
from unmask.modalities.table.imputation.formula_text import cause_number, check_pair, parse_formula
from unmask.modalities.table.imputation.grouped_fit import Grouping, grouping_of, split_random
from unmask.modalities.table.imputation.pooled_survival import pooled_survival, pooled_validation
from unmask.modalities.table.imputation.pooled_tests import (
    METHODS,
    PooledTest,
    chi_squared_test,
    coefficients,
    likelihood_ratio_test,
    wald_test,
)
from unmask.modalities.table.imputation.pooling import (
    Pooled,
    Predicted,
    pool,
    predicted,
    without_separated,
)
from unmask.modalities.table.schema.clusters import Clusters
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.writing.writers import below_each_other, handed_out

_ONE = "MaskedImputer().fit_transform(X) fills one table; fit(data) completes `draws` of them, see `completed`"
_POOL = "pool('y ~ x') fits the analysis to every table and pools it in one call; so does pool_cox(['age'])"


class CompletedTables(Guessed, Printed):
    """The m tables of a multiple imputation.

    `done[0]` is the first, `done[-1]` the last, `len(done)` is m, and a loop goes through them. What counts from 1, as
    mice in R does, is `complete(1)`.
    """

    guesses: ClassVar[Any] = {
        **dict.fromkeys(("fit_transform", "transform", "impute"), _ONE),
        **dict.fromkeys(("analyze", "analyse", "with_", "fit_model"), _POOL),
        **dict.fromkeys(("D1", "D2", "D3", "anova"), "compare('y ~ x + g', 'y ~ x', method='D1')"),
        **dict.fromkeys(("datasets", "imputations", "imputed_datasets", "tables_"), lambda done: done.completed),
        "m": lambda done: done.draws,
        "complete_data": "complete(1) is the first table, as in mice; done[0] is it too",
        **dict.fromkeys(
            ("impute_new_data", "update_all", "next_sample", "perturb_params"),
            "fit(data) does all of it; new rows are filled by unmask.TableModel.fit(data).impute(new)",
        ),
        **dict.fromkeys(
            ("imp", "imputed_values"),
            "complete('long') has all tables below each other, completed is their list",
        ),
        "nmis": lambda done: {r["column"]: r["missing"] for r in done.diagnostics()},
        "mice": "the chains run in fit(data); rounds= is how long",
        "save": "done.complete('long', include=True) is one table that mice's as.mids reads; write that",
        **dict.fromkeys(
            ("plot", "plot_imputed_distributions", "plot_mean_convergence", "densityplot", "stripplot"),
            "report('page.html') has trace plots, and imputed beside observed values",
        ),
    }

    draws: int
    completed: list[Any]
    schema_: Schema
    formula_: Formula | None
    incomplete_: list[str]
    doubts_: list[str]
    _values: list[list[np.ndarray]]
    _pooled_in_doubt: bool

    def __len__(self) -> int:
        return len(self.completed)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.completed)

    def __getitem__(self, index: int | slice) -> Any:
        return self.completed[index]

    @also_called({"inplace": "complete(1) returns a table"}, action="which", dataset="which")
    def complete(self, which: int | str = "long", *, include: bool = False) -> Any:
        """One completed table, or all below each other.

        Args:
            which: 1 to m, as mice counts; or "long": all tables below each other, with the columns `.imp` (1 to m) and
                `.id` (the label of a pandas index, else the number of the row from 0); or "all": the list of them.
            include: "long" begins with the table as it was, `.imp` 0: mice's `as.mids` reads it.

        Raises:
            UserError: there is no such table; "long" of arrays.
        """
        if not self.completed:
            raise UserError("nothing is completed yet", hint="Call fit(data) first.")
        if which == "all":
            return list(self.completed)
        if which == "long":
            numbers, tables = list(range(1, len(self) + 1)), self.completed
            if include:
                numbers, tables = [0, *numbers], [handed_out(self.incomplete_table()), *tables]
            return below_each_other(tables, numbers)
        if isinstance(which, str) or not 1 <= which <= len(self):
            raise UserError(
                f"complete({which!r})",
                hint=f"Expected 1 to {len(self)}, 'long' or 'all'; done[0] is the first table too.",
            )
        return self.completed[which - 1]

    def to_frame(self) -> Any:
        """All tables below each other: `complete("long")`."""
        return self.complete("long")

    @abstractmethod
    def incomplete_table(self) -> Any:
        """The table as it was given."""

    @abstractmethod
    def diagnostics(self) -> list[dict[str, Any]]:
        """One record per imputed column."""

    @also_called(
        {"exponentiate": "The result has exp(coef) too: print it, or pooled.table(exponentiate=True, label='OR')"},
        formula="analyse",
        analysis="analyse",
    )
    def pool(
        self,
        analyse: Callable[[Any], Any] | str,
        *,
        names: Sequence[str] | None = None,
        complete_df: float | None = None,
        family: str | None = None,
        cause: str | None = None,
        coverage: float = 0.95,
        firth: bool = False,
        scale: str | None = None,
        cluster: str | None = None,
    ) -> Pooled:
        """Pool an analysis.

        Args:
            analyse: a formula ("y ~ x + I(x**2)", "Surv(time, event) ~ age"), fitted by the regression that its outcome
                asks for or `family` names; with "(1 | centre)" or "(1 + time | patient)" a linear mixed model (REML).
                Or a function of a completed table that returns (estimates, standard errors), the same with names, a
                mapping of name -> (estimate, error), a statsmodels result or a fitted lifelines regression. Named
                estimates are aligned by their names.
            names: of the estimates, where the analysis has none.
            complete_df: degrees of freedom without missing values; by default those of the analysis where it tells
                them, else infinite.
            family: of a formula: "ols", "logit", "polr" and "cox" are the defaults of outcomes that are quantities, two
                categories, ordered ones and survival pairs; "poisson" and "negative-binomial" are for counts,
                "fine-gray" for a cause.
            cause: of a survival pair with competing causes, the level of the event: by "cox" its hazard, the other
                causes censored; by "fine-gray" its subdistribution hazard.
            firth: of a logistic regression: Firth's penalised likelihood, whose estimates are finite where all or none
                of the rows of a level had the outcome (Heinze & Schemper 2002). Intervals are Wald's.
            scale: on which the estimates of a function are pooled, so that no interval leaves their range (van Buuren
                2018, 5.2): "fisher" for correlations, "logit" for probabilities, "cloglog" for survival probabilities,
                "log" for ratios. Estimates, errors and intervals are transformed back; `p` compares with 0 there (a
                correlation of 0, a probability of .5, a ratio of 1).
            cluster: of a formula: a column whose rows are alike, for standard errors that are robust to it (Liang &
                Zeger 1986), with a t distribution of clusters - 1 degrees of freedom.

        Terms of a formula that imputation did not keep are named in a warning; see `formula` of the class.

        Raises:
            UserError: the analysis has no standard errors (scikit-learn), or tables gave different estimates.
        """
        self._repeat_doubts()
        if isinstance(analyse, str):
            text, random, group = split_random(analyse)
            formula = dataclasses.replace(parse_formula(text, self.schema_, family=family, cause=cause), text=analyse)
            if scale is not None:
                raise UserError(
                    f"scale={scale!r}", hint="Coefficients of a formula are on the scale they are pooled on."
                )
            if firth and formula.family != "logit":
                raise UserError("firth=True", hint="It is built for logistic regressions; pool_cox has `penalizer`.")
            if random is not None and cluster is not None:
                raise UserError(f"{option('cluster', cluster)} with ({random} | {group})", hint="Give one of the two.")
            grouping = grouping_of(formula, group or cluster, random, self._clusters, plain=not firth)
            how: dict[str, Any] = {"complete_df": complete_df, "coverage": coverage, "firth": firth}
            return self._pool_formula(formula, grouping=grouping, **how)
        if cluster is not None:
            raise UserError(
                option("cluster", cluster), hint=f"A function gives its own errors: {option('cluster')} is a formula's."
            )
        found = aligned([estimates_of(analyse(table)) for table in self.completed])
        known = found[0].df if complete_df is None else complete_df
        return pool(
            [f.estimate for f in found],
            [f.error for f in found],
            names=names or found[0].names,
            complete_df=math.inf if known is None else known,
            coverage=coverage,
            scale=scale,
        )

    def _repeat_doubts(self) -> None:
        """The first pooling repeats the warnings: estimates are as doubtful as the tables."""
        if self.doubts_ and not self._pooled_in_doubt:
            self._pooled_in_doubt = True
            warnings.warn(f"of tables in doubt: {'; '.join(self.doubts_)}", stacklevel=outside())

    def _pool_formula(
        self,
        formula: Formula,
        *,
        penalizer: float = 0.0,
        complete_df: float | None = None,
        coverage: float = 0.95,
        firth: bool = False,
        grouping: Grouping | None = None,
    ) -> Pooled:
        self._warn_of_terms(formula)
        how: dict[str, Any] = {"penalizer": penalizer, "firth": firth, "grouping": grouping}
        fits = [fit_formula(formula, columns, **how) for columns in self._values]
        found = pool(
            [f.beta for f in fits],
            [f.error for f in fits],
            names=fits[0].names,
            complete_df=fits[0].degrees if complete_df is None else complete_df,
            coverage=coverage,
            references=formula.references,
            modelled=formula.modelled,
            fits=fits,
        )
        found = dataclasses.replace(found, reference_rows=formula.reference_rows(self._values[0]))
        return without_separated(found, fits, self._values[0])

    @abstractmethod
    def _clusters(self, name: str) -> Clusters:
        """The clusters that a column of the table names."""

    def _warn_of_terms(self, formula: Formula) -> None:
        """Warn of terms that imputation did not keep, where the analysis reads imputed cells."""
        left = terms_not_kept(formula, self.formula_)
        read = {formula.schema.column(p).name for p in (*formula.covariates, *formula.outcome)}
        if not left or not read & set(self.incomplete_):
            return
        agreed = f"imputation agreed with {self.formula_.text!r}" if self.formula_ else "imputation had no formula"
        warnings.warn(
            f"{', '.join(left)}: not kept by imputation, so pooled estimates of them are pulled towards zero, and "
            f"those of the other terms may be off ({agreed}). Impute with {option('formula', formula.text)}.",
            stacklevel=outside(),
        )

    @also_called(duration_col="duration", event_col="event", formula="covariates")
    def pool_cox(
        self,
        covariates: Sequence[str] | str,
        *,
        duration: str | None = None,
        event: str | None = None,
        cause: str | None = None,
        penalizer: float = 0.0,
        cluster: str | None = None,
    ) -> Pooled:
        """Pooled log hazard ratios of a Cox regression; `.table(exponentiate=True, label="HR")` prints them.

        Categories enter as the schema says, as an indicator of every level but the first (`references` of the result).

        Args:
            cause: of competing causes, the level of the event whose hazard it is; the others censor.
            penalizer: of lifelines, which is then needed.
            cluster: as in `pool`.

        Raises:
            UserError: the survival pair is not known, or one of it is among the covariates, there is none, a column is
                not there, or lifelines is needed and not installed.
        """
        formula = self._of_pair(covariates, duration, event, cause, "cox")
        grouping = grouping_of(formula, cluster, None, self._clusters, plain=not penalizer)
        return self._pool_formula(formula, penalizer=penalizer, grouping=grouping)

    @also_called(duration_col="duration", event_col="event", formula="covariates", failcode="cause", etype="cause")
    def pool_fine_gray(
        self, covariates: Sequence[str] | str, *, cause: str, duration: str | None = None, event: str | None = None
    ) -> Pooled:
        """Pooled log subdistribution hazard ratios of one of competing causes: how covariates shift its cumulative
        incidence (Fine & Gray 1999). The rest as in `pool_cox`."""
        return self._pool_formula(self._of_pair(covariates, duration, event, cause, "fine-gray"))

    def _of_pair(
        self, covariates: Sequence[str] | str, duration: str | None, event: str | None, cause: str | None, family: str
    ) -> Formula:
        """The analysis of a survival pair given these covariates."""
        self._repeat_doubts()
        covariates = [covariates] if isinstance(covariates, str) else list(covariates)
        if not covariates:
            raise UserError("no covariates", hint="Name at least one column.")
        pair = self._with_pair(duration, event)
        duration, event = str(pair.duration), str(pair.event)
        for name, what in ((duration, "the follow-up time"), (event, "the event")):
            if name in covariates:
                raise UserError(
                    f"covariates: {name!r} is {what}", hint="What is to be explained does not explain it: leave it out."
                )
        places = [pair.place(name, where="covariates: ") for name in covariates]
        happened = pair.columns[pair.number(event)]
        check_pair(self.schema_, pair.columns[pair.number(duration)], happened)
        return cox_formula(pair, places, family=family, cause=cause_number(happened, cause, family))

    def _with_pair(self, duration: str | None, event: str | None) -> Schema:
        """The schema with the survival pair that is meant: its own by default. Late entry is that of its own time."""
        schema = self.schema_
        duration, event = duration or schema.duration, event or schema.event
        if duration is None or event is None:
            raise UserError("no survival pair", hint=f"Give {option('duration')} and {option('event')}.")
        for name in (duration, event):
            schema.place(name, where="survival pair: ")
        entry = schema.entry if duration == schema.duration else None
        return dataclasses.replace(schema, duration=duration, event=event, entry=entry)

    def survival(
        self,
        times: Sequence[float] | float,
        *,
        by: str | None = None,
        cause: str | None = None,
        duration: str | None = None,
        event: str | None = None,
        coverage: float = 0.95,
    ) -> Pooled:
        """Kaplan-Meier survival at some times, or the cumulative incidence of one of competing causes, pooled on the
        complementary log-log scale (Marshall and others 2009; Morisot and others 2015).

        Args:
            times: in the unit of the duration.
            by: a category: of each of its levels by itself.
            cause: the level of the event whose cumulative incidence is meant (Aalen-Johansen); the others compete.
            duration, event: by default the survival pair of the tables.

        Raises:
            UserError: no survival pair; no such column, level or cause; a time beyond the follow-up.
        """
        self._repeat_doubts()
        pair = self._with_pair(duration, event)
        if cause is None and len(pair.causes) < 2:
            check_pair(self.schema_, *(pair.columns[pair.number(str(n))] for n in (pair.duration, pair.event)))
        return pooled_survival(self._values, pair, times, by=by, cause=cause, coverage=coverage)

    def validate(
        self,
        risk: Callable[[Any], Any] | str,
        outcome: str | None = None,
        *,
        cause: str | None = None,
        coverage: float = 0.95,
    ) -> Pooled:
        """How well a risk that was made elsewhere predicts the outcome: its C-index (or area under the ROC curve),
        pooled as log-odds, and its calibration slope, which is 1 where the risk neither over- nor underfits.

        Args:
            risk: a function of a completed table that gives a linear predictor per row (a log hazard ratio; log-odds
                for an outcome of two categories), or the name of the column that holds it. One that was fitted to
                these very tables flatters itself.
            outcome: a column of two categories; by default the survival pair.
            cause: of competing causes, the one that is predicted; the others censor.

        Where the tables have clusters, errors are robust to these.

        Raises:
            UserError: no outcome; a risk that is not one number per row, or does not vary.
        """
        self._repeat_doubts()
        if outcome:
            formula = parse_formula(f"`{outcome}` ~ 1", self.schema_, cause=cause)
        else:
            pair = self._with_pair(None, None)
            formula = cox_formula(
                pair, [], cause=cause_number(pair.columns[pair.number(str(pair.event))], cause, "cox")
            )
        if formula.model.takes not in ("binary", "survival"):
            raise UserError(f"validate: {outcome!r} has not two categories", hint="Expected a column that has.")
        name = risk if isinstance(risk, str) else "risk"
        risks = []
        for number, (table, columns) in enumerate(zip(self.completed, self._values, strict=True), 1):
            found = columns[self.schema_.place(risk)] if isinstance(risk, str) else np.asarray(risk(table), float)
            if found.shape != columns[0].shape or not np.isfinite(found).all() or not np.ptp(found):
                raise UserError(
                    f"validate: {name} of completed table {number}: expected a number per row, not all the same; "
                    f"got shape {found.shape}",
                    hint="Return a linear predictor per row of the table that is given.",
                )
            risks.append(found)
        own = self.schema_.cluster
        grouping = None if own is None else Grouping(name=own, clusters=self._clusters(own))
        return pooled_validation(self._values, formula, risks, coverage=coverage, grouping=grouping)

    def compare(
        self, full: str, null: str, *, method: str = "D1", family: str | None = None, cause: str | None = None
    ) -> PooledTest:
        """Whether an analysis says more than one with fewer terms: a pooled test of the coefficients that it has more.

        Args:
            full, null: formulas of the same outcome; the terms of `null` are among those of `full`.
            method: "D1", "D2" (of Wald statistics) or "D3"; `pooled_tests` says which to choose.
            family, cause: as in `pool`.

        Raises:
            UserError: the formulas are not nested, or an estimate runs to infinity.
        """
        self._repeat_doubts()
        if method not in METHODS:
            raise UserError(f"method={method!r}", hint=f"Expected one of {', '.join(METHODS)}.")
        larger, smaller = (parse_formula(text, self.schema_, family=family, cause=cause) for text in (full, null))
        if larger.outcome != smaller.outcome or larger.intercept != smaller.intercept:
            raise UserError(
                f"compare: {full!r} and {null!r} differ in the outcome or the constant", hint="Leave terms out, alone."
            )
        if not set(smaller.names) < set(larger.names):
            own = ", ".join(name for name in smaller.names if name not in larger.names) or "none"
            raise UserError(
                f"compare: {null!r} is not a part of {full!r}; coefficients of its own: {own}",
                hint="Leave terms of the full analysis out, and nothing else.",
            )
        self._warn_of_terms(larger)
        grouping_of(larger, None, None, self._clusters)
        fits = [fit_formula(larger, columns) for columns in self._values]
        tested = [name for name in larger.names if name not in smaller.names]
        estimates, covariances = coefficients(fits, tested)
        if method == "D1":
            return wald_test(estimates, covariances, tested, complete_df=fits[0].df)
        if method == "D2":
            solved = np.linalg.solve(covariances, estimates[:, :, None])[:, :, 0]
            return chi_squared_test((estimates * solved).sum(1), tested)
        fewer = [fit_formula(smaller, columns) for columns in self._values]
        own, pooled = (
            2 * (self._log_likelihoods(larger, fits, pooled=at) - self._log_likelihoods(smaller, fewer, pooled=at))
            for at in (False, True)
        )
        return likelihood_ratio_test(own, pooled, tested)

    def _log_likelihoods(self, formula: Formula, fits: Sequence[FormulaFit], *, pooled: bool) -> np.ndarray:
        """Of each table, at its own estimates or at the pooled ones."""
        at = [(f.beta, f.nuisance) for f in fits]
        if pooled:
            at = [(np.mean([f.beta for f in fits], 0), float(np.mean([f.nuisance for f in fits])))] * len(fits)
        return np.array([log_likelihood(formula, c, *one) for c, one in zip(self._values, at, strict=True)])

    def predict(self, fit: Callable[[Any], Any], new: Any, *, coverage: float = 0.95) -> Predicted:
        """Predictions for new rows by models fitted to each completed table, pooled.

        Where the models give standard errors of their predictions (statsmodels), these are pooled by Rubin's rules;
        where they do not (scikit-learn, lifelines), `error`, `low` and `high` are missing and the mean over tables is
        given.

        Args:
            fit: completed table -> a fitted model with `predict` (or `get_prediction`, `predict_proba`).
            new: what that method takes.
        """
        self._repeat_doubts()
        models = [fit(table) for table in self.completed]
        found = [predictions_of(model, new) for model in models]
        if any(error is None for _, error in found):
            mean = np.mean([values for values, _ in found], 0)
            names = ("error", "low", "high", "response_low", "response_high")
            return Predicted(estimate=mean, response=mean, **{name: np.full(len(mean), np.nan) for name in names})
        values, errors = [v for v, _ in found], [e for _, e in found if e is not None]
        # Probabilities are pooled as log-odds, so that no bound lies outside of 0 to 1.
        scale = "logit" if are_shares(models[0], values) else None
        return predicted(pool(values, errors, coverage=coverage, scale=scale))

    def shown(self) -> Shown:
        """The columns that were completed, as `print` shows them."""
        if not self.completed:
            return Shown(title=f"{self!r}", next_step="fit(data)")
        rows = [
            (r["column"], r["method"], r["missing"], r["r_hat"], summary(r, "observed"), summary(r, "imputed"))
            for r in self.diagnostics()
        ]
        return Shown(
            title=f"{self!r}",
            columns=("column", "method", "missing", "R-hat", "observed", "imputed"),
            rows=rows,
            notes=[
                "observed, imputed: mean (deviation) of a quantity, share of the commonest level of a category",
                *(f"warning: {text}" for text in self.doubts_),
            ],
            next_step="done.pool('y ~ x'), done.pool_cox(['x']); done[0] is the first table, report('page.html') shows "
            "how they came about",
            formats={"missing": lambda share: f"{share:.1%}", "R-hat": lambda value: f"{value:.2f}"},
        )
