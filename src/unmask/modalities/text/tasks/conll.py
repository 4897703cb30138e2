"""Tagged text: CoNLL columns in any of the usual schemes, or jsonl with character spans.

Which columns of a CoNLL file hold the words and the tags is told by number, or found by what they hold: words are in
the first column that does not count them and changes within sentences, tags in the last one. What was found is said;
where a file does not tell, it is refused with the option that does.

A CoNLL sentence becomes a text, its words joined by single spaces, with the character span of each word: what is
predicted is then always characters of one text, wherever it came from.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UserError
from unmask.files import read_text, split_lines
from unmask.given import no_value, values_of
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.modalities.text.tasks.data import (
    LabelledRow,
    Problems,
    accepted,
    as_mapping,
    refuse_group,
    say_individuals,
    split_of,
)
from unmask.modalities.text.tasks.encoding import trimmed
from unmask.modalities.text.tasks.row_files import Columns, flags, read_rows
from unmask.modalities.text.tasks.scorers import Span, spans_of

GIVE = "Give a CoNLL file: a word and its tag per line, a blank line between sentences."

COLUMNS = (".conll", ".txt", ".tsv", ".bio", ".iob", ".iob2", ".annotated")

HINT = "Each line holds a word and its tag; sentences are parted by a blank line."


@dataclass(frozen=True, kw_only=True)
class Sentence(LabelledRow):
    """A text with its entities: `spans`, (start, end, label) in characters, None where not labelled; `words`: spans of
    the words that are tagged, None where the tokenizer's own units are."""

    text: str
    spans: tuple[Span, ...] | None = None
    words: tuple[tuple[int, int], ...] | None = None


def as_sentences(
    data: Any, *, labelled: bool, problems: Problems | None = None, columns: Columns | None = None
) -> list[Sentence]:
    """Sentences from a file (CoNLL columns, jsonl, csv, parquet, or texts per line), or rows of Python. `problems`
    notes what is wrong with rows, which are left out or refused together; None refuses. `columns` says by numbers from
    1 which columns of a CoNLL file hold words (`text`) and tags (`label`)."""
    noted, columns = Problems() if problems is None else problems, columns or Columns()

    def grouped(where: str, row: dict[str, Any]) -> Sentence:
        found = _row(where, row, labelled, noted)
        return dataclasses.replace(found, group=columns.group_of(where, row), split=split_of(row))

    if isinstance(data, str | Path):
        path = Path(data)
        kind = suffix_of(path)
        by_row = kind in (".jsonl", ".ndjson", ".json", ".parquet", ".csv")
        if by_row or str(data).startswith("hf:"):
            if other := {part: name for part, name in columns.named.items() if part != "group"}:
                given = flags(**other)
                raise UserError(
                    f"{data}: {given}: columns of a CoNLL file, by number",
                    hint="Rows of tagged texts have their own: text and entities, or tokens and tags.",
                )
            table = read_rows(data)
            table = accepted(table, columns, noted) if labelled else table
            found = noted.each(table, grouped)
            if labelled:
                say_individuals((row for _, row in table), columns, noted)
        elif kind == ".txt" and not labelled and not (columns.text or _columns_in(path)):
            lines = split_lines(read_text(path, hint=GIVE))
            if not lines:
                raise UserError(f"{path}: no sentences", hint="Give at least one text.")
            return [Sentence(text=line, where=f"{path}:{n}", row={"text": line}) for n, line in enumerate(lines, 1)]
        else:
            refuse_group(columns, "CoNLL")
            found = read_conll(path, noted, columns=columns, labelled=labelled)
        noted.settle("rows" if by_row else "lines")
        if not found:
            raise UserError(f"{data}: no sentences", hint="Each line holds a word and its tag.")
        return found if labelled else [dataclasses.replace(s, row=s.row or {"text": s.text}) for s in found]
    rows: list[Any] = table_rows(data) or values_of(data)
    if rows and isinstance(rows[0], Sentence):
        return rows
    rows = [_with_names(row) for row in rows]
    placed = [(f"row {i}", row) for i, row in enumerate(rows, 1)]
    placed = accepted(placed, columns, noted) if labelled else placed
    expected = "a text, (text, entities), or a dict with text and entities, or tokens and tags"
    made = [
        Sentence(text=row if isinstance(row, str) else "", where=where)
        if isinstance(row, str) or (not labelled and no_value(row))
        else grouped(where, dict(as_mapping(where, row, expected)))
        for where, row in placed
    ]
    noted.settle("rows")
    if labelled:
        say_individuals((row for _, row in placed), columns, noted)
    return made


