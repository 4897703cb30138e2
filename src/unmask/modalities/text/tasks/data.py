"""Labelled texts from files: csv, tsv, jsonl, parquet (.gz of the first three), or a Hugging Face dataset (hf:NAME).

Columns are guessed by their names, said (`Columns`), and overridable. Every item remembers its file and line, so that a
complaint can name them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import numbers
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from unmask.errors import UserError, either, first_of, option, quoted, setting, suggest
from unmask.evaluation.classes import is_number
from unmask.files import encloses, read_text, separated, split_lines
from unmask.given import SPLIT_COLUMNS, no_value, split_named, values_of
from unmask.modalities.text.reading.rows import hub_rows
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.names import individuals_unread

TEXT = (
    *("text", "sentence", "sentence1", "text1", "premise", "question1", "question", "content", "document"),
    *("#1 string", "note", "report", "review", "comment", "abstract", "message"),
)
TEXT2 = ("text2", "sentence2", "hypothesis", "question2", "#2 string", "second", "positive")
NEGATIVE = ("negative", "hard_negative", "text3")
LABEL = (
    *("label", "labels", "class", "category", "score", "similarity", "target", "intent", "gold_label", "quality"),
    *("diagnosis", "outcome", "sentiment", "rating", "topic"),
)
TASKS = ("tokens", "words", "tags", "ner_tags", "entities", "context", "answers", "query-id", "corpus-id")
"""Names in files of the other tasks; with those above they tell a header from a row."""
Label = str | float | int | tuple[str, ...] | tuple[int, ...] | None
"""Of several labels their names, or 0 and 1 by place (`vectors`)."""


SHOWN_PROBLEMS = 10
Made = TypeVar("Made")


def warned(line: str) -> None:
    """What is said where nobody listens: a Python warning of a line that is one, nothing of others."""
    if "warning: " in line:
        warnings.warn(line.replace("warning: ", "", 1), stacklevel=3)


@dataclass
class Problems:
    """What is wrong with which rows, as (where, what is wrong, what to do), and what was put right how often. `lenient`
    leaves such rows out and says so, instead of refusing them; `offered`: the caller could ask for that."""

    lenient: bool = False
    offered: bool = True
    say: Callable[[str], None] = lambda line: None
    found: list[tuple[str, str, str]] = field(default_factory=list)
    mended: Counter[str] = field(default_factory=Counter)

    def add(self, where: str, what: str, hint: str = "") -> None:
        """Note one."""
        self.found.append((where, what, hint))

    def each(self, rows: Iterable[tuple[str, Any]], make: Callable[[str, Any], Made]) -> list[Made]:
        """make(where, row) of every row that can be made; the others are noted."""
        out = []
        for where, row in rows:
            try:
                out.append(make(where, row))
            except UserError as error:
                self.add(where, error.what.removeprefix(f"{where}: "), error.hint or "")
        return out

    def settle(self, unit: str) -> None:
        """Say what was put right and what is left out, or refuse."""
        for what, count in self.mended.items():
            self.say(f"{what}: {count:,}")
        self.mended.clear()
        if not self.found:
            return
        named = first_of((f"{where}: {what}" for where, what, _ in self.found), SHOWN_PROBLEMS, between="; ")
        if self.lenient:
            self.say(f"{len(self.found):,} {unit} left out: {named}")
            self.found = []
            return
        if len(self.found) == 1:
            where, what, hint = self.found[0]
            leave = f"{option('lenient', True)} leaves it out." if self.offered else ""
            raise UserError(f"{where}: {what}", hint=f"{hint} {leave}".strip())
        leave = f"Mend them, or leave them out with {option('lenient', True)}." if self.offered else "Mend them."
        hints = {hint for *_, hint in self.found}
        only = f"{hints.pop()} " if len(hints) == 1 else ""
        raise UserError(f"{len(self.found):,} {unit} are wrong: {named}", hint=f"{only}{leave}".strip())


GIVE = "Give a csv, tsv, jsonl or parquet file."
"""Where there is no such file."""
PARTS = ("text", "text2", "label", "negative", "group")


@dataclass(frozen=True, kw_only=True)
class LabelledRow:
    """What a row of every task has besides its texts and labels: the group that it must not be parted from, what it is
    for (`split_of`), where it came from, and all columns of an unlabelled row, carried along by `predict`."""

    group: str | None = None
    split: str | None = None
    where: str = ""
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Item(LabelledRow):
    """A text, or a pair, or a triple, with its label (None where there is none)."""

    text: str
    text2: str | None = None
    negative: str | None = None
    label: Label = None

    def shown(self) -> str:
        """The beginning of the texts, for a report."""
        return self.text[:300] + (f" | {self.text2[:200]}" if self.text2 else "")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column plays which part; what is None is that of the training data, or guessed from the names.

    Attributes:
        label: of labels; several: each holds 0 or 1, and is the name of a label that a text has or has not.
        header: whether the first line of a csv or tsv names the columns; None where the file tells (see `header`).
        learnt: part -> the column that a model was trained on.
        pairs: whether a row of two texts without a label is a pair, as a model of pairs reads it.
    """

    text: str | None = None
    text2: str | None = None
    label: str | Sequence[str] | None = None
    negative: str | None = None
    group: str | None = None
    header: bool | None = None
    learnt: Mapping[str, str] = field(default_factory=dict)
    pairs: bool = False

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
        """The same wishes, with the columns of the training data (part -> name) for the parts that are left open."""
        left = [part for part in PARTS if getattr(self, part) is None and part in names]
        return dataclasses.replace(self, learnt={part: names[part] for part in left})

    def group_of(self, where: str, row: Mapping[str, Any]) -> str | None:
        """The group of a row; None where no column tells."""
        name = self.group or self.learnt.get("group")
        if not name or (name not in row and self.group is None):
            return None
        value = row.get(name)
        if no_value(value) or not str(value).strip():
            raise UserError(f"{where}: column {name!r} is empty", hint="Every row needs a group.")
        return str(value).strip()

    def not_there(self) -> str | None:
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


