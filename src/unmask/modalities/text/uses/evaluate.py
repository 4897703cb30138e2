"""How well a text model predicts hidden tokens of texts it has not seen: `TextModel.evaluate`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from unmask.core.batch import Example
from unmask.core.inference import packed_batches
from unmask.core.model import MaskedModel
from unmask.core.score import scorable
from unmask.core.token_codec import TokenCodec
from unmask.errors import UserError
from unmask.evaluation.metrics import bootstrap_mean, by_frequency, by_position, masked_metrics, plain
from unmask.modalities.text.network.card import most_frequent_token
from unmask.modalities.text.tokens.batches import measuring_corruption, text_example
from unmask.modalities.text.tokens.cache import cut
from unmask.modalities.text.tokens.corpus import check_unknown
from unmask.modalities.text.tokens.tokenizer import Tokenizer


class Predictor(Protocol):
    """What is measured: a `TextModel`, or anything else with a tokenizer and a masked model."""

    @property
    def model(self) -> MaskedModel[TokenCodec]: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def slots(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def context(self) -> contextlib.AbstractContextManager[Any]: ...

    def require_head(self) -> None: ...


def evaluate(
    model: Predictor,
    texts: Sequence[str],
    *,
    ratio: float = 0.15,
    seed: int = 0,
    frequencies: np.ndarray | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Loss, perplexity, accuracy@1 and @5 on hidden tokens, with 95 % intervals over texts, by position and frequency.

    Beside them `most_frequent_accuracy`: that of always guessing the most frequent token (`most_frequent`) of
    `frequencies`. Long texts are cut into windows, as in training. `unknown_share`: of the tokens, those that are
    unknown ([UNK]), which are never hidden, so that the figures are of the others alone.

    Args:
        frequencies: how often each token occurred in training, by id; default in the evaluated texts themselves.
        say: called with the share of unknown tokens, where it is more than one in a thousand.
    """
    model.require_head()
    if not 0 < ratio <= 1:
        raise UserError(f"ratio={ratio}", hint="Expected a share above 0 and up to 1.")
    examples, document = windows(model, texts)
    unknown = _unknown_share(model, examples)
    check_unknown(unknown, say, name="the texts", given=True)
    if not any(len(scorable(e)) for e in examples):
        raise UserError("the texts hold no token to hide", hint="Give text the tokenizer knows.")
    size = model.tokenizer.vocab_size
    counts = frequencies
    if counts is None:
        counts = np.bincount(np.concatenate([e.values["token"] for e in examples]), minlength=size)
    elif len(counts) < size:
        raise UserError(f"frequencies has {len(counts)} entries, the vocabulary {size}", hint="Give one count a token.")
    corruption = measuring_corruption(ratio)
    log_prob, rank, owner, place, target = [], [], [], [], []
    for batch, members in packed_batches(examples, model.slots):
        hidden = corruption.draw(batch, seed=seed).to(model.device)
        moved = batch.to(model.device)
        with torch.inference_mode(), model.context():
            prediction = model.model(moved, hidden)
            truth = model.model.codec.targets(moved.values, hidden.flat)
            log_prob.append(prediction.log_prob(truth).float().cpu().numpy())
            rank.append(prediction.rank(truth).cpu().numpy())
        row = batch.index.flatten()[hidden.flat.cpu()].numpy()
        owner.append(np.array([document[m] for m in members])[row])
        length = np.array([len(examples[m]) for m in members])[row]
        place.append(batch.position.flatten()[hidden.flat.cpu()].numpy() / np.maximum(length - 1, 1))
        target.append(truth.cpu().numpy())
    p, r, d = (np.concatenate(x) for x in (log_prob, rank, owner))
    right = (r == 0).astype(float)
    bands = {
        "by_frequency": by_frequency(right, counts[np.concatenate(target)], d, seed=seed),
        "by_position": by_position(right, np.concatenate(place), d, seed=seed),
    }
    named = {k: [{"band": b.label, **b.estimate.to_dict()} for b in v] for k, v in bands.items()}
    best = most_frequent_token(counts, model.tokenizer.special_ids)
    rule = {"most_frequent_accuracy": bootstrap_mean(np.concatenate(target) == best, d, seed=seed)}
    figures = plain(masked_metrics(p, r, d, seed=seed) | rule)
    about = {"rows": len(texts), "unknown_share": unknown}
    return about | figures | {"most_frequent": model.tokenizer.token(best)} | named


def _unknown_share(model: Predictor, examples: Sequence[Example]) -> float:
    around = len(model.tokenizer.before) + len(model.tokenizer.after)
    unknown = sum(int(np.count_nonzero(e.values["token"] == model.tokenizer.unk_id)) for e in examples)
    return unknown / max(sum(len(e) - around for e in examples), 1)


def windows(model: Predictor, texts: Sequence[str]) -> tuple[list[Example], list[int]]:
    """Texts cut into examples the model can take, and the number of the text each comes from."""
    examples: list[Example] = []
    document: list[int] = []
    before, after = model.tokenizer.before, model.tokenizer.after
    room = model.slots - len(before) - len(after)
    for number, e in enumerate(model.tokenizer.encode(list(texts), specials=False)):
        starts = np.ones(len(e), np.uint8)
        starts[1:] = e.units[1:] != e.units[:-1]
        for begin, end in cut(e.ids, starts, room, np.zeros(0, np.int64)):
            ids = np.concatenate([before, e.ids[begin:end], after]).astype(np.int64)
            units = np.concatenate([[-1] * len(before), e.units[begin:end], [-1] * len(after)]).astype(np.int64)
            examples.append(text_example(ids, units, np.isin(ids, model.tokenizer.special_ids), len(examples)))
            document.append(number)
    return examples, document
