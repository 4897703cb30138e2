"""Labels beyond one class per picture: several labels, or a number. Read from cells, columns or arrays;
pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from unmask.errors import UserError, first_of, quoted, setting
from unmask.given import array_of, natural, no_value
from unmask.names import refuse_decimals_alike, several_in_one

Problem = Literal["auto", "single", "multi", "regression", "none"]
"""What labels are: one class per picture, several labels, a number; 'auto' looks at them, 'none' reads no labels."""


_NUMBER = re.compile(r"[+-]?[0-9]+(,[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Several labels, or a number, for each picture.

    Attributes:
        values: (pictures, labels) of 0 and 1, or (pictures, 1) numbers; float64.
        names: of the labels; of numbers what they are called.
        listed: a label that a picture does not list does not hold for it. False of columns: of a label that has no
            column nothing is known.
    """

    problem: Literal["multi", "regression"]
    values: np.ndarray
    names: list[str]
    listed: bool = True

    def __len__(self) -> int:
        return len(self.values)

    def take(self, which: np.ndarray) -> Targets:
        """Those of some of the pictures."""
        return replace(self, values=self.values[which])


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """Labels of rows: `classes` (a name for each row) or `targets`, neither where no labels are read. `bad`: row number
    -> what is wrong with its label; such rows hold anything; `notes`: how the labels were taken."""

    classes: list[str] | None = None
    targets: Targets | None = None
    bad: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def parse_cells(cells: Sequence[Any], column: str, problem: Problem) -> Parsed:
    """Labels of one column.

    'auto' takes lists and cells with '|' as several labels, numbers of which some have fractions as numbers, and all
    else as classes.
    """
    texts = [cell_text(cell) for cell in cells]
    if problem == "none":
        return Parsed()
    if problem == "auto":
        numbers = [n for n in map(number_of, texts) if n is not None]
        comma = next((n for n, text in enumerate(texts) if "," in text), None)
        if comma is not None and all(_NUMBER.fullmatch(text) for text in texts):
            raise UserError(
                f"column {column!r}, row {comma + 1}: {texts[comma]!r}, a number with a decimal comma",
                hint=f"Write it with a point; {setting('problem', 'single')} takes it for a class.",
            )
        if any(isinstance(c, list | tuple | np.ndarray) for c in cells) or any("|" in t for t in texts):
            problem = "multi"
        elif any(n != round(n) for n in numbers):
            if len(set(texts)) <= len(texts) / 2:
                rows = reversed([*enumerate(texts, 1)])
                refuse_decimals_alike({text: f"column {column!r}, row {n}" for n, text in rows})
            problem = "regression"
        else:
            return _classes(texts, column, whole=bool(numbers) and len(numbers) == sum(map(bool, texts)))
    if problem == "multi":
        return _several(cells, column)
    return _numbers(texts, column) if problem == "regression" else _classes(texts, column, whole=False, requested=True)


def parse_columns(columns: Mapping[str, Sequence[Any]]) -> Parsed:
    """Labels of columns of 0 and 1, one for each label."""
    names, count = list(columns), len(next(iter(columns.values())))
    values = np.zeros((count, len(names)))
    bad: dict[int, str] = {}
    for row in range(count):
        texts = [cell_text(columns[name][row]) for name in names]
        wrong = [f"{n}={t!r}" for n, t in zip(names, texts, strict=True) if not zero_or_one(t)]
        if wrong:
            bad[row] = f"{', '.join(wrong)}: expected 0 or 1"
        else:
            values[row] = [_flag(t) for t in texts]
    targets = Targets(problem="multi", values=values, names=names, listed=False)
    note = f"labels: {len(names)} columns of 0 and 1 ({_some(names)})"
    return Parsed(targets=targets, bad=bad, notes=[note])


def array_targets(labels: Any, problem: Problem | None) -> Targets | None:
    """Targets of an array or tensor given in Python: (pictures, labels) of 0 and 1, or (pictures,) numbers; None where
    they are classes.
    """
    found = array_of(labels)
    if problem == "none":
        return None
    if found.ndim > 1 and found.size != len(found) and problem not in ("auto", "multi"):
        raise UserError(
            f"labels of shape {found.shape}, where each picture has one class or number",
            hint="Give a name or a number each: labels.argmax(1) of 0 and 1 with a column for each class.",
        )
    if problem in (None, "single"):
        return None
    if found.ndim == 2 and found.shape[1] > 1 and problem in ("auto", "multi"):
        if not np.isin(found, (0, 1)).all():
            raise UserError("labels of (pictures, labels) with other numbers than 0 and 1", hint="Give 0 and 1.")
        names = [str(n) for n in range(found.shape[1])]
        return Targets(problem="multi", values=found.astype(np.float64), names=names, listed=False)
    if problem == "multi":
        raise UserError(
            f"problem=multi, with labels of shape {found.shape}", hint="Expected (pictures, labels) of 0 and 1."
        )
    if problem == "auto" and not (found.dtype.kind == "f" and (found != np.round(found)).any()):
        return None
    if found.dtype.kind not in "iufb" or not np.isfinite(found).all():
        raise UserError(
            "problem=regression, with labels that are no finite numbers", hint="Give a number for each picture."
        )
    return Targets(problem="regression", values=found.astype(np.float64).reshape(-1, 1), names=["value"])


class Labels(NamedTuple):
    """Labels of arrays: `numbers` of `classes`, or `targets`; `notes`: how they were taken."""

    numbers: np.ndarray | None
    classes: list[str]
    targets: Targets | None = None
    notes: Sequence[str] = ()


