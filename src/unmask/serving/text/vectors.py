"""Embeddings of texts, and how alike texts are by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from unmask.core.embed import POOLINGS
from unmask.errors import UserError, first_of
from unmask.modalities.text.network.sentence_vectors import prompted
from unmask.modalities.text.uses.filling import cut_notes, text_notes
from unmask.modalities.text.uses.model import TextModel
from unmask.serving.limits import Limits
from unmask.serving.shapes import Either, Field, Flag, ListOf, Number, Open, Record, Text
from unmask.serving.verbs import Verb, Work

TRUNCATE = Field(Flag(), "Cut texts that are longer than the model reads, instead of refusing them.", False)


def verbs(model: TextModel, limits: Limits) -> dict[str, Verb]:
    """`embed` and `similarity`."""
    return {"embed": _embed(model, limits), "similarity": _similarity(model, limits)}


def embedding(
    model: TextModel,
    texts: Sequence[str],
    finish: Callable[[np.ndarray, int, list[str]], Any],
    *,
    truncate: bool,
    pooling: str | None = None,
    normalise: bool | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Work:
    """Texts to embed, tokenised, and what is made of their vectors, (texts, width), count of tokens, and warnings.

    Args:
        truncate: cut texts that are longer than the model reads, instead of refusing them.
        pooling, normalise, prompt, prompt_name: as `TextModel.embed` takes them.
    """
    sentences, slots = model.folder.sentences, model.embedded_slots
    chosen, front = sentences.checked_pooling(pooling), sentences.prompt(prompt, prompt_name)
    texts, unpooled = prompted(texts, front), sentences.unpooled_slots(front, model.tokenizer)
    ids = model.tokenizer.ids(texts)
    lengths = [len(one) for one in ids]
    if not truncate:
        check_lengths(lengths, slots)
    cut = sum(length > slots for length in lengths)
    if cut:
        ids = model.tokenizer.ids(texts, max_slots=slots)
        lengths = [len(one) for one in ids]
    notes = text_notes(model.tokenizer, texts, ids, bare="their vectors say nothing of them")
    warnings = warnings_of([*cut_notes(cut, len(texts), slots), *notes])

    def run(items: Sequence[tuple[str, np.ndarray]]) -> Sequence[Any]:
        own_texts, own_ids = [text for text, _ in items], [own for _, own in items]
        return list(model.vectors(own_texts, own_ids, pooling=chosen, normalise=normalise, unpooled=unpooled))

    return Work(
        items=list(zip(texts, ids, strict=True)),
        slots=lengths,
        run=run,
        finish=lambda found: finish(
            np.stack(found) if len(found) else np.zeros((0, 0), np.float32), sum(lengths), warnings
        ),
        together=("embed", chosen, normalise, unpooled),
    )


def _embed(model: TextModel, limits: Limits) -> Verb:
    sentences = model.folder.sentences
    width = sentences.width(model.model.encoder.config.width)

    def prepare(body: Any) -> Work:
        texts, dimensions = listed(body["texts"], limits), body["dimensions"]

        def finish(found: np.ndarray, tokens: int, warnings: list[str]) -> dict[str, Any]:
            if dimensions is not None and len(found):
                found = found[:, :dimensions]
                if body["normalise"] or (body["normalise"] is None and sentences.normalise):
                    found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
            return {"embeddings": np.ascontiguousarray(found), "tokens": tokens, "warnings": warnings}

        how = {name: body[name] for name in ("truncate", "pooling", "normalise", "prompt", "prompt_name")}
        return embedding(model, texts, finish, **how)

    return Verb(
        about="One vector per text, order kept.",
        request=Record(
            texts=texts_field(limits),
            pooling=Field(Text(known=POOLINGS), "Of the states; default as the folder says, else mean.", None),
            normalise=Field(Flag(), "To length 1; default as the folder says, else false.", None),
            prompt=Field(Text(), "Put in front of every text; default the folder's default prompt.", None),
            prompt_name=Field(Text(known=tuple(sentences.prompts)), "The folder's name of a prompt.", None),
            truncate=TRUNCATE,
            dimensions=Field(Number(1, width, whole=True), "Keep so many numbers of each vector.", None),
        ),
        answer=Open(
            embeddings=Field(ListOf(ListOf(Number())), "One list of numbers per text."),
            tokens=Field(Number(whole=True), "Tokens read, special ones included."),
            warnings=WARNINGS,
        ),
        prepare=prepare,
        example={"texts": ["Water boils at 100 degrees.", "Steam rises."]},
    )


def _similarity(model: TextModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        def finish(found: np.ndarray, _: int, warnings: list[str]) -> dict[str, Any]:
            return {"similarities": sentences.similarity(found[:1], found[1:])[0].tolist(), "warnings": warnings}

        texts = listed([body["text"], *body["others"]], limits)
        return embedding(model, texts, finish, truncate=body["truncate"])

    sentences = model.folder.sentences
    return Verb(
        about="How alike a text is to others by their embeddings: their cosine, unless the folder says otherwise (the "
        "dot product, or minus the distance).",
        request=Record(
            text=Field(Text(), "The text."),
            others=Field(ListOf(Text(), most=limits.items), "What it is compared with."),
            truncate=TRUNCATE,
        ),
        answer=Record(
            similarities=Field(ListOf(Number()), "One number per other text; the text is the first in warnings."),
            warnings=WARNINGS,
        ),
        prepare=prepare,
        example={"text": "Water boils.", "others": ["Steam rises.", "The cat sat down."]},
    )


def texts_field(limits: Limits, about: str = "A text, or a list of them.") -> Field:
    return Field(Either((Text(), ListOf(Text(), most=limits.items)), "a text or a list of texts"), about)


def listed(texts: Any, limits: Limits) -> list[str]:
    """A text or a list of them as a list."""
    found = [texts] if isinstance(texts, str) else list(texts)
    characters = sum(map(len, found))
    if characters > limits.characters:
        raise UserError(
            f"{characters:,} characters, at most {limits.characters:,} per request", hint="Send the texts in parts."
        )
    return found


WARNINGS = Field(
    ListOf(Text()), "In words: how many texts hold special tokens, or words that are unknown; texts are counted from 1."
)


def warnings_of(notes: Iterable[str]) -> list[str]:
    """What the command line says of texts, for `WARNINGS`."""
    return [line.removeprefix("warning: ") for line in notes]


def check_lengths(lengths: list[int], most: int) -> None:
    """Refuse texts that are longer than the model takes."""
    long = [(number, length) for number, length in enumerate(lengths) if length > most]
    if long:
        named = first_of(f"texts[{number}] has {length:,}" for number, length in long)
        raise UserError(f"{named} tokens, the model takes {most:,}", hint="Split them into shorter texts.")
