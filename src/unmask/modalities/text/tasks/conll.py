"""Tagged text: CoNLL columns in any of the usual schemes, or jsonl with character spans.

A CoNLL sentence becomes a text, its words joined by single spaces, with the character span of each word: what is
predicted is then always characters of one text, wherever it came from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import read_text, split_lines
from unmask.given import no_value
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.modalities.text.tasks.conll_columns import OF_NO_WORD, has_columns, is_tag, layout_of, sentences_of
from unmask.modalities.text.tasks.data import Columns, naming, read_rows, refuse_group
from unmask.modalities.text.tasks.lenient import Problems
from unmask.modalities.text.tasks.scorers import Span, spans_of

GIVE = "Give a CoNLL file: a word and its tag per line, a blank line between sentences."

COLUMNS = (".conll", ".txt", ".tsv", ".bio", ".iob", ".iob2", ".annotated")

HINT = "Each line holds a word and its tag; sentences are parted by a blank line."


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A text with its entities.

    Attributes:
        spans: (start, end, label) in characters, None where not labelled.
        words: character spans of the words that are tagged, None where the tokenizer's own units are.
        group: what it must not be parted from.
        row: what the file holds of it, carried along by `predict`.
    """

    text: str
    spans: tuple[Span, ...] | None = None
    words: tuple[tuple[int, int], ...] | None = None
    group: str | None = None
    where: str = ""
    row: dict[str, Any] | None = None


def as_sentences(
    data: Any, *, labelled: bool, problems: Problems | None = None, columns: Columns | None = None
) -> list[Sentence]:
    """Sentences from a file (CoNLL columns, jsonl, csv, parquet, or texts per line), or rows of Python.

    Args:
        problems: notes what is wrong with rows, which are left out or refused together; None refuses.
        columns: `text` and `label`: which columns of a CoNLL file hold words and tags, as numbers from 1.
    """
    noted, columns = Problems() if problems is None else problems, columns or Columns()

    def grouped(where: str, row: dict[str, Any]) -> Sentence:
        return dataclasses.replace(_row(where, row, labelled, noted), group=columns.group_of(where, row))

    if isinstance(data, str | Path):
        path = Path(data)
        kind = suffix_of(path)
        if kind in (".jsonl", ".ndjson", ".json", ".parquet", ".csv") or str(data).startswith("hf:"):
            if other := {part: name for part, name in columns.named.items() if part != "group"}:
                given = naming(**other)
                raise UserError(
                    f"{data}: {given}: columns of a CoNLL file, by number",
                    hint="Rows of tagged texts have their own: text and entities, or tokens and tags.",
                )
            found = noted.each(read_rows(data), lambda where, row: grouped(where, row))
        elif kind == ".txt" and not labelled and not (columns.text or _columns_in(path)):
            lines = split_lines(read_text(path, hint=GIVE))
            if not lines:
                raise UserError(f"{path}: no sentences", hint="Give at least one text.")
            return [Sentence(text=line, where=f"{path}:{n}", row={"text": line}) for n, line in enumerate(lines, 1)]
        else:
            refuse_group(columns, "CoNLL")
            found = read_conll(path, noted, columns=columns, labelled=labelled)
        noted.settle("rows" if kind in (".jsonl", ".ndjson", ".json", ".parquet", ".csv") else "lines")
        if not found:
            raise UserError(f"{data}: no sentences", hint="Each line holds a word and its tag.")
        return found if labelled else [dataclasses.replace(s, row=s.row or {"text": s.text}) for s in found]
    rows: list[Any] = table_rows(data) or list(data)
    if rows and isinstance(rows[0], Sentence):
        return rows
    made = [
        Sentence(text=row if isinstance(row, str) else "", where=f"row {i}")
        if isinstance(row, str) or (not labelled and no_value(row))
        else grouped(f"row {i}", dict(row))
        for i, row in enumerate(rows, 1)
    ]
    noted.settle("rows")
    return made


def _columns_in(path: Path) -> bool:
    """Whether a .txt holds words with tags."""
    found = has_columns(read_text(path, hint=GIVE))
    if found is None:
        raise UserError(
            f"{path}: words with tags in columns, or texts that end so?",
            hint=f"Columns: say which holds the words, {naming(text=1)}. Texts: give them as .jsonl, one object with "
            "text per line.",
        )
    return found


def read_conll(
    path: Path, problems: Problems | None = None, *, columns: Columns | None = None, labelled: bool = True
) -> list[Sentence]:
    """Sentences of words and tags in columns, tab- or space-separated; which columns were read is said.

    Args:
        problems: notes bad lines; a word that is white space goes alone, any other bad line takes its sentence with it.
            None refuses them.
        columns: `text` and `label`: numbers of columns from 1; default what the file tells (see `conll_columns`).
        labelled: with tags; else they need not be there where the column of the words is given.
    """
    noted = Problems() if problems is None else problems
    lines, comments = sentences_of(read_text(path, hint=GIVE))
    if not lines:
        raise UserError(f"{path}: no sentences", hint="Each line holds a word and its tag.")
    layout = layout_of(lines, path, columns or Columns(), labelled=labelled)
    noted.say(f"{path}: {layout.said()}")
    if comments:
        noted.say(f"{path}: comments (lines that begin with #) left out: {comments:,}")
    sentences, passed = [], 0
    for sentence in lines:
        words: list[str] = []
        tags: list[str] = []
        began, spoilt = 0, False
        for n, line, cells in sentence:
            where, tag = f"{path}:{n}", None
            if len(cells) != layout.width:
                noted.add(
                    where, f"{len([c for c in cells if c])} columns, expected {layout.width}: {line[:60]!r}", HINT
                )
                spoilt = True
            elif layout.count is not None and OF_NO_WORD.fullmatch(cells[layout.count]):
                passed += 1
            elif not cells[layout.word].strip():
                noted.add(where, f"the word is white space: {line[:60]!r}", HINT)
            elif layout.tag is not None and not is_tag(tag := cells[layout.tag]):
                _refuse_bare(tag, where)
                noted.add(where, f"tag {tag!r}", "Expected O, B-TYPE or I-TYPE (or E, S, L, U).")
                spoilt = True
            else:
                began = began or n
                words.append(cells[layout.word])
                tags.append(tag or "O")
        if words and not spoilt:
            sentences.append(joined(words, None if layout.tag is None else tags, where=f"{path}:{began}"))
    if passed:
        noted.say(f"{path}: {passed:,} lines of several words or of none (1-2, 1.1) left out")
    if problems is None:
        noted.settle("lines")
    return sentences


