"""Extractive question answering: a span of the context, or no answer.

Contexts longer than the model are read in overlapping windows; a window without the answer is trained to point at its
first slot, which stands for "no answer here" (Devlin et al. 2019, sec. 4.3). A span's probability is a softmax over all
spans of all windows and "no answer". Offsets are characters of the context as given.

Read are SQuAD json (v1 and v2), or rows with the same fields flat.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.inference import first_slots
from unmask.errors import UserError, first_of
from unmask.families.heads import SPAN
from unmask.files import read_text
from unmask.given import no_value
from unmask.kernels.on_host import on_host, to_device
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.modalities.text.tasks import probe, scorers
from unmask.modalities.text.tasks.data import LabelledRow, Problems, as_mapping, say_individuals, split_of
from unmask.modalities.text.tasks.encoding import ExampleMaker, Prepared, Window, by_owner, trimmed
from unmask.modalities.text.tasks.held_out import judging_folds
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.row_files import Columns, read_rows
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.tag import by_example
from unmask.modalities.text.tasks.task import TextTask
from unmask.modalities.text.uses.filling import may_be_longer
from unmask.training.settings import refuse_unread

LONGEST = 30
"""Longest answer in tokens (the published scripts' limit), unless more than one in a hundred training answers is
longer."""
KEPT = 20
NOTHING = "(no answer)"


@dataclass(frozen=True, kw_only=True)
class SquadQuestion(LabelledRow):
    """A question about a context; `answers` are (text, start) pairs, empty where there is none, None if unlabelled."""

    name: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None


ANSWERS = 'Expected answers: [{"text": ..., "answer_start": ...}], as .json, .jsonl or .parquet hold; none of them: [].'


def as_questions(
    data: Any, *, labelled: bool, problems: Problems | None = None, columns: Columns | None = None
) -> list[SquadQuestion]:
    """Questions from a SQuAD json file, flat rows (question, context, answers), or rows of Python. `problems` notes
    answers that are not at their offset, and rows that cannot be read, which are left out or refused together; None
    refuses. `columns.group`: which field tells what is not parted."""
    noted = Problems() if problems is None else problems

    def made(where: str, row: Any) -> SquadQuestion:
        q = row
        if not isinstance(row, SquadQuestion):
            row = as_mapping(where, row, "a dict with question, context and answers")
            group = (columns or Columns()).group_of(where, row)
            q = dataclasses.replace(_question(where, row, keep=not labelled), group=group, split=split_of(row))
        if labelled and q.answers is None:
            raise UserError(f"{q.where}: question {q.name!r} has no 'answers'", hint=ANSWERS)
        for text, start in (q.answers or ()) if labelled else ():
            check(q, text, start)
        return q

    if isinstance(data, str | Path):
        rows = _squad(path) if suffix_of(path := Path(data)) == ".json" else read_rows(data)
    else:
        rows = [(getattr(r, "where", "") or f"row {i}", r) for i, r in enumerate(table_rows(data) or data, 1)]
    found = noted.each(rows, made)
    noted.settle("questions")
    if labelled:
        say_individuals((row for _, row in rows), columns or Columns(), noted)
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
            hint=ANSWERS,
        ) from None
    declared = row.get("is_impossible")
    known = {"": False, "none": False, "false": False, "0": False, "true": True, "1": True}
    word = str(declared).strip().lower()  # a text "false" (of a csv, say) is no true
    if word not in known:
        raise UserError(f"{where}: is_impossible of question {name!r} is {declared!r}", hint="Expected true or false.")
    if known[word]:
        pairs = ()
    kept = {"id": name} | {k: v for k, v in row.items() if k not in ("context", "answers")} if keep else None
    return SquadQuestion(
        name=name, question=row["question"], context=row["context"], answers=pairs, where=where, row=kept
    )


class Answer(TextTask):
    """A span of the context for a question."""

    name, head, metric, top = "answer", SPAN, "f1", 100.0
    windowed = True

    def __init__(self, encoder: ExampleMaker, about: dict[str, Any]) -> None:
        super().__init__(encoder, about)
        self.fits_threshold = bool(about.get("no_answer")) and about.get("null_threshold") is None

    @classmethod
    def read(
        cls, data: Any, columns: Columns | None, *, labelled: bool, problems: Problems | None
    ) -> tuple[list[SquadQuestion], Columns | None]:
        return as_questions(data, labelled=labelled, problems=problems, columns=columns), None

    @classmethod
    def remarks(cls, encoder: ExampleMaker, items: Sequence[SquadQuestion], *, labelled: bool) -> list[str]:
        """Nothing; questions that are too long are refused before the work begins."""
        check_questions(encoder, items)
        return []

    @classmethod
    def from_items(cls, encoder: ExampleMaker, items: Sequence[SquadQuestion], settings: TaskSettings) -> Answer:
        """Refuse a threshold for "no answer" where every question has an answer."""
        no_answer = any(not q.answers for q in items)
        if not no_answer:
            refuse_unread(settings, ["null_threshold"], "with an answer to every question")
        about = {
            "name": "answer",
            "slots": encoder.slots,
            "stride": settings.stride,
            "null_threshold": settings.null_threshold,
            "no_answer": no_answer,
            "longest": longest_answer(encoder, items),
        }
        return cls(encoder, about)

    @classmethod
    def outputs_of(cls, about: Mapping[str, Any]) -> int:
        """The beginning and the end."""
        return 2

    def prepare(self, items: Sequence[SquadQuestion], *, labelled: bool) -> Prepared:
        check_questions(self.encoder, items)
        contexts = list(dict.fromkeys(q.context for q in items))
        texts = dict(zip(contexts, self.encoder.texts(contexts), strict=True))
        encoded = [texts[q.context] for q in items]
        questions = self.encoder.texts([q.question for q in items])
        stride = int(self.about.get("stride") or 0)
        examples, windows = self.encoder.windows(encoded, stride=stride, before=questions)
        extra: dict[str, Any] = {"windows": windows, "offsets": [e.offsets for e in encoded]}
        if labelled:
            places = [token_span(q, e.offsets) for q, e in zip(items, encoded, strict=True)]
            extra["target"] = torch.tensor([_in_window(w, places[w.owner]) for w in windows]).reshape(-1, 2)
        return Prepared(items, examples, by_owner(windows, len(items)), extra)

    def start_head(self, text: TextFolder, model: TaskModel, training: Prepared, **given: Any) -> probe.Probed | None:
        return probe.start_answerer(model, training, **given)

    def loss(self, model: TaskModel, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> Tensor:
        logits = padded(model(batch, len(numbers)).float(), batch, len(numbers))
        target = to_device(prepared.extra["target"][torch.from_numpy(numbers)], logits.device)
        return (F.cross_entropy(logits[..., 0], target[:, 0]) + F.cross_entropy(logits[..., 1], target[:, 1])) / 2

    def collect(self, logits: Tensor, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> list[np.ndarray]:
        return by_example(logits, batch, len(numbers))

    def decode(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        windows, offsets = prepared.extra["windows"], prepared.extra["offsets"]
        out = []
        for number, (q, own) in enumerate(zip(prepared.items, prepared.groups, strict=True)):
            tokens, null = len(offsets[number]), np.inf
            table = np.full((tokens, min(int(self.about.get("longest") or LONGEST), max(tokens, 1))), -np.inf)
            for w in own:
                null = min(null, _add_spans(table, found[w], windows[w]))
            spans, total = _likeliest(table)
            if self.about.get("no_answer"):
                total = np.logaddexp(total, null)
            ranked = _distinct(q, offsets[number], sorted(spans, key=lambda s: -s[0]))
            nbest = [
                {"text": q.context[a:b], "start": a, "end": b, "probability": float(np.exp(s - total))}
                for s, a, b in ranked
            ]
            row: dict[str, Any] = {"answer": None, "nbest": nbest}
            if self.about.get("no_answer") or not nbest:
                gap = float(null - ranked[0][0]) if ranked else np.inf
                row["no_answer_score"] = gap if np.isfinite(gap) else 1e9
                row["no_answer_probability"] = float(np.exp(null - total)) if np.isfinite(total) else 1.0
            row["answer"] = _answer(row, self.about.get("null_threshold"))
            out.append(row)
        return out

    def score(self, predictions: list[dict[str, Any]], items: Sequence[SquadQuestion]) -> dict[str, float]:
        names = [str(i) for i in range(len(items))]  # ids need not be unique in a resampled list
        guesses = {n: p["answer"]["text"] for n, p in zip(names, predictions, strict=True)}
        return scorers.squad_scores(
            guesses, {n: [t for t, _ in q.answers or ()] for n, q in zip(names, items, strict=True)}
        )

    def in_words(self, item: SquadQuestion, prediction: dict[str, Any]) -> tuple[str, str, str]:
        truth = item.answers[0][0] if item.answers else NOTHING
        return f"{item.question} | {item.context[:200]}", truth, prediction["answer"]["text"] or NOTHING

    def calibrate(self, found: list[np.ndarray], prepared: Prepared) -> None:
        """The no-answer threshold with the best F1 on validation data, unless the settings give one."""
        if self.fits_threshold:
            self.about["null_threshold"] = best_threshold(self.decode(found, prepared), prepared.items)

    def judged(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        """Calibrate, and the predictions of these very rows: each by a threshold fitted on the other folds."""
        predictions = super().judged(found, prepared)
        for outside, here in judging_folds(prepared.items) if self.fits_threshold else ():
            threshold = best_threshold([predictions[i] for i in outside], [prepared.items[i] for i in outside])
            for i in here:
                predictions[i]["answer"] = _answer(predictions[i], threshold)
        return predictions


def check_questions(encoder: ExampleMaker, items: Sequence[SquadQuestion]) -> None:
    """Refuse questions that leave their contexts too little room."""
    most = encoder.most_before
    wordy = [q for q in items if may_be_longer(most, q.question)]
    read = encoder.texts([q.question for q in wordy])
    long = [f"{q.where}: {len(e):,} tokens" for q, e in zip(wordy, read, strict=True) if len(e) > most]
    if long:
        raise UserError(
            f"questions longer than {most:,} tokens, three quarters of what the model reads: "
            f"{first_of(long, between='; ')}",
            hint="Shorten them: the rest is for the context.",
        )


def _answer(row: dict[str, Any], threshold: float | None) -> dict[str, Any]:
    """The likeliest span of a prediction, or none where no answer is likelier by more than the threshold, default 0."""
    if not row["nbest"] or row.get("no_answer_score", -np.inf) > (threshold or 0.0):
        return {"text": "", "start": 0, "end": 0, "probability": row["no_answer_probability"]}
    return dict(row["nbest"][0])


def best_threshold(predictions: Sequence[dict[str, Any]], items: Sequence[SquadQuestion]) -> float:
    """The no-answer threshold with the best F1 on labelled questions (as the v2 script's best_f1); 0 of none."""
    gaps = np.array([row["no_answer_score"] for row in predictions])
    best = [row["nbest"][0]["text"] if row["nbest"] else "" for row in predictions]
    truths = [[t for t, _ in q.answers or ()] for q in items]
    keep = np.array([scorers.squad_f1(g, t) for g, t in zip(best, truths, strict=True)])
    drop = np.array([scorers.squad_f1("", t) for t in truths])
    order = np.argsort(gaps)
    # Answering the k questions with the smallest gaps and none of the others.
    answered, left = (np.append(0, np.cumsum(x[order])) for x in (keep, drop))
    totals = answered + drop.sum() - left
    k = int(totals.argmax())
    s = gaps[order]
    if not len(s):
        return 0.0
    return float(s[0] - 1 if k == 0 else s[-1] + 1 if k == len(s) else (s[k - 1] + s[k]) / 2)


def longest_answer(encoder: ExampleMaker, items: Sequence[SquadQuestion]) -> int:
    """Tokens of the longest answer that is looked for: `LONGEST`, or as many as 99 of 100 training answers have."""
    given = [q.answers[0][0] for q in items if q.answers]
    lengths = [len(e) for e in encoder.texts(given)] if given else [0]
    return max(LONGEST, int(np.ceil(np.quantile(lengths, 0.99))))


def token_span(q: SquadQuestion, offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer, None where there is none or no token of it."""
    if not q.answers:
        return None
    text, start = q.answers[0]
    inside = np.flatnonzero((offsets[:, 0] < start + len(text)) & (offsets[:, 1] > start))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _in_window(window: Window, place: tuple[int, int] | None) -> tuple[int, int]:
    if place is None or place[0] < window.first or place[1] >= window.last:
        return (0, 0)
    return (place[0] - window.first + window.shift, place[1] - window.first + window.shift)


def padded(logits: Tensor, batch: PackedBatch, count: int) -> Tensor:
    """(rows * slots, k) -> (count, longest, k), with a large negative number behind the end of each example."""
    index = on_host(batch.index).flatten()
    real = (index >= 0).nonzero().flatten()
    column = real - torch.from_numpy(first_slots(batch, count))[index[real]]
    out = logits.new_full((count, int(column.max()) + 1, logits.shape[1]), -1e9)
    example, column, real = (to_device(t, logits.device) for t in (index[real], column, real))
    return out.index_put((example, column), logits[real])


def _add_spans(table: np.ndarray, logits: np.ndarray, window: Window) -> float:
    """Note the scores of a window's spans in a table (tokens of the text, longest span: by first token and by further
    tokens, -inf where none is), of one that an earlier window has too the higher; the score of no answer."""
    start, end = logits[:, 0].astype(np.float64), logits[:, 1].astype(np.float64)
    here = slice(window.shift, window.shift + window.last - window.first)
    s, e = start[here], end[here]
    n = len(s)
    for k in range(min(table.shape[1], n)):
        rows = table[window.first : window.first + n - k, k]
        np.maximum(rows, s[: n - k] + e[k:], out=rows)
    return float(start[0] + end[0])


def _likeliest(table: np.ndarray) -> tuple[list[tuple[float, int, int]], float]:
    """(best spans as (score, first token, last token), log of the summed exp of all spans, each once)."""
    flat, width = table.ravel(), table.shape[1]
    top = flat.argpartition(-min(KEPT, flat.size - 1) - 1)[-KEPT:] if flat.size > KEPT else np.arange(flat.size)
    found = [(float(flat[i]), int(i) // width, int(i) // width + int(i) % width) for i in top if np.isfinite(flat[i])]
    peak = float(flat.max(initial=-np.inf))
    return found, peak + float(np.log(np.exp(flat - peak).sum())) if np.isfinite(peak) else -np.inf


def _distinct(
    q: SquadQuestion, offsets: np.ndarray, spans: Sequence[tuple[float, int, int]]
) -> list[tuple[float, int, int]]:
    """Token spans as characters, without white space at their ends, each once, at most `KEPT`; empty ones left out."""
    seen: set[tuple[int, int]] = set()
    out: list[tuple[float, int, int]] = []
    for score, first, last in spans:
        a, b = trimmed(q.context, int(offsets[first, 0]), int(offsets[last, 1]))
        if a < b and (a, b) not in seen and len(out) < KEPT:
            seen.add((a, b))
            out.append((score, a, b))
    return out
