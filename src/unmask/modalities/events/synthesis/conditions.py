"""Conditions on patients, joined by "and", in the words of questions (`query_text`): "age > 70 and diabetes"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unmask.errors import UserError, suggest
from unmask.files import read_object
from unmask.modalities.events.questions.queries import ABOVE, BELOW
from unmask.modalities.events.questions.query_text import condition
from unmask.modalities.events.records.histories import YEAR
from unmask.modalities.events.records.meds import BIRTH, STATIC, Events
from unmask.modalities.events.synthesis.sequences import LEAST

AND = re.compile(r'\sand\s(?=(?:[^"]*"[^"]*")*[^"]*$)', flags=re.IGNORECASE)
"""Between conditions, not within quotes."""


@dataclass(frozen=True)
class Condition:
    """The codes that a condition was taken for, and what its patients' events show: an expression over one patient's
    rows of `code` (a number), `numeric_value` and `age` (years at the event, null where unknown)."""

    codes: list[str]
    test: pl.Expr


def conditions_of(
    where: Iterable[str] | str, codes: Mapping[str, int], words: Mapping[str, str], *, ages: bool
) -> dict[str, Condition]:
    """By their words. `codes`: name -> number of those that may be meant; `words`: what they are called; `ages`:
    whether "age" is known."""
    terms = [t.strip() for w in ([where] if isinstance(where, str) else where) for t in AND.split(w)]
    return {term: _condition(term, codes, words, ages=ages) for term in terms}


def meeting(frame: pl.DataFrame, conditions: Iterable[Condition]) -> np.ndarray:
    """The patients (numbers, column `patient`) of events who meet all conditions, in order."""
    met = pl.all_horizontal(pl.lit(True), *(c.test for c in conditions))
    return frame.group_by("patient").agg(met=met).filter("met")["patient"].sort().to_numpy()


def drawn_under(data: Any) -> dict[str, list[str]]:
    """The conditions that `generate` drew a MEDS folder under, each with the codes that it was taken for."""
    about = read_object(Path(data) / "metadata/dataset.json") if isinstance(data, str | Path) else None
    return dict((about or {}).get("conditions", {}))


def who_meet(events: Events, under: Mapping[str, list[str]], words: Mapping[str, str]) -> np.ndarray:
    """The patients (numbers) who meet the conditions that others were drawn under."""
    number = {code: i for i, code in enumerate(events.codes)}
    owner, time = np.repeat(np.arange(len(events)), np.diff(events.offsets)), np.asarray(events.time)
    born = np.full(len(events), STATIC)
    births = events.begins(BIRTH)[events.code] & (time != STATIC)
    born[owner[births]] = time[births]
    known = (born[owner] != STATIC) & (time != STATIC)
    age = np.where(known, (time - np.where(known, born[owner], 0)) / YEAR, np.nan)
    columns = {"patient": owner, "code": np.asarray(events.code, np.int64), "numeric_value": np.asarray(events.value)}
    frame = pl.DataFrame({**columns, "age": age}, nan_to_null=True)
    each = (
        conditions_of(term, {code: number.get(code, -1) for code in codes}, words, ages=True)[term]
        for term, codes in under.items()
    )
    return meeting(frame, each)


def _condition(term: str, codes: Mapping[str, int], words: Mapping[str, str], *, ages: bool) -> Condition:
    items, none = condition(term, prefix := f"condition {term!r}")
    tests, found = [], list[str]()
    for item in items:
        name, here, value = item.code.lower(), pl.lit(True), pl.col("numeric_value")
        if name == "age" and ages and item.side:
            chosen, value = ["age"], pl.col("age").max()
        else:
            chosen = [code for code in codes if code.lower() == name]
            if not chosen and name == "age":
                raise UserError(f"{prefix}: no age", hint='Such as "age > 70", of records with births (MEDS_BIRTH).')
            chosen = chosen or [c for c in codes if name in c.lower() or name in words.get(c, "").lower()]
            here = pl.col("code").is_in([codes[c] for c in chosen])
        if not chosen:
            raise UserError(
                f"{prefix}: {item.code!r} is no code of {LEAST} patients or more, nor in its description",
                hint=suggest(item.code, list(codes)),
            )
        found += chosen
        beyond = {ABOVE: value > item.cut, BELOW: value < item.cut, 0: pl.lit(True)}[item.side]
        tests.append((here & beyond.fill_null(False)).any())
    test = pl.any_horizontal(tests)
    return Condition(found, ~test if none else test)
