"""A table model in use: fit, impute, draw, score, embed, synthesise; saved to and loaded from a folder."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from unmask.core.hashing import Salt, hash_keys
from unmask.elsewhere import FITTING
from unmask.errors import UserError, either
from unmask.evaluation.card import add_card
from unmask.evaluation.results import PredictedRows
from unmask.evaluation.shown import Printed, Shown
from unmask.files import check_weights, damaged
from unmask.guessed import Guessed, also_called
from unmask.kernels.threads import one_core
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.network import build_network
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.fitting.cell_table import CellTable, FittedTable
from unmask.modalities.table.fitting.fit import Fit
from unmask.modalities.table.fitting.imputation_quality import columns_imputed, figure_texts
from unmask.modalities.table.imputation.censored import with_drawn
from unmask.modalities.table.imputation.complete import complete, holes, taken_for_missing
from unmask.modalities.table.imputation.impute_files import FilledFiles, impute_files
from unmask.modalities.table.imputation.training_range import beyond_range
from unmask.modalities.table.imputation.uncertainty import interval_frame
from unmask.modalities.table.imputation.under_rules import recorded_breaches
from unmask.modalities.table.reading.findings import warn_of
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.reading.several_files import frame_to_fit
from unmask.modalities.table.recipes import TableSettings, with_overrides
from unmask.modalities.table.rules.rules import Rules, schema_for
from unmask.modalities.table.schema.clusters import clusters_of
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import (
    empty_row_notes,
    empty_rows,
    encode,
    encode_censored,
    match_columns,
    rows_digest,
    widened,
    writes_point,
)
from unmask.modalities.table.synthesis.disclosure_control import contents, learn_ids, learn_safety
from unmask.modalities.table.synthesis.survival_outcome import learn_outcome, stored_outcome
from unmask.modalities.table.synthesis.synthesize import synthesize
from unmask.modalities.table.writing.whole_columns import is_pandas
from unmask.modalities.table.writing.writers import handed_out, like_stored, stored_types
from unmask.training.settings import TrainSettings, settings_from
from unmask.writing import brought_to_an_end, written_folder

FILES = ("config.json", "model.safetensors", "unmask.json")
PATTERNS = 2000
"""Rows whose pattern of missing cells is kept with the model."""


class TableModel(FittedTable, Guessed, Printed):
    """A fitted table model; `print` shows how well it imputes each column."""

    device = torch.device("cpu")
    precision = "fp32"

    def __repr__(self) -> str:
        names = [self.schema.columns[i].name for i in self.schema.modelled]
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        count = sum(p.numel() for p in self.table.network.parameters())
        return (
            f"TableModel({self.table.settings.recipe}: {count / 1e6:.3g} M parameters, {len(names)} columns ({shown}), "
            f"fitted to {self.facts['rows']:,} rows)"
        )

    guesses: ClassVar[Any] = {
        **dict.fromkeys(("transform", "predict", "complete"), lambda model: model.impute),
        **dict.fromkeys(("sample", "generate"), lambda model: model.synthesize),
        "save_pretrained": lambda model: model.save,
        **dict.fromkeys(
            ("sample_from_conditions", "sample_conditions"), "synthesize(rows, where='age >= 70 and sex == 0')"
        ),
        **dict.fromkeys(("get_parameters", "get_info"), "model.inspect()"),
        "sample_remaining_columns": "impute(frame) fills the cells that are empty",
        "get_metadata": "model.schema says what each column is",
        "finetune": "a model of a table has one fit: unmask.table.pretrain(data, 'model', settings=...)",
        **dict.fromkeys(
            ("complete_data", "mice"), "MultipleImputation(5).fit(data) completes tables for Rubin's rules"
        ),
        **dict.fromkeys(("get_loss_values", "fit_transform"), "unmask.impute(frame) fits and fills in one call"),
    }

    def __init__(self, schema: Any = None, table: Any = None, facts: Any = None) -> None:
        if table is None:
            raise UserError(
                "a TableModel comes of a fit", hint="TableModel.fit(data) makes one, unmask.load('model') opens one."
            )
        super().__init__(schema, table, facts)

    @staticmethod
    def from_pretrained(model: str | Path) -> TableModel:
        """The model in a folder: `unmask.load(model)`."""
        return load(model)

    @classmethod
    @also_called(
        {
            "metadata": "Columns are found out; overrule with schema={'columns': {'x': {'kind': 'nominal'}}}",
            "missing_values": "Spellings of missing cells are schema={'missing': ['-9']}",
        },
        **FITTING,
    )
    @one_core()
    def fit(
        cls,
        data: Any,
        *,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        duration: str | None = None,
        event: str | None = None,
        entry: str | None = None,
        event_level: str | Sequence[str] | None = None,
        cluster: str | None = None,
        settings: TableSettings | TrainSettings | Mapping[str, Any] | None = None,
        weight: np.ndarray | None = None,
        watch: Callable[..., None] | None = None,
        constraints: Sequence[str] | str = (),
        **overrides: Any,
    ) -> TableModel:
        """Fit a model to a table with or without missing cells.

        Args:
            data: a path, pandas, polars or Arrow table, or array. Of the files of one table (a list of paths, a folder,
                a pattern) at most 100 000 rows are drawn, by the seed and from all of them, which the notes say.
            schema: overrides of what is inferred, or a whole schema.
            duration, event: the survival pair.
            entry: column of the times from which rows are at risk, where they enter late.
            event_level: at which level of `event` it happened, one per cause; left out where that is plain.
            cluster: column of the patient or centre that several rows belong to: all of them are held out together.
            settings, overrides: fields of `TableSettings` and of its `train`, as keywords (`steps=200`), a dict or an
                object.
            weight: of each row, for bootstrap copies.
            watch: called after every step.
            constraints: rules between columns, kept with the model, that imputed and synthetic rows meet: "a <= b <=
                c", "a == 1 -> b == 0", "bmi := weight / height**2". Rows that break one as recorded are named in the
                notes.

        Raises:
            UserError: naming the row, column and value at fault.
        """
        start = time.perf_counter()
        settings = with_overrides(settings_from(TableSettings(), settings, overrides, with_overrides), {})
        frame = frame_to_fit(data, seed=settings.train.seed)
        found = schema_for(
            frame,
            schema,
            duration=duration,
            event=event,
            entry=entry,
            event_level=event_level,
            cluster=cluster,
            constraints=constraints,
        )
        if not found.modelled:
            raise UserError(
                f"{frame.source}: no column to model",
                hint="All columns are identifiers or empty; declare kinds in a schema if that is wrong.",
            )
        columns, cells = encode_censored(frame, found)
        breaches = recorded_breaches(Rules.of(found), columns, frame.row_name)
        empty = empty_rows(frame, found)
        left_out = [f"warning: {text}" for text in empty_row_notes(frame, empty, "not counted in the fit")]
        groups = None if found.cluster is None else clusters_of(frame, found, found.cluster).number
        if groups is not None:
            proper = either("--proper 20", "MultipleImputation(20, cluster=...)")
            left_out.append(
                f"warning: rows of one {found.cluster!r} are held out together, but what this model fills knows "
                f"nothing of clusters; multiple imputation does: {proper}"
            )
        if empty.any():
            groups = None if groups is None else groups[~empty]
            columns, weight = [x[~empty] for x in columns], None if weight is None else weight[~empty]
        if len(columns[0]) < 2:
            raise UserError(f"{frame.source}: {len(columns[0])} rows", hint="At least two rows are needed to fit.")
        digest = rows_digest(columns)
        if cells:
            found, columns = with_drawn(found, columns, cells, ~empty, settings.train.seed)
            drawn = ", ".join(repr(found.column(p).name) for p in cells)
            left_out.append(f"fitted to values drawn inside their intervals where {drawn} is only bounded")
        table = CellTable.fit(columns, found.sizes, settings=settings, weight=weight, groups=groups, watch=watch)
        notes = [*frame.notes, *left_out, *found.notes, *breaches]
        facts = {
            "rows": len(columns[0]),
            "columns": len(columns),
            "steps": table.fitted.steps,
            "rows_digest": digest,
            "missing": round(float(np.mean([np.isnan(x).mean() for x in columns])), 6),
            "history": table.fitted.history,
            "notes": notes,
        }
        warn_of([*notes, *(f"warning: {text}" for text in taken_for_missing(found, frame))])
        model = cls(found, table, facts)
        model.like = frame
        # What rows lack, for synthetic ones that are to lack as much.
        lacking = np.column_stack(holes(found, columns)).astype(np.uint8)
        order = hash_keys(settings.train.seed, np.arange(len(lacking)), Salt.SAVED_HOLES).argsort()
        model.extra["holes"] = lacking[order[:PATTERNS]]
        model.facts["columns_imputed"] = columns_imputed(found, table.judged, columns)
        raw = [frame.columns[i] for i in match_columns(frame, found)]
        model.extra |= learn_safety(columns, found.sizes) | learn_ids(raw, found)
        model.facts["point"] = [writes_point(x, c) for x, c in zip(raw, found.columns, strict=True)]
        if found.duration is not None:
            model.extra |= learn_outcome(model, columns)
        model.facts["seconds"] = round(time.perf_counter() - start, 3)
        return model

    def impute_frame(self, data: Any, **options: Any) -> tuple[list[Any], list[dict[str, Any]], int]:
        """The tables, records and cells of `unmask.modalities.table.imputation.complete.complete`; its notes and
        warnings are given as Python's warnings."""
        found = complete(self, data, **options)
        for note in [*found.warnings, *found.notes]:
            warnings.warn(note, stacklevel=3)
        return found.tables, list(found.records), found.cells

    def impute(
        self,
        data: Any,
        *,
        draws: int = 0,
        seed: int = 0,
        unseen: str = "error",
        shift: Mapping[str, float | Mapping[str, float]] | None = None,
        absent: Sequence[str] | str = (),
        add_absent: bool = False,
        constraints: Sequence[str] | str = (),
        censored: str | None = None,
    ) -> Any:
        """The table with its missing cells filled; observed cells are the objects they were.

        Args:
            draws: 0 for one table of point values (means, likeliest categories); m for a list of m completed tables,
                drawn from the joint distribution, members taking turns. For Rubin's rules see `MultipleImputation`,
                whose every table comes from a fit of its own.
            unseen: what a category that the model does not know is: an "error" or "missing".
            shift: column -> added to its drawn values, in its unit (delta adjustment for values missing not at random),
                or {condition: number} for groups. The range of the data does not bind shifted values, bounds given in
                the schema do, and how many they held back is said.
            absent: columns that the table may lack: names, or "any"; the outcome of new patients (follow-up time and
                event) always may. They are hidden in every row, which a warning says. Columns that the model does not
                know pass through.
            add_absent: give the lacking columns too, imputed, at the end.
            constraints: rules besides those the model was fitted with; filled cells meet them all, observed ones are
                left as they are. What is broken as recorded, and what cannot be met, a warning says with the rows.
            censored: cells that are only bounded ("<0.5", "2-4") are "kept" as they stand, as they are by default in a
                table of point values; or "drawn", as in draws: they get values inside their intervals (of points the
                mean there), and the column becomes one of numbers.

        Raises:
            UserError: the table does not fit the model, naming row, column and value.
        """
        tables, _, _ = self.impute_frame(
            data,
            draws=draws,
            seed=seed,
            unseen=unseen,
            shift=shift,
            absent=absent,
            add_absent=add_absent,
            constraints=constraints,
            censored=censored,
        )
        tables = [handed_out(t) for t in tables]
        return tables if draws else tables[0]

    fill = impute

    def impute_files(self, data: str | Path | Sequence[str | Path], out: str | Path, **options: Any) -> FilledFiles:
        """Fill a table in several files, file by file; see
        `unmask.modalities.table.imputation.impute_files.impute_files`."""
        return impute_files(self, data, out, **options)

    def intervals(
        self,
        data: Any,
        *,
        coverage: float = 0.9,
        absent: Sequence[str] | str = (),
        add_absent: bool = False,
        constraints: Sequence[str] | str = (),
    ) -> Any:
        """A frame with a row per missing cell and how sure its value is, of the kind of the table (polars for files and
        arrays).

        Columns: row (a pandas index label, the line of a CSV file or sheet, else the row's number from 0), column,
        value; for quantities low and high, the ends of an interval that holds the truth as often as `coverage` says;
        for categories probability, of the value, and probabilities, of every level. See `uncertainty.interval_frame`
        for types.

        Args:
            absent, add_absent, constraints: as in `impute`.
        """
        if not 0 < coverage < 1:
            raise UserError(f"coverage={coverage}", hint="Expected a share between 0 and 1, e.g. 0.9.")
        given = read_frame(data)
        records = self.impute_frame(
            given, interval=coverage, absent=absent, add_absent=add_absent, constraints=constraints
        )[1]
        return interval_frame(records, given)

    def score(self, data: Any, *, absent: Sequence[str] | str = ()) -> PredictedRows:
        """Per row its pseudo-log-likelihood, cells observed, and the least likely cell (a coding mistake, often); `row`
        as in `intervals`.

        Args:
            absent: columns that the table may lack, as in `impute`; scores are then of the other cells.

        Columns that are lacking, and cells beyond the training range, are said in a warning: see `beyond_range`.
        """
        frame, columns = self._warned(data, absent)
        rows = self.scored(self.table.log_prob(columns), frame)
        return PredictedRows(rows, "Pseudo-log-likelihood of {} rows, in nats: the higher, the more natural")

    def scored(self, log_prob: np.ndarray, frame: Frame) -> list[dict[str, Any]]:
        """What `score` says of the rows of a frame, from the log-probabilities of their cells, (rows, columns)."""
        names = [self.schema.columns[i].name for i in self.schema.modelled]
        out = []
        for row, values in enumerate(log_prob):
            seen = ~np.isnan(values)
            worst = int(np.nanargmin(values)) if seen.any() else None
            out.append(
                {
                    "row": frame.row_name(row),
                    "score": float(np.nansum(values)),
                    "slots": int(seen.sum()),
                    "least_likely": None
                    if worst is None
                    else {"column": names[worst], "log_probability": float(values[worst])},
                }
            )
        return out

    def embed(self, data: Any, *, absent: Sequence[str] | str = ()) -> np.ndarray:
        """(rows, width) states of the rows with nothing hidden but what is missing; `absent` and warnings as in
        `score`."""
        return self.table.embed(self._warned(data, absent)[1])

    def coded(self, data: Any, absent: Sequence[str] | str = ()) -> tuple[Frame, list[np.ndarray], list[str]]:
        """A table, its modelled columns as numbers, and a sentence for each thing that the model has to do without or
        cannot tell apart.

        Raises:
            UserError: the table does not fit the model, naming row, column and value.
        """
        frame, lacking = widened(read_frame(data), self.schema, absent)
        columns = encode(frame, self.schema)
        notes = [f"not in the table, so hidden in every row: {', '.join(map(repr, lacking))}"] if lacking else []
        return frame, columns, notes + beyond_range(self.schema, self.table.codings, columns, frame.row_name)

    def _warned(self, data: Any, absent: Sequence[str] | str) -> tuple[Frame, list[np.ndarray]]:
        frame, columns, notes = self.coded(data, absent)
        for text in notes:
            warnings.warn(text, stacklevel=3)
        return frame, columns

    @also_called({}, **dict.fromkeys(("num_rows", "n", "size", "n_samples", "n_rows", "count"), "rows"))
    def synthesize(self, rows: int, **options: Any) -> Any:
        """New rows; see `unmask.modalities.table.synthesis.synthesize.synthesize`. Of the
        kind of table that the model was fitted to; polars of a file."""
        return handed_out(synthesize(self, rows, **options).table)

    def evaluate(self, data: Any, **options: Any) -> Any:
        """Its synthetic rows beside real ones; see `unmask.table.evaluate`."""
        return evaluate_model(self, data, **options)

    def shown(self) -> Shown:
        """How well each column is imputed, as `print` shows it."""
        rows = [(f["column"], *figure_texts(f), f["cells"], f["sentence"]) for f in self.facts["columns_imputed"]]
        return Shown(
            title=f"{self!r}",
            columns=("column", "error", "of the mean or mode", "90 % intervals hold", "cells", "in words"),
            rows=rows,
            notes=["errors are of cells hidden in rows that were held out"] if rows else [],
            next_step="model.impute(new), model.synthesize(rows), model.save('folder')",
        )

    def inspect(self) -> dict[str, Any]:
        """Parameters, columns and how the fit went."""
        return {
            "kind": "table",
            "recipe": self.table.settings.recipe,
            "parameters": sum(p.numel() for p in self.table.network.parameters()),
            "rows": self.facts["rows"],
            "columns": len(self.schema.modelled),
            "slots": len(self.schema.modelled),
            "left_out": [c.name for c in self.schema.columns if not c.modelled],
            "structural": {c.name: " = ".join(c.structural) for c in self.schema.columns if c.structural},
            "constraints": list(self.schema.constraints),
            "duration": self.schema.duration,
            "event": self.schema.event,
            "entry": self.schema.entry,
            "causes": list(self.schema.causes),
            "steps": self.facts["steps"],
            "held_out_loss": min((v for _, v in self.facts["history"]), default=None),
            "notes": self.facts["notes"],
            "contains": contents(self),
        }

    def save(self, folder: str | Path) -> Path:
        """Write config.json, model.safetensors, unmask.json and the model card, each by a rename, the weights last.

        Raises:
            UserError: the folder cannot be written.
        """
        from safetensors.numpy import save_file

        folder = Path(folder)
        with written_folder(folder) as new:
            tensors = {f"network.{k}": v.contiguous().numpy() for k, v in self.table.network.state_dict().items()}
            tensors |= {f"scores.{k}": np.asarray(v, np.float64) for k, v in self.table.scores.items()}
            tensors |= {f"extra.{k}": np.ascontiguousarray(v) for k, v in self.extra.items()}
            tensors["moments"] = self.table.fitted.moments
            save_file(tensors, new / "model.safetensors", metadata={"format": "np"})
            about = {
                "kind": "table",
                "schema": self.schema.to_dict(),
                "facts": self.facts,
                "codings": [c.to_dict() for c in self.table.codings],
                "types": None if self.like is None else stored_types(self.like),
                "pandas": self.like is not None and is_pandas(self.like.native),
            }
            (new / "unmask.json").write_text(json.dumps(about), encoding="utf-8")
            config = {"model_type": "unmask_table", **asdict(self.table.settings)}
            (new / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
            add_card(new, folder)
        return folder


def load(folder: str | Path, *, device: str = "auto", precision: str = "auto") -> TableModel:
    """A table model from its folder. Tables run on the CPU in fp32, whatever is asked: they are small."""
    folder = Path(folder)
    brought_to_an_end(folder)
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name}", hint="Expected a folder written by `unmask pretrain table`.")
    with damaged(folder):
        return _loaded(folder)


