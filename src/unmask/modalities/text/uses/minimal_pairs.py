"""Minimal pairs: does a model find the grammatical one of two sentences likelier? BLiMP (Warstadt et al. 2020), and
files of its layout, rows of .jsonl, .csv or .tsv with `sentence_good` and `sentence_bad`."""

from __future__ import annotations

import codecs
import contextlib
import csv
import glob
import gzip
import io
import itertools
import json
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.errors import UserError, check_choice, first_of
from unmask.evaluation.metrics import bootstrap_mean
from unmask.files import files_below

_ENDING = re.compile(r"\.(jsonl|csv|tsv)(\.gz)?$", re.IGNORECASE)
GOOD, BAD = "sentence_good", "sentence_bad"
PARADIGM, FIELD = "UID", "linguistics_term"


@dataclass(frozen=True, kw_only=True)
class MinimalPair:
    """Two sentences that differ in one point of grammar; the published file has some that do not, which are ties.

    Attributes:
        paradigm: which pairs are averaged together: column `UID`, else the name of the file (with its folders where two
            files have one name).
        field: which paradigms are shown together: column `linguistics_term`, else the paradigm.
    """

    good: str
    bad: str
    paradigm: str
    field: str


class Scorer(Protocol):
    """What is measured: a `TextModel`."""

    def score(self, texts: Sequence[str], *, mode: str) -> list[dict[str, Any]]:
        """See `TextModel.score`; a scorer of all tokens need not give `unscored`."""
        ...


def matching(sources: Sequence[str]) -> list[str]:
    """Sources with the files that patterns (*.jsonl) stand for in their place."""
    found = [[s] if os.path.exists(s) else sorted(glob.glob(s, recursive=True)) or [s] for s in sources]
    return list(itertools.chain.from_iterable(found))


def is_minimal_pairs(source: str | Path) -> bool:
    """Whether a file (.jsonl, .csv, .tsv, .gz or not; a .zip or folder of such) holds minimal pairs, by its first
    row."""
    for _, _, raw in itertools.islice(_lines(str(source)), 1):
        try:
            row = json.loads(raw.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            return False
        return isinstance(row, dict) and GOOD in row and BAD in row
    return False


def read_minimal_pairs(*sources: str | Path) -> list[MinimalPair]:
    """The pairs of .jsonl, .csv and .tsv files (.gz or not), and of all such files below folders and in .zip files, by
    name; a file that is named twice is read once.

    Raises:
        UserError: naming file and line of every row that is no pair (the first ten), or a source that holds no row, or
            a file that is there packed and not.
    """
    found, wrong = list[tuple[str, dict[str, Any]]](), list[str]()
    hint = f'Expected one JSON object per line, in UTF-8: {{"{GOOD}": "...", "{BAD}": "..."}}; or these columns.'
    seen: set[str] = set()
    for source in dict.fromkeys(str(one) for one in sources):
        none = True
        for file, lines in itertools.groupby(_lines(source), lambda line: line[0]):
            none = False
            if (real := os.path.realpath(file)) in seen:
                continue
            seen.add(real)
            for _, number, raw in lines:
                try:
                    found.append((file, _checked(json.loads(raw.decode("utf-8-sig")))))
                except UnicodeDecodeError:
                    wrong.append(f"{file}:{number}: not UTF-8")
                except ValueError as error:  # a JSONDecodeError is one
                    wrong.append(f"{file}:{number}: {error}")
                except RecursionError:
                    wrong.append(f"{file}:{number}: brackets within brackets without end")
        if none:
            there = "no minimal pair" if os.path.exists(source) else "no such file"
            raise UserError(f"{source}: {there}", hint=hint)
    if wrong:
        raise UserError(first_of(wrong, 10, between="\n  "), hint=hint)
    if not found:
        raise UserError("no minimal pair", hint=hint)
    names = _names({file for file, _ in found})
    pairs = []
    for file, row in found:
        paradigm = _value_or(row, PARADIGM, names[file])
        field = _value_or(row, FIELD, paradigm)
        pairs.append(MinimalPair(good=row[GOOD], bad=row[BAD], paradigm=paradigm, field=field))
    return pairs


def _value_or(row: Mapping[str, Any], name: str, otherwise: str) -> str:
    return otherwise if row.get(name) in (None, "") else str(row[name])


def _checked(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    for name in (GOOD, BAD):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"{name} is {row.get(name)!r}, not a text")
    return row


def _names(files: Iterable[str]) -> dict[str, str]:
    """What each file's pairs are called: its name without an ending, with its folders where another has it too."""
    whole = {file: _ENDING.sub("", file) for file in sorted(files)}
    once: dict[str, str] = {}
    for file, name in whole.items():
        if once.setdefault(name, file) != file:
            raise UserError(f"{once[name]} and {file}: one name for the pairs of both", hint="Give one of them.")
    times = Counter(Path(name).name for name in whole.values())
    return {file: name if times[Path(name).name] > 1 else Path(name).name for file, name in whole.items()}


def _lines(source: str) -> Iterator[tuple[str, int, bytes]]:
    """(file, number from 1, bytes) of the lines that are not blank."""
    try:
        if source.lower().endswith(".zip") and os.path.isfile(source):
            with zipfile.ZipFile(source) as archive:
                for name in sorted(filter(_is_taken, archive.namelist())):
                    with archive.open(name) as file:
                        yield from _numbered(f"{source}/{name}", file)
            return
        below = [source]
        if os.path.isdir(source):
            below = [str(p) for p in files_below(source, hidden=[]) if _is_taken(str(p.relative_to(source)))]
        for path in below:
            if _holds_rows(path) and os.path.isfile(path):
                with open(path, "rb") as file:
                    yield from _numbered(path, file)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, csv.Error) as error:
        raise UserError(f"{source}: cannot be read ({error})", hint="Copy the file again.") from None
    except (RuntimeError, NotImplementedError) as error:  # of zipfile: encrypted, or packed in another way
        raise UserError(f"{source}: cannot be read ({error})", hint="Unpack it, and give the folder.") from None