def checked(tag: Any, where: str) -> str:
    """A tag, if it is one."""
    if is_tag(tag):
        return str(tag)
    _refuse_bare(tag, where)
    raise UserError(f"{where}: tag {tag!r}", hint="Expected O, B-TYPE or I-TYPE (or E, S, L, U).")


def _refuse_bare(tag: Any, where: str) -> None:
    """Such lines are no slips: without them a file has no entities."""
    if tag in ("B", "I"):
        raise UserError(
            f"{where}: tag {tag!r} names no type", hint="Write B-TYPE and I-TYPE, such as B-Disease, for B and I."
        )


def joined(words: Sequence[str], tags: Sequence[str] | None, *, where: str = "") -> Sentence:
    """A sentence from words, joined by single spaces, and their tags."""
    places, at = [], 0
    for word in words:
        places.append((at, at + len(word)))
        at += len(word) + 1
    spans = None
    if tags is not None:
        spans = tuple((places[a][0], places[b - 1][1], label) for a, b, label in spans_of(tags))
    return Sentence(text=" ".join(words), spans=spans, words=tuple(places), where=where)


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A span of a text without the white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _check_text(where: str, text: str, start: int, end: int, said: Any) -> None:
    """An entity must be what it says it is, blanks at its ends aside."""
    there = text[start:end]
    if not there.strip():
        raise UserError(f"{where}: entity {start}..{end} is white space", hint="Mend its offsets or leave it out.")
    if isinstance(said, str) and said.strip() != there.strip():
        place = text.find(said)
        raise UserError(
            f"{where}: entity {start}..{end} says {said[:40]!r}, there stands {there[:40]!r}",
            hint=f"It is at {place}: offsets count characters (code points), not bytes or UTF-16 units."
            if place >= 0
            else "It is not in the text.",
        )


def _offset(value: Any) -> int:
    """A place in a text; 5.0, as pandas writes it, and "5" are 5.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(value, bool) or value is None or float(value) != int(float(value)):
        raise ValueError(value)
    return int(float(value))


def _type(value: Any) -> str:
    """The name of an entity's type.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(value)
    return str(value)


def _row(where: str, row: dict[str, Any], labelled: bool, noted: Problems) -> Sentence:
    """{"text", "entities": [{start, end, label}]}, or {"tokens", "tags"}."""
    words = row.get("tokens") or row.get("words")
    if isinstance(words, list):
        words = [str(w) for w in words]
        if not labelled:
            return dataclasses.replace(joined(words, None, where=where), row=row)
        tags: list[Any] = next((row[k] for k in ("tags", "ner_tags", "labels") if isinstance(row.get(k), list)), [])
        if len(tags) != len(words):
            raise UserError(f"{where}: {len(words)} tokens, {len(tags)} tags", hint="Give one tag a token.")
        return joined(words, [checked(tag, where) for tag in tags], where=where)
    text = row.get("text") if isinstance(row.get("text"), str) else row.get("sentence")
    if not labelled and text is None and ("text" in row or "sentence" in row) and no_value(row.get("text")):
        text = ""
    if not isinstance(text, str):
        raise UserError(f"{where}: no 'text'", hint='Expected {"text": ..., "entities": [{"start", "end", "label"}]}.')
    keys = [k for k in ("entities", "spans", "label") if k in row]  # doccano's key is `label`
    found = next((row[k] for k in keys if not no_value(row[k])), () if keys and labelled else None)
    if found is not None and not isinstance(found, list | tuple):
        raise UserError(f"{where}: entities {found!r:.40}", hint="Give a list of {start, end, label}; it may be empty.")
    if found is None:
        if labelled:
            raise UserError(f"{where}: no 'entities'", hint="Give a list of {start, end, label}; it may be empty.")
        return Sentence(text=text, where=where, row=row)
    spans = []
    for number, e in enumerate(found, 1):
        try:
            start, end, label = (e["start"], e["end"], e["label"]) if isinstance(e, dict) else e
            start, end, label = _offset(start), _offset(end), _type(label)
        except KeyError as error:
            raise UserError(
                f"{where}: entity {number} has no {error}", hint="Give each entity start, end and label."
            ) from None
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{where}: entity {e!r:.80}", hint="Expected start, end (whole numbers) and label (a name)."
            ) from None
        if not 0 <= start < end <= len(text):
            raise UserError(
                f"{where}: entity {start}..{end} in a text of {len(text)} characters",
                hint="Offsets count characters (code points) from 0; the end is exclusive.",
            )
        if labelled:
            _check_text(where, text, start, end, e.get("text") if isinstance(e, dict) else None)
            first, last = trimmed(text, start, end)
            if (first, last) != (start, end):
                noted.mended["entities with blanks at their ends, which were cut off"] += 1
            start, end = first, last
        spans.append((start, end, label))
    return Sentence(text=text, spans=tuple(dict.fromkeys(spans)), where=where, row=None if labelled else row)
