"""Multiple imputation: completed tables that differ as our knowledge does, and estimates pooled by Rubin's rules.

To be proper, imputations must vary with the uncertainty of the model too (Rubin 1987, ch. 4): every completed table
comes from a chain of its own (`chained.py`), whose regressions have their parameters drawn anew for every column and
round. To be compatible, covariates of an analysis are drawn so that they agree with it (`smcfcs.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.elsewhere import FITTING
from unmask.errors import UserError, option, outside
from unmask.guessed import also_called
from unmask.modalities.table.imputation.analysis import agreed_analysis, measured_terms, survival_pair
from unmask.modalities.table.imputation.censored import (
    censored_notes,
    check_censored,
    check_possible,
    drawn_cells,
    settle_scales,
    started,
    without_censored,
    without_event,
)
from unmask.modalities.table.imputation.chained import CompletedColumns, DrawPlan
from unmask.modalities.table.imputation.clustered import clustered_plan, without_analysis
from unmask.modalities.table.imputation.complete import holes, taken_for_missing
from unmask.modalities.table.imputation.completed import CompletedTables
from unmask.modalities.table.imputation.diagnostics import ImputedColumn, diagnostics, doubts, unmixed, write_report
from unmask.modalities.table.imputation.methods import choose_methods
from unmask.modalities.table.imputation.scales import written
from unmask.modalities.table.imputation.shift import parse_shifts, raised_levels, shifted, without_cells
from unmask.modalities.table.imputation.smcfcs import ChainedDraws
from unmask.modalities.table.imputation.under_rules import recorded_breaches, settled, unmet
from unmask.modalities.table.reading.findings import warn_of
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.rules.rules import Rules, schema_for
from unmask.modalities.table.schema.clusters import Clusters, clusters_of
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import (
    decode,
    empty_row_notes,
    empty_rows,
    encode_censored,
    match_columns,
)
from unmask.modalities.table.writing.writers import filled_copy, handed_out
from unmask.progress import counted


class MultipleImputation(CompletedTables):
    """Complete a table m times, analyse each, pool. `done[0]`, `len(done)`, loops and `complete` give the tables.

    Args:
        draws: completed tables, m (also `m=`); at least the percentage of incomplete rows is the usual advice.
        schema, duration, event, entry, event_level: as in `TableModel.fit`. With a survival pair, covariates are drawn
            to agree with a Cox regression of the pair on them.
        method: column -> "norm" (normal linear regression), "pmm" (predictive mean matching), "logreg", "polyreg",
            "polr", "cart" (a donor from the leaf of a tree, without an analysis or clusters) or "sample" (any observed
            value), or one name for all columns it suits. By default categories have the logistic regression of their
            kind, and quantities "norm" where the data do not speak against it, else "pmm"; without an analysis or
            clusters, a method whose draws are nearer to held-out values than those of this one.
        formula: the analysis that imputation has to agree with, such as "y ~ x + I(x**2) + x:z": squares and
            interactions are then kept. Columns that it leaves out are taken to tell nothing of the outcome beyond its
            covariates.
        family: of that analysis, where its outcome leaves a choice: "poisson" or "negative-binomial" of counts,
            "fine-gray" for the subdistribution hazard of one of competing causes. By default "ols", "logit", "polr"
            (ordered categories) or "cox" (of competing causes the hazards of all of them).
        cause: with "fine-gray", the level of the event.
        rounds: of the chains. Chains that have not mixed by then (see `unmixed` in `diagnostics.py`) go on, up to four
            times as long.
        shift: column -> added to imputed values (delta adjustment): a number in the column's unit, the log of an odds
            ratio of the later levels of a category (a note names them), or {condition: number} for groups, e.g.
            {"creatinine": {"arm == 1": 30}}. It is not cut at the range of the data; bounds given in the schema are
            kept, and a note counts what they held back.
        cluster: column of the patient or centre that several rows belong to: two-level imputation; see `clustered.py`.
        slopes: with `cluster`, columns whose effects differ between clusters too, such as the time of visits.
        censored: what is written in cells that are only bounded ("<0.5", "2-4"; see `Column.lod`): the values "drawn"
            inside their intervals, which makes the column numeric, or "kept" as they stand. Formulas that are pooled
            read what was drawn.
        seed: decides all draws.
        overrides: settings of `TableModel`, e.g. steps=200: each chain then starts from a table drawn by a model fitted
            to a bootstrap sample; without a formula or survival pair that table is the imputation.

    Attributes:
        completed: the tables, of the input's kind (polars for a file).
        methods_: column -> method; "formula" for the outcome of the analysis.
        reasons_: column -> why, where the data chose the method.
        cells_: filled in each table.
        notes_: what was done that is not obvious: predictors left out, bounds that held; what was warned of first.
        doubts_: what speaks against these tables (warned of by `fit`, and by the first pooling): chains that have not
            mixed, draws that found no value, imputed values far from observed ones, complete rows that serve better.

    >>> MultipleImputation(draws=5).draws
    5
    """

    @also_called(
        {
            "data": "MultipleImputation(5).fit(data)",
            "ridge": "settings of the network, such as steps=200, are what is fitted beside the chains",
        },
        m="draws",
        n_imputations="draws",
        num_datasets="draws",
        maxit="rounds",
        max_iter="rounds",
        iterations="rounds",
        methods="method",
        meth="method",
        delta="shift",
        **FITTING,
    )
    def __init__(
        self,
        draws: int = 20,
        *,
        schema: Any = None,
        duration: str | None = None,
        event: str | None = None,
        entry: str | None = None,
        event_level: str | Sequence[str] | None = None,
        method: Mapping[str, str] | str | None = None,
        formula: str | None = None,
        family: str | None = None,
        cause: str | None = None,
        rounds: int = 10,
        shift: Mapping[str, float | Mapping[str, float]] | None = None,
        cluster: str | None = None,
        slopes: Sequence[str] | str = (),
        censored: str = "drawn",
        seed: int = 0,
        **overrides: Any,
    ) -> None:
        if not isinstance(draws, int):
            raise UserError(
                f"draws is a {type(draws).__name__}", hint="The table goes to fit: MultipleImputation(5).fit(data)."
            )
        if draws < 2:
            raise UserError(f"draws={draws}", hint="Multiple imputation needs two completed tables or more.")
        if rounds < 1:
            raise UserError(f"rounds={rounds}", hint="Expected 1 or more; 10 suffice as a rule.")
        check_censored(censored)
        settings_of(**overrides)
        self.cluster, self.slopes = cluster, [slopes] if isinstance(slopes, str) else list(slopes)
        self.censored = censored
        self.draws, self.schema, self.shift, self.seed = draws, schema, dict(shift or {}), seed
        self.duration, self.event, self.method = duration, event, method
        self.entry, self.event_level = entry, event_level
        self.formula, self.rounds, self.overrides = formula, rounds, dict(overrides)
        self.family, self.cause = family, cause
        self.completed: list[Any] = []

    def __repr__(self) -> str:
        fitted = "not fitted"
        if self.completed:
            incomplete = f"{len(self.incomplete_)} of {len(self.schema_.modelled)} columns"
            fitted = f"{incomplete} completed in {len(self._missing[0]):,} rows"
        return f"MultipleImputation({self.draws} draws, {fitted})"

    @also_called(
        dict.fromkeys(
            ("duration_col", "event_col", "duration", "event"),
            "The survival pair belongs to the class: MultipleImputation(20, duration='time', event='event').fit(data)",
        )
    )
    def fit(self, data: Any) -> MultipleImputation:
        """Complete the table `draws` times.

        Raises:
            UserError: naming the column, cell, method, formula or shift at fault.
        """
        frame = read_frame(data)
        duration, event = survival_pair(self.formula, frame.names, self.schema, self.duration, self.event)
        schema = schema_for(
            frame,
            self.schema,
            duration=duration,
            event=event,
            entry=self.entry,
            event_level=self.event_level,
            cluster=self.cluster,
        )
        if not schema.modelled:
            raise UserError(f"{frame.source}: no column to impute", hint="All columns are identifiers or empty.")
        analysed: dict[str, Any] = {"family": self.family, "cause": self.cause}
        schema, measured = measured_terms(self.formula, self.schema, schema, **analysed)
        shifts = parse_shifts(self.shift, schema)
        columns, self._censored = encode_censored(frame, schema)
        rng = np.random.default_rng([self.seed, 0, 4])
        self._start, self._scales = started(columns, self._censored, rng)
        self._missing, self._gaps = [np.isnan(x) for x in columns], holes(schema, columns)
        self._unknown = without_censored(self._gaps, self._censored)
        self._frame, self._order = frame, match_columns(frame, schema)
        # The notes of a schema that was given speak of the table that it was made of.
        self.schema_ = schema
        taken = taken_for_missing(schema, frame)
        self.notes_ = taken if isinstance(self.schema, Schema) else list(schema.notes)
        warn_of([*self.notes_, *(f"warning: {text}" for text in taken)])
        self._note(*measured, warn=True)
        self._rules, self._recorded = Rules.of(schema).inside(self._censored, len(frame)), columns
        self.notes_ += censored_notes(schema, self._censored, self.censored)
        self.notes_ += recorded_breaches(self._rules, columns, frame.row_name)
        self._note(*without_event(schema, columns, self._censored, frame.row_name), warn=True)
        empty = empty_rows(frame, schema)
        unknown = empty_row_notes(frame, empty, "imputed as patients of whom nothing is known; take out what are none")
        self._note(*unknown, warn=True)
        if self.slopes and schema.cluster is None:
            raise UserError(f"{option('slopes')} without {option('cluster')}", hint="Name whose slopes differ.")
        self.clusters_ = None if schema.cluster is None else clusters_of(frame, schema, schema.cluster)
        if self.clusters_ is None:
            timed = schema.place(schema.duration) if schema.duration else -1  # a bounded time is not missing
            known = [self._start[p] if p == timed else x for p, x in enumerate(columns)]
            self.formula_ = agreed_analysis(
                self.formula, schema, known, **analysed, note=self._note, row_name=frame.row_name
            )
        else:
            self.formula_ = None
            self._note(*without_analysis(schema, self.formula, self.overrides), warn=True)
        plan = self._plan()
        self.incomplete_ = [plan.name(p) for p in plan.order]
        # Without a formula, two rounds of one incomplete column are two draws of the same distribution.
        alone = len(plan.order) <= 1 and self.formula_ is None and self.clusters_ is None and not plan.censored
        rounds = 1 if alone else self.rounds
        draws = ChainedDraws(plan, self.formula_, self.seed, self.overrides)
        found = [draws.draw(m, rounds) for m in counted(range(self.draws), self.draws)]
        for more in (rounds, 2 * rounds):
            traces = zip(plan.order, self._traces(plan, found), strict=True)
            if not any(unmixed(trace) for place, trace in traces if self._gaps[place].any()):
                break
            found = [draws.longer(m, one, more) for m, one in counted(enumerate(found), self.draws)]
        self.trace_ = np.stack([f.trace for f in found])
        self._drawn = found
        self.doubts_ = doubts(
            plan,
            self._traces(plan, found),
            [f.columns for f in found],
            self._unknown,
            stuck=sum(f.stuck for f in found),
            formula=self.formula_,
        )
        self._pooled_in_doubt = False
        read = set() if self.formula_ is None else {*self.formula_.covariates, *self.formula_.outcome} & set(plan.order)
        if self.formula_ is not None and read == set(self.formula_.outcome) - set(self._censored) and len(read) == 1:
            self._note(
                "of the analysis only the outcome lacks values: complete rows give its estimates as well, without the "
                "noise of imputation (van Buuren 2018, 2.7)"
            )
        self.notes_ = [*self.doubts_, *self.notes_]
        for text in self.doubts_:
            warnings.warn(text, stacklevel=outside())
        self._finish(shifts, warn=True)
        return self

    @staticmethod
    def _traces(plan: DrawPlan, found: Sequence[CompletedColumns]) -> np.ndarray:
        """(columns, tables, rounds) means of the imputed values; of censored columns less what chains on other scales
        differ by, which is no want of mixing."""
        traces = np.stack([one.trace[:, :, 0] for one in found]).transpose(2, 0, 1)
        for number, place in enumerate(plan.order):
            scales = [one.scales.get(place) for one in found]
            for scale in {scale for scale in scales if len(set(scales)) > 1}:
                own = [s == scale for s in scales]
                traces[number, own] -= traces[number, own].mean()
        return traces

    def _plan(self) -> DrawPlan:
        schema = self.schema_
        check_possible(schema, self._censored, self.formula_)
        if self.clusters_ is None:
            plan = DrawPlan(
                columns=self._start, sizes=schema.sizes, schema=schema, scales=self._scales, censored=self._censored
            )
        else:
            plan = clustered_plan(
                self.clusters_,
                schema,
                self._recorded,
                self._start,
                self._censored,
                self.slopes,
                scales=self._scales,
                note=self._note,
                row_name=self._frame.row_name,
            )
            self._missing = plan.drawn
        if self.formula_ is not None:
            outcome = frozenset(self.formula_.outcome)
            plan.skip = {p: outcome for p in plan.order if p not in outcome}
            if self.formula_.survival:
                plan.hazard = (self.formula_.outcome[0], self.formula_.outcome[1])
        elif self.formula is None and schema.duration is not None and schema.event is not None:
            plan.hazard = (schema.place(schema.duration), schema.place(schema.event))
        if self.formula is None and self._rules.formulas:
            formulas = Rules(schema, self._rules.formulas)

            def computed(now: list[np.ndarray]) -> dict[int, np.ndarray]:
                found = settled(formulas, self._recorded, now)[0]
                return {p: found[p] for p in formulas.touched}

            plan.computed = computed
            for computed_from in (rule.columns for rule in formulas.formulas):
                for p in computed_from[1:]:  # a part that is predicted by the whole would never move
                    plan.skip[p] = plan.skip.get(p, frozenset()) | {computed_from[0]}
        outcome_columns = None if self.formula_ is None else self.formula_.outcome
        trees = self.formula_ is None and self.clusters_ is None
        choose_methods(plan, self.method, np.random.default_rng([self.seed, 0, 3]), outcome_columns, trees=trees)
        if plan.censored:
            settle_scales(plan, plan.chain(np.random.default_rng([self.seed, 0, 5])))
        self.methods_ = {plan.name(p): plan.methods[p] for p in plan.order}
        self.reasons_ = {plan.name(p): why for p, why in plan.reasons.items()}
        if self.formula_ is not None:
            for p in self.formula_.outcome:
                if p in plan.order:
                    self.methods_[plan.name(p)] = "formula"
                    self.reasons_.pop(plan.name(p), None)
        self.notes_ += plan.notes
        return plan

    def shifted(self, shift: Mapping[str, float | Mapping[str, float]] | None) -> MultipleImputation:
        """The same imputations under another shift, with the same random numbers: nothing is fitted or drawn again.

        Raises:
            UserError: the shift is not possible; see `shift`.
        """
        other = MultipleImputation.__new__(MultipleImputation)
        other.__dict__.update(self.__dict__)
        other.shift, other.notes_ = dict(shift or {}), list(self._notes_before)
        other._finish(parse_shifts(other.shift, self.schema_), warn=False)
        return other

    def _finish(self, shifts: Sequence[Any], *, warn: bool) -> None:
        """Shift the drawn columns, bring them to the precision and bounds of the table, and make tables of them."""
        self._notes_before = list(self.notes_)
        schema, gaps = self.schema_, self._gaps
        self._values, held, moved = [], [0] * len(gaps), 0
        self._tables: list[Any] = []
        for one in self._drawn:
            moving = without_censored(self._missing, self._censored)
            columns = shifted(shifts, schema, one.columns, moving, one.odds) if shifts else one.columns
            columns = [np.array(x) for x in columns]
            for place, missing in enumerate(moving):
                column = schema.column(place)
                if column.is_quantity and missing.any():
                    columns[place][missing], count = written(columns[place][missing], column)
                    held[place] += count
                columns[place][missing & ~gaps[place]] = np.nan
            if self._rules:
                columns, count = settled(self._rules, self._recorded, columns)
                moved += count
            for place, cells in self._censored.items():
                columns[place][cells.rows] = cells.written(columns[place][cells.rows])
            self._values.append(columns)
            filled = {
                i: (np.flatnonzero(gap), decode(x[gap], schema.columns[i]))
                for x, gap, i in zip(columns, self._unknown, schema.modelled, strict=True)
                if gap.any()
            }
            drawn = {} if self.censored == "kept" else drawn_cells(schema, self._censored, columns)
            self._tables.append(filled_copy(self._frame, filled, schema, self._order, drawn))
        self.completed = [handed_out(table) for table in self._tables]
        filled_in = self._unknown if self.censored == "kept" else gaps
        self.cells_ = int(sum((gap & ~np.isnan(x)).sum() for gap, x in zip(filled_in, self._values[0], strict=True)))
        for text, denies in raised_levels(shifts, schema).items():
            self._note(text, warn=denies)
        self._note(*without_cells(shifts, schema, [one.columns for one in self._drawn], self._unknown), warn=True)
        if self._rules:
            self.notes_ += unmet(self._rules, self._recorded, self._values, self._frame.row_name)
        if moved:
            self._note(
                f"{moved} drawn or computed cells, over all completed tables, were moved to meet the rules between "
                "columns",
                warn=warn and bool(shifts),
            )
        for place, count in enumerate(held):
            if count:
                column = schema.column(place)
                low, high = column.bounds
                total = self.draws * int(self._unknown[place].sum())
                self._note(
                    f"{count} of {total} imputed values of {column.name!r} lay outside the bounds given ({low:g} to "
                    f"{high:g}) and were set to them",
                    warn=warn and bool(shifts),
                )

    def refuse_idle(self, shift: Mapping[str, float | Mapping[str, float]]) -> None:
        """Refuse a shift that would move nothing.

        Raises:
            UserError: no cell of its column and group was imputed.
        """
        drawn = [one.columns for one in self._drawn]
        for text in without_cells(parse_shifts(shift, self.schema_), self.schema_, drawn, self._unknown):
            raise UserError(text, hint="Only imputed cells are moved: name a column, and a group, that has some.")

    def incomplete_table(self) -> Any:
        """The table as it was given."""
        return filled_copy(self._frame, {}, self.schema_, self._order)

    def tables(self) -> list[Any]:
        """The completed tables as they are written: a file's cells are the texts they were."""
        return list(self._tables)

    def _clusters(self, name: str) -> Clusters:
        return clusters_of(self._frame, self.schema_, name)

    def _note(self, *texts: str, warn: bool = False) -> None:
        self.notes_ += texts
        for text in texts if warn else ():
            warnings.warn(text, stacklevel=outside())

    def diagnostics(self) -> list[dict[str, Any]]:
        """Per imputed column: method, values missing, convergence (R-hat), observed beside imputed; see
        `diagnostics.py`."""
        return diagnostics(self._imputed_columns())

    def _imputed_columns(self) -> list[ImputedColumn]:
        places = [self.schema_.place(name) for name in self.incomplete_]
        return [
            ImputedColumn(
                column=self.schema_.column(place),
                method=self.methods_[name],
                why=self.reasons_.get(name),
                missing=float(self._gaps[place].mean()),
                observed=self._values[0][place][~self._missing[place]],
                imputed=np.concatenate([columns[place][self._gaps[place]] for columns in self._values]),
                trace=self.trace_[:, :, number, 0],
            )
            for number, (name, place) in enumerate(zip(self.incomplete_, places, strict=True))
        ]

    def report(self, path: str | Path) -> Path:
        """Write the diagnostics with trace plots as an HTML page; returns its path."""
        columns, rounds = self._imputed_columns(), self.trace_.shape[1]
        return write_report(
            path,
            columns,
            tables=self.draws,
            rounds=rounds,
            notes=self.notes_,
            call=self._call(),
            analysis=self.formula_.text if self.formula_ else "",
        )

    def _call(self) -> str:
        """How these tables were made, as Python."""
        names = ("formula", "family", "cause", "duration", "event", "entry", "event_level", "method", "shift", "rounds")
        given = [(name, getattr(self, name)) for name in (*names, "cluster", "slopes", "censored", "seed")]
        given += self.overrides.items()
        usual = (("rounds", 10), ("censored", "drawn"))
        options = "".join(f", {name}={value!r}" for name, value in given if value and (name, value) not in usual)
        return f"MultipleImputation({self.draws}{options}{', schema=...' if self.schema is not None else ''})"