def split_of(row: Mapping[str, Any]) -> str | None:
    """What a column `split` says that a row is for: 'train', 'validation' or 'test'; None where none says it."""
    name = next((n for n in row if str(n).strip().lower() in SPLIT_COLUMNS), None)
    return None if name is None else split_named(row[name])


def by_split(items: Sequence[Any]) -> dict[str, list[Any]]:
    """The items by what a column `split` says they are for; {} where it does not say so of each, or of all the same."""
    found: dict[Any, list[Any]] = {}
    for item in items:
        split = getattr(item, "split", None)
        found.setdefault(split if isinstance(split, str) else None, []).append(item)
    return {} if None in found or len(found) < 2 else found


def judged_part(items: Sequence[Any], first: str = "validation") -> list[Any]:
    """The rows to judge on: by a column `split` those of the part `first`, else of the other one that is not trained
    on; all where no column says."""
    parts = by_split(items)
    return parts.get(first) or parts.get("validation") or parts.get("test") or list(items)


def read_rows(
    source: str | Path, columns: Columns | None = None, *, broken: list[str] | None = None, trim: bool = True
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of a file as ("file:line", column -> value); a csv or tsv without a header is read by position: text, label,
    or text, text2, label. Lines with too few or too many cells are left out and named in `broken`, where that is given;
    `trim` leaves out what spreadsheets leave below a table: empty rows."""
    rows = _rows(source, columns or Columns(), broken)[0]
    return _table(rows) if trim else rows


def _table(rows: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The rows without the empty ones at the end."""
    end = len(rows)
    while end > 1 and not any(value.strip() if isinstance(value, str) else True for value in rows[end - 1][1].values()):
        end -= 1
    return rows[:end]


def _rows(
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
        rows, headed = _separated(path, "," if kind == ".csv" else "\t", columns, broken)
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
        (f"hf:{where}:{i}", {column: _named(value, found.features.get(column)) for column, value in row.items()})
        for i, row in enumerate(found)
    ]


def _named(value: Any, feature: Any) -> Any:
    """Numbers of classes as their names; -1, where a published test set hides its labels, stays."""
    if isinstance(value, list):
        return [_named(v, getattr(feature, "feature", None)) for v in value]
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
        (f"{path}:{n}", {column: _named(value, features.get(column)) for column, value in row.items()})
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
    found = _parsed(read_text(path, hint=GIVE), str(path), "Expected a list of objects.")
    if not isinstance(found, list):
        raise UserError(f"{path}: {type(found).__name__}, not a list", hint="Expected a list of objects.")
    for i, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: row {i} is a {type(row).__name__}", hint="Expected a list of objects.")
    return [(f"{path}: row {i}", row) for i, row in enumerate(found, 1)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ; KeyError of one that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise KeyError(next(key for key in keys if keys.count(key) > 1))
    return found


def _separated(
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
    known = {*TEXT, *TEXT2, *LABEL, *NEGATIVE, *TASKS}
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
        if len(cells) != len(names) and broken is not None:
            broken.append(f"{path}:{n}")
            continue
        if len(cells) != len(names):
            raise UserError(
                f"{path}:{n}: {len(cells)} columns, expected {len(names)} ({', '.join(map(quoted, names))})",
                hint="Put quotes around cells that hold the separator." if separator == "," else "Check the tabs.",
            )
        rows.append((f"{path}:{n}", dict(zip(names, cells, strict=True))))
    return rows, headed


def _listed(column: str | Sequence[str] | None) -> list[str]:
    """The names of no column, one, or several."""
    return [] if column is None else [column] if isinstance(column, str) else list(column)


def choose(names: Iterable[str], columns: Columns, *, where: str) -> Columns:
    """The columns to read: those asked for, checked, and guesses for the others."""
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
            hint=f"Name it with {naming(text='COLUMN')}.",
        )
    return Columns(**chosen, header=columns.header, learnt=columns.learnt, pairs=columns.pairs)


def read_items(
    source: str | Path, columns: Columns | None = None, *, labelled: bool = True, problems: Problems | None = None
) -> tuple[list[Item], Columns]:
    """Items of a file, and the columns they were read from: none of plain text. Where they are `labelled`, a label
    column must be there, and hold something in every row; `problems` notes rows without a text or label, which are left
    out or refused together; None refuses."""
    noted = Problems() if problems is None else problems
    broken: list[str] | None = [] if noted.lenient else None
    rows, headed = _rows(source, columns or Columns(), broken)
    for where in broken or ():
        noted.add(where, "too few or too many cells")
    if labelled and suffix_of(Path(source)) in (".csv", ".tsv"):
        table = _table(rows)
        if count := len(rows) - len(table):
            noted.say(f"{source}: {count:,} {'row' if count == 1 else 'rows'} at the end hold nothing and are left out")
        rows = table
    columns = dataclasses.replace(columns or Columns(), header=headed)
    items, found = _items(rows, columns, noted, labelled=labelled, where=str(source))
    if not items:
        raise UserError(f"{source}: no rows", hint="Give at least one labelled text.")
    return items, Columns() if suffix_of(Path(source)) == ".txt" else found


def _items(
    rows: Sequence[tuple[str, Mapping[str, Any]]], columns: Columns, noted: Problems, *, labelled: bool, where: str
) -> tuple[list[Item], Columns]:
    """Items of all rows, and the columns that were read; rows that are wrong are refused together, or left out."""
    # The first object of a jsonl may lack what later ones have.
    names = list(dict.fromkeys(str(name) for _, row in rows for name in row))
    columns = choose(names, columns, where=where)
    if labelled and columns.label is None:
        raise UserError(
            f"{where}: no label column among {', '.join(map(quoted, names))}",
            hint=f"Name it with {naming(label='COLUMN')}.",
        )
    items = noted.each(rows, lambda where, row: _item(where, row, columns, labelled=labelled))
    noted.settle("rows")
    if labelled:
        say_individuals((row for _, row in rows), columns, noted)
    if labelled and all(isinstance(item.label, str) and _VALUE.fullmatch(item.label.strip()) for item in items):
        items = [dataclasses.replace(item, label=spelling(str(item.label))) for item in items]
    return items, columns


def say_individuals(rows: Iterable[Any], columns: Columns, noted: Problems) -> None:
    """Warn of labelled rows of which several are of one individual, by a column that nothing reads; not where they have
    a group."""
    rows = [row for row in rows if isinstance(row, Mapping)]
    names = dict.fromkeys(str(name) for row in rows for name in row)
    if (columns.group or columns.learnt.get("group")) not in names:
        left = {name: [row.get(name) for row in rows] for name in names if name not in columns.requested}
        labels = [row.get(columns.label) for row in rows] if isinstance(columns.label, str) else ()
        for line in individuals_unread(left, labels):
            noted.say(line)


_VALUE = re.compile(r"(?i:true|false)|([+-]?[0-9]+)\.0+")
"""A truth value, or a whole number as a column of floats writes it."""


def spelling(name: str) -> str:
    """A label as a column of such values in memory has it, which is what labels are matched by.

    >>> spelling("true"), spelling("1.0"), spelling("1.5"), spelling("b")
    ('True', '1', '1.5', 'b')
    """
    found = _VALUE.fullmatch(name.strip())
    return name.strip() if found is None else found[1] or name.strip().capitalize()


def _item(where: str, row: Mapping[str, Any], columns: Columns, *, labelled: bool) -> Item:
    texts: dict[str, str | None] = {}
    for part in ("text", "text2", "negative"):
        name = getattr(columns, part)
        if name is None:
            texts[part] = None
            continue
        value = row.get(name)
        if not labelled and name in row and no_value(value):
            value = ""
        empty = no_value(value) or (isinstance(value, str) and not value.strip())
        if not isinstance(value, str) or (labelled and empty):
            raise UserError(
                f"{where}: column {name!r} is {'empty' if empty else f'{value!r:.60}'}",
                hint="Every row needs a text: fill it in or leave the row out.",
            )
        texts[part] = value
    label: Any = None
    if isinstance(columns.label, str):
        label = row.get(columns.label)
    elif columns.label is not None and labelled:
        label = [name for name in columns.label if _mark(row.get(name), f"{where}: column {name!r}")]
    if labelled and (no_value(label) or (isinstance(label, str) and not label.strip())):
        raise UserError(f"{where}: column {columns.label!r} is empty", hint="Every row needs a label.")
    assert texts["text"] is not None
    carried = None if labelled else row
    return Item(
        text=texts["text"],
        text2=texts["text2"],
        negative=texts["negative"],
        group=columns.group_of(where, row),
        split=split_of(row),
        label=_label(label, f"{where}: column {columns.label!r}") if labelled else label,
        where=where,
        row=carried,
    )


_LIST = re.compile(
    r"""(?:\[|\{|\((?=.*,))(?:\s*(['"]).*\1,?\s*|(?:[\s0-9.,+-]|true|false)*)[\])}]""", re.DOTALL | re.IGNORECASE
)
"""A list, tuple or set of texts, numbers or truth values as Python, NumPy and JSON write it."""
EXPECTED = "Expected a name, a number or a list of names."


def _label(value: Any, where: str) -> Label:
    """A label as it is kept."""
    if isinstance(value, str) and _LIST.fullmatch(value.strip()):
        raise UserError(
            f"{where} is a list written as text: {value[:60]!r}",
            hint="Several labels per text are lists of names in .jsonl or .parquet.",
        )
    if isinstance(value, set | frozenset):  # in no order
        return tuple(sorted(_name(v, where) for v in value))
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        if any(isinstance(v, float) and v % 1 for v in value if not no_value(v)):
            raise UserError(
                f"{where} is {value!r:.60}: other numbers than 0 and 1",
                hint="Several labels per text are a 0 or 1 each, or lists of names; numbers are one per text.",
            )
        marks = len(value) > 1 and all(isinstance(v, int | float) and v in (0, 1) for v in value)
        return tuple(int(v) for v in value) if marks else tuple(_name(v, where) for v in value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return _name(value, where)


def _mark(value: Any, where: str) -> bool:
    """Whether a text has a label, of the column of that name."""
    text = spelling(str(value.tolist() if hasattr(value, "tolist") else value))
    if text not in ("0", "1", "False", "True"):
        raise UserError(f"{where} is {value!r:.60}, not 0 or 1", hint="Several columns of labels hold 0 or 1 each.")
    return text in ("1", "True")


def _name(value: Any, where: str) -> str:
    """One label as a name."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if no_value(value) or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{where} has an empty label among others", hint="Leave it out of the list.")
    if not isinstance(value, str | numbers.Number):
        raise UserError(f"{where} is an object of type {type(value).__name__}: {value!r:.60}", hint=EXPECTED)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_items(
    data: Any, columns: Columns | None = None, *, labelled: bool = True, problems: Problems | None = None
) -> tuple[list[Item], Columns | None]:
    """Items, and which columns were read (None where there are none), from a file name, or from Python: (text, label)
    or (text, text2, label) rows, dicts, texts, a pandas, polars or Arrow table, columns by name, or (texts, labels) as
    scikit-learn has X and y."""
    if isinstance(data, str | Path):
        return read_items(data, columns, labelled=labelled, problems=problems)
    columns = columns or Columns()
    rows: list[Any] = table_rows(data) or _paired(data) or list(data)
    if rows and isinstance(rows[0], Item):
        return rows, None
    if not rows:
        raise UserError("no rows", hint="Give at least one text.")
    named = isinstance(rows[0], dict)
    if not named:
        refuse_group(columns, "rows")
        pairs = columns.pairs and not labelled
        if wrong := [f"row {i} is {row!r:.60}" for i, row in enumerate(rows, 1) if not _is_row(row, pairs=pairs)]:
            second = "(text, text2)" if pairs else "(text, label)"
            raise UserError(
                first_of(wrong),
                hint=f"Expected {second}, (text, text2, label), a dict or a text per row; a table; or (texts, labels).",
            )
        rows = [_by_name(row, pairs=pairs) for row in rows]
        columns = Columns()
    noted = Problems() if problems is None else problems
    placed = [(f"row {i}", row) for i, row in enumerate(rows, 1)]
    items, found = _items(placed, columns, noted, labelled=labelled, where="data")
    return (items, found) if named else ([dataclasses.replace(item, row=None) for item in items], None)


def _by_name(row: Any, *, pairs: bool) -> dict[str, Any]:
    """A row of Python, as column -> value."""
    if isinstance(row, str) or no_value(row):
        return {"text": row}
    second = ("text2",) if len(row) == 3 or pairs else ()
    return dict(zip(("text", *second, "label"), row, strict=False))


def refuse_group(columns: Columns | None, what: str) -> None:
    """Refuse a column of groups for data without columns."""
    if columns is not None and columns.group:
        raise UserError(f"{setting('group', columns.group)} of {what} without columns", hint="Give a table, or dicts.")


def number_of(item: Item, what: str, hint: str) -> float:
    """The label of an item, a `what`, as a number."""
    try:
        value = float(item.label)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{item.where}: {what} {item.label!r} is not a number", hint=hint)
    return value


def vectors(items: Sequence[Item]) -> int | None:
    """How many places the labels have, where they are vectors of 0 and 1 as transformers has them for several labels
    per text; None where they are anything else."""
    marked = [i for i in items if _is_vector(i.label)]
    if not marked:
        return None
    places = len(marked[0].label)  # type: ignore[arg-type]
    wrong = [i for i in items if not _is_vector(i.label) or len(i.label) != places]  # type: ignore[arg-type]
    if wrong:
        named = first_of([f"{i.where}: labels {i.label!r:.40}" for i in wrong])
        raise UserError(
            f"{named}, and {marked[0].where}: {places} times 0 or 1",
            hint="Give every row a 0 or 1 per label, or every row a list of names.",
        )
    return places


def _is_vector(label: Label) -> bool:
    return isinstance(label, tuple) and len(label) > 1 and all(isinstance(v, int) for v in label)


def place_names(places: int) -> list[str]:
    """Names of labels that have a place alone, as transformers gives them."""
    return [f"LABEL_{place}" for place in range(places)]


def _is_row(row: Any, *, pairs: bool = False) -> bool:
    """Whether it is a text, (text, label) or (text, text2, label); or (text, text2) of pairs."""
    if isinstance(row, str) or no_value(row):
        return True
    return (
        isinstance(row, Sequence)
        and len(row) in (2, 3)
        and all(isinstance(text, str) or no_value(text) for text in row[: 2 if pairs else len(row) - 1])
    )


def _paired(data: Any) -> list[tuple[str, Any]] | None:
    """(texts, labels) as rows; None of anything else. Two rows in a tuple are rows."""
    if not isinstance(data, tuple) or len(data) != 2 or any(isinstance(part, str | Item | Mapping) for part in data):
        return None
    texts, labels = values_of(data[0]), table_rows(data[1]) or values_of(data[1])
    if all(isinstance(part, tuple) for part in data) and _is_row(texts) and _is_row(labels):
        return None
    if len(texts) != len(labels):
        raise UserError(f"{len(texts):,} texts and {len(labels):,} labels", hint="Give a label per text.")
    numbered = (isinstance(y, list | tuple) and len(y) == 1 and not isinstance(y[0], str) for y in labels)
    if getattr(data[1], "shape", ())[1:] == (1,) or (labels and all(numbered)):
        raise UserError(
            "labels are a column of one number or name each", hint="Give them flat: [0, 1] for [[0], [1]], y.ravel()."
        )
    return list(zip(texts, labels, strict=True))


Line = tuple[int, Sequence[str]]


def naming(**parts: object) -> str:
    """Columns, by part, as a caller names them: `--text COLUMN`, or an argument `columns=` in Python."""
    flags = " ".join(f"--{part} {value}" for part, value in parts.items())
    return either(flags, f"columns=unmask.text.Columns({', '.join(f'{p}={str(v)!r}' for p, v in parts.items())})")


def has_header(lines: Sequence[Line], *, known: Collection[str], requested: Collection[str], path: Path) -> bool:
    """Whether the first of the lines names the columns.

    It does where it holds a name a person asked for, or a usual one (whatever the case). It is a row where one of its
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
        hint=f"Names: say which with {naming(text='COLUMN', label='COLUMN')}, or call them text and label. A row: "
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
