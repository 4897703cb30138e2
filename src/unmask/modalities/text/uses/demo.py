"""`unmask demo text`: learn technical English from docstrings, then fill, score, embed, and draw what was learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.text.network.card import most_frequent_share
from unmask.modalities.text.network.pretrain import TextRun, pretrain
from unmask.modalities.text.reading.documents import write_corpus
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.training.signals import interrupt_if
from unmask.writing import demo_folder, replace_json

SETTINGS: dict[str, Any] = {
    "recipe": "modern",
    "width": 256,
    "layers": 4,
    "heads": 4,
    "slots": 128,
    "vocabulary": 8192,
    "causal": 0.0,
    "ratio": 0.25,
    "ratio_end": 0.15,
    "mask": 1.0,
    "random": 0.0,
    "keep": 0.0,
    "holdout": 0.02,
    "batch_slots": 4096,
    "learning_rate": 2e-3,
    "warmup": 0.08,
    "schedule": "linear",
}
"""Chosen by measurement on this corpus; see docs/explanation/measured-text.md."""

PAIRS = [
    ("Return the number of rows in the table.", "table rows the of number. Return in the"),
    ("If the file does not exist, an error is raised.", "exist file an If not the does error, raised is."),
    ("The default value of this parameter is None.", "None this default is parameter The of value."),
]


def run_demo(
    out: str | Path = "demo-text", *, minutes: float = 2.4, seed: int = 0, console: bool = True
) -> dict[str, Any]:
    """Train, fill, score, embed, and write report.html.

    Returns:
        The figures; 'report' (path), 'device', 'precision' and 'lines' (what to tell a person) are there in every demo.
    """
    out = demo_folder(out)
    corpus = write_corpus(out / "docstrings.jsonl")
    if corpus["documents"] < 200:
        raise UserError(f"only {corpus['documents']} docstrings found", hint="Install unmask with its dependencies.")
    settings = with_overrides(TextSettings(), SETTINGS | {"minutes": minutes, "seed": seed})
    finished = pretrain(str(out / "docstrings.jsonl"), out, settings=settings, console=console)
    interrupt_if(finished.result.stopped)
    found = show(finished, corpus)
    replace_json(out / "demo.json", found)
    learnt = (
        f"held-out accuracy on hidden tokens: {found['accuracy']:.1%} (most frequent token: {found['baseline']:.1%})"
    )
    return found | {"lines": [learnt]}


def show(finished: TextRun, corpus: dict[str, int]) -> dict[str, Any]:
    """What the model learnt, on held-out documents, as figures and as report.html."""
    from unmask.evaluation.report import Report, filled_examples, nearest_words, scored_sentences, training_curves
    from unmask.modalities.text.uses.model import load

    out, r = finished.folder, finished.result
    model = load(out, precision=r.precision)
    cache = TokenCache.open(out / "cache")
    baseline = most_frequent_share(cache, model.tokenizer.special_ids)
    accuracy, loss = r.validation["validation_accuracy"], r.validation["validation_loss"]
    scores = [s for pair in PAIRS for s in model.score(list(pair))]
    report = Report("What a masked language model learnt from docstrings", "unmask demo text")
    report.facts(
        {
            "Held-out accuracy": f"{accuracy:.1%}",
            "Most frequent token": f"{baseline:.1%}",
            "Held-out loss": f"{loss:.2f} nats",
            "Training": f"{r.seconds:.0f} s, {r.steps} steps",
            "Real tokens/s": f"{r.slots_per_second:,.0f}",
            "Padding waste": f"{r.padding_waste:.1%}",
            "Corpus": f"{corpus['documents']:,} docstrings, {corpus['characters'] / 1e6:.0f} MB",
            "Precision": r.precision,
        }
    )
    report.section(
        "Training",
        training_curves(out / "metrics.jsonl"),
        note="Validation: 15 % of the tokens of held-out docstrings, hidden the same way every time.",
    )
    well, missed = examples(model, cache)
    report.section(
        "Blanks it fills well", filled_examples(well), note="Held-out text; the likeliest word is the right one."
    )
    report.section(
        "Blanks it misses",
        filled_examples(missed),
        note="Held-out text; picked at random among those whose right word is not the likeliest.",
    )
    report.section(
        "A right and a scrambled sentence",
        scored_sentences(scores),
        note="Pseudo-log-likelihood: every word hidden in turn; the higher, the more natural.",
    )
    words = [
        w
        for w in ("array", "file", "returns", "false", "integer", "column", "error", "three")
        if model.tokenizer.id(w) is not None
    ]
    report.section(
        "Nearest words", nearest_words(model.nearest_words(words, k=6)), note="By cosine of the learnt word embeddings."
    )
    path = report.write(out / "report.html")
    return {
        "accuracy": accuracy,
        "loss": loss,
        "baseline": baseline,
        "report": str(path),
        "device": r.device,
        "precision": r.precision,
        "steps": r.steps,
        "slots_per_second": r.slots_per_second,
        "seconds": r.seconds,
        "padding_waste": r.padding_waste,
        "scores": scores,
        **corpus,
    }


def examples(
    model: Any, cache: TokenCache, *, each: int = 6, tries: int = 160
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Held-out sentences with one whole-token word hidden: some filled right, some wrong, drawn with a fixed seed."""
    rng = np.random.default_rng(0)
    tokenizer = model.tokenizer
    special = set(np.asarray(tokenizer.special_ids).tolist())
    numbers = rng.permutation(np.asarray(cache.validation))[:tries]
    texts, truths = [], []
    for number in numbers:
        ids, units = cache.example(int(number))
        ids, units = ids[:48], units[:48]
        words = [i for i in range(4, len(ids) - 4) if ids[i] not in special and (units == units[i]).sum() == 1]
        words = [i for i in words if len(tokenizer.token(int(ids[i]))) > 2 and tokenizer.token(int(ids[i])).isalpha()]
        if len(ids) < 16 or not words:
            continue
        blank = int(rng.choice(words))
        before, after = (
            tokenizer.decode([int(x) for x in part if x not in special]) for part in (ids[:blank], ids[blank + 1 :])
        )
        texts.append(f"{before} {tokenizer.mask_token} {after}")
        truths.append(tokenizer.token(int(ids[blank])))
    well: list[dict[str, Any]] = []
    missed: list[dict[str, Any]] = []
    for text, truth, result in zip(texts, truths, model.fill(texts, top=5), strict=True):
        candidates = result["slots"][0]["candidates"]
        item = {"text": text, "blanks": [{"truth": truth, "candidates": candidates}]}
        (well if candidates[0]["value"].strip() == truth else missed).append(item)
    # The blanks filled well are those that need the context: rarer words first.
    well.sort(key=lambda item: -len(item["blanks"][0]["truth"]))
    return well[:each], missed[:each]
