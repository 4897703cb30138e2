"""Classification without training: by a natural-language-inference head, or by masked prompts with any masked model.

Masked prompts (Schick & Schütze 2021): a text stands in a template with a blank; each label is one or more words, of
any number of tokens; a word's log probability is exact along the model's left-to-right chain over its blanks.
Contextual calibration (Zhao et al. 2021; Holtzman et al. 2021 divide the same way) subtracts what the template says of
each label without a text; batch calibration (Zhou et al. 2024, sec. 3.2) what it says of each on average over the texts
asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.batch import Example
from unmask.core.score import score
from unmask.errors import UserError, either, first_of, option, quoted
from unmask.evaluation.results import PredictedRows
from unmask.modalities.text.reading.sources import listed
from unmask.modalities.text.tasks import model as models
from unmask.modalities.text.tokens.batches import text_example
from unmask.modalities.text.uses.filling import (
    BLANK,
    bare_notes,
    count_longer,
    cut_notes,
    nothing_to_read,
    special_notes,
    special_tokens_in,
    unknown_notes,
)
from unmask.modalities.text.uses.model import TextModel, load

TEMPLATE = "{text} It was [MASK]."
HYPOTHESIS = "This example is {label}."
CONTENT_FREE = ("N/A", "[MASK]", "")
"""Stand-ins for a text that says nothing (Zhao et al. 2021, sec. 5)."""
CALIBRATIONS = ("context", "batch", "none")


def zero_shot(
    model: str | Path | TextModel | models.TaskFolder,
    texts: str | Sequence[str],
    labels: Sequence[str],
    *,
    template: str | Sequence[str] | None = None,
    verbalisers: Mapping[str, Sequence[str]] | None = None,
    calibrate: str | None = None,
    priors: Sequence[str] = CONTENT_FREE,
    device: str = "auto",
    precision: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> PredictedRows:
    """Label texts.

    Args:
        template: with {text} and [MASK]; for an NLI model a hypothesis with {label}. Of several the calibrated scores
            are averaged.
        verbalisers: label -> words that stand for it; default the label itself. A label's score is the mean over its
            words.
        calibrate: what is subtracted of a label's score: "context", its score averaged over `priors` in place of the
            text; "batch", the log of its share averaged over all `texts` (give many, and expect labels about equally
            often: an answer then depends on the other texts); "none". Default: context for prompts, none for NLI
            models, which have no blank to ask without a text.
        say: called with how many texts are cut to what the model reads beside the template, hold special or unknown
            tokens, or nothing to read: blank ones, and those of unknown and special tokens alone.

    Returns:
        A row per text with text, label, probability and probabilities, in order, all but the text None where there is
        nothing to read in it. `about`: method, template, calibrated, cut (texts whose ends were not read), device and
        precision.

    Raises:
        UserError: what is no text, fewer than two labels, a label without a word, labels of the same tokens, words for
            what is no label or for an NLI model, a word that the vocabulary does not know or that holds a special
            token, a template without its blank or that leaves no room for a text, no priors, priors
            that the calibration does not read, a calibration that is not known or that the model does not allow, batch
            calibration of one text.
    """
    if calibrate not in (None, *CALIBRATIONS):
        raise UserError(f"calibrate={calibrate!r}", hint=f"Expected one of {', '.join(CALIBRATIONS)}.")
    texts, priors = listed(texts), listed(priors, "priors")
    templates = listed(template or [], "template")
    labels = list(dict.fromkeys(listed(labels, "labels")))
    if len(labels) < 2:
        raise UserError(f"{len(labels)} labels", hint="Give two or more.")
    if not priors:
        raise UserError("priors=[]: nothing to ask without a text", hint="Give one or more.")
    verbalisers = {name: listed(words, f"words for label {name!r}") for name, words in (verbalisers or {}).items()}
    for name, words in verbalisers.items():
        if name not in labels:
            raise UserError(
                f"words for {name!r}, which is no label", hint=f"The labels are {', '.join(map(quoted, labels))}."
            )
        if not words:
            raise UserError(f"label {name!r}: no word stands for it", hint=f"Give one or more: {_words_option()}.")
    prompts: Prompts | Hypotheses
    if isinstance(model, models.TaskFolder) or models.task_named(model) == "classify":
        if verbalisers:
            raise UserError(
                f"words for label {next(iter(verbalisers))!r} of an NLI model",
                hint="It reads a label's name in a hypothesis: give that as the label, or as the template.",
            )
        prompts = Hypotheses(model, labels, device=device, precision=precision)
        templates, calibrate = templates or [HYPOTHESIS], calibrate or "none"
        if calibrate == "context":
            raise UserError("calibrate='context' of an NLI model", hint="It has no blank: expected batch or none.")
    else:
        prompts = Prompts(model, labels, verbalisers, device=device, precision=precision)
        templates, calibrate = templates or [TEMPLATE], calibrate or "context"
    if calibrate != "context" and priors != list(CONTENT_FREE):
        raise UserError(
            f"priors={priors} with {option('calibrate', calibrate)}: nothing reads this", hint="Leave it out."
        )
    for one in templates:
        prompts.check(one)
    room = min(_room(prompts, one) for one in templates)
    written = [prompts.written(text) for text in texts]
    cut = count_longer(prompts.tokenizer, written, room + len(prompts.tokenizer.ids([""])[0]))
    read = prompts.tokenizer.ids(written)
    bare = nothing_to_read(prompts.tokenizer, read)
    marks = [*special_notes(prompts.tokenizer, written), *unknown_notes(prompts.tokenizer, read)]
    for line in [*cut_notes(cut, len(texts), room), *marks, *bare_notes(bare, len(texts), "their labels are null")]:
        say(line)
    readable = np.setdiff1d(np.arange(len(texts)), bare)
    if calibrate == "batch" and len(readable) == 1:
        raise UserError(
            f"{option('calibrate', 'batch')} of one text: its own scores would be divided out, and all labels be alike",
            hint="Give many texts, or another calibration.",
        )
    scores = np.full((len(texts), len(labels)), np.nan)
    scores[readable] = 0.0
    for one in templates if len(readable) else []:
        found = prompts.scores([texts[number] for number in readable], one)
        if calibrate == "context":
            found = found - prompts.scores(priors, one).mean(0)
        if calibrate == "batch":  # each label's share averaged over the texts is divided out
            from scipy.special import log_softmax, logsumexp

            shares = log_softmax(found, 1)
            found = shares - (logsumexp(shares, 0) - np.log(max(len(shares), 1)))
        scores[readable] += found / len(templates)
    rows = [_row(text, labels, s) for text, s in zip(texts, scores, strict=True)]
    about = {"method": prompts.method, "template": templates, "calibrated": calibrate, "cut": cut}
    about |= {"device": str(prompts.model.device), "precision": prompts.model.precision}
    return PredictedRows(rows, "{} texts, labelled without training", hidden=["probabilities"], about=about)


class Prompts:
    """Labels asked for in the blank of a template, of any masked model."""

    method = "masked prompt"

    def __init__(
        self,
        model: str | Path | TextModel,
        labels: Sequence[str],
        verbalisers: Mapping[str, Sequence[str]],
        *,
        device: str,
        precision: str,
    ) -> None:
        if not isinstance(model, TextModel):
            model = load(model, device=device, precision=precision)
        model.require_head()
        self.model, self.tokenizer = model, model.tokenizer
        self.words = {name: list(verbalisers.get(name) or [name]) for name in labels}

    def check(self, template: str) -> None:
        """Refuse a template without one {text} and one [MASK]."""
        if template.count("{text}") != 1 or template.count(BLANK) != 1:
            raise UserError(f"template {template!r}", hint="It needs {text} once and [MASK] once.")

    def written(self, text: str) -> str:
        """The text as the model reads it: a blank in it is the model's own mask token."""
        return text.replace(BLANK, self.tokenizer.mask_token)

    def room(self, template: str) -> int:
        """Tokens of a text that are read beside the template and its longest word."""
        written = [
            template.replace("{text}", "").replace(BLANK, word) for words in self.words.values() for word in words
        ]
        return self.model.slots - max(map(len, self.tokenizer.encode(written))) - 2

    def scores(self, texts: Sequence[str], template: str) -> np.ndarray:
        """(texts, labels) mean log probability of each label's words in the blank; a long text is cut, never the
        template."""
        model, words = self.model, self.words
        before, after = template.split(BLANK)
        flat = [(label, word) for label, listed in words.items() for word in listed]
        tokens, read = model.tokenizer, dict[str, list[tuple[int, ...]]]()
        for label, word in flat:
            ids = tokens.encode([word], specials=False)[0].ids
            if marks := special_tokens_in(tokens, word):
                raise UserError(
                    f"label {label!r}: {word!r} holds {', '.join(marks)}, which the model reads as a mark, not as text",
                    hint=f"Give other words: {_words_option()}.",
                )
            read.setdefault(label, []).append(tuple(ids.tolist()))
            if not len(ids) or (tokens.unk_id is not None and (ids == tokens.unk_id).any()):
                raise UserError(
                    f"label {label!r}: {word!r} is not in the vocabulary",
                    hint=f"Give other words: {_words_option()}.",
                )
        alike: dict[tuple[tuple[int, ...], ...], list[str]] = {}
        for label, its_words in read.items():
            alike.setdefault(tuple(sorted(its_words)), []).append(label)
        if same := [" and ".join(map(repr, labels)) for labels in alike.values() if len(labels) > 1]:
            raise UserError(
                f"labels {first_of(same)}: the same tokens to this model", hint=f"Give other words: {_words_option()}."
            )
        room = self.room(template)
        examples: list[Example] = []
        for text in map(self.written, texts):
            whole = tokens.encode([text], specials=False)[0]
            text = text if len(whole) <= room else text[: int(whole.offsets[max(room, 1) - 1, 1])]
            head, tail = before.replace("{text}", text), after.replace("{text}", text)
            for e, word in zip(tokens.encode([head + w + tail for _, w in flat]), (w for _, w in flat), strict=True):
                inside = (e.offsets[:, 0] < len(head) + len(word)) & (e.offsets[:, 1] > len(head)) & ~e.special
                examples.append(text_example(e.ids, np.where(inside, 0, -1), ~inside, len(examples)))
        with model.context():
            found = np.array([s.total for s in score(model.model, examples, slots=model.slots, mode="unit")])
        table = found.reshape(len(texts), len(flat))
        owner = np.array([list(words).index(label) for label, _ in flat])
        return np.stack([table[:, owner == i].mean(1) for i in range(len(words))], 1)


