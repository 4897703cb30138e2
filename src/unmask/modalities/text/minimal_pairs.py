"""Minimal pairs: does a model find the grammatical one of two sentences likelier? BLiMP (Warstadt et al. 2020), and
files of its layout, .jsonl rows with `sentence_good` and `sentence_bad`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.errors import UserError, check_choice, first_of
from unmask.evaluation.metrics import bootstrap_mean

GOOD, BAD = "sentence_good", "sentence_bad"
PARADIGM, FIELD = "UID", "linguistics_term"


@dataclass(frozen=True, kw_only=True)
class MinimalPair:
    """Two sentences that differ in one point of grammar; the published file has some that do not, which are ties.

    Attributes:
        paradigm: which pairs are averaged together: column `UID`, else the name of the file.
        field: which paradigms are shown together: column `linguistics_term`, else the paradigm.
    """

    good: str
    bad: str
    paradigm: str
    field: str


class Scorer(Protocol):
    """What is measured: a `TextModel`."""

    def score(self, texts: Sequence[str], *, mode: str) -> list[dict[str, Any]]:
        """See `TextModel.score`."""
        ...


def is_minimal_pairs(source: str | Path) -> bool:
    """Whether a file (.jsonl, or a .zip or folder of such) holds minimal pairs, by its first row."""
    for _, line in _lines(Path(source)):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            return False
        return isinstance(row, dict) and GOOD in row and BAD in row
    return False


def read_minimal_pairs(source: str | Path) -> list[MinimalPair]:
    """The pairs of a .jsonl file, or of all such files of a folder or .zip, by name.

    Raises:
        UserError: naming file and line of every row that is no pair (the first ten); there is none at all.
    """
    found, wrong = [], []
    for where, line in _lines(Path(source)):
        try:
            row = json.loads(line)
            pair = _pair(row, where.rsplit(":", 1)[0])
        except (json.JSONDecodeError, ValueError) as error:
            wrong.append(f"{where}: {error}")
            continue
        found.append(pair)
    hint = f'Expected one JSON object per line: {{"{GOOD}": "...", "{BAD}": "..."}}.'
    if wrong:
        raise UserError(first_of(wrong, 10, between="\n  "), hint=hint)
    if not found:
        raise UserError(f"{source}: no minimal pair", hint=hint)
    return found


def _pair(row: Any, file: str) -> MinimalPair:
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    for name in (GOOD, BAD):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"{name} is {row.get(name)!r}, not a text")
    paradigm = str(row.get(PARADIGM) or Path(file).stem)
    return MinimalPair(good=row[GOOD], bad=row[BAD], paradigm=paradigm, field=str(row.get(FIELD) or paradigm))


def _lines(source: Path) -> Iterator[tuple[str, str]]:
    """("file:line", text) of the lines that are not blank."""
    if source.suffix == ".zip" and source.is_file():
        with zipfile.ZipFile(source) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".jsonl")):
                yield from _numbered(name, archive.read(name).decode("utf-8"))
        return
    files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
    for file in files:
        if file.suffix == ".jsonl" and file.is_file():
            yield from _numbered(str(file), file.read_text(encoding="utf-8"))


def _numbered(name: str, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"{name}:{number}", line


def some_of_each(pairs: Sequence[MinimalPair], most: int, *, seed: int = 0) -> list[MinimalPair]:
    """At most `most` pairs of each paradigm, drawn by `seed`."""
    order = np.argsort(hash_keys(seed, np.arange(len(pairs)), Salt.JUDGED_PAIRS), kind="stable")
    taken: dict[str, int] = {}
    kept = []
    for i in order:
        name = pairs[int(i)].paradigm
        if taken.get(name, 0) < most:
            taken[name] = taken.get(name, 0) + 1
            kept.append(int(i))
    return [pairs[i] for i in sorted(kept)]


def evaluate_minimal_pairs(
    model: Scorer,
    pairs: Sequence[MinimalPair],
    *,
    mode: str = "unit",
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Share of pairs whose grammatical sentence has the higher pseudo-log-likelihood; ties count half.

    The mean is over paradigms, as published; its 95 % interval resamples pairs. Chance is one half. `shorter` is what
    the rule scores that prefers the sentence of fewer tokens.

    Args:
        mode: of `TextModel.score`.
        say: called with how many pairs have a sentence of words alone that the tokenizer does not know: unknown words
            are not scored, and a pair of which one sentence has no score, or that differs in nothing else, is a tie.

    Returns:
        accuracy, low, high, pairs, ties, shorter, by_field and by_paradigm: name -> share.

    Raises:
        UserError: there is no pair, or no such mode.
    """
    check_choice("mode", mode, ("unit", "slot"))
    if not pairs:
        raise UserError("no minimal pair", hint="Give at least one.")
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    scores = dict(zip(texts, model.score(texts, mode=mode), strict=True))
    gap = np.array([_gap(scores[p.good]["score"], scores[p.bad]["score"]) for p in pairs])
    longer = np.array([scores[p.bad]["slots"] - scores[p.good]["slots"] for p in pairs])
    right, rule = (np.where(d > 0, 1.0, np.where(d < 0, 0.0, 0.5)) for d in (gap, longer))
    paradigm, field = np.array([p.paradigm for p in pairs]), np.array([p.field for p in pairs])
    names, number, size = np.unique(paradigm, return_inverse=True, return_counts=True)
    weight = 1.0 / size[number]  # every paradigm counts alike
    found = bootstrap_mean(right, groups=np.arange(len(pairs)), weights=weight, seed=seed)
    unseen = sum(1 for pair in pairs if scores[pair.good]["slots"] == 0 or scores[pair.bad]["slots"] == 0)
    if unseen:
        why = "the tokenizer knows none of its words"
        say(f"{unseen:,} pairs have a sentence of which nothing is scored, and are ties: {why}")
    by_paradigm = {str(name): float(right[number == i].mean()) for i, name in enumerate(names)}
    by_field = {
        str(name): float(np.mean([by_paradigm[str(p)] for p in np.unique(paradigm[field == name])]))
        for name in np.unique(field)
    }
    return {
        "accuracy": float(np.mean(list(by_paradigm.values()))),
        "low": found.low if np.isfinite(found.low) else None,
        "high": found.high if np.isfinite(found.high) else None,
        "pairs": len(pairs),
        "paradigms": len(names),
        "ties": int((gap == 0).sum()),
        "shorter": float(np.mean([rule[number == i].mean() for i in range(len(names))])),
        "mode": mode,
        "by_field": by_field,
        "by_paradigm": by_paradigm,
    }


def _gap(good: float | None, bad: float | None) -> float:
    """By how much the grammatical sentence is likelier; 0 where one of the two has no score."""
    return 0.0 if good is None or bad is None else good - bad
