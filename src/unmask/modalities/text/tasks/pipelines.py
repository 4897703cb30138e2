"""`pipeline` as transformers has it, over the verbs of a text model: the same names of tasks, arguments and keys.

`unmask.serving` answers the Hugging Face clients in these shapes too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import UserError, suggest
from unmask.given import no_value
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.finetune import predict
from unmask.modalities.text.tasks.model import as_transformers, task_named
from unmask.modalities.text.tasks.model import load as load_task
from unmask.modalities.text.tasks.retrieval import token_features
from unmask.modalities.text.tasks.zeroshot import zero_shot
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.filling import BLANK, write_blanks
from unmask.modalities.text.uses.model import TextModel, load

OF_TASKS = {None: "fill-mask", "classify": "text-classification", "tag": "token-classification"}
OF_TASKS |= {"answer": "question-answering", "similarity": "feature-extraction"}
"""Task of a model -> the pipeline that it has where none is named."""


def pipeline(
    task: str | None = None,
    model: str | Path | TextModel | None = None,
    *,
    tokenizer: Any = None,
    device: str | int = "auto",
    precision: str = "auto",
    **options: Any,
) -> Callable[..., Any]:
    """A function from texts to answers with the keys of transformers' pipelines.

    Args:
        task: fill-mask, text-classification (sentiment-analysis), token-classification (ner), question-answering,
            zero-shot-classification or feature-extraction; left out, that of the model.
        model: a folder, a hub name or a loaded model.
        tokenizer: the model's own; another is refused.
        device: auto, cpu or cuda; -1 is the CPU, 0 the GPU.
        options: arguments of every call, such as top_k=3.

    Raises:
        UserError: an unknown task, or no model.
    """
    if task in MEANT:
        raise UserError(f"pipeline {task!r}", hint=MEANT[task])
    if model is None:
        raise UserError(f"pipeline({task!r}) without a model", hint="Give its folder: unmask.pipeline(task, folder).")
    own = [model] if not isinstance(model, TextModel) else [model.tokenizer, model.folder.path]
    if tokenizer is not None and tokenizer not in own:
        raise UserError("pipeline: a tokenizer beside the model", hint="The model's folder has its own: leave it out.")
    if not isinstance(model, TextModel):
        where = device if isinstance(device, str) else "cpu" if device < 0 else "cuda"
        model = load(model, device=where.partition(":")[0], precision=precision)
    name = {"sentiment-analysis": "text-classification", "ner": "token-classification"}.get(task or "", task)
    name = name or OF_TASKS.get(task_named(model), "fill-mask")
    if name not in PIPELINES:
        hint = MEANT.get(name) or suggest(name, PIPELINES)
        raise UserError(f"pipeline {name!r}", hint=hint)
    found = PIPELINES[name]
    known = [n for n, p in inspect.signature(found).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise UserError(f"pipeline {name!r}: no argument {option!r}", hint=suggest(option, known))
    return partial(found, model, **options)


MEANT = {
    "text-generation": "Here it is unmask.load(folder).generate(prefix=text).",
    "text2text-generation": "Here it is unmask.load(folder).generate(prefix=text).",
    "image-classification": "Here it is unmask.predict(model, pictures).",
    "image-feature-extraction": "Here it is unmask.embed(model, pictures).",
}
"""Pipelines that there are not, and what does their work."""


def blanks(result: Mapping[str, Any], tokenizer: Tokenizer, top: int = 5) -> Any:
    """The likeliest candidates of a filled text's blanks (score, token, token_str, sequence), also where they were
    given; of one blank without a list around."""
    mask = tokenizer.mask_token
    parts = result["text"].replace(BLANK, mask).split(mask)
    found = []
    for number, slot in enumerate(result["slots"], start=1):
        before, after = mask.join(parts[:number]), mask.join(parts[number:])
        found.append(
            [
                {
                    "score": one["probability"],
                    "token": one.get("token"),  # none of an answer of several tokens
                    "token_str": one["value"],
                    "sequence": write_blanks(tokenizer, result["text"].replace(BLANK, mask), [one["token"]])
                    if len(parts) == 2 and "token" in one
                    else before + one["value"] + after,
                }
                for one in slot["candidates"][:top]
            ]
        )
    return found[0] if len(found) == 1 else found


def ranked(row: Mapping[str, Any], top: int | None = None, only: str = "LABEL_0") -> list[dict[str, Any]]:
    """The labels of a prediction (label, score), the likeliest first; `only`: the name of a single output."""
    found = row["probabilities"] if "probabilities" in row else row.get("value")
    if found is None:
        raise UserError("a text without anything to read", hint="Give a text with words.")
    pairs = sorted(found.items(), key=lambda pair: -pair[1]) if isinstance(found, dict) else [(only, found)]
    return [{"label": label, "score": chance} for label, chance in pairs[:top]]


def entities(row: Mapping[str, Any], ignored: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The entities of a prediction: entity_group, score, word, start, end."""
    names = {"entity_group": "label", "score": "probability", "word": "text", "start": "start", "end": "end"}
    kept = [entity for entity in row["entities"] or () if entity["label"] not in (ignored or ())]
    return [{name: entity[own] for name, own in names.items()} for entity in kept]


