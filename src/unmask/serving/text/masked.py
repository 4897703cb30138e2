"""What masked language models answer: blanks filled, texts scored, labels without training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.core.score import score
from unmask.errors import UserError
from unmask.modalities.text.uses.filling import BLANK, text_notes
from unmask.modalities.text.uses.model import TextModel, scored
from unmask.serving.limits import Limits
from unmask.serving.shapes import Field, Flag, ListOf, MapOf, Number, Open, Record, Text, maybe
from unmask.serving.text.vectors import WARNINGS, check_lengths, listed, texts_field, warnings_of
from unmask.serving.verbs import Verb, Work, records

TOP, LONGEST, STEPS = 1000, 8, 64
"""Most candidates per blank, longest answer in tokens, and most rounds of filling."""


def verbs(model: TextModel, limits: Limits) -> dict[str, Verb]:
    """`fill`, `score`, `tokens` and `zeroshot`."""
    return {
        "fill": _fill(model, limits),
        "score": _score(model, limits),
        "tokens": _tokens(model, limits),
        "zeroshot": labelling(model, limits, slots=lambda texts, body: _prompted(model, texts, body)),
    }


def _fill(model: TextModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        texts = listed(body.pop("texts"), limits)
        own = model.tokenizer.mask_token
        bare = [number for number, text in enumerate(texts) if BLANK not in text and own not in text]
        if bare:
            raise UserError(
                f"no {own} in {', '.join(f'texts[{number}]' for number in bare[:5])}",
                hint=f"Write {' or '.join(dict.fromkeys((own, BLANK)))} where a word is to be filled in.",
            )
        several = body["candidates"] or body["longest"] > 1
        if several and any(text.replace(BLANK, own).count(own) != 1 for text in texts):
            raise UserError("several blanks", hint="`candidates` and `longest` are for one blank per text.")
        written = [text.replace(BLANK, own) for text in texts]
        read = model.tokenizer.ids(written)
        lengths = [len(ids) for ids in read]
        check_lengths(lengths, model.slots - (body["longest"] - 1))
        warnings = warnings_of(text_notes(model.tokenizer, written, read, but=[own]))
        cost = len(body["candidates"]) if body["candidates"] else body["longest"] ** 2 * 2 * body["top"]
        drawn = body["temperature"] > 0 or body["order"] == "random"  # draws of a batch depend on who is in it
        return Work(
            items=texts,
            slots=[length * (cost if several else min(body["steps"], 1 + length)) for length in lengths],
            run=lambda some: model.fill(list(some), **body),
            finish=lambda found: {"results": list(found), "warnings": warnings},
            together=None if drawn else ("fill", repr(sorted(body.items(), key=lambda pair: pair[0]))),
        )

    return Verb(
        about="Fill the blanks of texts: the likeliest values of each, and of all together.",
        request=Record(
            texts=texts_field(limits, f"A text with blanks ({model.tokenizer.mask_token}), or a list of them."),
            top=Field(Number(1, TOP, whole=True), "Candidates per blank.", 5),
            steps=Field(
                Number(1, STEPS, whole=True),
                "Above 1, blanks are filled one share at a time and see each other's answers.",
                1,
            ),
            order=Field(
                Text(known=("confidence", "random", "left_to_right")), "In which blanks are filled.", "confidence"
            ),
            temperature=Field(Number(0, 10), "Above 0, values are drawn.", 0.0),
            seed=Field(Number(0, 2**31, whole=True), "Of the draws.", 0),
            candidates=Field(
                ListOf(Text(), most=limits.items), "Compare these answers, of any number of tokens each.", None
            ),
            longest=Field(Number(1, LONGEST, whole=True), "Answers of up to so many tokens.", 1),
        ),
        answer=Record(
            results=records(
                "One per text, in order.",
                text=Field(Text()),
                filled=Field(Text(), "With the likeliest values written in."),
                log_probability=Field(Number(), "Of `filled`, jointly, in nats."),
                slots=Field(ListOf(MapOf(ListOf(_CANDIDATE))), "Of each blank its candidates."),
            ),
            warnings=WARNINGS,
        ),
        prepare=prepare,
        example={"texts": [f"Water {model.tokenizer.mask_token} at 100 degrees."], "top": 3},
    )


_CANDIDATE = Open(value=Field(Text()), probability=Field(Number(0, 1)))


def _score(model: TextModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        texts, mode = listed(body["texts"], limits), body["mode"]
        read = model.tokenizer.ids(texts)
        lengths = [len(ids) for ids in read]
        check_lengths(lengths, model.slots)
        warnings = warnings_of(text_notes(model.tokenizer, texts, read, then=", and they are not scored"))

        def finish(found: Sequence[Any]) -> dict[str, Any]:
            rows = []
            for text, (row, tokens) in zip(texts, found, strict=True):
                rows.append({"text": text} | row | ({"tokens": tokens} if body["tokens"] else {}))
            return {"results": rows, "warnings": warnings}

        return Work(
            items=texts,
            slots=[length * length for length in lengths],
            run=lambda some: _scored(model, list(some), mode),
            finish=finish,
            together=("score", mode),
        )

    return Verb(
        about="Pseudo-log-likelihood of texts: the higher, the more natural.",
        request=Record(
            texts=texts_field(limits),
            mode=Field(
                Text(known=("unit", "slot")), "unit: later pieces of a word are hidden too; slot: each alone.", "unit"
            ),
            tokens=Field(Flag(), "Give the log-probability of every token too.", False),
        ),
        answer=Record(
            results=records(
                "One per text, in order.",
                text=Field(Text()),
                score=Field(maybe(Number()), "Nats, summed; null where nothing is scored."),
                slots=Field(Number(whole=True), "Tokens scored."),
                unscored=Field(Number(whole=True), "Unknown and special tokens, which are not."),
            ),
            warnings=WARNINGS,
        ),
        prepare=prepare,
        example={"texts": ["Water boils at 100 degrees.", "Water sings at 100 degrees."], "tokens": True},
    )


def _scored(model: TextModel, texts: list[str], mode: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Of each text its score and how many tokens count, and each token's log-probability, None where none counts."""
    examples = model.examples(texts)
    with model.context():
        found = score(model.model, examples, slots=model.slots, mode=mode)  # type: ignore[arg-type]
    out = []
    for text, example, one, encoded in zip(texts, examples, found, model.tokenizer.encode(texts), strict=True):
        row = scored(model.tokenizer, example, one)
        unread = row["score"] is None
        tokens = [
            {"start": a, "end": b, "text": text[a:b], "log_probability": None if unread or math.isnan(p) else p}
            for (a, b), p, special in zip(encoded.offsets.tolist(), one.per_slot.tolist(), encoded.special, strict=True)
            if not special
        ]
        out.append((row, tokens))
    return out