def _with_names(row: Any) -> Any:
    """(text, entities), and (text, {"entities": ...}) as spaCy has it, as a dict; other rows as they are."""
    if not isinstance(row, list | tuple) or len(row) != 2 or not isinstance(row[0], str):
        return row
    return {"text": row[0], **(row[1] if isinstance(row[1], Mapping) else {"entities": row[1]})}


def _columns_in(path: Path) -> bool:
    """Whether a .txt holds words with tags."""
    found = has_columns(read_text(path, hint=GIVE))
    if found is None:
        raise UserError(
            f"{path}: words with tags in columns, or texts that end so?",
            hint=f"Columns: say which holds the words, {flags(text=1)}. Texts: give them as .jsonl, one object with "
            "text per line.",
        )
    return found


def read_conll(
    path: Path, problems: Problems | None = None, *, columns: Columns | None = None, labelled: bool = True
) -> list[Sentence]:
    """Sentences of words and tags in columns, tab- or space-separated; which columns were read is said. A word that is
    white space goes alone, any other bad line takes its sentence with it. Where they are not `labelled`, tags need not
    be there if the column of the words is given."""
    noted = Problems() if problems is None else problems
    lines, comments = sentences_of(read_text(path, hint=GIVE))
    if not lines:
        raise UserError(f"{path}: no sentences", hint="Each line holds a word and its tag.")
    layout = layout_of(lines, path, columns or Columns(), labelled=labelled)
    noted.say(f"{path}: {layout.line()}")
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


def _check_text(where: str, text: str, start: int, end: int, declared: Any) -> None:
    """An entity must be what it says it is, blanks at its ends aside."""
    there = text[start:end]
    if not there.strip():
        raise UserError(f"{where}: entity {start}..{end} is white space", hint="Mend its offsets or leave it out.")
    if isinstance(declared, str) and declared.strip() != there.strip():
        place = text.find(declared)
        raise UserError(
            f"{where}: entity {start}..{end} says {declared[:40]!r}, there stands {there[:40]!r}",
            hint=f"It is at {place}: offsets count characters (code points), not bytes or UTF-16 units."
            if place >= 0
            else "It is not in the text.",
        )


def _offset(value: Any) -> int:
    """A place in a text; 5.0, as pandas writes it, and "5" are 5; TypeError or ValueError of anything else."""
    if isinstance(value, bool) or value is None or float(value) != int(float(value)):
        raise ValueError(value)
    return int(float(value))


def _type(value: Any) -> str:
    """The name of an entity's type; ValueError of anything else."""
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


OF_NO_WORD = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)")
"""How CoNLL-U numbers a line that stands for several words, or for none."""
EXAMINED = 400
"""Lines of a .txt that tell whether it has columns."""


class Line(NamedTuple):
    """A line of a file, its number from 1, and its cells."""

    number: int
    text: str
    cells: list[str]


@dataclass(frozen=True, kw_only=True)
class ConllLayout:
    """Where things are in a CoNLL file of `width` columns: the `word` and the `tag` (None where tags are not read),
    from 0, the `count` of words, if any, and columns that are `constant` within sentences."""

    word: int
    tag: int | None
    width: int
    count: int | None = None
    constant: tuple[int, ...] = ()

    def line(self) -> str:
        """One line for people."""
        tags = "" if self.tag is None else f", tags in column {self.tag + 1}"
        passed = [f"column {k + 1} does not change within sentences" for k in self.constant]
        if self.count is not None:
            passed.append(f"column {self.count + 1} counts the words")
        return "; ".join([f"words in column {self.word + 1}{tags} of {self.width}", *passed])


