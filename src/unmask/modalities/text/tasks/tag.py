"""Tagging of words: entities as character spans, whatever the tokenizer.

A word's first token carries its tag. Words are those of the data (CoNLL); of raw text the tokenizer's own units, parted
at apostrophes ("Germany", "'s"), or, where the tokenizer parts words of the training data ("Dr.", "8:30"), what is like
them (`words_of_training`); a word's span is cut to what is not white space and ends behind its combining marks, so
text[start:end] is exactly the entity. Texts longer than the model are read in
overlapping windows, and a token's prediction is taken from the window in which it has most context.
"""

from __future__ import annotations

import dataclasses
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.batch import Example, PackedBatch
from unmask.errors import UserError, first_of, quoted
from unmask.evaluation.classes import label_notes
from unmask.families.heads import TOKEN
from unmask.kernels.on_host import on_host, to_device
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks import probe, scorers
from unmask.modalities.text.tasks.conll import Sentence, as_sentences
from unmask.modalities.text.tasks.data import Problems
from unmask.modalities.text.tasks.encoding import ExampleMaker, Prepared, best_window, by_owner, trimmed
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.row_files import Columns
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import SHOWN, TextTask
from unmask.modalities.text.tokens.tokenizer import Encoded
from unmask.modalities.text.tokens.words import UNSPACED

_APOSTROPHES = "'\u2019"


