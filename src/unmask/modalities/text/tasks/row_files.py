"""Rows of labelled files (csv, tsv, jsonl, parquet, .gz of the first three, or hf:NAME, a Hugging Face dataset), and
which of their columns play which part: guessed by their names, reported (`Columns`), and overridable."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unmask.errors import UserError, either, quoted, suggest
from unmask.evaluation.classes import is_number
from unmask.files import encloses, read_text, separated, split_lines
from unmask.given import no_value
from unmask.modalities.text.reading.rows import hub_rows
from unmask.modalities.text.reading.sources import suffix_of

TEXT = (
    *("text", "sentence", "sentence1", "text1", "premise", "question1", "question", "content", "document"),
    *("#1 string", "note", "report", "review", "comment", "abstract", "message", "anchor", "query"),
)
POSITIVE = ("positive", "pos")
TEXT2 = ("text2", "sentence2", "hypothesis", "question2", "#2 string", "second", *POSITIVE)
NEGATIVE = ("negative", "hard_negative", "text3", "neg")
LABEL = (
    *("label", "labels", "class", "category", "score", "similarity", "target", "intent", "gold_label", "quality"),
    *("diagnosis", "outcome", "sentiment", "rating", "topic", "is_duplicate", "relatedness_score", "similarity_score"),
)
TASKS = ("tokens", "words", "tags", "ner_tags", "entities", "context", "answers")
"""Names in files of the other tasks; with those above they tell a header from a row."""

GIVE = "Give a csv, tsv, jsonl or parquet file."
"""Where there is no such file."""
PARTS = ("text", "text2", "label", "negative", "group")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column plays which part; where None, that of the training data, or a guess by its name.

    Attributes:
        label: of labels; several: each holds 0 or 1, and is the name of a label that a text has or has not.
        header: whether the first line of a csv or tsv names the columns; None: by its content (`has_header`).
        learnt: part -> the column that a model was trained on.
        pairs: whether a row of two texts without a label is a pair, as a model of pairs reads it; None: it is refused.
    """

    text: str | None = None
    text2: str | None = None
    label: str | Sequence[str] | None = None
    negative: str | None = None
    group: str | None = None
    header: bool | None = None
    learnt: Mapping[str, str] = field(default_factory=dict)
    pairs: bool | None = False

    @property
    def requested(self) -> list[str]:
        """Names of columns that are given."""
        return [name for part in PARTS for name in _listed(getattr(self, part))]

    @property
    def named(self) -> dict[str, Any]:
        """Part -> column, for a model's folder; empty where the columns have no names."""
        if self.header is False:
            return {}
        return {part: getattr(self, part) for part in PARTS if getattr(self, part) is not None}

    def trained_on(self, names: Mapping[str, str]) -> Columns:
        """The same, with the columns of the training data (part -> name) for the parts that are None."""
        left = [part for part in PARTS if getattr(self, part) is None and part in names]
        return dataclasses.replace(self, learnt={part: names[part] for part in left})

    def group_of(self, where: str, row: Mapping[str, Any]) -> str | None:
        """The group of a row; None without a column of groups."""
        name = self.group or self.learnt.get("group")
        if not name or (name not in row and self.group is None):
            return None
        value = row.get(name)
        if no_value(value) or not str(value).strip():
            raise UserError(f"{where}: column {name!r} is empty", hint="Every row needs a group.")
        return str(value).strip()

    def differing(self) -> str | None:
        """A warning where another column plays a part than in the training data."""
        other = [
            f"{part} {getattr(self, part)!r} ({name!r} in the training data)"
            for part, name in self.learnt.items()
            if getattr(self, part) is not None and _listed(getattr(self, part)) != _listed(name)
            if self.header is not False
        ]
        return f"warning: read other columns than the model was trained on: {', '.join(other)}" if other else None

    def line(self) -> str:
        """One line for people."""
        given = {part: _listed(getattr(self, part)) for part in PARTS}
        parts = ", ".join(f"{part}: {', '.join(map(repr, names))}" for part, names in given.items() if names)
        return f"{parts} (by position: the file has no header)" if self.header is False else parts