def is_tag(tag: Any) -> bool:
    """Whether this is O or a tag of a known scheme."""
    return tag == "O" or (isinstance(tag, str) and tag[:1] in "BIESLU" and tag[1:2] == "-" and bool(tag[2:]))


def sentences_of(text: str) -> tuple[list[list[Line]], int]:
    """(sentences as lines, how many comments were left out).

    Blank lines and -DOCSTART- part sentences. A comment is a line in front of a sentence that begins with `# ` (or a
    tab instead of the blank, #begin or #end) and has not the columns and the tag of the other lines.
    """
    sentences: list[list[Line]] = [[]]
    for n, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("-DOCSTART-"):
            sentences.append([])
            continue
        # Tabs only where there are some: a word may hold a no-break space.
        tabs = "\t" in line
        cells = [c.strip(" ") for c in line.split("\t")] if tabs else [c.strip() for c in line.split(" ") if c.strip()]
        sentences[-1].append(Line(n, line, cells))
    width = width_of(sentences)
    comments = 0
    for sentence in sentences:
        behind = next((i for i, line in enumerate(sentence) if not _is_comment(line, width)), len(sentence))
        comments += behind
        del sentence[:behind]
    return [sentence for sentence in sentences if sentence], comments


def _is_comment(line: Line, width: int) -> bool:
    marked = line.text.startswith(("# ", "#\t", "#begin ", "#end "))
    return marked and not (len(line.cells) == width and is_tag(line.cells[-1]))


def width_of(sentences: Sequence[Sequence[Line]]) -> int:
    """How many cells most lines have, but 2 at least."""
    widths = Counter(len(line.cells) for sentence in sentences for line in sentence)
    return max(2, widths.most_common(1)[0][0] if widths else 0)


def layout_of(sentences: Sequence[Sequence[Line]], path: Path, columns: Columns, *, labelled: bool) -> ConllLayout:
    """Which columns to read."""
    width = width_of(sentences)
    rows = [[line.cells for line in sentence if len(line.cells) == width] for sentence in sentences]
    rows = [sentence for sentence in rows if sentence]
    word, tag = (_requested(getattr(columns, part), part, path, width) for part in ("text", "label"))
    if word is not None and word == tag:
        raise UserError(
            f"{path}: both words and tags in column {word + 1}",
            hint=f"Say which ones: {flags(text=1, label=2)}, by their numbers.",
        )
    count, constant = None, []
    before = [k for k in range(width if word is None else word) if k != tag]
    for k in before:
        counted, known = _counted(rows, k)
        if 0 < counted == known:
            count = k
        elif word is None and known and 2 * counted >= known:
            raise UserError(
                f"{path}: column {k + 1} counts the words of {counted:,} of {known:,} sentences and not of the others",
                hint=f"Say which column holds the words, by its number: {flags(text=k + 1)} or {flags(text=k + 2)}.",
            )
        elif _stays(rows, k):
            constant.append(k)
        elif word is None:
            word = k
            break
    last = width - 1
    if word is None or (word == last and columns.text is None):
        what = "counts the words" if count is not None else "does not change within sentences"
        seen = 1 + (constant[0] if count is None else count)
        raise UserError(
            f"{path}: column {seen} {what}, and there is no column of words",
            hint=f"If the words are in column {seen}, say {flags(text=seen)}.",
        )
    if not labelled and columns.text is not None:
        return ConllLayout(word=word, tag=None, width=width, count=count, constant=tuple(constant))
    if tag is None:
        _check_last(rows, path, word, last, labelled=labelled)
        tag = last
    if word == tag:
        raise UserError(
            f"{path}: both words and tags in column {word + 1}", hint=f"Say {flags(label='COLUMN')}, by its number."
        )
    return ConllLayout(word=word, tag=tag, width=width, count=count, constant=tuple(constant))