def _tokens(model: TextModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        texts = listed(body["texts"], limits)
        encoded = model.tokenizer.encode(texts)
        rows = [
            {
                "text": text,
                "tokens": [
                    {"start": a, "end": b, "text": text[a:b], "word": int(unit)}
                    for (a, b), unit, special in zip(e.offsets.tolist(), e.units, e.special, strict=True)
                    if not special
                ],
            }
            for text, e in zip(texts, encoded, strict=True)
        ]
        return Work(
            items=[], slots=[], run=list, finish=lambda _: {"results": rows, "mask": model.tokenizer.mask_token}
        )

    return Verb(
        about="Where the tokens of texts begin and end, and which belong to one word.",
        request=Record(texts=texts_field(limits)),
        prepare=prepare,
        example={"texts": ["Water boils at 100 degrees."]},
    )


def _prompted(model: TextModel, texts: list[str], body: Any) -> list[int]:
    words = sum(len((body["words"] or {}).get(label) or [label]) for label in body["labels"])
    return [words * (min(len(ids), model.slots) + 16) for ids in model.tokenizer.ids(texts)]


def labelling(model: Any, limits: Limits, *, slots: Any, empty: bool = True) -> Verb:
    """`zeroshot`.

    Args:
        empty: whether texts of nothing are labelled too.
        model: a `TextModel`, or a `TaskFolder` with an NLI head.
        slots: (texts, body) -> the size of each text.
    """

    def prepare(body: Any) -> Work:
        texts = listed(body["texts"], limits)
        if not empty and (bare := [f"texts[{n}]" for n, text in enumerate(texts) if not text.strip()]):
            raise UserError(f"{', '.join(bare[:5])}: empty", hint="Send texts that say something.")
        whole: dict[str, Any] = {}
        warnings: list[str] = []

        def run(batch: Sequence[list[str]]) -> list[Any]:
            # With scipy, which servers of vectors need not import.
            from unmask.modalities.text.tasks.zeroshot import zero_shot

            rows = zero_shot(
                model,
                batch[0],
                body["labels"],
                template=body["template"],
                verbalisers=body["words"],
                calibrate=body["calibrate"],
                say=lambda line: warnings.append(line.removeprefix("warning: ")),
            )
            whole.update({name: rows.about[name] for name in ("method", "template", "calibrated", "cut")})
            return [rows]

        return Work(
            items=[texts] if texts else [],  # in one piece: batch calibration looks at all of them
            slots=[int(np.sum(slots(texts, body)))] if texts else [],
            run=run,
            finish=lambda found: {"results": [row for rows in found for row in rows], **whole, "warnings": warnings},
        )

    return Verb(
        about="Label texts without training: by prompts with a blank, or by an NLI head.",
        request=Record(
            texts=texts_field(limits),
            labels=Field(ListOf(Text(), most=limits.items, least=2), "Two or more."),
            template=Field(Text(), "With {text} and [MASK]; of an NLI model a hypothesis with {label}.", None),
            words=Field(MapOf(ListOf(Text(), least=1)), "Label -> words that stand for it.", None),
            calibrate=Field(
                Text(known=("context", "batch", "none")),
                "What is divided out; see docs/explanation/text-tasks.md.",
                None,
            ),
        ),
        prepare=prepare,
        example={"texts": ["What a fine day."], "labels": ["good", "bad"]},
    )