class Hypotheses:
    """Labels put to an NLI model: the log odds of entailment against contradiction (Yin et al. 2019)."""

    method = "entailment"

    def __init__(
        self, model: str | Path | TextModel | models.TaskFolder, labels: Sequence[str], *, device: str, precision: str
    ) -> None:
        self.model, self.labels = models.load(model, device=device, precision=precision), labels
        self.tokenizer = self.model.tokenizer
        lowered = {str(name).lower(): str(name) for name in self.model.about.get("labels") or []}
        yes = next((lowered[n] for n in lowered if n.startswith("entail")), None)
        no = next((lowered[n] for n in lowered if n.startswith(("contradict", "not_entail"))), None)
        if yes is None or no is None:
            raise UserError(
                f"{model}: labels {first_of(map(quoted, lowered.values()), 8)}",
                hint="Zero-shot needs a masked language model, or an NLI model with entailment and contradiction.",
            )
        self.yes, self.no = yes, no

    def check(self, template: str) -> None:
        """Refuse a template without {label}."""
        if "{label}" not in template:
            raise UserError(f"template {template!r}", hint="For an NLI model it needs {label}.")

    def written(self, text: str) -> str:
        """The text as the model reads it."""
        return text

    def room(self, template: str) -> int:
        """Tokens of a text that are read beside the longest hypothesis."""
        encoder = self.model.task.encoder
        hypotheses = encoder.texts(list(self._hypotheses(template).values()))
        return encoder.slots - encoder.pair.size - max(map(len, hypotheses))

    def scores(self, texts: Sequence[str], template: str) -> np.ndarray:
        """(texts, labels) log odds."""
        from unmask.modalities.text.tasks.finetune import predict

        hypotheses = self._hypotheses(template)
        bare = [f"label {name!r}" for name, hypothesis in hypotheses.items() if not hypothesis.strip()]
        if bare:
            raise UserError(
                f"{first_of(bare)}: empty", hint="An NLI model compares two texts: leave those out that say nothing."
            )
        pairs = [{"text": text, "text2": hypothesis} for text in texts for hypothesis in hypotheses.values()]
        p = np.array([[row["probabilities"][n] for n in (self.yes, self.no)] for row in predict(self.model, pairs)])
        odds = np.diff(np.log(np.maximum(p, 1e-12)), axis=1)
        return -odds.reshape(len(texts), len(self.labels))

    def _hypotheses(self, template: str) -> dict[str, str]:
        return {name: template.replace("{label}", name) for name in self.labels}


def _room(requested: Prompts | Hypotheses, template: str) -> int:
    """Tokens of a text that are read beside a template."""
    room = requested.room(template)
    if room < 1:
        raise UserError(
            f"template {template[:60]!r}: no room for a text beside it and the longest label, the model takes "
            f"{requested.model.slots} tokens",
            hint="Shorten it.",
        )
    return room


def _words_option() -> str:
    return either("--words LABEL=word,word", "verbalisers={label: [word, ...]}", '"words": {label: [word, ...]}')


def _row(text: str, labels: Sequence[str], scores: np.ndarray) -> dict[str, Any]:
    if np.isnan(scores).all():
        return {"text": text, "label": None, "probability": None, "probabilities": None}
    e = np.exp(scores - scores.max())
    p = e / e.sum()
    best = int(p.argmax())
    return {
        "text": text,
        "label": labels[best],
        "probability": float(p[best]),
        "probabilities": {n: float(x) for n, x in zip(labels, p, strict=True)},
    }