def _holds_rows(name: str) -> bool:
    return bool(_ENDING.search(name))


def _is_taken(name: str) -> bool:
    """Whether a file of a folder or an archive is read: one of rows, not hidden, and not what macOS adds."""
    return _holds_rows(name) and not any(part.startswith(".") or part == "__MACOSX" for part in Path(name).parts)


def _numbered(name: str, file: IO[bytes]) -> Iterator[tuple[str, int, bytes]]:
    ending = name.lower().removesuffix(".gz")[-4:]
    with gzip.open(file) if name.lower().endswith(".gz") else contextlib.nullcontext(file) as lines:
        if ending in (".csv", ".tsv"):
            text = io.TextIOWrapper(cast(IO[bytes], lines), "utf-8-sig", "surrogateescape", newline="")
            rows = csv.DictReader(text, delimiter="," if ending == ".csv" else "\t")
            for row in rows if {GOOD, BAD} <= set(rows.fieldnames or ()) else ():
                yield name, rows.line_num, json.dumps(row, ensure_ascii=False).encode(errors="surrogateescape")
            return
        for number, line in enumerate(lines, start=1):
            if line.removeprefix(codecs.BOM_UTF8).strip():
                yield name, number, line


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
        say: called with how many pairs are ties since unknown words and special tokens are not scored: one sentence has
            no score, or more such tokens than the other. A pair that differs in nothing else is a tie too.

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
    unseen, unequal = (np.array([f(scores[p.good], scores[p.bad]) for p in pairs]) for f in (_unseen, _unequal))
    gap = np.array(
        [
            scores[p.good]["score"] - scores[p.bad]["score"] if comparable else 0.0
            for p, comparable in zip(pairs, ~(unseen | unequal), strict=True)
        ]
    )
    longer = np.array([_tokens(scores[p.bad]) - _tokens(scores[p.good]) for p in pairs])
    right, rule = (np.where(d > 0, 1.0, np.where(d < 0, 0.0, 0.5)) for d in (gap, longer))
    paradigm, field = np.array([p.paradigm for p in pairs]), np.array([p.field for p in pairs])
    names, number, size = np.unique(paradigm, return_inverse=True, return_counts=True)
    weight = 1.0 / size[number]  # every paradigm counts alike
    found = bootstrap_mean(right, groups=np.arange(len(pairs)), weights=weight, seed=seed)
    if unseen.any():
        why = "it holds nothing but special tokens and words that the tokenizer does not know"
        say(f"ties, since nothing of one of the two sentences is scored: {unseen.sum():,} ({why})")
    if unequal.any():
        first = pairs[int(unequal.argmax())]
        say(
            "ties, since one sentence has more unknown or special tokens, which are not scored, than the other: "
            f"{unequal.sum():,}; the first is {first.good!r} and {first.bad!r}"
        )
    marked = np.array([bool(scores[p.good].get("unscored") or scores[p.bad].get("unscored")) for p in pairs])
    if (rest := marked & ~unseen & ~unequal).any():
        say(
            f"pairs judged without their unknown and special tokens, as many in both sentences: {rest.sum():,} of "
            f"{len(pairs):,}"
        )
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


def _tokens(row: Mapping[str, Any]) -> int:
    """Of a sentence, those that are not scored too."""
    return int(row["slots"] + row.get("unscored", 0))


def _unseen(good: Mapping[str, Any], bad: Mapping[str, Any]) -> bool:
    """Whether nothing of one sentence is scored."""
    return not good["slots"] or not bad["slots"]


def _unequal(good: Mapping[str, Any], bad: Mapping[str, Any]) -> bool:
    """Whether one of two sentences that are scored has more tokens than the other that are not: its sum has fewer terms
    for that, and says nothing."""
    return not _unseen(good, bad) and good.get("unscored", 0) != bad.get("unscored", 0)
