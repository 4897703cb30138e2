"""Embeddings of texts, and how alike texts are by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.modalities.text.lengths import cut_said
from unmask.modalities.text.model import TextModel
from unmask.serving.limits import Limits
from unmask.serving.shapes import Field, Flag, ListOf, Number, Open, Record, Text
from unmask.serving.text.shapes import WARNINGS, check_lengths, listed, texts_field, warnings_of
from unmask.serving.verbs import Verb, Work


def verbs(model: TextModel, limits: Limits) -> dict[str, Verb]:
    """`embed` and `similarity`."""
    return {"embed": _embed(model, limits), "similarity": _similarity(model, limits)}


def embedding(
    model: TextModel,
    texts: Sequence[str],
    finish: Callable[[np.ndarray, list[str]], Any],
    *,
    truncate: bool,
    **how: Any,
) -> Work:
    """Texts to embed, tokenised, and what is made of their vectors, (texts, width), and of the warnings.

    Args:
        truncate: cut texts that are longer than the model reads, instead of refusing them.
        how: pooling and normalise, as `TextModel.embed` takes them.
    """
    said, slots = model.folder.sentences, model.embedded_slots
    pooling = how.get("pooling") or said.pooling
    normalise = said.normalise if how.get("normalise") is None else bool(how["normalise"])
    ids = model.tokenizer.ids(texts)
    lengths = [len(one) for one in ids]
    if not truncate:
        check_lengths(lengths, slots)
    cut = sum(length > slots for length in lengths)
    if cut:
        ids = model.tokenizer.ids(texts, max_slots=slots)
        lengths = [len(one) for one in ids]
    fast = model.padding_free
    told = warnings_of(model.tokenizer, texts, ids, bare="their vectors say nothing of them")
    told = [*cut_said(cut, len(texts), slots), *told]

    def run(items: Sequence[tuple[str, np.ndarray]]) -> Sequence[Any]:
        if fast is not None:
            return list(fast.embed([own for _, own in items], pooling=pooling, normalise=normalise))
        return list(model.embed([text for text, _ in items], pooling=pooling, normalise=normalise))

    return Work(
        items=list(zip(texts, ids, strict=True)),
        slots=lengths,
        run=run,
        finish=lambda found: finish(np.stack(found) if len(found) else np.zeros((0, 0), np.float32), told),
        together=("embed", pooling, normalise),
    )


def _embed(model: TextModel, limits: Limits) -> Verb:
    width = model.model.encoder.config.width

    def prepare(body: Any) -> Work:
        texts, dimensions = listed(body["texts"], limits), body["dimensions"]
        work: list[Work] = []

        def finish(found: np.ndarray, warnings: list[str]) -> dict[str, Any]:
            if dimensions is not None and len(found):
                found = found[:, :dimensions]
                if body["normalise"] or (body["normalise"] is None and model.folder.sentences.normalise):
                    found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
            return {"embeddings": np.ascontiguousarray(found), "tokens": sum(work[0].slots), "warnings": warnings}

        work.append(
            embedding(
                model,
                texts,
                finish,
                truncate=body["truncate"],
                pooling=body["pooling"],
                normalise=body["normalise"],
            )
        )
        return work[0]

    return Verb(
        about="One vector per text, order kept.",
        request=Record(
            texts=texts_field(limits),
            pooling=Field(
                Text(known=("mean", "first", "max")), "Of the states; default as the folder says, else mean.", None
            ),
            normalise=Field(Flag(), "To length 1; default as the folder says, else false.", None),
            truncate=Field(Flag(), "Cut texts that are longer than the model reads, instead of refusing them.", False),
            dimensions=Field(Number(1, width, whole=True), "Keep so many numbers of each vector.", None),
        ),
        answer=Open(
            Record(
                embeddings=Field(ListOf(ListOf(Number())), "One list of numbers per text."),
                tokens=Field(Number(whole=True), "Tokens read, special ones included."),
                warnings=WARNINGS,
            )
        ),
        prepare=prepare,
        example={"texts": ["Water boils at 100 degrees.", "Steam rises."]},
    )


def _similarity(model: TextModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        def finish(found: np.ndarray, warnings: list[str]) -> dict[str, Any]:
            return {"similarities": np.clip(found[1:] @ found[0], -1, 1).tolist(), "warnings": warnings}

        texts = listed([body["text"], *body["others"]], limits)
        return embedding(model, texts, finish, truncate=False, normalise=True)

    return Verb(
        about="How alike a text is to others: the cosine of their embeddings.",
        request=Record(
            text=Field(Text(), "The text."),
            others=Field(ListOf(Text(), most=limits.items), "What it is compared with."),
        ),
        answer=Record(
            similarities=Field(ListOf(Number(-1, 1)), "One cosine per other text; the text is the first in warnings."),
            warnings=WARNINGS,
        ),
        prepare=prepare,
        example={"text": "Water boils.", "others": ["Steam rises.", "The cat sat down."]},
    )
