"""The model card of a text folder: a masked model, an ELECTRA pair, an ONNX export, or a model of a task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import first_of, quoted
from unmask.evaluation.card import Card, Figure, Use, figures_of, hub_name, model_name, read_figures
from unmask.files import read_object
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.tokenizer import Tokenizer

PIPELINES = {
    "classify": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "similarity": "sentence-similarity",
}
"""Task -> the hub's `pipeline_tag`."""
NEW = ("results", "corpus", "before", "source")
"""Entries of unmask.json that are about one training, and so not about a model that is made of it."""
RULE = "most frequent token"
REMOTE = ("NeoBERTLMHead",)
"""Architectures that transformers has from code of their publishers alone."""


def corpus_of(cache: TokenCache, tokenizer: Tokenizer) -> dict[str, Any]:
    """Counts of a corpus, and the accuracy on what is held out of always guessing the most frequent token."""
    counts: dict[str, Any] = {
        name: int(cache.meta[name]) for name in ("documents", "examples", "tokens") if name in cache.meta
    }
    share = most_frequent_share(cache, tokenizer.special_ids)
    rule = {"most_frequent": share} if math.isfinite(share) else {}
    return {**counts, "training": len(cache.train), "held_out": len(cache.validation), **rule}


def card(files: Path, run: Path) -> Card:
    """The card of a text folder, by config.json, unmask.json and the names of the files."""
    config, about = read_object(files / "config.json") or {}, read_object(files / "unmask.json") or {}
    task = about.get("task") if isinstance(about.get("task"), dict) else None
    if task and task.get("name"):
        return _of_task(files, config, about, task)
    detects = any("ForPreTraining" in str(c) for c in config.get("architectures") or ())
    visible_only, onnx = "decoder" in about, (files / "model.onnx").exists() or "onnx" in about
    mask = (read_object(files / "tokenizer_config.json") or {}).get("mask_token") or "[MASK]"
    text = f"Return the {mask} of rows."
    fills = not detects
    commands = [("the likeliest words in a blank", f'unmask fill MODEL "{text}"')] if fills else []
    commands += [
        ("vectors of texts", "unmask embed MODEL texts.txt --out vectors.npy"),
        ("a model of your task", "unmask finetune classify MODEL train.csv --out tuned"),
    ]
    if fills:
        commands.insert(1, ("how well it predicts hidden words of your text", "unmask evaluate MODEL held-out.txt"))
    python = "import unmask\n\nmodel = unmask.load(MODEL)\n"
    python += f'model.fill("{text}")\n' if fills else ""
    python += 'model.embed(["one text", "another"])'
    settings = about.get("text") or {}
    what = f"A masked language model of the family {about.get('family', 'unknown')}"
    if detects:
        what = "An encoder trained to tell which tokens of a text a small generator replaced (ELECTRA)"
    if settings and "adapted_from" in about:
        what += f", adapted from {model_name(about['adapted_from'])} to other texts"
    what += f": {_shape(config)}."
    without = ""
    if onnx:
        without = "model.onnx runs in onnxruntime; the inputs are those of the tokenizer in this folder."
    elif visible_only:
        without = "transformers loads the encoder; the decoder that predicts hidden tokens is unmask's own."
    return Card(
        what=what,
        loaded_by="transformers" if not onnx else "unmask",
        pipeline="fill-mask" if fills and not visible_only else "feature-extraction",
        tags=("masked-language-modeling", str(about.get("family", "")) or "text"),
        base_model=hub_name(about["adapted_from"]) if "adapted_from" in about else None,
        data=_corpus(about),
        figures=[
            *read_figures(about.get("results")),
            *figures_of(about.get("before") or {}, ["loss", "accuracy"], "before adapting"),
        ],
        judged_on="On hidden tokens (15 %) of held-out text of the same corpus."
        + (" The accuracy is the generator's, the loss that of both." if detects else ""),
        settings=settings,
        limits=[
            "It knows the language and the subjects of its corpus, and what that says of people, fair or not.",
            "Its figures are of documents held out from the same corpus; other text is harder. They come from one run "
            "with one seed.",
            "The folder holds pieces of words of its corpus. Beside the model `cache` holds all texts as tokens: "
            "`unmask export --to share` copies a folder without it.",
            *(["Copies and near copies among the documents make held-out figures better than they are."] * fills),
        ],
        use=Use(
            commands=commands,
            python=python,
            transformers="" if onnx else _transformers(config, text, fills and not visible_only),
            without_unmask=without,
        ),
    )