def _requested(given: str | None, part: str, path: Path, width: int) -> int | None:
    """A column that a person named by its number, from 0."""
    if given is None:
        return None
    if not given.isdecimal():
        raise UserError(
            f"{path}: column {given!r}",
            hint=f"CoNLL columns have no names: {flags(**{part: 1})} is the first, of {width}.",
        )
    if not 1 <= int(given) <= width:
        raise UserError(
            f"{path}: no column {given}", hint=f"The lines have {width} columns: {flags(**{part: 1})} to {width}."
        )
    return int(given) - 1


def _counted(rows: Sequence[Sequence[Sequence[str]]], column: int) -> tuple[int, int]:
    """(sentences whose words a column counts, sentences that tell): from 0 or 1, or on from the sentence before.

    Sentences of several words tell, and where there are none those of one word beside two columns or more.
    """
    fitting: dict[bool, list[bool]] = {True: [], False: []}
    last = -2
    for sentence in rows:
        cells = [c[column] for c in sentence if not OF_NO_WORD.fullmatch(c[column])]
        numbers = [int(c) for c in cells if c.isascii() and c.isdecimal()]
        fits = len(numbers) == len(cells) and all(b == a + 1 for a, b in pairwise(numbers))
        fits = fits and (not numbers or numbers[0] in (0, 1, last + 1))
        last = numbers[-1] if numbers else last
        fitting[len(cells) > 1].append(fits)
    several, single = fitting[True], fitting[False]
    if not several and rows and len(rows[0][0]) > 2:
        several, single = single, []
    if several and all(several):
        several = several + single
    return sum(several), len(several)


def _stays(rows: Sequence[Sequence[Sequence[str]]], column: int) -> bool:
    """Whether a column is the same throughout every sentence, as a name of the document is."""
    longer = [{cells[column] for cells in sentence} for sentence in rows if len(sentence) > 1]
    return len(longer) > 1 and all(len(found) == 1 for found in longer)


def _check_last(rows: Sequence[Sequence[Sequence[str]]], path: Path, word: int, last: int, *, labelled: bool) -> None:
    """The last column must be the one of the tags."""
    cells = [c for sentence in rows for c in sentence]
    types: dict[int, set[str]] = {}
    for k in range(last + 1):
        found = Counter(c[k] for c in cells)
        if k != word and sum(n for tag, n in found.items() if is_tag(tag)) > len(cells) / 2:
            types[k] = {tag[2:] for tag in found if is_tag(tag) and tag != "O"}
    others = [k for k in types if k != last and types[k]]
    if last not in types and others:
        hint = flags(label=others[0] + 1) if labelled else flags(text=word + 1)
        raise UserError(f"{path}: column {last + 1} holds no tags, column {others[0] + 1} does", hint=f"Say {hint}.")
    if not labelled or last not in types:
        return
    for k in others:
        if not types[last] or types[last] & types[k]:
            raise UserError(
                f"{path}: columns {k + 1} and {last + 1} both hold tags of entities",
                hint=f"Say which ones are meant: {flags(label=k + 1)} or {flags(label=last + 1)}.",
            )


def has_columns(text: str) -> bool | None:
    """Whether a .txt holds words with tags and no plain texts, by its first lines; None where it may be either."""
    lines = split_lines(text)[:EXAMINED]
    while lines and not lines[-1].strip():
        lines.pop()
    rows = [line.split() for line in lines if line.strip() and not line.startswith(("-DOCSTART-", "# ", "#\t"))]
    if not rows:
        return False
    width, _ = Counter(map(len, rows)).most_common(1)[0]
    fitting = sum(len(cells) == width and width > 1 and is_tag(cells[-1]) for cells in rows) / len(rows)
    tabs = all("\t" in line for line in lines if line.strip())
    if fitting <= 0.5 or (len(rows) == 1 and width > 2 and not tabs):
        return False
    blank = any(not line.strip() for line in lines)
    return True if fitting >= 0.95 and (tabs or blank or (width == 2 and len(rows) > 1)) else None
