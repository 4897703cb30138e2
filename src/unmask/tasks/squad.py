"""Questions with contexts and answers: SQuAD json (v1 and v2), or jsonl with the same fields flat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.tasks.data import read_rows, read_text, suffix


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a context.

    Attributes:
        answers: (text, start) pairs; empty where there is none; None where not labelled.
    """

    name: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None
    where: str = ""


def as_questions(data: Any, *, labelled: bool) -> list[Question]:
    """Questions from a SQuAD json file, flat rows (question, context, answers), or rows of Python.

    Raises:
        UserError: naming the question whose answer is not at its offset, or whatever is missing.
    """
    if isinstance(data, str | Path):
        path = Path(data)
        if suffix(path) == ".json":
            found = _squad(path)
        else:
            found = [_question(where, row) for where, row in read_rows(data)]
    else:
        rows = list(data)
        found = (
            rows
            if rows and isinstance(rows[0], Question)
            else [_question(f"row {i}", r) for i, r in enumerate(rows, 1)]
        )
    if not found:
        raise UserError(f"{data}: no questions", hint="Expected SQuAD json.")
    if labelled:
        for q in found:
            if q.answers is None:
                raise UserError(
                    f"{q.where}: question {q.name!r} has no 'answers'", hint="An empty list says: no answer."
                )
            for text, start in q.answers:
                check(q, text, start)
    return found


def check(q: Question, text: str, start: int) -> None:
    """An answer must stand where it says.

    Raises:
        UserError: it does not; says where it does.
    """
    there = q.context[start : start + len(text)] if start >= 0 else ""
    if there != text or not text:
        place = q.context.find(text) if text else -1
        raise UserError(
            f"{q.where}: question {q.name!r}: answer {text[:40]!r} is not at {start}, there stands {there[:40]!r}",
            hint=f"It is at {place}: offsets count characters (code points)."
            if place >= 0
            else "It is not in the context.",
        )


def _squad(path: Path) -> list[Question]:
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})", hint="Expected SQuAD json.") from None
    out = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                out += [_question(str(path), qa | {"context": paragraph["context"]}) for qa in paragraph["qas"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: no {error}", hint="Expected SQuAD's data/paragraphs/qas/context layout.") from None
    return out


def _question(where: str, row: Mapping[str, Any]) -> Question:
    """A question from its fields, whichever file they came from.

    Raises:
        UserError: naming the question and the field that is missing or no text or no number.
    """
    name = str(row.get("id", where))
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
    if row.get("is_impossible"):
        pairs = ()
    return Question(name=name, question=row["question"], context=row["context"], answers=pairs, where=where)