def _of_task(files: Path, config: Mapping[str, Any], about: Mapping[str, Any], task: Mapping[str, Any]) -> Card:
    kind, labels = str(task["name"]), list(task.get("labels") or ())
    metrics = {k: v for k, v in (task.get("metrics") or {}).items() if isinstance(v, float) and math.isfinite(v)}
    figures = [Figure(name=k, value=v) for k, v in metrics.items()]
    first = next(iter(metrics), "value")
    for row in task.get("comparison") or ():
        if row.get("value") is None:
            continue
        low, high = (math.nan if row.get(end) is None else float(row[end]) for end in ("low", "high"))
        of = "model" if row.get("kept") else str(row["model"])
        figures = [f for f in figures if (f.name, f.of) != (first, of)]
        figures.append(Figure(name=first, value=float(row["value"]), of=of, low=low, high=high))
    figures.sort(key=lambda f: (f.of != "model", list(metrics).index(f.name) if f.name in metrics else 0))
    held, trained = task.get("rows_held_out"), task.get("rows_trained_on")
    data = [f"From {task['source']}."] if task.get("source") else []
    data += [f"Trained on {trained:,} rows."] if isinstance(trained, int) else []
    if held:
        data.append(f"{held:,} of them were held out first, to choose by; then it was trained on all.")
    if labels:
        data.append(f"{len(labels)} labels: {first_of(map(quoted, labels), 20)}.")
    base = task.get("base") or about.get("adapted_from")
    baseline = task.get("baseline")
    raw = ["Raw text is parted into words as `task.words` of unmask.json says, words of the training data among it."]
    what = f"An encoder of text ({_shape(config)}) fine-tuned for the task `{kind}`"
    what += f", from {model_name(base)}." if base else "."
    if baseline:
        what += f" Its answers are those of a baseline in the same folder ({task.get('kept')})."
    done = {"similarity": "a score for pairs, a vector for texts"}.get(kind, "one prediction per row")
    return Card(
        what=what,
        loaded_by="transformers",
        pipeline=PIPELINES.get(kind),
        tags=("text", kind),
        base_model=hub_name(base) if base else None,
        data=data,
        figures=figures,
        judged_on="On the rows that were held out to choose by: on new ones expect a little less." if figures else "",
        shown=False,
        settings=task.get("settings") or {},
        limits=[
            "It answers in the terms of its training rows: texts of another kind, time or place need labelled rows of "
            "their own to judge it by.",
            "Probabilities are as good as the rows they were fitted on.",
            "The folder holds the names of all labels; its report quotes held-out rows where `--examples` was given. "
            "`unmask export --to share` copies a folder without it.",
            *(raw if task.get("words") else ()),
        ],
        use=Use(
            commands=[
                (done, "unmask predict MODEL inputs.csv --out predictions.jsonl"),
                ("its figures on labelled rows of yours", "unmask evaluate MODEL labelled.csv"),
            ],
            python='import unmask\n\nunmask.text.predict(MODEL, ["a text", "another"])',
            transformers="" if baseline or (files / "model.onnx").exists() else _task_in_transformers(kind),
            without_unmask="transformers reads the encoder alone: the baseline predicts in unmask." if baseline else "",
        ),
    )


def _corpus(about: Mapping[str, Any]) -> list[str]:
    corpus, source = about.get("corpus") or {}, about.get("source")
    out = [f"From {source}."] if source else []
    if "documents" in corpus:
        out.append(f"{corpus['documents']:,} documents, {corpus.get('tokens', 0):,} tokens.")
    if "training" in corpus:
        out.append(f"{corpus['training']:,} examples to train on, {corpus['held_out']:,} held out.")
    return out


def _shape(config: Mapping[str, Any]) -> str:
    layers = config.get("num_hidden_layers") or config.get("n_layers")
    width = config.get("hidden_size") or config.get("dim")
    known = [f"{layers} layers of {width}"] if layers and width else []
    known += [f"{config['vocab_size']:,} tokens known"] if isinstance(config.get("vocab_size"), int) else []
    return ", ".join(known) or "an encoder"


def _transformers(config: Mapping[str, Any], text: str, fills: bool) -> str:
    remote = ", trust_remote_code=True" if set(config.get("architectures") or ()) & set(REMOTE) else ""
    if fills:
        return f'from transformers import pipeline\n\npipeline("fill-mask", MODEL{remote})("{text}")'
    return f"from transformers import AutoModel\n\nencoder = AutoModel.from_pretrained(MODEL{remote})"


def _task_in_transformers(kind: str) -> str:
    if kind == "similarity":
        return "from transformers import AutoModel\n\nencoder = AutoModel.from_pretrained(MODEL)"
    tag = PIPELINES.get(kind)
    example = '(question="Who wrote it?", context="Ada wrote it.")' if kind == "answer" else '("a text")'
    return f'from transformers import pipeline\n\npipeline("{tag}", MODEL){example}' if tag else ""


MOST_TOKENS = 2_000_000
"""Held-out tokens that a rule is judged on: a share of that many is known to a tenth of a percent."""


COUNTED = 16_000_000
"""Training tokens, about, of which the most frequent is sought."""


def most_frequent_token(frequencies: np.ndarray, special_ids: Sequence[int] | np.ndarray) -> int:
    """The token that occurs most often, special ones apart."""
    counts = np.array(frequencies, np.int64)
    counts[np.asarray(special_ids, np.int64)] = -1
    return int(counts.argmax())


def most_frequent_share(cache: TokenCache, special_ids: Sequence[int] | np.ndarray) -> float:
    """Accuracy on the held-out tokens of always guessing the most frequent training token; NaN without any."""
    if not len(cache.validation):
        return float("nan")
    special = np.asarray(special_ids, np.int64)
    best = most_frequent_token(cache.frequencies(most=COUNTED), special)
    right = total = 0
    for ids in first_tokens(cache, np.asarray(cache.validation), MOST_TOKENS):
        ids = ids[~np.isin(ids, special)]
        right, total = right + int((ids == best).sum()), total + len(ids)
    return right / total if total else float("nan")


def first_tokens(cache: TokenCache, numbers: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """The tokens of examples, until there are so many."""
    total = 0
    for number in numbers:
        ids = cache.example(int(number))[0].astype(np.int64)
        total += len(ids)
        yield ids
        if total >= most:
            return
