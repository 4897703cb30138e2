"""Bi-encoders: texts as vectors whose cosine says how alike they are.

Three losses: CoSENT for graded pairs (Su 2022), multiple negatives for positive pairs, with hard negatives where given
(Henderson et al. 2017, sec. 4.4), and SimCSE for bare texts, two dropout draws of the same text, with the masked-token
loss beside it (Gao et al. 2021, sec. 3 and 6.3).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.errors import UserError, setting
from unmask.evaluation.classes import is_number
from unmask.given import SPLIT_COLUMNS, no_value
from unmask.kernels.on_host import to_device
from unmask.modalities.text.tasks import scorers
from unmask.modalities.text.tasks.data import Item, Problems, as_items, number_of, say_individuals
from unmask.modalities.text.tasks.encoding import ExampleMaker, Prepared, cut_line
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.row_files import POSITIVE, Columns, flags
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import TextTask
from unmask.names import words_of
from unmask.odd_numbers import number_notes
from unmask.training.settings import refuse_unread


def as_pairs(
    data: Any, columns: Columns | None, *, labelled: bool, problems: Problems | None = None
) -> tuple[list[Item], Columns | None]:
    """Items; a label is needed for none of the losses but CoSENT."""
    columns = dataclasses.replace(columns or Columns(), pairs=True)
    items, read_from = as_items(data, columns, labelled=False, several=labelled, problems=problems)
    if not labelled:
        return items, read_from
    if read_from is not None and items[0].row is not None:
        refuse_misread(items, read_from)
    noted = Problems() if problems is None else problems
    graded = items[0].label is not None
    items = noted.each(((item.where, item) for item in items), lambda where, item: _learnt(item, graded))
    noted.settle("rows")
    say_individuals((item.row for item in items), read_from or columns, noted)
    return [dataclasses.replace(item, row=None) for item in items], read_from


_NAMED = re.compile(r"(.* )?((q|s|doc|text|sent|pair|user)?id|idx|index|no|nr|number|row)( ?[0-9]+)?|unnamed [0-9]+|")
"""Of columns, in words, whose numbers only name rows or texts."""


def refuse_misread(items: Sequence[Item], columns: Columns) -> None:
    """Refuse pairs beside a column of numbers that may be their labels and is not read, and classes of inference
    (entailment 0, contradiction 2) as grades."""
    first, rows = items[0], [item.row or {} for item in items]
    parts = {part: str(getattr(columns, part) or "").strip().lower() for part in ("text", "text2", "negative")}
    if not parts["text2"]:
        return
    classes = {str(item.label).removesuffix(".0") for item in items} <= {"-1", "0", "1", "2"}
    if classes and (parts["text"], parts["text2"]) == ("premise", "hypothesis"):
        raise UserError(
            f"{first.where}: {columns.label} {first.label!r} of a premise and a hypothesis: a class, not a grade",
            hint="Give entailed pairs as columns anchor and positive, contradictions as negative; grades, higher for "
            "more alike, beside columns text and text2.",
        )
    if columns.label is None and not parts["negative"] and parts["text2"] not in POSITIVE:
        for name in dict.fromkeys(str(name) for row in rows for name in row if name not in columns.requested):
            values: list[Any] = [v for row in rows if not no_value(v := row.get(name)) and str(v).strip()]
            distinct = {float(value) for value in values if is_number(value)}
            numbered = len(distinct) == len(rows) and all(value % 1 == 0 for value in distinct)
            named = _NAMED.fullmatch(words_of(name)) or name.strip().lower() in SPLIT_COLUMNS
            if len(distinct) > 1 and all(map(is_number, values)) and not numbered and not named:
                raise UserError(
                    f"{first.where}: column {name!r} holds numbers ({values[0]!r}), and no column is read as the label",
                    hint=f"Name it with {flags(label=name)}. Where all pairs are alike whatever it holds, call the "
                    "second text's column positive.",
                )


def _learnt(item: Item, graded: bool) -> Item:
    """An item to learn from."""
    for part in ("text", "text2", "negative"):
        if (text := getattr(item, part)) is not None and not text.strip():
            raise UserError(f"{item.where}: column {part!r} is empty", hint="Fill it in or leave the row out.")
    if graded:
        _score(item)
    return item


class Similarity(TextTask):
    """Vectors of texts."""

    name, head, metric = "similarity", None, "spearman"

    def __init__(self, encoder: ExampleMaker, about: dict[str, Any]) -> None:
        super().__init__(encoder, about)
        self.uses_vocabulary = about.get("loss") == "simcse" and about.get("mlm_weight", 0) > 0

    @classmethod
    def read(
        cls, data: Any, columns: Columns | None, *, labelled: bool, problems: Problems | None
    ) -> tuple[list[Item], Columns | None]:
        return as_pairs(data, columns, labelled=labelled, problems=problems)

    @classmethod
    def remarks(cls, encoder: ExampleMaker, items: Sequence[Item], *, labelled: bool) -> list[str]:
        """Texts that are longer than the model reads."""
        texts = [t for i in items for t in (i.text, i.text2, i.negative if labelled else None) if t is not None]
        return cut_line(encoder, texts)

    @classmethod
    def from_items(cls, encoder: ExampleMaker, items: Sequence[Item], settings: TaskSettings) -> Similarity:
        """Choose the loss by what the data holds."""
        pairs, graded = items[0].text2 is not None, items[0].label is not None
        chosen = settings.loss
        if chosen == "auto":
            chosen = "simcse" if not pairs else "cosent" if graded else "multiple_negatives"
        if chosen != "simcse" and not pairs:
            raise UserError(
                f"loss={chosen} needs pairs", hint=f"Give columns text and text2, or use {setting('loss', 'simcse')}."
            )
        if chosen == "cosent" and len({_score(i) for i in items}) < 2:
            raise UserError("all pairs have the same score", hint=f"Use {setting('loss', 'multiple_negatives')}.")
        if chosen == "simcse" and settings.dropout == 0:
            raise UserError(
                "loss=simcse with dropout=0: its two views of a text would be one and the same",
                hint=f"Use {setting('dropout', 0.1)}, or leave it out.",
            )
        if chosen != "simcse":
            refuse_unread(settings, ["mlm_weight"], f"with {setting('loss', chosen)}")
        about = {
            "name": "similarity",
            "slots": encoder.slots,
            "pooling": "mean" if settings.pooling == "auto" else settings.pooling,
            "loss": chosen,
            "temperature": settings.temperature,
            "mlm_weight": settings.mlm_weight,
            "seed": settings.seed,
        }
        return cls(encoder, about)

    @classmethod
    def simpler_of(cls, about: Mapping[str, Any]) -> tuple[str, int]:
        """One score per pair."""
        return "pair", 1

    def label_remarks(self, items: Sequence[Item]) -> list[str]:
        return number_notes([_score(item) for item in items if item.label is not None])

    def prepare(self, items: Sequence[Item], *, labelled: bool) -> Prepared:
        texts: list[str] = []
        groups = []
        for item in items:
            parts = [t for t in (item.text, item.text2, item.negative if labelled else None) if t is not None]
            groups.append(list(range(len(texts), len(texts) + len(parts))))
            texts += parts
        extra: dict[str, Any] = {"owner": np.repeat(np.arange(len(items)), [len(g) for g in groups])}
        if labelled and items[0].text2 is not None and items[0].label is not None:
            extra["target"] = torch.tensor([_score(i) for i in items], dtype=torch.float32)
        return Prepared(items, self.encoder.whole(texts), groups, extra)

    def loss(self, model: TaskModel, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> Tensor:
        vectors = F.normalize(model(batch, len(numbers)), dim=-1)
        kind, t = self.about["loss"], float(self.about["temperature"])
        owner = prepared.extra["owner"][numbers]
        if kind == "simcse":
            other = F.normalize(model(batch, len(numbers)), dim=-1)
            found = in_batch(vectors, other, t, _alike([prepared.items[n].text for n in owner]))
            if self.uses_vocabulary:
                found = found + float(self.about["mlm_weight"]) * self._masked(model, batch)
            return found
        _, place, size = np.unique(owner, return_index=True, return_counts=True)
        place, size = place[np.argsort(place)], size[np.argsort(place)]

        def chosen(places: np.ndarray) -> Tensor:
            return vectors[to_device(torch.from_numpy(places), vectors.device)]

        first, second = chosen(place), chosen(place + 1)
        if kind == "cosent":
            target = to_device(prepared.extra["target"][torch.from_numpy(owner[place])], vectors.device)
            return cosent((first * second).sum(-1), target, t)
        items = [prepared.items[n] for n in owner[place]]
        texts = [i.text2 for i in items] + [i.negative for i, n in zip(items, size, strict=True) if n == 3]
        same = _alike(texts)[: len(items)]
        same[:, : len(items)] |= _alike([i.text for i in items])
        return in_batch(first, torch.cat([second, chosen(place[size == 3] + 2)]), t, same)

    def _masked(self, model: TaskModel, batch: PackedBatch) -> Tensor:
        """The masked-token loss of the batch's texts, another draw at every step."""
        from unmask.core.corruption import Corruption, Replacement, Uniform

        corruption = Corruption(select=Uniform(ratio=0.15), replace=Replacement())
        number = int(torch.randint(2**31, ()))  # torch's generator is what a resumed run puts back
        hidden = corruption.draw(batch, seed=int(self.about.get("seed") or 0), epoch=number).to(batch.segment.device)
        prediction = model.masked(batch, hidden)
        return prediction.loss(model.masked.codec.targets(batch.values, hidden.flat)) / max(1, len(hidden.flat))

    def terms(self, prepared: Prepared, numbers: np.ndarray) -> None:
        """None: every loss here compares the texts of a step with each other."""

    def collect(self, logits: Tensor, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> list[np.ndarray]:
        return list(F.normalize(logits, dim=-1).cpu().numpy())

    def decode(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        return [
            {"score": float(found[g[0]] @ found[g[1]])} if len(g) > 1 else {"embedding": found[g[0]].tolist()}
            for g in prepared.groups
        ]

    def score(self, predictions: list[dict[str, Any]], items: Sequence[Item]) -> dict[str, float]:
        if "score" not in predictions[0] or items[0].label is None:
            raise UserError(
                "validation data for similarity needs text, text2 and a score",
                hint="Give graded pairs (0 and 1 will do).",
            )
        guess, truth = [p["score"] for p in predictions], [_score(i) for i in items]
        return {"spearman": scorers.spearman(guess, truth), "pearson": scorers.pearson(guess, truth)}

    def in_words(self, item: Item, prediction: dict[str, Any]) -> tuple[str, str, str]:
        return item.shown(), str(item.label), f"{prediction['score']:.3f}"

    def error(self, prediction: dict[str, Any], item: Item) -> float:
        return abs(prediction["score"] - float(str(item.label)))


def _score(item: Item) -> float:
    return number_of(item, "score", "Pairs are graded by numbers.")


def _alike(texts: Sequence[str | None]) -> Tensor:
    """(n, n) whether two texts are the same."""
    number = torch.from_numpy(np.unique(np.array(texts, object).astype(str), return_inverse=True)[1].reshape(-1))
    return number[:, None] == number[None, :]


def in_batch(queries: Tensor, documents: Tensor, temperature: float, same: Tensor | None = None) -> Tensor:
    """Cross-entropy of finding document i for query i among all documents; those behind the first n are hard negatives.
    `same`: (queries, documents) which are right for a query besides its own, as copies of it or of those of the same
    query are: they do not count against it."""
    near = queries @ documents.t() / temperature
    if same is not None:
        near = near.masked_fill(to_device(same, near.device).fill_diagonal_(False), -torch.inf)
    return F.cross_entropy(near, torch.arange(len(queries), device=queries.device))


def cosent(cosine: Tensor, target: Tensor, temperature: float) -> Tensor:
    """log(1 + sum over pairs i, j with target i > target j of exp((cosine j - cosine i) / temperature))."""
    gap = (cosine[None, :] - cosine[:, None]) / temperature
    gap = gap.masked_fill(target[:, None] <= target[None, :], -torch.inf).flatten()
    return torch.logsumexp(torch.cat([gap.new_zeros(1), gap]), 0)
