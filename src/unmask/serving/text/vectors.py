"""Embeddings of texts, and how alike texts are by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.core.embed import POOLINGS
from unmask.modalities.text.network.sentences import prompted
from unmask.modalities.text.uses.lengths import cut_said
from unmask.modalities.text.uses.model import TextModel
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
    pooling: str | None = None,
    normalise: bool | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Work:
    """Texts to embed, tokenised, and what is made of their vectors, (texts, width), and of the warnings.

    Args:
        truncate: cut texts that are longer than the model reads, instead of refusing them.
        pooling, normalise, prompt, prompt_name: as `TextModel.embed` takes them.
    """
    said, slots = model.folder.sentences, model.embedded_slots
    chosen, front = said.choose(pooling), said.prompt(prompt, prompt_name)
    texts, unpooled = prompted(texts, front), said.unpooled(front, model.tokenizer)
    ids = model.tokenizer.ids(texts)
    lengths = [len(one) for one in ids]
    if not truncate:
        check_lengths(lengths, slots)
    cut = sum(length > slots for length in lengths)
    if cut:
        ids = model.tokenizer.ids(texts, max_slots=slots)
        lengths = [len(one) for one in ids]
    told = warnings_of(model.tokenizer, texts, ids, bare="their vectors say nothing of them")
    told = [*cut_said(cut, len(texts), slots), *told]

    def run(items: Sequence[tuple[str, np.ndarray]]) -> Sequence[Any]:
        own_texts, own_ids = [text for text, _ in items], [own for _, own in items]
        return list(model.vectors(own_texts, own_ids, pooling=chosen, normalise=normalise, unpooled=unpooled))

    return Work(
        items=list(zip(texts, ids, strict=True)),
        slots=lengths,
        run=run,
        finish=lambda found: finish(np.stack(found) if len(found) else np.zeros((0, 0), np.float32), told),
        together=("embed", chosen, normalise, unpooled),
    )


def _embed(model: TextModel, limits: Limits) -> Verb:
    said = model.folder.sentences
    width = said.width(model.model.encoder.config.width)

    def prepare(body: Any) -> Work:
        texts, dimensions = listed(body["texts"], limits), body["dimensions"]
        work: list[Work] = []

        def finish(found: np.ndarray, warnings: list[str]) -> dict[str, Any]:
            if dimensions is not None and len(found):
                found = found[:, :dimensions]
                if body["normalise"] or (body["normalise"] is None and said.normalise):
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
                prompt=body["prompt"],
                prompt_name=body["prompt_name"],
            )
        )
        return work[0]

    return Verb(
        about="One vector per text, order kept.",
        request=Record(
            texts=texts_field(limits),
            pooling=Field(Text(known=POOLINGS), "Of the states; default as the folder says, else mean.", None),
            normalise=Field(Flag(), "To length 1; default as the folder says, else false.", None),
            prompt=Field(Text(), "Put in front of every text; default the folder's default prompt.", None),
            prompt_name=Field(Text(known=tuple(said.prompts)), "The folder's name of a prompt.", None),
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
            return {"similarities": said.alike(found[:1], found[1:])[0].tolist(), "warnings": warnings}

        texts = listed([body["text"], *body["others"]], limits)
        return embedding(model, texts, finish, truncate=False)

    said = model.folder.sentences
    return Verb(
        about="How alike a text is to others by their embeddings: their cosine, unless the folder says otherwise (the "
        "dot product, or minus the distance).",
        request=Record(
            text=Field(Text(), "The text."),
            others=Field(ListOf(Text(), most=limits.items), "What it is compared with."),
        ),
        answer=Record(
            similarities=Field(ListOf(Number()), "One number per other text; the text is the first in warnings."),
            warnings=WARNINGS,
        ),
        prepare=prepare,
        example={"text": "Water boils.", "others": ["Steam rises.", "The cat sat down."]},
    )
