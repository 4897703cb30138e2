"""Questions with contexts and answers: SQuAD json (v1 and v2), or jsonl with the same fields flat."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import read_text
from unmask.given import no_value
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.modalities.text.tasks.data import Columns, Problems, read_rows


@dataclass(frozen=True, kw_only=True)
class SquadQuestion:
    """A question about a context.

    Attributes:
        answers: (text, start) pairs; empty where there is none; None where not labelled.
        group: what it must not be parted from.
        row: what the file holds of it but the context and the answers, carried along by `predict`.
    """

    name: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None
    group: str | None = None
    where: str = ""
    row: dict[str, Any] | None = None


def as_questions(
    data: Any, *, labelled: bool, problems: Problems | None = None, columns: Columns | None = None
) -> list[SquadQuestion]:
    """Questions from a SQuAD json file, flat rows (question, context, answers), or rows of Python.

    Args:
        problems: notes answers that are not at their offset, and rows that cannot be read; left out or refused
            together; None refuses.
        columns: `group`: which field tells what is not parted.
    """
    noted = Problems() if problems is None else problems

    def made(where: str, row: Any) -> SquadQuestion:
        q = row
        if not isinstance(row, SquadQuestion):
            group = (columns or Columns()).group_of(where, row)
            q = dataclasses.replace(_question(where, row, keep=not labelled), group=group)
        if labelled and q.answers is None:
            raise UserError(f"{q.where}: question {q.name!r} has no 'answers'", hint="An empty list says: no answer.")
        for text, start in (q.answers or ()) if labelled else ():
            check(q, text, start)
        return q

    if isinstance(data, str | Path):
        path = Path(data)
        found = noted.each(_squad(path) if suffix_of(path) == ".json" else read_rows(data), made)
    else:
        found = noted.each(
            [(getattr(r, "where", "") or f"row {i}", r) for i, r in enumerate(table_rows(data) or data, 1)], made
        )
    noted.settle("questions")
    if not found:
        raise UserError(f"{data}: no questions", hint="Expected SQuAD json.")
    return found


def check(q: SquadQuestion, text: str, start: int) -> None:
    """An answer must stand where it says."""
    there = q.context[start : start + len(text)] if start >= 0 else ""
    if there != text or not text:
        place = q.context.find(text) if text else -1
        raise UserError(
            f"{q.where}: question {q.name!r}: answer {text[:40]!r} is not at {start}, there stands {there[:40]!r}",
            hint=f"It is at {place}: offsets count characters (code points)."
            if place >= 0
            else "It is not in the context.",
        )


def _squad(path: Path) -> list[tuple[str, Any]]:
    try:
        content = json.loads(read_text(path, hint="Give a .json of SQuAD, or a csv, tsv, jsonl or parquet file."))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})", hint="Expected SQuAD json.") from None
    if isinstance(content, list):
        return list(read_rows(path))
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: a {type(content).__name__}, not an object with 'data'",
            hint="Expected SQuAD's, or a list of rows.",
        )
    out = []
    try:
        for article in content["data"]:
            title = {"title": article["title"]} if "title" in article else {}
            for paragraph in article["paragraphs"]:
                out += [(str(path), title | qa | {"context": paragraph["context"]}) for qa in paragraph["qas"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: no {error}", hint="Expected SQuAD's data/paragraphs/qas/context layout.") from None
    return out


def _impossible(where: str, name: str, said: Any) -> bool:
    """Whether a question has no answer, by its `is_impossible`: a text "false" (of a csv, say) is no true."""
    known = {"": False, "none": False, "false": False, "0": False, "true": True, "1": True}
    word = str(said).strip().lower()
    if word not in known:
        raise UserError(f"{where}: is_impossible of question {name!r} is {said!r}", hint="Expected true or false.")
    return known[word]


def _question(where: str, row: dict[str, Any], *, keep: bool = False) -> SquadQuestion:
    """A question from its fields, whichever file they came from."""
    name = str(row.get("id", where))
    row = row | {f: "" for f in ("question", "context") if keep and f in row and no_value(row[f])}
    for field in ("question", "context"):
        if not isinstance(row.get(field), str):
            raise UserError(f"{where}: {field} of {name!r} is {row.get(field)!r}", hint="Expected a text.")
    answers = row.get("answers")
    pairs: tuple[tuple[str, int], ...] | None = None
    try:
        if isinstance(answers, Mapping):  # as Hugging Face datasets have it
            pairs = tuple(zip(answers["text"], (int(s) for s in answers["answer_start"]), strict=True))
        elif isinstance(answers, list):
            pairs = tuple(
                (str(a["text"]), int(a["answer_start"] if "answer_start" in a else a["start"])) for a in answers
            )
        elif answers is not None:
            raise TypeError(type(answers).__name__)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{where}: answers of question {name!r} cannot be read ({error})",
            hint='Expected [{"text": ..., "answer_start": ...}]; an empty list says: no answer.',
        ) from None
    if _impossible(where, name, row.get("is_impossible")):
        pairs = ()
    kept = {"id": name} | {k: v for k, v in row.items() if k not in ("context", "answers")} if keep else None
    return SquadQuestion(
        name=name, question=row["question"], context=row["context"], answers=pairs, where=where, row=kept
    )