class Tag(TextTask):
    """One tag per word, entities out."""

    name, head, metric = "tag", TOKEN, "f1"
    windowed = True

    def __init__(self, encoder: ExampleMaker, about: dict[str, Any]) -> None:
        super().__init__(encoder, about)
        self.labels: list[str] = list(about["labels"])
        self.tags = as_tags(self.labels, "the model")
        self.number = {tag: i for i, tag in enumerate(self.tags)}
        self.bilou = any(tag.startswith("U-") for tag in self.tags)
        self.cut: list[str] = []

    @classmethod
    def read(
        cls, data: Any, columns: Columns | None, *, labelled: bool, problems: Problems | None
    ) -> tuple[list[Sentence], Columns | None]:
        return as_sentences(data, labelled=labelled, problems=problems, columns=columns), None

    @classmethod
    def remarks(cls, encoder: ExampleMaker, items: Sequence[Sentence], *, labelled: bool) -> list[str]:
        """Entities that tags of whole words cannot tell: inside a word, or over another entity; types spelled in two
        ways."""
        given = [item for item in items if labelled and item.spans and item.words is None]
        count = sum(len(item.spans or ()) for item in given)
        inside, over = list[str](), 0
        for item, e in zip(given, encoder.texts([item.text for item in given]), strict=True):
            words = words_of(item, e)
            starts, ends, taken = {a for _, a, _ in words}, {b for _, _, b in words}, np.zeros(len(item.text), bool)
            for start, end, _ in item.spans or ():
                if start not in starts or end not in ends:
                    inside.append(f"{item.where}: {item.text[start:end][:30]!r} in {item.text[start - 9 : end + 9]!r}")
                over += bool(taken[start:end].any())
                taken[start:end] = True
        found = []
        if inside:
            note = f"{len(inside):,} of {count:,} entities begin or end inside a word ({first_of(inside)})"
            found.append(f"{note}: training takes the whole word")
        if over:
            found.append(f"{over:,} of {count:,} entities lie over another one: training leaves the later one out")
        notes = label_notes(label for item in items for *_, label in item.spans or ()) if labelled else []
        return [*(f"warning: {line}, and scores count such entities as missed" for line in found), *notes]

    @classmethod
    def from_items(cls, encoder: ExampleMaker, items: Sequence[Sentence], settings: TaskSettings) -> Tag:
        """Tags of the types that occur."""
        types = sorted({label for item in items for *_, label in item.spans or ()})
        if not types:
            raise UserError("the training data has no entity", hint="Are the tags in the last column?")
        marks = "BI" if settings.scheme == "bio" else "BILU"
        labels = ["O", *(f"{mark}-{kind}" for kind in types for mark in marks)]
        about = {"name": "tag", "labels": labels, "slots": encoder.slots, "stride": settings.stride}
        about["words"], cut = words_of_training(encoder, items)
        task = cls(encoder, about)
        task.cut = cut
        return task

    def label_remarks(self, items: Sequence[Sentence]) -> list[str]:
        """How raw text is parted, where it is not at the tokenizer's units."""
        if not self.about.get("words") or not self.cut:
            return []
        return [
            f"{len(self.cut):,} words of the data are parted by the tokenizer ({first_of(map(quoted, self.cut), 1)}): "
            "raw text is parted at blanks, and at signs and endings that are words by themselves in the data"
        ]

    def prepare(self, items: Sequence[Sentence], *, labelled: bool) -> Prepared:
        encoded = self.encoder.texts([item.text for item in items])
        examples, windows = self.encoder.windows(encoded, stride=int(self.about.get("stride") or 0))
        given: Sequence[Sentence] = items
        if words := self.about.get("words"):
            found = [item.words or tuple(m.span() for m in re.finditer(words, item.text)) for item in items]
            given = [dataclasses.replace(item, words=spans) for item, spans in zip(items, found, strict=True)]
        words = [words_of(item, e) for item, e in zip(given, encoded, strict=True)]
        if labelled:
            targets = [self._tags(item, w, len(e)) for item, w, e in zip(items, words, encoded, strict=True)]
            for i, window in enumerate(windows):
                here = np.zeros(len(examples[i]), np.int64)  # 0: no target; k + 1: tag k
                here[window.shift : window.shift + window.last - window.first] = targets[window.owner][
                    window.first : window.last
                ]
                values = {**examples[i].values, "target": here}
                examples[i] = Example(values=values, identity=i, special=examples[i].special)
        lengths = [len(e) for e in encoded]
        return Prepared(
            items, examples, by_owner(windows, len(items)), {"windows": windows, "words": words, "lengths": lengths}
        )

    def known(self, item: Any) -> Any:
        known = {tag[2:] for tag in self.tags if tag != OUTSIDE}
        for _, _, kind in item.spans or ():
            if kind not in known:
                raise UserError(
                    f"{item.where}: entity type {kind!r} is not among those of the training data",
                    hint=f"Known: {', '.join(map(quoted, sorted(known)))}.",
                )
        return item

    def _tags(self, item: Sentence, words: list[tuple[int, int, int]], length: int) -> np.ndarray:
        tags = ["O"] * len(words)
        self.known(item)
        starts = np.array([a for _, a, _ in words], np.int64)
        ends = np.maximum.accumulate(np.array([b for *_, b in words], np.int64))
        for start, end, kind in item.spans or ():
            near = range(int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(starts, end)))
            inside = [i for i in near if words[i][2] > start and tags[i] == "O"]
            for place, i in enumerate(inside):
                first, last = place == 0, place == len(inside) - 1
                mark = "B" if first else "I"
                if self.bilou:
                    mark = "U" if first and last else "B" if first else "L" if last else "I"
                tags[i] = f"{mark}-{kind}" if f"{mark}-{kind}" in self.number else f"I-{kind}"
        out = np.zeros(length, np.int64)
        for (token, _, _), tag in zip(words, tags, strict=True):
            if token >= 0:
                out[token] = self.number.get(tag, self.number[OUTSIDE]) + 1
        return out

    def start_head(self, text: TextFolder, model: TaskModel, training: Prepared, **given: Any) -> probe.Probed | None:
        return probe.start_tagger(model, training, self.outputs, **given)

    def loss(self, model: TaskModel, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> Tensor:
        target = batch.values["target"].flatten()
        where = to_device(on_host(batch.values["target"]).flatten().nonzero().flatten(), target.device)
        logits = model(batch, len(numbers))[where].float()
        return F.cross_entropy(logits, target[where] - 1)

    def terms(self, prepared: Prepared, numbers: np.ndarray) -> float:
        return float(sum(np.count_nonzero(prepared.examples[i].values["target"]) for i in numbers))

    def collect(self, logits: Tensor, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> list[np.ndarray]:
        return by_example(torch.log_softmax(logits, -1), batch, len(numbers))

    def decode(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        windows, lengths = prepared.extra["windows"], prepared.extra["lengths"]
        best = best_window(windows, lengths)
        out = []
        for item, chosen, words, length in zip(prepared.items, best, prepared.extra["words"], lengths, strict=True):
            scores = np.full((length, len(self.labels)), -30.0)
            for number in np.unique(chosen):
                window = windows[number]
                tokens = np.flatnonzero(chosen == number)
                scores[tokens] = found[number][tokens - window.first + window.shift]
            nothing = np.full(len(self.labels), -30.0)
            nothing[self.number[OUTSIDE]] = 0.0
            rows = np.array([scores[t] if t >= 0 else nothing for t, _, _ in words]).reshape(-1, len(self.labels))
            out.append({"entities": self._entities(item.text, words, rows)})
        return out

    def _entities(self, text: str, words: list[tuple[int, int, int]], scores: np.ndarray) -> list[dict[str, Any]]:
        if not len(words):
            return []
        guess = scores.argmax(-1)
        entities = []
        for first, last, kind in scorers.spans_of([self.tags[i] for i in guess]):
            start, end = words[first][1], words[last - 1][2]
            chance = float(np.exp(scores[np.arange(first, last), guess[first:last]].mean()))
            entities.append({"start": start, "end": end, "label": kind, "text": text[start:end], "probability": chance})
        return entities

    def score(self, predictions: list[dict[str, Any]], items: Sequence[Sentence]) -> dict[str, float]:
        guess = [[(e["start"], e["end"], e["label"]) for e in p["entities"]] for p in predictions]
        return scorers.entity_scores([item.spans or () for item in items], guess)

    def in_words(self, item: Sentence, prediction: dict[str, Any]) -> tuple[str, str, str]:
        truth = ", ".join(f"{item.text[a:b]} ({kind})" for a, b, kind in item.spans or ())
        return item.text[:SHOWN], truth, ", ".join(f"{e['text']} ({e['label']})" for e in prediction["entities"])

    def error(self, prediction: dict[str, Any], item: Sentence) -> float:
        """Entities that are not in both."""
        guess = {(e["start"], e["end"], e["label"]) for e in prediction["entities"]}
        return float(len(guess ^ set(item.spans or ())))


def by_example(values: Tensor, batch: PackedBatch, count: int) -> list[np.ndarray]:
    """(rows * slots, k) values -> one (slots of it, k) array per example."""
    flat, index = values.float().cpu().numpy(), batch.index.cpu().numpy().ravel()
    order = np.argsort(index, kind="stable")
    sizes = np.bincount(index[index >= 0], minlength=count)
    ends = int((index < 0).sum()) + np.cumsum(sizes)
    return [flat[order[end - size : end]] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def words_of(item: Sentence, e: Encoded) -> list[tuple[int, int, int]]:
    """(first token, start, end) of each word; the token is -1 where the tokenizer made none of it."""
    starts = _trimmed(item.text, e)
    if item.words is not None:
        begin = np.array([s for s, _ in starts], np.int64)
        out = []
        for start, end in item.words:
            t = int(np.searchsorted(begin, start))
            # A token that began in the word before may reach in (a tokenizer that ignores spaces).
            if (t == len(begin) or begin[t] >= end) and t > 0 and starts[t - 1][1] > start:
                t -= 1
            ok = t < len(begin) and begin[t] < end
            out.append((t if ok else -1, start, end))
        return out
    out, last = [], -2
    for t, (start, end) in enumerate(starts):
        if start >= end:
            continue
        unit = int(e.units[t])
        while end < len(item.text) and unicodedata.category(item.text[end])[0] == "M":
            end += 1  # a mark that the tokenizer strips: the accent of "Zoé" in two characters
        after_space = bool(out) and item.text[start] in _APOSTROPHES and start >= out[-1][2]
        within = bool(out) and start < out[-1][2]  # a second token of the same characters
        if within or (unit == last and out and unit >= 0 and not after_space):
            out[-1] = (out[-1][0], out[-1][1], max(out[-1][2], end))
        else:
            out.append((t, start, end))
        last = unit
    return out


def words_of_training(encoder: ExampleMaker, items: Sequence[Sentence]) -> tuple[str, list[str]]:
    """(a regular expression of words in raw text, like those of CoNLL data; which of those the tokenizer parts).

    Words end at blanks, and before signs and endings that are words by themselves (".", "'s") or signs that no word has
    at its ends, but for words with such ends ("Dr.") that are there three times or more. No expression where the
    tokenizer parts none, or a script writes no spaces."""
    count, cut = Counter[str](), list[str]()
    given = [item for item in items if item.words]
    for item, e in zip(given, encoder.texts([item.text for item in given]), strict=True):
        starts = {start for _, start, _ in words_of(dataclasses.replace(item, words=None), e)}
        words = [(item.text[start:end], range(start + 1, end)) for start, end in item.words or ()]
        count.update(word for word, _ in words)
        cut += [word for word, inside in words if not starts.isdisjoint(inside)]
    if not cut or any(map(re.compile(f"[{UNSPACED}]").search, count)):
        return "", cut
    separate = {word for word in count if re.fullmatch(rf"[^\w\s]|[{_APOSTROPHES}]\w{{1,3}}|n[{_APOSTROPHES}]t", word)}
    separate |= set(string.punctuation + "\u201c\u201d\u201e\u00ab\u00bb\u2026").difference(
        *((word[0], word[-1]) for word in count if len(word) > 1)
    )
    ended = re.compile(f"(?:{_any_of(separate)})$|^(?:{_any_of(separate)})")
    whole = [word for word, times in count.items() if times > 2 and word not in separate and ended.search(word)]
    rest = rf"(?=(?:{_any_of(separate)}){{0,9}}(?:\s|$))"
    signs = _any_of(word for word in separate if len(word) == 1)
    return rf"(?:{_any_of([*whole, *separate])}){rest}|{signs}|\S+?{rest}", cut


def _any_of(words: Iterable[str]) -> str:
    """A regular expression of words, longer ones first; of none it fits nothing."""
    escaped = (re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))
    return re.sub(f"[{_APOSTROPHES}]", f"[{_APOSTROPHES}]", "|".join(escaped)) or "(?!)"


def _trimmed(text: str, e: Encoded) -> list[tuple[int, int]]:
    """Tokens' character spans without the white space that some tokenizers count in; starts never go back."""
    out, low = [], 0
    for start, end in e.offsets.tolist():
        start, end = trimmed(text, start, end)
        low = max(low, start)
        out.append((low, max(end, low)))
    return out


_DASH = re.compile(r"(?P<mark>[BIESLUM])-(?P<kind>.+)", re.DOTALL)
_UNDERSCORE = re.compile(r"(?P<mark>[BIESLUM])_(?P<kind>.+)", re.DOTALL)
_BEHIND = re.compile(r"(?P<kind>.+)[-_](?P<mark>[BIESLUM])", re.DOTALL)
_BARE = re.compile(r"(?P<mark>[BIESLUM])(?P<kind>)")
_NUMBERED = re.compile(r"LABEL_\d+")
OUTSIDE = "O"
EXPECTED = "Expected O and B-TYPE, I-TYPE (or O and TYPE alone) in id2label of config.json: write them there."


def as_tags(labels: Sequence[str], where: str) -> list[str]:
    """Labels of a tagger in one spelling: O, B-TYPE, I-TYPE, and E, S, L, U likewise.

    M ("middle") is I. Where no label has a mark, each but O is a type by itself (IO): neighbours of one type are one
    entity.

    >>> as_tags(["O", "PER", "LOC"], "model")
    ['O', 'I-PER', 'I-LOC']
    >>> as_tags(["B_PER", "M_PER", "O"], "model")
    ['B-PER', 'I-PER', 'O']
    """
    named = [label for label in labels if label != OUTSIDE]
    if len(named) == len(labels) or any(_NUMBERED.fullmatch(label) for label in named):
        raise UserError(
            f"{where}: labels {first_of(map(quoted, labels), 8)} do not say what is an entity", hint=EXPECTED
        )
    for pattern in (_DASH, _UNDERSCORE, _BEHIND, _BARE):
        found = [pattern.fullmatch(label) for label in named]
        if all(found):
            marks = iter([(m["mark"].replace("M", "I"), m["kind"] or "_") for m in found if m is not None])
            return [label if label == OUTSIDE else "-".join(next(marks)) for label in labels]
    odd = [label for label in named if not _DASH.fullmatch(label)]
    if len(odd) < len(named) or any(_BARE.fullmatch(label) for label in named):
        raise UserError(f"{where}: labels {', '.join(odd[:8])} have no mark (B-, I-) and others have", hint=EXPECTED)
    return [label if label == OUTSIDE else f"I-{label}" for label in labels]
