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
            found = [_flat(where, row) for where, row in read_rows(data)]
    else:
        rows = list(data)
        found = (
            rows if rows and isinstance(rows[0], Question) else [_flat(f"row {i}", r) for i, r in enumerate(rows, 1)]
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
        out = []
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                out += [_question(path, qa, paragraph["context"]) for qa in paragraph["qas"]]
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})", hint="Expected SQuAD json.") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: no {error}", hint="Expected SQuAD's data/paragraphs/qas/context layout.") from None
    return out


def _question(path: Path, qa: Mapping[str, Any], context: str) -> Question:
    answers = qa.get("answers")
    pairs = None if answers is None else tuple((str(a["text"]), int(a["answer_start"])) for a in answers)
    if qa.get("is_impossible"):
        pairs = ()
    return Question(name=str(qa["id"]), question=qa["question"], context=context, answers=pairs, where=str(path))


def _flat(where: str, row: Mapping[str, Any]) -> Question:
    for name in ("question", "context"):
        if not isinstance(row.get(name), str):
            raise UserError(f"{where}: no {name!r}", hint="Each row needs a question and a context.")
    answers = row.get("answers")
    pairs: tuple[tuple[str, int], ...] | None = None
    if isinstance(answers, Mapping):  # as Hugging Face datasets have it
        pairs = tuple(zip(answers["text"], (int(s) for s in answers["answer_start"]), strict=True))
    elif isinstance(answers, list):
        pairs = tuple((a["text"], int(a.get("answer_start", a.get("start")))) for a in answers)
    return Question(
        name=str(row.get("id", where)), question=row["question"], context=row["context"], answers=pairs, where=where
    )