def labels_of(labels: Any, problem: Problem | None) -> Labels:
    """Labels of an array or tensor; texts are read as the cells of a table are, where it is said what they are for."""
    found = None if labels is None else array_of(labels)
    if found is None or problem == "none":
        return Labels(None, [])
    if problem is not None and found.dtype.kind in "OSU" and found.size == len(found):
        parsed = parse_cells(found.ravel().tolist(), "label", problem)
        if parsed.targets is not None:
            if parsed.bad:
                wrong = [f"row {row}: {what}" for row, what in parsed.bad.items()]
                raise UserError(f"{len(wrong)} wrong labels: {first_of(wrong)}", hint="Mend them, or leave them out.")
            return Labels(None, [], parsed.targets, parsed.notes)
        return Labels(*number_classes(found.ravel()), notes=parsed.notes)
    targets = array_targets(found, problem)
    return Labels(None, [], targets) if targets is not None else Labels(*number_classes(found.ravel()))


def number_classes(labels: Any) -> tuple[np.ndarray | None, list[str]]:
    """Labels of any kind -> numbers 0.. and names, in sorted order; whole numbers in floats without their '.0'."""
    if labels is None:
        return None, []
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iub":
        values = [v.strip() if isinstance(v, str) else v for v in labels.tolist()]
        empty = [f"row {n}" for n, v in enumerate(values) if no_value(v) or v == ""]
        if empty:
            raise UserError(
                f"{len(empty)} of {len(values)} pictures have no label: {first_of(empty)}",
                hint="Leave them out, or give each its label.",
            )
        listed = next((n for n, v in enumerate(values) if isinstance(v, list | tuple | set | dict | np.ndarray)), None)
        if listed is not None:
            raise UserError(
                f"row {listed} has the label {values[listed]!r:.60}",
                hint="Give a name or a number each; of several labels an array (pictures, labels) of 0 and 1.",
            )
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
        labels = np.array(values if all(isinstance(v, int | float) for v in values) else [str(v) for v in values])
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), [str(n) for n in names]


def cell_text(cell: Any) -> str:
    """A cell as text: nothing as '', whole numbers in floats without their '.0'."""
    if no_value(cell):
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def number_of(text: str) -> float | None:
    """The finite number that a text is, or None."""
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def zero_or_one(text: str) -> bool:
    """Whether a text is the number 0 or 1, or a truth value."""
    return _flag(text) in (0.0, 1.0)


def _flag(text: str) -> float | None:
    return {"true": 1.0, "false": 0.0}.get(text.lower(), number_of(text))


def _some(names: Sequence[str], most: int = 8) -> str:
    return first_of(map(quoted, names), most)


def _classes(texts: list[str], column: str, *, whole: bool, requested: bool = False) -> Parsed:
    bad = {row: f"{column}: no label" for row, text in enumerate(texts) if not text}
    known = {text for text in texts if text}
    if not requested and len(texts) > 4 and len(known) > len(texts) / 2:
        raise UserError(
            f"column {column!r}: {len(known)} different labels in {len(texts)} rows",
            hint=f"Classes or numbers? Say {setting('problem', 'single')}, multi or regression, or another "
            f"{setting('label_column')}.",
        )
    if whole and len({float(text) for text in known}) < len(known):
        raise UserError(
            f"column {column!r}: the same number written in two ways ({_some(sorted(known, key=natural))})",
            hint=f"Write each class in one way, or say {setting('problem', 'regression')}.",
        )
    note = f"labels: column {column!r}, {len(known)} classes ({_some(sorted(known, key=natural))})"
    if whole:
        note += f"; whole numbers are taken as classes: {setting('problem', 'regression')} takes them as amounts"
    notes = [note, *(() if requested else several_in_one(known, "picture"))]
    return Parsed(classes=texts, bad=bad, notes=notes)


def _several(cells: Sequence[Any], column: str) -> Parsed:
    if len(cells) and all(not isinstance(c, list | tuple | np.ndarray) and zero_or_one(cell_text(c)) for c in cells):
        raise UserError(
            f"column {column!r} with problem=multi holds 0 and 1 alone",
            hint=f"One yes or no per picture is {setting('problem', 'single')}; of several columns name all: "
            f"{setting('label_column', 'a,b')}.",
        )
    rows: list[list[str]] = []
    bad: dict[int, str] = {}
    for row, cell in enumerate(cells):
        if isinstance(cell, list | tuple | np.ndarray):
            pieces = [cell_text(c) for c in cell]
        else:
            text = cell_text(cell)
            pieces = [] if text == "|" else [piece.strip() for piece in text.split("|")]
        if pieces == [""]:
            bad[row] = f"{column}: no label (a lone | says that none holds)"
        elif "" in pieces:
            bad[row] = f"{column}: an empty label in {cell!r}"
        elif len(set(pieces)) < len(pieces):
            bad[row] = f"{column}: a label twice in {cell!r}"
        rows.append(pieces)
    names = sorted({piece for pieces in rows for piece in pieces if piece}, key=natural)
    place = {name: n for n, name in enumerate(names)}
    values = np.zeros((len(rows), len(names)))
    for row, pieces in enumerate(rows):
        values[row, [place[p] for p in pieces if p]] = 1
    note = f"labels: column {column!r}, several per picture, {len(names)} in all ({_some(names)})"
    return Parsed(targets=Targets(problem="multi", values=values, names=names), bad=bad, notes=[note])


def _numbers(texts: list[str], column: str) -> Parsed:
    numbers = [number_of(text) for text in texts]
    bad = {row: f"{column}={texts[row]!r}: not a number" for row, n in enumerate(numbers) if n is None}
    values = np.array([[0.0 if n is None else n] for n in numbers], np.float64).reshape(-1, 1)
    targets = Targets(problem="regression", values=values, names=[column])
    return Parsed(targets=targets, bad=bad, notes=[f"labels: column {column!r}, numbers (problem=regression)"])
