"""New texts by unmasking: every token between a prefix and a suffix is hidden, and filled in a few at a time.

How many tokens are drawn where `length` is not given:

- with a suffix (infilling): each number of `INFILLED` is tried, filled with the most likely tokens one by one, and the
  one with the highest mean log-probability per token is taken. This is a guess: likelihoods of different numbers of
  tokens are not strictly comparable;
- else the length of a training example, drawn from those that the run stored in unmask.json, minus the prefix;
- for a model that stores none, 32 tokens, or as many as fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from unmask.core.fill import FilledExample, Order, fill_examples
from unmask.errors import UserError, check_choice, check_whole, option
from unmask.evaluation.results import PredictedRows
from unmask.guessed import also_called
from unmask.modalities.text.uses.filling import (
    BLANK,
    blank_examples,
    space_between,
    special_tokens_in,
    words_of,
    write_blanks,
)
from unmask.training.settings import check_seed

if TYPE_CHECKING:
    from unmask.modalities.text.network.folder import LoadedText

INFILLED = (1, 2, 3, 4, 6, 8, 12)
UNKNOWN_LENGTH = 32


@also_called(max_new_tokens="length", num_return_sequences="number")
def generate(
    model: LoadedText,
    prefix: str = "",
    *,
    suffix: str = "",
    length: int | None = None,
    number: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    steps: int | None = None,
    order: Order = "random",
    remask: float = 0.0,
    remask_by: Literal["random", "confidence"] = "random",
    seed: int = 0,
) -> PredictedRows:
    """Draw texts: all tokens are hidden but those of `prefix` and `suffix`, and filled in a few at a time.

    Args:
        length: tokens that are drawn; default see `unmask.modalities.text.uses.generating`.
        number: how many texts.
        temperature, top_k, order, remask, remask_by: see `unmask.core.fill.fill`.
        steps: passes of the model; default one for each token, with `remask` two. 1: all at once, independent of
            each other.

    Returns:
        One dict per text: text, generated (the part that was drawn), tokens (drawn), log_probability (joint, along
        the order, in nats; None with `remask`, where tokens were drawn anew among others).

    Raises:
        UserError: no masked-LM head, more tokens than the model takes, settings out of range.
    """
    model.require_head()
    check_choice("order", order, ("confidence", "random", "left_to_right"))
    for name, value in (("number", number), ("length", length), ("steps", steps), ("top_k", top_k)):
        if value is not None:
            check_whole(name, value)
    check_seed(seed)
    if not 0 <= temperature < math.inf:
        raise UserError(option("temperature", temperature), hint="Expected a number, 0 or more.")
    if remask and steps is not None and steps < 3:
        raise UserError(
            f"{option('remask', remask)} with {option('steps', steps)}: tokens are taken back between the "
            "first pass and the last",
            hint="Give 3 or more.",
        )
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise UserError(f"{name}={text!r}", hint="Expected a text, '' for none.")
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"{name} is not UTF-8: {text[:60]!a}", hint="Give it in UTF-8.")
        special = special_tokens_in(model.tokenizer, text)
        if BLANK in text and BLANK not in special:
            special.append(BLANK)
        if special:
            raise UserError(
                f"{name} holds {', '.join(special)}: {text[:60]!r}",
                hint="It stays as it is, and special tokens are no text: leave them out. `unmask fill` fills the "
                f"blanks ({model.tokenizer.mask_token}) of a text.",
            )
    lengths = _lengths(model, prefix, suffix, length, number, seed)
    texts = [_with_room(model, prefix, suffix, n) for n in lengths]
    draw = torch.Generator(device=model.device).manual_seed(seed)
    filled = _fill(
        model,
        texts,
        steps=steps or (max(3, 2 * max(lengths)) if remask else max(lengths)),
        order=order,
        temperature=temperature,
        top_k=top_k,
        remask=remask,
        remask_by=remask_by,
        generator=draw,
    )
    rows = [
        {
            "text": write_blanks(model.tokenizer, text, one.new.tolist()),
            "generated": words_of(model.tokenizer, one.new.tolist()),
            "tokens": len(one.new),
            "log_probability": None if remask else float(one.log_prob.sum()),
        }
        for text, one in zip(texts, filled, strict=True)
    ]
    return PredictedRows(rows, "{} new texts", hidden=["generated"])


def shown_little(model: LoadedText) -> str | None:
    """Why texts drawn from nothing are likely to be poor: the run hid a fixed share; None where it drew the share."""
    text, start = (model.folder.settings.get(name) or {} for name in ("text", "start"))
    if any(run.get("density", "fixed") != "fixed" for run in (text, start)):
        return None
    share = f"hid {text['ratio']:.0%} of each text" if "ratio" in text else "is not known to have hidden most of a text"
    return (
        f"this model {share}: it was never trained on mostly hidden text, from which generation starts; "
        f"pretraining with {option('recipe', 'diffusion')} trains one that was"
    )


def unknown_given(model: LoadedText, prefix: str, suffix: str) -> str | None:
    """That prefix or suffix holds words that the tokenizer does not know; None where it knows them all."""
    unknown = model.tokenizer.unk_id
    if unknown is None or not any(unknown in ids for ids in model.tokenizer.ids([prefix, suffix])):
        return None
    shown = model.tokenizer.token(unknown)
    return f"prefix or suffix holds words or characters that the model does not know: it reads {shown} there"


def _with_room(model: LoadedText, prefix: str, suffix: str, length: int) -> str:
    """Prefix and suffix with blanks between them, and a space where words would touch."""
    word = "a"  # stands for what is drawn
    before, after = space_between(prefix, word), space_between(word, suffix)
    return prefix + before + model.tokenizer.mask_token * length + after + suffix


def _fill(model: LoadedText, texts: Sequence[str], **options: Any) -> list[FilledExample]:
    examples = blank_examples(model, texts)
    blanks = [np.flatnonzero(e.values["token"] == model.tokenizer.mask_id) for e in examples]
    with model.context():
        return fill_examples(model.model, examples, blanks, slots=model.slots, **options)


def _lengths(model: LoadedText, prefix: str, suffix: str, length: int | None, number: int, seed: int) -> list[int]:
    """How many tokens each text is to be drawn of."""
    given = _given(model, prefix, suffix)
    room = model.slots - given
    if (length or 1) > room:
        raise UserError(
            f"prefix and suffix have {given} tokens with those around a text, and {length or 1} more are to be drawn: "
            f"the model takes {model.slots}",
            hint="Shorten them." if room < 1 else f"Shorten them, or draw {room} at most: {option('length', room)}.",
        )
    if length is not None:
        return [length] * number
    if suffix:
        return [_likeliest_length(model, prefix, suffix, room)] * number
    noted = model.folder.settings.get("lengths")
    if not isinstance(noted, list) or not noted:
        return [min(UNKNOWN_LENGTH, room)] * number
    whole = np.random.default_rng(seed).choice(np.array(noted), number)
    around = len(model.tokenizer.before) + len(model.tokenizer.after)
    return np.clip(whole - (given - around), 1, room).tolist()


def _given(model: LoadedText, prefix: str, suffix: str) -> int:
    """Tokens of prefix and suffix in an example with those around a text, however many the model takes."""
    text = _with_room(model, prefix, suffix, 1)
    [e] = model.tokenizer.encode([text])
    blank = int(np.flatnonzero(e.ids == model.tokenizer.mask_id)[0])
    # `blank_examples` leaves out a space in front of the blank that is a token of its own.
    space = blank > 0 and not e.special[blank - 1] and not text[slice(*e.offsets[blank - 1])].strip()
    return len(e) - 1 - space


def _likeliest_length(model: LoadedText, prefix: str, suffix: str, room: int) -> int:
    tried = [n for n in INFILLED if n <= room]
    texts = [_with_room(model, prefix, suffix, n) for n in tried]
    found = _fill(model, texts, steps=max(tried), temperature=0.0)
    return max(zip(tried, found, strict=True), key=lambda pair: float(pair[1].log_prob.mean()))[0]