def best_answers(row: Mapping[str, Any], top: int | None = None, *, impossible: bool | None = None) -> Any:
    """The answers of a prediction (answer, score, start, end): one, or a list of `top`; `impossible`: "" may be one."""
    if row["answer"] is None:
        raise UserError("a question or a context without anything to read", hint="Give both with words.")
    best = [row["answer"], *(one for one in row["nbest"] if one["start"] != row["answer"]["start"])]
    if impossible is not True and not row["answer"]["text"] and row["nbest"]:
        best = row["nbest"]
    rows = [
        {"answer": one["text"], "score": one["probability"], "start": one["start"], "end": one["end"]} for one in best
    ]
    return rows[0] if (top or 1) == 1 else rows[:top]


def template_of(template: str | None) -> str | None:
    """A hypothesis template with {} for the label, as `zero_shot` reads it; with [MASK] beside {} that is the text."""
    if template is None:
        return None
    return template.replace("{}", "{text}" if BLANK in template else "{label}")


def _each(inputs: Any, rows: Sequence[Any]) -> Any:
    """Of one input its answer, of a list a list."""
    return list(rows) if isinstance(inputs, list | tuple) else rows[0]


def fill_mask(model: TextModel, inputs: Any, *, top_k: int = 5, targets: Any = None) -> Any:
    """The candidates of the blanks of a text: see `blanks`."""
    rows = model.fill(inputs, top=top_k, candidates=[targets] if isinstance(targets, str) else targets)
    return _each(inputs, [blanks(row, model.tokenizer, top_k) for row in rows])


def text_classification(model: TextModel, inputs: Any, *, top_k: int | None = 1) -> Any:
    """Of one text a list with its label; top_k=None gives all labels of each text."""
    listed = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    items = []
    for one in listed:
        given = (one.get("text"), one.get("text_pair")) if isinstance(one, Mapping) else one
        text, pair = given if isinstance(given, list | tuple) else (given, None)
        items.append(Item(text="" if no_value(text) else text, text2=pair))
    folder = as_transformers(load_task(model))
    only = next(iter(folder.about.get("labels") or ["LABEL_0"]))
    rows = [ranked(row, top_k, only) for row in predict(folder, items)]
    return [row[0] for row in rows] if top_k == 1 else _each(inputs, rows)


def token_classification(
    model: TextModel, inputs: Any, *, aggregation_strategy: str = "simple", ignore_labels: Sequence[str] = ()
) -> Any:
    """The entities of a text: see `entities`."""
    if aggregation_strategy not in ("simple", "first"):
        raise UserError(f"aggregation_strategy={aggregation_strategy!r}", hint="Entities are whole words: 'simple'.")
    rows = predict(model, [inputs] if isinstance(inputs, str) else list(inputs))
    return _each(inputs, [entities(row, ignore_labels) for row in rows])


def question_answering(
    model: TextModel,
    inputs: Any = None,
    *,
    question: str | None = None,
    context: str | None = None,
    top_k: int = 1,
    handle_impossible_answer: bool = False,
) -> Any:
    """The answer to a question, a part of its context: see `best_answers`."""
    requested = {"question": question, "context": context} if inputs is None else inputs
    rows = predict(model, [requested] if isinstance(requested, Mapping) else list(requested))
    return _each(requested, [best_answers(row, top_k, impossible=handle_impossible_answer) for row in rows])


def zero_shot_classification(
    model: TextModel,
    inputs: Any,
    candidate_labels: Any = None,
    *,
    hypothesis_template: str | None = None,
    multi_label: bool = False,
) -> Any:
    """Labels of a text without training: sequence, labels and scores, the likeliest first."""
    if multi_label:
        raise UserError("multi_label", hint="Labels exclude each other here: ask about one and its contrary.")
    labels = candidate_labels.split(",") if isinstance(candidate_labels, str) else candidate_labels or ()
    given = [label.strip() for label in labels]
    rows = zero_shot(model, inputs, given, template=template_of(hypothesis_template))
    found = []
    for row in rows:
        best = ranked(row)
        answer = {"labels": [one["label"] for one in best], "scores": [one["score"] for one in best]}
        found.append({"sequence": row["text"], **answer})
    return _each(inputs, found)


def feature_extraction(model: TextModel, inputs: Any) -> Any:
    """States of the tokens, special ones included: (1, tokens, width) of each text, as nested lists."""
    listed = [inputs] if isinstance(inputs, str) else list(inputs)
    return _each(inputs, [[found["states"].tolist()] for found in token_features(model, listed, specials=True)])


PIPELINES: dict[str, Callable[..., Any]] = {
    "fill-mask": fill_mask,
    "text-classification": text_classification,
    "token-classification": token_classification,
    "question-answering": question_answering,
    "zero-shot-classification": zero_shot_classification,
    "feature-extraction": feature_extraction,
}
