"""Labelled texts, as items: from files (`row_files`) or from Python. Every item remembers its file and line, so that a
message about it can name them."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from unmask.errors import UserError, first_of, option, quoted, setting
from unmask.given import SPLIT_COLUMNS, no_value, split_named, values_of
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.modalities.text.tasks.row_files import Columns, choose_columns, flags, read_file, without_empty_end
from unmask.names import individuals_unread

Label = str | float | int | tuple[str, ...] | tuple[int, ...] | None
"""Of several labels their names, or a vector of 0 and 1 (`multi_hot_width`)."""
SHOWN_PROBLEMS = 10
Made = TypeVar("Made")


def warned(line: str) -> None:
    """Where nothing prints lines: a Python warning of a line that is one; other lines are dropped."""
    if "warning: " in line:
        warnings.warn(line.replace("warning: ", "", 1), stacklevel=3)


@dataclass
class Problems:
    """What is wrong with which rows, as (where, what is wrong, what to do), and what was put right how often. `lenient`
    leaves such rows out and reports it, instead of refusing them; `offered`: the caller has that option."""

    lenient: bool = False
    offered: bool = True
    say: Callable[[str], None] = lambda line: None
    found: list[tuple[str, str, str]] = field(default_factory=list)
    mended: Counter[str] = field(default_factory=Counter)

    def add(self, where: str, what: str, hint: str = "") -> None:
        """Note one."""
        self.found.append((where, what, hint))

    def each(self, rows: Iterable[tuple[str, Any]], make: Callable[[str, Any], Made]) -> list[Made]:
        """make(where, row) of every row that can be made; what is wrong with the others is noted."""
        out = []
        for where, row in rows:
            try:
                out.append(make(where, row))
            except UserError as error:
                self.add(where, error.what.removeprefix(f"{where}: "), error.hint or "")
        return out

    def settle(self, unit: str) -> None:
        """Report what was put right and what is left out, or refuse."""
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


@dataclass(frozen=True, kw_only=True)
class LabelledRow:
    """What a row of every task has besides its texts and labels: the group that stays on one side of a split, its own
    split (`split_of`), its file and line, and all columns of an unlabelled row, carried along by `predict`."""

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


def split_of(row: Mapping[str, Any]) -> str | None:
    """'train', 'validation' or 'test' by a column `split`; None where there is none."""
    name = next((n for n in row if str(n).strip().lower() in SPLIT_COLUMNS), None)
    return None if name is None else split_named(row[name])


def by_split(items: Sequence[Any]) -> dict[str, list[Any]]:
    """The items by their split; {} where some have none, or all have the same."""
    found: dict[Any, list[Any]] = {}
    for item in items:
        split = getattr(item, "split", None)
        found.setdefault(split if isinstance(split, str) else None, []).append(item)
    return {} if None in found or len(found) < 2 else found


def judged_part(items: Sequence[Any], first: str = "validation") -> list[Any]:
    """The rows to evaluate on: of the split `first`, else of the other that is not trained on; all without a split."""
    parts = by_split(items)
    return parts.get(first) or parts.get("validation") or parts.get("test") or list(items)


def read_items(
    source: str | Path,
    columns: Columns | None = None,
    *,
    labelled: bool = True,
    several: bool = False,
    problems: Problems | None = None,
) -> tuple[list[Item], Columns]:
    """Items of a file, and the columns they were read from: none of plain text. Where they are `labelled`, a label
    column must be there, and hold something in every row; `several`: cells may hold lists of texts (`_rows_of_lists`);
    `problems` notes rows without a text or label, which are left out or refused together; None refuses."""
    problems = problems or Problems()
    broken: list[str] | None = [] if problems.lenient else None
    rows, headed = read_file(source, columns or Columns(), broken)
    for where in broken or ():
        problems.add(where, "too few or too many cells")
    if labelled and suffix_of(Path(source)) in (".csv", ".tsv"):
        table = without_empty_end(rows)
        if count := len(rows) - len(table):
            unit = "row" if count == 1 else "rows"
            problems.say(f"{source}: {count:,} {unit} at the end hold nothing and are left out")
        rows = table
    columns = dataclasses.replace(columns or Columns(), header=headed)
    items, found = _items(rows, columns, problems, labelled=labelled, several=several, where=str(source))
    if not items:
        raise UserError(f"{source}: no rows", hint="Give at least one labelled text.")
    return items, Columns() if suffix_of(Path(source)) == ".txt" else found


def _items(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    columns: Columns,
    problems: Problems,
    *,
    labelled: bool,
    several: bool,
    where: str,
) -> tuple[list[Item], Columns]:
    """Items of all rows, and the columns that were read; rows that are wrong are refused together, or left out."""
    # The first object of a jsonl may lack what later ones have.
    names = list(dict.fromkeys(str(name) for _, row in rows for name in row))
    columns = choose_columns(names, columns, where=where)
    if labelled and columns.label is None:
        raise UserError(
            f"{where}: no label column among {', '.join(map(quoted, names))}",
            hint=f"Name it with {flags(label='COLUMN')}.",
        )
    rows = accepted(rows, columns, problems) if labelled else rows
    rows = [(where, one) for where, row in rows for one in _rows_of_lists(row, columns)] if several else rows
    items = problems.each(rows, lambda where, row: _item(where, row, columns, labelled=labelled))
    problems.settle("rows")
    if labelled:
        say_individuals((row for _, row in rows), columns, problems)
    if labelled and all(isinstance(item.label, str) and _VALUE.fullmatch(item.label.strip()) for item in items):
        items = [dataclasses.replace(item, label=label_spelling(str(item.label))) for item in items]
    return items, columns


def _rows_of_lists(row: Mapping[str, Any], columns: Columns) -> list[Mapping[str, Any]]:
    """A row as often as its longest list of second texts or negatives, each time with another of them: BGE's `pos` and
    `neg`."""
    lists = {n: row[n] for n in (columns.text2, columns.negative) if n and isinstance(row.get(n), list) and row[n]}
    return [
        {**row, **{name: texts[k % len(texts)] for name, texts in lists.items()}}
        for k in range(max(map(len, lists.values()), default=1))
    ]


def accepted(rows: Sequence[tuple[str, Any]], columns: Columns, problems: Problems) -> list[tuple[str, Any]]:
    """Rows without those that an annotator rejected or ignored, by the column `answer` that Prodigy writes."""
    given = [str(row.get("answer", "accept")) if isinstance(row, Mapping) else "accept" for _, row in rows]
    out = [row for row, answer in zip(rows, given, strict=True) if answer == "accept"]
    if len(out) == len(rows) or "answer" in columns.named.values() or not {*given} <= {"accept", "reject", "ignore"}:
        return list(rows)
    counts = "; ".join(f"{answer}: {given.count(answer):,}" for answer in sorted({*given}))
    if not out:
        raise UserError(f"column 'answer': {counts}: no row is accepted", hint="Export the accepted rows.")
    problems.say(f"{len(rows) - len(out):,} rows that are not accepted are left out (column 'answer', {counts})")
    return out


def say_individuals(rows: Iterable[Any], columns: Columns, problems: Problems) -> None:
    """Warn of labelled rows of which several are of one individual, by a column that nothing reads; not where they have
    a group."""
    rows = [row for row in rows if isinstance(row, Mapping)]
    names = dict.fromkeys(str(name) for row in rows for name in row)
    if (columns.group or columns.learnt.get("group")) not in names:
        left = {name: [row.get(name) for row in rows] for name in names if name not in columns.requested}
        labels = [row.get(columns.label) for row in rows] if isinstance(columns.label, str) else ()
        for line in individuals_unread(left, labels):
            problems.say(line)


_VALUE = re.compile(r"(?i:true|false)|([+-]?[0-9]+)\.0+")
"""A truth value, or a whole number as a column of floats writes it."""


def label_spelling(name: str) -> str:
    """A label as a column of such values in memory has it, which is what labels are matched by.

    >>> label_spelling("true"), label_spelling("1.0"), label_spelling("1.5"), label_spelling("b")
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
        label = [name for name in columns.label if _has_label(row.get(name), f"{where}: column {name!r}")]
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


