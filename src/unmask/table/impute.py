"""`MaskedImputer`: the table model as a scikit-learn transformer."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.impute import MissingIndicator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, MissingValues, StrOptions
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data

from unmask.table.data import Frame, read_frame
from unmask.table.infer import infer_schema, spellings
from unmask.table.model import TableModel
from unmask.table.parse import is_missing, no_value
from unmask.table.schema import LEFT_OUT


class MaskedImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Imputation by masked prediction, of mixed types, fitted on one table and applied to new rows.

    Args:
        missing_values: what stands for a missing value; NaN, None, pandas' NA and empty texts always do.
        schema: overrides of the inferred schema: {"columns": {name: {"kind": ...}}, ...}; columns of an array are
            called x0, x1, ...
        sample_posterior: draw values instead of taking the mean or the likeliest category: one completed table of a
            multiple imputation.
        add_indicator: append a 0/1 column for every column that had missing values in training.
        min_value, max_value: bounds of imputed quantities, a number or one a column.
        keep_empty_features: keep columns without any observed value, as 0 (numeric) or missing.
        unseen: a category not seen in training is an "error" or "missing".
        steps: optimiser steps, by default as many as the size of the table asks for; 0 is the linear part alone.
        members: networks side by side.
        random_state: decides weights, masks and draws.

    Attributes:
        model_: the fitted `TableModel`.
        n_iter_: optimiser steps taken.

    A row's result does not depend on the other rows it is transformed with.

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [2.0, np.nan], [3.0, 6.0], [4.0, 8.0]])
    >>> MaskedImputer(steps=0).fit_transform(x).shape
    (4, 2)
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "missing_values": [MissingValues()],
        "schema": [Mapping, None],
        "sample_posterior": ["boolean"],
        "add_indicator": ["boolean"],
        "min_value": [None, Interval(Real, None, None, closed="both"), "array-like"],
        "max_value": [None, Interval(Real, None, None, closed="both"), "array-like"],
        "keep_empty_features": ["boolean"],
        "unseen": [StrOptions({"error", "missing"})],
        "steps": [None, Interval(Integral, 0, None, closed="left")],
        "members": [Interval(Integral, 1, 64, closed="both")],
        "random_state": ["random_state"],
    }

    def __init__(
        self, *, missing_values: Any = np.nan, schema: Mapping[str, Any] | None = None, sample_posterior: bool = False,
        add_indicator: bool = False, min_value: Any = None, max_value: Any = None, keep_empty_features: bool = False,
        unseen: str = "error", steps: int | None = None, members: int = 4, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.missing_values = missing_values
        self.schema = schema
        self.sample_posterior = sample_posterior
        self.add_indicator = add_indicator
        self.min_value = min_value
        self.max_value = max_value
        self.keep_empty_features = keep_empty_features
        self.unseen = unseen
        self.steps = steps
        self.members = members
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> MaskedImputer:
        """Learn the table `X`, which may have missing cells; `y` is ignored."""
        self._validate_params()
        frame, gone = self._read(X, reset=True)
        seed = self._seed()
        schema = infer_schema(frame.names, frame.columns, override=self.schema, source="X", row_name=frame.row_name)
        self.kept_ = np.array([c.kind in LEFT_OUT or c.modelled or self.keep_empty_features for c in schema.columns])
        if not schema.modelled or len(frame) < 2:
            self.model_ = None
            self._only = [c[~gone[:, i]][:1] for i, c in enumerate(frame.columns)]
        else:
            self.model_ = TableModel.fit(frame, schema=schema, steps=self.steps, members=self.members, seed=seed)
            self.model_.like = None
        self.schema_ = schema
        self._bounds = [_bound(b, len(frame.names), n) for b, n in ((self.min_value, "min"), (self.max_value, "max"))]
        self.n_iter_ = self.model_.facts["steps"] if self.model_ is not None else 0
        if self.add_indicator:
            self.indicator_ = MissingIndicator(error_on_new=False).fit(np.where(gone, np.nan, 0.0))
        return self

    def transform(self, X: Any) -> Any:
        """The table with its missing cells filled; observed cells are returned as they are."""
        check_is_fitted(self, "schema_")
        frame, gone = self._read(X, reset=False)
        filled = self._filled(frame, gone)
        for i, column in enumerate(self.schema_.columns):
            if column.is_quantity:
                low, high = (b[i] for b in self._bounds)
                filled[gone[:, i], i] = np.clip(filled[gone[:, i], i].astype(float), low, high)
        out = filled[:, self.kept_]
        if self.add_indicator:
            marks = self.indicator_.transform(np.where(gone, np.nan, 0.0))
            out = np.hstack([out, marks.astype(out.dtype)])
        return self._typed(out) if out.dtype == object else out

    def _typed(self, out: np.ndarray) -> Any:
        """An object array, or where `set_output` asks for a frame, one whose numeric columns are numeric."""
        wanted = _get_output_config("transform", self)["dense"]
        columns = dict(zip(self.get_feature_names_out(), (list(c) for c in out.T), strict=True))
        if wanted == "pandas":
            import pandas as pd

            return pd.DataFrame(columns)
        if wanted == "polars":
            import polars as pl

            return pl.DataFrame(columns, strict=False)
        return out

    def _filled(self, frame: Frame, gone: np.ndarray) -> np.ndarray:
        assert isinstance(frame.native, np.ndarray)
        if self.model_ is None:
            out = frame.native.copy()
            for i, value in enumerate(self._only):
                if len(value):
                    out[gone[:, i], i] = value[0]
            return _zero_empty(out, self.schema_, gone)
        draws = 1 if self.sample_posterior else 0
        found = self.model_.impute_frame(frame, draws=draws, seed=self._seed(), unseen=self.unseen)[0][0]
        return _zero_empty(np.asarray(found), self.schema_, gone)

    def _read(self, X: Any, *, reset: bool) -> tuple[Frame, np.ndarray]:
        """The input as an array frame with names, and its missing cells."""
        frame = read_frame(X) if hasattr(X, "columns") and not isinstance(X, np.ndarray) else None
        if frame is not None and any(c.dtype == object for c in frame.columns):
            _check_feature_names(self, X, reset=reset)
            grid = np.empty((len(frame), len(frame.names)), object)
            for i, c in enumerate(frame.columns):
                grid[:, i] = c
            if reset:
                self.n_features_in_ = grid.shape[1]
            names = frame.names
        else:
            kind = "numeric" if not _is_object(X) else None
            grid = validate_data(
                self, X, reset=reset, dtype=kind if kind is None else [np.float64, np.float32], accept_sparse=False,
                ensure_all_finite="allow-nan" if kind else False, ensure_min_samples=1,
            )  # fmt: skip
            names = list(getattr(self, "feature_names_in_", [f"x{i}" for i in range(grid.shape[1])]))
        spelled = spellings((self.schema or {}).get("missing", ()))
        if not no_value(self.missing_values):
            spelled += spellings(self.missing_values)
        columns = [c.astype(np.float64) if grid.dtype != object else _numeric(c) for c in grid.T]
        gone = np.stack([is_missing(c, spelled) for c in columns], 1) if columns else np.zeros(grid.shape, bool)
        for c, empty in zip(columns, gone.T, strict=True):
            c[empty] = None if c.dtype == object else np.nan
        grid = grid.copy()
        grid[gone] = None if grid.dtype == object else np.nan
        return Frame(names=[str(n) for n in names], columns=columns, native=grid, source="X", first_row=0), gone

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


def _is_object(X: Any) -> bool:
    if hasattr(X, "columns") and not isinstance(X, np.ndarray):
        return False
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
    gone = np.array([no_value(v) for v in column], bool)
    if {type(v) for v in column[~gone]} <= {int, float, np.float64, np.int64, np.float32}:
        return np.where(gone, np.nan, column).astype(np.float64)
    return column.copy()


def _zero_empty(out: np.ndarray, schema: Any, gone: np.ndarray) -> np.ndarray:
    """Columns in which nothing was ever observed become 0, as scikit-learn's imputers do."""
    if out.dtype == object:
        return out
    for i, c in enumerate(schema.columns):
        if not c.modelled:
            out[gone[:, i], i] = 0.0
    return out


def _bound(bound: Any, columns: int, name: str) -> np.ndarray:
    if bound is None:
        return np.full(columns, -np.inf if name == "min" else np.inf)
    values = np.broadcast_to(np.asarray(bound, float), (columns,)) if np.ndim(bound) == 0 else np.asarray(bound, float)
    if values.shape != (columns,):
        raise ValueError(
            f"{name}_value should be of shape ({columns},) when an array-like is passed. Got {values.shape}"
        )
    return values


__all__ = ["MaskedImputer"]
