"""What fine-tuned text models answer, each by the name of its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.finetune import predictions, to_predict
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.serving.limits import Limits
from unmask.serving.shapes import Anything, Either, Field, ListOf, MapOf, Number, Open, Record, Shape, Text
from unmask.serving.text.masked import labelling
from unmask.serving.text.vectors import TRUNCATE, WARNINGS, check_lengths, listed, warnings_of
from unmask.serving.verbs import Verb, Work, records

PAIR = ListOf(Text(), most=2, least=2)


def verbs(folder: TaskFolder, limits: Limits) -> dict[str, Verb]:
    """The folder's task under its name, and `zeroshot` of an NLI model."""
    name = str(folder.about["name"])
    key, each, about = _SHAPES.get(name, _ANY)
    found = {name: _verb(folder, name, key, each, about, limits)}
    if name == "classify" and any(str(n).lower().startswith("entail") for n in folder.about.get("labels") or []):
        found["zeroshot"] = labelling(
            folder,
            limits,
            empty=False,
            slots=lambda texts, body: [
                len(body["labels"]) * (min(len(ids), folder.slots) + 16) for ids in folder.tokenizer.ids(texts)
            ],
        )
    return found


def relevance(folder: TaskFolder) -> Callable[[Mapping[str, Any]], float] | None:
    """How relevant the second text of a pair is to the first, by what is predicted: the model's only number, or the
    probability of 1 where the labels are 0 and 1. None of others: which of their labels means it, nobody has said."""
    labels = folder.about.get("labels") or []
    if not getattr(folder.task, "pairs", False):
        return None
    if folder.about.get("problem") == "regression":
        return lambda row: float(row["value"])
    return (lambda row: float(row["probabilities"]["1"])) if set(labels) == {"0", "1"} else None


LIKELY = {
    "probability": Field(Number(0, 1), "Of the label."),
    "probabilities": Field(MapOf(Number(0, 1)), "Of all labels."),
}
"""What is said with a label."""
_QUESTION = Record(question=Field(Text()), context=Field(Text(), "Where the answer is looked for."))
_SHAPES: dict[str, tuple[str, Shape, str]] = {
    "classify": (
        "texts",
        Either((Text(), PAIR), "a text, or a pair of texts"),
        "The label of each text (or pair), and the probability of all labels.",
    ),
    "tag": ("texts", Text(), "The entities in each text."),
    "answer": ("questions", _QUESTION, "The answer to each question, a part of its context."),
}
"""Task -> key of the inputs, shape of one, what is answered."""
_ANY: tuple[str, Shape, str] = ("inputs", Anything(), "A prediction for each input.")
"""Of tasks that packages add: they say themselves what is wrong with an input."""


def _verb(folder: TaskFolder, name: str, key: str, each: Shape, about: str, limits: Limits) -> Verb:
    task, regression = folder.task, folder.about.get("problem") == "regression"

    def prepare(body: Any) -> Work:
        listed([text for one in body[key] for text in _texts(one)], limits)
        given = [_item(one) if name == "classify" else one for one in body[key]]
        if name == "classify":  # the others read long texts in windows
            lengths = task.encoder.lengths([one.text for one in given], [one.text2 for one in given])
            if not body["truncate"]:
                check_lengths(lengths, folder.slots)
        else:
            lengths = [sum(map(len, folder.tokenizer.ids(_texts(one)))) or 1 for one in given]
        warnings: list[str] = []
        items = to_predict(folder, given, say=warnings.append)[1] if given else []

        def finish(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
            found = [{k: v for k, v in row.items() if k not in ("input", "id")} for row in rows]
            return {"results": found, "warnings": warnings_of(warnings)}

        return Work(
            items=items,
            slots=[min(length, folder.slots) for length in lengths] if name == "classify" else lengths,
            run=lambda some: predictions(folder, some),
            finish=finish,
            together=(name, folder.about.get("activation")) if name in _SHAPES else None,
        )

    text: Any = ["It rains.", "It is wet outside."] if getattr(task, "pairs", False) else "What a fine day."
    example = {"texts": [text], "questions": [{"question": "Who?", "context": "Ada was first."}]}
    named = {"value": Field(Number(), "What is predicted.")} if regression else LIKELY
    answer = Open(results=records(label=Field(Anything() if regression else Text()), **named), warnings=WARNINGS)
    return Verb(
        about=about,
        answer=answer if name == "classify" else Anything(),
        request=Record(
            **{key: Field(ListOf(each, most=limits.items), "A list of inputs.")},
            **({"truncate": TRUNCATE} if name == "classify" else {}),
        ),
        prepare=prepare,
        example={key: example.get(key, [])},
    )


def _item(given: str | list[str]) -> Item:
    return Item(text=given) if isinstance(given, str) else Item(text=given[0], text2=given[1])


def _texts(given: Any) -> list[str]:
    """The texts in an input, whatever its form."""
    if isinstance(given, Item):
        given = [given.text, given.text2]
    inside = given.values() if isinstance(given, dict) else given if isinstance(given, list) else [given]
    return [text for text in inside if isinstance(text, str)]