def read_rows(
    source: str | Path, columns: Columns | None = None, *, broken: list[str] | None = None, trim: bool = True
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of a file as ("file:line", column -> value); a csv or tsv without a header is read by position: text, label,
    or text, text2, label. Lines with too few or too many cells are left out and named in `broken`, where that is given;
    `trim` leaves out what spreadsheets leave below a table: empty rows."""
    rows = read_file(source, columns or Columns(), broken)[0]
    return without_empty_end(rows) if trim else rows


def without_empty_end(rows: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The rows without the empty ones at the end."""
    end = len(rows)
    while end > 1 and not any(value.strip() if isinstance(value, str) else True for value in rows[end - 1][1].values()):
        end -= 1
    return rows[:end]


def read_file(
    source: str | Path, columns: Columns, broken: list[str] | None = None
) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    """The rows, and whether their columns have names."""
    headed = True
    if str(source).startswith("hf:"):
        return _dataset(str(source)[3:]), headed
    path = Path(source)
    kind = suffix_of(path)
    if kind == ".parquet":
        rows = _parquet(path)
    elif kind in (".jsonl", ".ndjson"):
        rows = _jsonl(path)
    elif kind == ".json":
        rows = _json(path)
    elif kind in (".csv", ".tsv"):
        rows, headed = _delimited(path, "," if kind == ".csv" else "\t", columns, broken)
    elif kind == ".txt":
        lines = split_lines(read_text(path, hint=GIVE))
        rows = [(f"{path}:{n}", {"text": line}) for n, line in enumerate(lines, start=1)]
    else:
        raise UserError(
            f"{path}: {kind or 'no suffix'}",
            hint="Expected .csv, .tsv, .jsonl, .json (a list), .parquet, .txt or hf:NAME.",
        )
    if not rows:
        raise UserError(f"{path}: no rows", hint="Give at least one labelled text.")
    return rows, headed


def _dataset(name: str) -> list[tuple[str, dict[str, Any]]]:
    found, where = hub_rows(name), name.partition(":")[0]
    return [
        (
            f"hf:{where}:{i}",
            {column: _class_names(value, found.features.get(column)) for column, value in row.items()},
        )
        for i, row in enumerate(found)
    ]


def _class_names(value: Any, feature: Any) -> Any:
    """Numbers of classes as their names; -1, where a published test set hides its labels, stays."""
    if isinstance(value, list):
        return [_class_names(v, getattr(feature, "feature", None)) for v in value]
    names = getattr(feature, "names", None)
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


def _parquet(path: Path) -> list[tuple[str, dict[str, Any]]]:
    import polars

    try:
        frame = polars.read_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", hint=GIVE) from None
    except Exception as error:
        raise UserError(f"{path}: not a parquet file ({error})", hint="Copy the file again.") from None
    features = _features(path)
    return [
        (f"{path}:{n}", {column: _class_names(value, features.get(column)) for column, value in row.items()})
        for n, row in enumerate(frame.iter_rows(named=True), start=1)
    ]


def _features(path: Path) -> dict[str, Any]:
    """The columns' features, as datasets keeps them in a parquet file's metadata; none of another file."""
    import pyarrow.parquet

    kept = (pyarrow.parquet.read_schema(path).metadata or {}).get(b"huggingface")
    try:
        return vars(json.loads(kept or b"", object_hook=lambda made: SimpleNamespace(**made)).info.features)
    except (ValueError, AttributeError, TypeError):
        return {}


def _parsed(text: str, where: str, expected: str) -> Any:
    """What a text of JSON holds."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except KeyError as error:
        raise UserError(f"{where}: {error} is there twice", hint="Rename one of them.") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})", hint=expected) from None


def _jsonl(path: Path) -> list[tuple[str, dict[str, Any]]]:
    rows = []
    for n, line in enumerate(read_text(path, hint=GIVE).split("\n"), start=1):
        if not line.strip():
            continue
        row = _parsed(line, f"{path}:{n}", "One JSON object per line.")
        if not isinstance(row, dict):
            raise UserError(f"{path}:{n}: {type(row).__name__}, not an object", hint="One JSON object per line.")
        rows.append((f"{path}:{n}", row))
    return rows


def _json(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of one list."""
    expected = "Expected a list of objects; where each line is an object, call the file .jsonl."
    found = _parsed(read_text(path, hint=GIVE), str(path), expected)
    if not isinstance(found, list):
        raise UserError(f"{path}: {type(found).__name__}, not a list", hint=expected)
    for i, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: row {i} is a {type(row).__name__}", hint=expected)
    return [(f"{path}: row {i}", row) for i, row in enumerate(found, 1)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ; KeyError of one that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise KeyError(next(key for key in keys if keys.count(key) > 1))
    return found


def _delimited(
    path: Path, separator: str, columns: Columns, broken: list[str] | None = None
) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    text = read_text(path, hint=GIVE)
    enclosed = separator == "," or encloses(io.StringIO(text, newline=""))
    found = separated(io.StringIO(text, newline=""), path, separator, quoted=enclosed)
    lines = [(last, cells) for _, last, cells in found if cells]
    below = []
    while lines and not any(cell.strip() for cell in lines[-1][1]):
        below.append(lines.pop())
    if not lines:
        return [], True
    known = {*TEXT, *TEXT2, *LABEL, *NEGATIVE, *TASKS} - {"pos", "neg"}  # more often labels
    headed, wanted = columns.header, [*columns.requested, *columns.learnt.values()]
    if headed is not False:
        refuse_other_separator(lines[0][1], separator, known=known, requested=wanted, path=path)
    if headed is None:
        headed = has_header(lines, known=known, requested=wanted, path=path)
    if headed:
        names, lines = [cell.strip() for cell in lines[0][1]], lines[1:]
        lowered = [name.lower() for name in names]
        if twice := [name for name in lowered if name and lowered.count(name) > 1]:
            raise UserError(f"{path}:1: column {twice[0]!r} is there twice", hint="Rename one of them.")
    else:
        width, usual = len(lines[0][1]), {1: ["text"], 2: ["text", "label"], 3: ["text", "text2", "label"]}
        if width == 4 and all(cells[1] in ("0", "1") for _, cells in lines[:50] if len(cells) == 4):
            usual[4] = ["source", "label", "mark", "text"]  # CoLA's published layout has no header
        if width not in usual:
            raise UserError(
                f"{path}:1: no header with a known column name ({', '.join(lines[0][1])[:80]})",
                hint="Expected columns text[,text2],label in the first line.",
            )
        names = usual[width]
    rows = []
    for n, cells in [*lines, *reversed(below)]:
        if len(cells) == len(names):
            rows.append((f"{path}:{n}", dict(zip(names, cells, strict=True))))
        elif broken is not None:
            broken.append(f"{path}:{n}")
        else:
            raise UserError(
                f"{path}:{n}: {len(cells)} columns, expected {len(names)} ({', '.join(map(quoted, names))})",
                hint="Put quotes around cells that hold the separator." if separator == "," else "Check the tabs.",
            )
    return rows, headed


def _listed(column: str | Sequence[str] | None) -> list[str]:
    """The names of no column, one, or several."""
    return [] if column is None else [column] if isinstance(column, str) else list(column)


def choose_columns(names: Iterable[str], columns: Columns, *, where: str) -> Columns:
    """The columns to read: those requested, which must exist, and guesses for the others."""
    names = list(names)
    lowered = {name.strip().lower(): name for name in names}
    chosen: dict[str, Any] = {part: getattr(columns, part) for part in PARTS}

    def taken() -> list[str]:
        return [name for column in chosen.values() for name in _listed(column)]

    for requested in columns.requested:
        if requested not in names:
            raise UserError(f"{where}: no column {requested!r}", hint=suggest(requested, names))
    for part, name in columns.learnt.items():
        if chosen[part] is None and set(_listed(name)) <= set(names) - set(taken()):
            chosen[part] = name
    for part, usual in (("text", TEXT), ("text2", TEXT2), ("label", LABEL), ("negative", NEGATIVE)):
        free = [n for n in usual if n in lowered and lowered[n] not in taken()]
        if chosen[part] is None:
            chosen[part] = next((lowered[n] for n in free), None)
    if chosen["text"] is None:
        raise UserError(
            f"{where}: no column of texts among {', '.join(map(quoted, names))}",
            hint=f"Name it with {flags(text='COLUMN')}.",
        )
    return Columns(**chosen, header=columns.header, learnt=columns.learnt, pairs=columns.pairs)


Line = tuple[int, Sequence[str]]


def flags(**parts: object) -> str:
    """Columns, by part, as a caller names them: `--text COLUMN`, or an argument `columns=` in Python."""
    options = " ".join(f"--{part} {value}" for part, value in parts.items())
    return either(options, f"columns=unmask.text.Columns({', '.join(f'{p}={str(v)!r}' for p, v in parts.items())})")


def has_header(lines: Sequence[Line], *, known: Collection[str], requested: Collection[str], path: Path) -> bool:
    """Whether the first of the lines names the columns.

    It does where it holds a requested name, or a usual one (whatever the case). It is a row where one of its
    cells comes back further down in the same column, as labels do, or is a number above numbers: names do neither.
    """
    first = [cell.strip() for cell in lines[0][1]]
    if any(name in first for name in requested):
        return True
    below = [{cells[k].strip() for _, cells in lines[1:] if k < len(cells)} for k in range(len(first))]
    columns = list(zip(first, below, strict=True))
    named = any(cell.lower() in known for cell in first)
    again = any(cell and cell in others for cell, others in columns)
    numbers = any(is_number(cell) and others and all(map(is_number, others)) for cell, others in columns)
    numbered = first == [str(k) for k in range(len(first))]  # how pandas writes columns without names
    if not numbered and (numbers or (again and not named)):  # a text may well be a usual name; a name is no number
        return False
    if named and not again:
        return True
    shown = ", ".join(repr(cell[:40]) for cell in first[:6])
    raise UserError(
        f"{path}:1: {shown}: names of columns, or a row already?",
        hint=f"Names: say which with {flags(text='COLUMN', label='COLUMN')}, or call them text and label. A row: "
        f"{either('--no-header', 'columns=unmask.text.Columns(header=False)')}.",
    )


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def refuse_other_separator(
    first: Sequence[str], separator: str, *, known: Collection[str], requested: Collection[str], path: Path
) -> None:
    """A first line that names columns with another separator between them is not taken for one name."""

    def named(cells: Sequence[str]) -> bool:
        return any(cell.strip() in requested or cell.strip().lower() in known for cell in cells)

    for mark, plural in SEPARATORS.items():
        cells = separator.join(first).split(mark)
        if mark != separator and len(cells) > 1 and named(cells) and not named(first):
            raise UserError(
                f"{path}:1: {plural} between the cells: {separator.join(first)[:60]!r}",
                hint=f"A {path.suffix} has {SEPARATORS[separator]}: write it so, or as .jsonl.",
            )