def _loaded(folder: Path) -> TableModel:
    from safetensors.numpy import load_file

    about = json.loads((folder / "unmask.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    check_weights(folder, about)
    tensors = load_file(folder / "model.safetensors")
    schema = Schema.from_dict(about["schema"])
    codings = [Coding.from_dict(c) for c in about["codings"]]
    if len(codings) != len(schema.modelled):
        raise ValueError(f"{len(codings)} codings of {len(schema.modelled)} columns")
    train = {k: v for k, v in config.pop("train").items() if v is not None}
    config.pop("model_type", None)
    base = TableSettings()
    settings = dataclasses.replace(base, **config, train=dataclasses.replace(base.train, **train))
    moments = tensors.pop("moments")
    network = build_network(codings, moments, settings)
    state = {k[8:]: torch.from_numpy(v) for k, v in tensors.items() if k.startswith("network.")}
    state = network.take_parts(state)
    for name, own in network.state_dict().items():
        if name in state and state[name].is_floating_point() != own.is_floating_point():
            raise ValueError(f"tensor network.{name} is {state[name].dtype}, {own.dtype} is expected")
    network.load_state_dict(state)
    network.finished()
    scores = {int(k[7:]): v for k, v in tensors.items() if k.startswith("scores.")}
    fit = Fit(
        network=network,
        settings=settings,
        codings=codings,
        moments=moments,
        fold=np.zeros(0, np.int64),
        steps=about["facts"]["steps"],
    )
    model = TableModel(schema, CellTable(fit, scores), about["facts"])
    model.extra = {k[6:]: v for k, v in tensors.items() if k.startswith("extra.")}
    stored_outcome(model)  # whole or not there
    if about.get("types"):
        model.like = like_stored(about["types"], pandas=about["pandas"])
    return model
