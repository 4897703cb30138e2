"""`MaskedImputer`: the table model as a scikit-learn transformer."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.impute import MissingIndicator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, MissingValues, StrOptions
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_is_fitted, validate_data

from unmask.errors import UserError, first_of
from unmask.given import no_value
from unmask.guessed import Guessed, also_called
from unmask.modalities.table.imputation.censored import drawn_cells, without_censored
from unmask.modalities.table.imputation.complete import changes, holes
from unmask.modalities.table.imputation.training_range import beyond_range
from unmask.modalities.table.imputation.under_rules import drawn_under, points_under, unmet
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.infer import infer, infer_schema
from unmask.modalities.table.schema.raw_column import spellings
from unmask.modalities.table.schema.schema import LEFT_OUT, Column
from unmask.modalities.table.schema.values import encode_censored, missing_cells
from unmask.modalities.table.writing.whole_columns import (
    Drawn,
    appended,
    as_output,
    chosen,
    is_frame,
    replaced,
    series_of,
)
from unmask.modalities.table.writing.writers import filled_copy


class MaskedImputer(Guessed, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Imputation by masked prediction, of mixed types, fitted on one table and applied to new rows.

    Takes arrays and pandas, polars and Arrow tables. Returns an array, as scikit-learn's transformers do; after
    `set_output(transform="pandas")` or "polars" a frame with the index, the column order and the column types of the
    input. Observed cells are returned as they are; those that are only bounded ("<0.5", "2-4") as numbers inside their
    intervals. A row's result does not depend on the other rows.

    No cell is left empty but those of identifiers (or see `identifiers`), of columns of dates and the like in which
    nothing was ever observed, and of `structural="keep"`.

    Args:
        missing_values: what stands for a missing value; NaN, None, pandas' NA and empty texts always do.
        schema: overrides of the inferred schema: {"columns": {name: {"kind": ...}}, ...}; columns of an array are
            called x0, x1, ...
        sample_posterior: draw values instead of taking the mean or the likeliest category: one completed table of a
            multiple imputation.
        add_indicator: append a 0/1 column for every column that had missing values in training.
        min_value, max_value: bounds of imputed quantities, a number or one per column; of dates in days since 1970.
        keep_empty_features: keep columns without any observed value, filled with 0, False or "missing_value".
        structural: cells that are empty by their meaning (the cause of death of the living) are filled like any other
            ("fill", said by a warning), or stay empty ("keep").
        identifiers: columns that tell rows apart (record numbers, free text) cannot be imputed: they are passed on as
            they are, holes included, with a warning ("keep"), or left out ("drop").
        unseen: a category that was not seen in training is returned as it is, and its row's other cells are imputed
            as if it were missing ("keep"); is replaced as a missing cell is ("missing"); or is an "error".
        use_outcome: the fit sees the outcome `y` beside `X`; see `fit`.
        steps: optimiser steps, by default as many as the size of the table asks for; 0 is the linear part alone.
        members: networks side by side.
        random_state: decides weights, masks and draws.

    Attributes:
        model_: the fitted `TableModel`; None where there is nothing to model, or one row.
        schema_: the schema of the columns of `X`.
        kept_: (columns,) which columns are returned.
        n_iter_: optimiser steps taken.

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [2.0, np.nan], [3.0, 6.0], [4.0, 8.0]])
    >>> MaskedImputer(steps=0).fit_transform(x).shape
    (4, 2)
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012
        "missing_values": [MissingValues()],
        "schema": [Mapping, None],
        "sample_posterior": ["boolean"],
        "add_indicator": ["boolean"],
        "min_value": [None, Interval(Real, None, None, closed="both"), "array-like"],
        "max_value": [None, Interval(Real, None, None, closed="both"), "array-like"],
        "keep_empty_features": ["boolean"],
        "structural": [StrOptions({"fill", "keep"})],
        "identifiers": [StrOptions({"keep", "drop"})],
        "unseen": [StrOptions({"keep", "missing", "error"})],
        "use_outcome": ["boolean"],
        "steps": [None, Interval(Integral, 0, None, closed="left")],
        "members": [Interval(Integral, 1, 64, closed="both")],
        "random_state": ["random_state"],
    }

    guesses: ClassVar[Any] = {
        **dict.fromkeys(("impute", "complete", "fill"), lambda imputer: imputer.fit_transform),
        **dict.fromkeys(
            ("imputation_sequence_", "statistics_", "initial_imputer_"), "print(model_) shows what was fitted"
        ),
        "predict": "transform(X) fills the missing cells",
        "inverse_transform": "where cells were missing is told by add_indicator=True",
    }

    @also_called(
        {
            "max_iter": "steps= is how long it learns; left out, as long as the table asks for",
            **dict.fromkeys(
                ("strategy", "n_neighbors", "estimator", "initial_strategy", "weights", "metric", "n_nearest_features"),
                "There is none to choose: a model of all columns predicts each cell",
            ),
            **dict.fromkeys(
                ("imputation_order", "tol", "verbose", "skip_complete", "copy", "fill_value"),
                "Leave it out: there are no rounds over columns; the settings are steps= and members=",
            ),
            **dict.fromkeys(
                ("m", "n_imputations", "num_datasets", "draws"),
                "MultipleImputation(5).fit(X) completes five tables, for Rubin's rules",
            ),
        },
        seed="random_state",
        n_iter="steps",
    )
    def __init__(
        self,
        *,
        missing_values: Any = np.nan,
        schema: Mapping[str, Any] | None = None,
        sample_posterior: bool = False,
        add_indicator: bool = False,
        min_value: Any = None,
        max_value: Any = None,
        keep_empty_features: bool = False,
        structural: str = "fill",
        identifiers: str = "keep",
        unseen: str = "keep",
        use_outcome: bool = False,
        steps: int | None = None,
        members: int = 4,
        random_state: Any = None,
    ) -> None:
        self.missing_values = missing_values
        self.schema = schema
        self.sample_posterior = sample_posterior
        self.add_indicator = add_indicator
        self.min_value = min_value
        self.max_value = max_value
        self.keep_empty_features = keep_empty_features
        self.structural = structural
        self.identifiers = identifiers
        self.unseen = unseen
        self.use_outcome = use_outcome
        self.steps = steps
        self.members = members
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, duration: Any = None, event: Any = None) -> MaskedImputer:
        """Learn the table `X`, which may have missing cells.

        Where cells are missing depending on the outcome (the sicker, the more complete), what is learnt of the
        covariates is right only if the fit sees the outcome too. Give it by `use_outcome=True` and `y`, or by
        `duration` and `event` (inside a pipeline: `set_fit_request(duration=True, event=True)`). `transform` never
        needs or uses an outcome, not even of the rows of the fit: nothing of it can leak into features. For estimates
        by Rubin's rules, in which covariates must be drawn given the outcome, there is `MultipleImputation`.

        Args:
            y: ignored, unless `use_outcome`: then numbers, classes, or a structured array of one boolean field
                (event) and one number field (time), as scikit-survival has it.
            duration, event: (rows,) follow-up times and whether the event happened.

        Raises:
            UserError: naming the row, column and value at fault.
        """
        self._validate_params()
        frame = self._read(X, reset=True)
        override = dict(self.schema or {})
        override["missing"] = spellings(override.get("missing", ()))
        if not no_value(self.missing_values):
            override["missing"] += spellings(self.missing_values)
        self.schema_ = infer(frame, override=override)[0]
        self._bounds = [_bound(b, len(frame.names), n) for b, n in ((self.min_value, "min"), (self.max_value, "max"))]
        columns = self.schema_.columns
        self.kept_ = np.array(
            [
                self.identifiers == "keep" if c.kind in LEFT_OUT else c.modelled or self.keep_empty_features
                for c in columns
            ]
        )
        outcome = outcome_columns(y if self.use_outcome else None, duration, event, self.use_outcome, len(frame))
        self._fit_model(frame, outcome)
        self.n_iter_ = self.model_.facts["steps"] if self.model_ is not None else 0
        missing = self._missing(frame)
        if self.add_indicator:
            self.indicator_ = MissingIndicator(error_on_new=False).fit(np.where(missing, np.nan, 0.0))
        self._say(missing)
        return self

    def _fit_model(self, frame: Frame, outcome: Outcome) -> None:
        """The model of the columns of `X` and, behind them, of the outcome."""
        self._outcomes = len(outcome)
        self.model_, self._only = None, [c[~g][:1] for c, g in zip(frame.columns, self._missing(frame).T, strict=True)]
        if not self.schema_.modelled or len(frame) < 2:
            return
        # Of cells that are empty by their meaning `structural` decides.
        decided = tuple(
            f"warning: {c.name!r} is empty where " for c in self.schema_.columns if c.structural is not None
        )
        notes = tuple(note for note in self.schema_.notes if not note.startswith(decided))
        schema = dataclasses.replace(
            self.schema_, columns=(*self.schema_.columns, *(c for c, _ in outcome)), notes=notes
        )
        whole = dataclasses.replace(
            frame, names=schema.names, columns=[*frame.columns, *(x for _, x in outcome)], native=None, lines=None
        )
        self.model_ = TableModel.fit(whole, schema=schema, steps=self.steps, members=self.members, seed=self._seed())
        self.model_.like = None

    def _say(self, missing: np.ndarray) -> None:
        """Warnings of what a person may not expect of the result."""
        for c, empty in zip(self.schema_.columns, missing.T, strict=True):
            if c.structural is not None and self.structural == "fill":
                rule = f"{c.structural[0]!r} is {c.structural[1]!r}"
                warnings.warn(
                    f"{c.name!r} is empty where {rule}, by its meaning as it seems; these cells are filled too, unless "
                    "structural='keep'",
                    stacklevel=3,
                )
            if c.kind in LEFT_OUT and self.identifiers == "keep" and empty.any():
                warnings.warn(
                    f"{c.name!r} looks like an identifier or free text and is not imputed: its {int(empty.sum())} "
                    "empty cells stay empty; identifiers='drop' leaves it out, a kind in `schema` overrules",
                    stacklevel=3,
                )
            if c.kind not in LEFT_OUT and not c.modelled and not self.keep_empty_features:
                warnings.warn(f"{c.name!r} holds no value at all and is left out", stacklevel=3)

    def transform(self, X: Any) -> Any:
        """The table with its missing cells filled; see the class for the kind of table."""
        check_is_fitted(self, "schema_")
        frame = self._read(X, reset=False)
        missing = self._missing(frame)
        found, drawn = self._changes(frame, missing)
        table = filled_copy(frame, found, self.schema_, list(range(len(frame.names))), drawn)
        for i, c in enumerate(self.schema_.columns):
            if c.kind not in LEFT_OUT and not c.modelled and self.keep_empty_features:
                table = _filled_empty(table, i)
        table = chosen(table, np.flatnonzero(self.kept_).tolist())
        names = self.get_feature_names_out().tolist()
        if self.add_indicator:
            marks = self.indicator_.transform(np.where(missing, np.nan, 0.0))
            table = appended(table, names[-marks.shape[1] :] if marks.shape[1] else [], marks.astype(bool))
        return as_output(table, names, _get_output_config("transform", self)["dense"])

    def _changes(self, frame: Frame, missing: np.ndarray) -> tuple[dict[int, tuple[np.ndarray, list[Any]]], Drawn]:
        """Column -> (rows, plain values) of what is to be filled; and what cells that are only bounded get."""
        if self.model_ is None:
            empty = [np.flatnonzero(g) for g in missing.T]
            only = {i: (r, [self._only[i][0]] * len(r)) for i, r in enumerate(empty) if len(r) and len(self._only[i])}
            return only, {}
        if not len(frame):
            return {}, {}
        coded, bounded = encode_censored(frame, self.schema_, unseen="error" if self.unseen == "error" else "missing")
        for i, x in zip(self.schema_.modelled, coded, strict=True):
            cells, c = frame.columns[i][~missing[:, i]], self.schema_.columns[i]
            if len(cells) and not c.is_quantity and np.isnan(x).all():
                seen = first_of(sorted({repr(text_of(v)) for v in cells}))
                warnings.warn(
                    f"{c.name!r}: none of its {len(cells)} cells holds a category that was seen in training ({seen}; "
                    f"known: {first_of(map(repr, c.categories))}): taken as missing. Is it coded otherwise?",
                    stacklevel=4,
                )
        known = [*coded, *[np.full(len(frame), np.nan)] * self._outcomes]
        table, rules = self.model_.table, Rules.of(self.model_.schema).inside(bounded, len(frame))
        if self.sample_posterior:
            filled = drawn_under(rules, table, known, seed=self._seed(), member=0)
        else:
            filled = points_under(rules, table, known, table.impute(known)).point
        beyond = beyond_range(self.model_.schema, table.codings, known, frame.row_name)
        for note in [*beyond, *unmet(rules, known, [filled], frame.row_name)]:
            warnings.warn(note, stacklevel=4)
        gaps = holes(self.model_.schema, known) if self.structural == "keep" else [np.isnan(x) for x in known]
        if self.unseen == "keep":
            gaps = [h & missing[:, i] for h, i in zip(gaps, self.schema_.modelled, strict=False)]
        gaps += [np.zeros(len(frame), bool)] * (len(known) - len(gaps))
        drawn = drawn_cells(self.model_.schema, bounded, filled)
        found = changes(self.model_.schema, without_censored(gaps, bounded), filled, rules.touched)
        for i, (rows, values) in found.items():
            low, high = (b[i] for b in self._bounds)
            if self.schema_.columns[i].kind in ("numeric", "integer") and (low > -np.inf or high < np.inf):
                found[i] = rows, [min(max(v, low), high) for v in values]
        return found, drawn

    def _missing(self, frame: Frame) -> np.ndarray:
        """(rows, columns) missing cells."""
        masks = [missing_cells(x, c, self.schema_) for x, c in zip(frame.columns, self.schema_.columns, strict=True)]
        return np.stack(masks, 1) if masks else np.zeros((len(frame), 0), bool)

    def _read(self, X: Any, *, reset: bool) -> Frame:
        """The input, its names checked as scikit-learn does."""
        if is_frame(X):
            for name, count in Counter(map(str, getattr(X, "column_names", X.columns))).items():
                if count > 1:  # scikit-learn knows columns by their names
                    raise UserError(f"X: a column {name!r} twice", hint="Give every column a name of its own.")
            _check_feature_names(self, X, reset=reset)
            _check_n_features(self, X, reset=reset)
            _refuse_spans(X)
            frame = read_frame(X)
            frame.source = "X"
            return frame
        numeric = not _is_object(X)
        grid = validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32] if numeric else None,
            accept_sparse=False,
            ensure_all_finite="allow-nan" if numeric else False,
            ensure_min_samples=1,
        )
        names = [str(n) for n in getattr(self, "feature_names_in_", [f"x{i}" for i in range(grid.shape[1])])]
        columns = [c.astype(np.float64) if numeric else _numeric(c) for c in grid.T]
        return Frame(names=names, columns=columns, native=grid, source="X", first_row=0)

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return 0 if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of the output: the input's, then the indicators'."""
        check_is_fitted(self, "schema_")
        names = OneToOneFeatureMixin.get_feature_names_out(self, input_features)
        out = np.asarray(names, object)[self.kept_]
        if self.add_indicator:
            out = np.r_[out, self.indicator_.get_feature_names_out(names)]
        return np.asarray(out, object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _refuse_spans(X: Any) -> None:
    """Lengths of time are no kind of value here."""
    import narwhals as nw

    spans = [c.name for c in series_of(X) if isinstance(c.dtype, nw.Duration)]
    if spans:
        raise UserError(
            f"X, column {', '.join(map(repr, spans))}: lengths of time (timedelta)",
            hint="Make them numbers of a unit of your choice, e.g. column.dt.total_seconds() / 86400 for days.",
        )


def _filled_empty(table: Any, place: int) -> Any:
    """A column in which nothing was ever observed, filled as far as its type allows."""
    import narwhals as nw

    if isinstance(table, np.ndarray):
        return replaced(table, place, "missing_value" if table.dtype == object else 0)
    kind = series_of(table)[place].dtype
    if kind.is_temporal():
        return table
    if isinstance(kind, nw.Boolean):
        return replaced(table, place, False)
    return replaced(table, place, 0 if kind.is_numeric() else "missing_value")


def _is_object(X: Any) -> bool:
    kind = getattr(X, "dtype", None)
    if kind is not None:
        return bool(np.dtype(kind).kind in "OUS")
    if hasattr(X, "toarray"):
        return False
    try:
        return np.asarray(X).dtype.kind in "OUS"
    except ValueError:
        return False


def _numeric(column: np.ndarray) -> np.ndarray:
    """A copy of an object column, of floats where it holds nothing but numbers."""
    missing = np.array([no_value(v) for v in column], bool)
    if {type(v) for v in column[~missing]} <= {int, float, np.float64, np.int64, np.float32}:
        return np.where(missing, np.nan, column).astype(np.float64)
    return column.copy()


def _bound(bound: Any, columns: int, name: str) -> np.ndarray:
    if bound is None:
        return np.full(columns, -np.inf if name == "min" else np.inf)
    values = np.broadcast_to(np.asarray(bound, float), (columns,)) if np.ndim(bound) == 0 else np.asarray(bound, float)
    if values.shape != (columns,):
        raise ValueError(
            f"{name}_value should be of shape ({columns},) when an array-like is passed. Got {values.shape}"
        )
    return values


Outcome = list[tuple[Column, np.ndarray]]


def outcome_columns(y: Any, duration: Any, event: Any, wanted: bool, rows: int) -> Outcome:
    """Columns of an outcome and their raw values: time and event of a survival pair, or one of numbers or classes.

    Args:
        y: numbers, classes, or a structured array of a boolean (event) and a number field (time); or None.
        duration, event: the survival pair; it goes before `y`.
        wanted: an outcome has to be there.
        rows: of the table.
    """
    if (duration is None) != (event is None):
        raise UserError(
            "a survival pair needs both: " + ("no duration" if duration is None else "no event"),
            hint="Pass fit(X, duration=times, event=events); in a pipeline set_fit_request(duration=True, event=True).",
        )
    if duration is not None:
        return _pair(duration, event, rows)
    if y is None:
        if wanted:
            raise UserError("use_outcome=True without an outcome", hint="Pass y, or duration and event, to `fit`.")
        return []
    y = np.asarray(y)
    if y.dtype.names is not None:
        # As scikit-survival makes it: a boolean field (event) and a number (time).
        events = [n for n in y.dtype.names if y[n].dtype.kind == "b"]
        times = [n for n in y.dtype.names if y[n].dtype.kind in "fiu"]
        if len(events) != 1 or len(times) != 1:
            kinds = ", ".join(f"{n}: {y[n].dtype}" for n in y.dtype.names)
            raise UserError(f"y with the fields {kinds}", hint="Expected a boolean field (event) and a number (time).")
        return _pair(y[times[0]], y[events[0]], rows)
    values = y.reshape(len(y), -1)
    if values.shape[1] != 1:
        raise UserError(f"y of {values.shape[1]} columns", hint="Expected one outcome, or a survival pair.")
    return [_column("(outcome)", values[:, 0], rows)]


def _pair(duration: Any, event: Any, rows: int) -> Outcome:
    """Time and event; their joint distribution with the covariates is what carries the outcome (White &
    Royston 2009)."""
    try:
        time = np.asarray(duration, np.float64)
    except (TypeError, ValueError):
        raise UserError("duration: not numbers", hint="Follow-up times are numbers, 0 or more.") from None
    wrong = np.flatnonzero(~(time >= 0))
    if len(wrong):
        raise UserError(
            f"duration, row {wrong[0]}: {time[wrong[0]]}", hint="Follow-up times are numbers, 0 or more, none missing."
        )
    happened = np.asarray(event)
    odd = [v for v in np.unique(happened) if v not in (0, 1)]
    if odd:
        raise UserError(f"event: {odd[0]!r}", hint="Expected 0 or False (censored), 1 or True (event happened).")
    return [
        _column("(time)", time, rows, {"kind": "numeric"}),
        _column("(event)", happened.astype(int), rows, {"kind": "binary"}),
    ]


def _column(name: str, values: np.ndarray, rows: int, given: dict[str, Any] | None = None) -> tuple[Column, np.ndarray]:
    if len(values) != rows:
        raise UserError(f"{len(values)} outcomes for {rows} rows", hint="Give one outcome per row.")
    raw = values.astype(np.float64) if values.dtype.kind in "fiu" else values.astype(object)
    column = infer_schema([name], [raw], override={"columns": {name: given or {}}}, source="y", first_row=0).columns[0]
    return column, raw