def _has_label(value: Any, where: str) -> bool:
    """Whether a text has a label, of the column of that name."""
    text = label_spelling(str(value.tolist() if hasattr(value, "tolist") else value))
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
    data: Any,
    columns: Columns | None = None,
    *,
    labelled: bool = True,
    several: bool = False,
    problems: Problems | None = None,
) -> tuple[list[Item], Columns | None]:
    """Items, and which columns were read (None where there are none), from a file name, or from Python: (text, label)
    or (text, text2, label) rows, dicts, texts, a pandas, polars or Arrow table, columns by name, or (texts, labels) as
    scikit-learn has X and y."""
    if isinstance(data, str | Path):
        return read_items(data, columns, labelled=labelled, several=several, problems=problems)
    columns = columns or Columns()
    rows: list[Any] = table_rows(data) or zipped(data) or values_of(data)
    if rows and isinstance(rows[0], Item):
        return rows, None
    if not rows:
        raise UserError("no rows", hint="Give at least one text.")
    named = isinstance(rows[0], dict)
    if not named:
        refuse_group(columns, "rows")
        pairs = bool(columns.pairs) and not labelled
        if columns.pairs is None and not labelled and (two := [row for row in rows if _is_pair(row)]):
            raise UserError(
                f"row {two[0]!r:.80}: a pair of texts, or a text and its label?",
                hint="The model does not say whether it reads pairs: give texts alone, or dicts with text and text2.",
            )
        if wrong := [f"row {i} is {row!r:.60}" for i, row in enumerate(rows, 1) if not _is_row(row, pairs=pairs)]:
            second = "(text, text2)" if pairs else "(text, label)"
            raise UserError(
                first_of(wrong),
                hint=f"Expected {second}, (text, text2, label), a dict or a text per row; a table; or (texts, labels).",
            )
        rows = [as_dict(row, pairs=pairs) for row in rows]
        columns = Columns()
    problems = problems or Problems()
    placed = [(f"row {i}", row) for i, row in enumerate(rows, 1)]
    items, found = _items(placed, columns, problems, labelled=labelled, several=several, where="data")
    return (items, found) if named else ([dataclasses.replace(item, row=None) for item in items], None)


def as_dict(row: Any, *, pairs: bool) -> dict[str, Any]:
    """A row of Python, as column -> value."""
    if isinstance(row, str) or no_value(row):
        return {"text": row}
    second = ("text2",) if len(row) == 3 or pairs else ()
    return dict(zip(("text", *second, "label"), row, strict=False))


def as_mapping(where: str, row: Any, expected: str) -> Mapping[str, Any]:
    """A row of Python that has to be a dict."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is {row!r:.60}", hint=f"Expected {expected}.")
    return row


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


def multi_hot_width(items: Sequence[Item]) -> int | None:
    """How many places the labels have, where they are vectors of 0 and 1 as transformers has them for several labels
    per text; None where they are anything else."""
    marked = [i for i in items if _is_multi_hot(i.label)]
    if not marked:
        return None
    places = len(marked[0].label)  # type: ignore[arg-type]
    wrong = [i for i in items if not _is_multi_hot(i.label) or len(i.label) != places]  # type: ignore[arg-type]
    if wrong:
        named = first_of([f"{i.where}: labels {i.label!r:.40}" for i in wrong])
        raise UserError(
            f"{named}, and {marked[0].where}: {places} times 0 or 1",
            hint="Give every row a 0 or 1 per label, or every row a list of names.",
        )
    return places


def _is_multi_hot(label: Label) -> bool:
    return isinstance(label, tuple) and len(label) > 1 and all(isinstance(v, int) for v in label)


def default_label_names(places: int) -> list[str]:
    """Names of labels that have a place alone, as transformers gives them."""
    return [f"LABEL_{place}" for place in range(places)]


def _is_pair(row: Any) -> bool:
    """Whether a row of Python has two texts, or a text and a label."""
    return not isinstance(row, str) and isinstance(row, Sequence) and len(row) == 2


def _is_row(row: Any, *, pairs: bool = False) -> bool:
    """Whether it is a text, (text, label) or (text, text2, label); or (text, text2) of pairs."""
    if isinstance(row, str) or no_value(row):
        return True
    return (
        isinstance(row, Sequence)
        and len(row) in (2, 3)
        and all(isinstance(text, str) or no_value(text) for text in row[: 2 if pairs else len(row) - 1])
    )


def zipped(data: Any) -> list[tuple[str, Any]] | None:
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
