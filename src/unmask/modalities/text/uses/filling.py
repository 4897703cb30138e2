"""Filling the blanks of texts: each alone or one after the other, answers of several tokens, given candidates."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from string import whitespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import Example
from unmask.core.fill import Order, Question, fill_examples
from unmask.core.fill import answers as answered
from unmask.core.inference import packed_batches
from unmask.core.score import score
from unmask.errors import UserError, check_choice, check_whole, first_of
from unmask.evaluation.results import PredictedRows
from unmask.guessed import also_called
from unmask.modalities.text.network.folder import LoadedText
from unmask.modalities.text.reading.sources import listed
from unmask.modalities.text.tokens.batches import text_example
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.training.settings import check_seed

BLANK = "[MASK]"
"""Accepted in texts for every model, whatever its own mask token is."""


@also_called(top_k="top", k="top", targets="candidates")
def fill(
    model: LoadedText,
    texts: str | Sequence[str],
    *,
    top: int = 5,
    steps: int = 1,
    order: Order = "confidence",
    temperature: float = 0.0,
    seed: int = 0,
    candidates: Sequence[str] | None = None,
    longest: int = 1,
) -> PredictedRows:
    """Fill the blanks of texts.

    Args:
        top: candidates shown per blank: the likeliest when its turn came.
        steps: above 1, blanks are filled one share at a time and see each other's answers.
        order, temperature: see `unmask.core.fill.fill`.
        candidates: answers to compare instead, for the one blank of each text; any number of tokens each. Their
            joint probability is exact along the model's left-to-right chain, hidden slots behind being unknown.
        longest: above 1, answers of up to this many tokens for the one blank of each text, `top` of each length;
            see `answers`.

    Returns:
        One dict a text: text, filled (likeliest values written in), log_probability (joint, of `filled`), slots:
        a list with the candidates (value, probability) of each blank.

    Raises:
        UserError: a text without a blank, or longer than the model takes.
    """
    model.require_head()
    check_choice("order", order, ("confidence", "random", "left_to_right"))
    for name, value in (("top", top), ("steps", steps), ("longest", longest)):
        check_whole(name, value)
    check_seed(seed)
    texts = listed(texts)
    candidates = None if candidates is None else listed(candidates, "candidates")
    masked = _with_blanks(model, texts, one_for="candidates" if candidates else "answers" if longest > 1 else "")
    if candidates:
        return _filled(compare(model, text, shown, candidates) for text, shown in zip(masked, texts, strict=True))
    if longest > 1:
        model.check_lengths([len(ids) + longest - 1 for ids in model.tokenizer.ids(masked)], texts)
        found = {text: answers(model, text, lengths=range(1, longest + 1), top=top) for text in texts}
        return _filled(
            {"text": text}
            | {k: found[text][0][k] for k in ("filled", "log_probability")}
            | {"slots": [{"candidates": found[text]}]}
            for text in texts
        )
    examples = blank_examples(model, masked)
    blanks = [np.flatnonzero(e.values["token"] == model.tokenizer.mask_id) for e in examples]

    def likeliest(prediction: Any, places: Tensor) -> list[list[dict[str, Any]]]:
        values, chances = (x[places].tolist() for x in prediction.top(top))
        return [
            [
                {"value": word_of(model.tokenizer, v), "token": v, "probability": math.exp(p)}
                for v, p in zip(*one, strict=True)
            ]
            for one in zip(values, chances, strict=True)
        ]

    with model.context():
        filled = fill_examples(
            model.model,
            examples,
            blanks,
            slots=model.slots,
            batch_slots=4096,
            keep=likeliest,
            steps=steps,
            order=order,
            temperature=temperature,
            generator=torch.Generator(device=model.device).manual_seed(seed),
        )
    return _filled(
        {
            "text": text,
            "filled": write_blanks(model.tokenizer, shown, one.new.tolist()),
            "slots": [{"candidates": best} for best in one.kept],
            "log_probability": math.fsum(one.log_prob.tolist()),
        }
        for text, shown, one in zip(texts, masked, filled, strict=True)
    )


def _filled(rows: Iterable[dict[str, Any]]) -> PredictedRows:
    return PredictedRows(rows, "Blanks filled in {} texts", hidden=["text", "log_probability"])


def answers(
    model: LoadedText, text: str, *, lengths: Sequence[int] = (1, 2, 3), top: int = 5, beam: int | None = None
) -> list[dict[str, Any]]:
    """Answers of several tokens for the one blank of a text, by a left-to-right beam.

    Args:
        lengths: of the answers, in tokens: the blank becomes that many blanks.
        top: answers kept of each length.
        beam: beginnings kept while searching; default twice `top`.

    Returns:
        Dicts value, filled, tokens, probability, log_probability, likeliest first. A probability is joint over the
        answer's tokens, given their number: compare answers of one length; across lengths the order is only a
        guide.
    """
    model.require_head()
    width, own = max(top, beam or 2 * top), model.tokenizer.mask_token
    masked = _with_blanks(model, [text], one_for="answers")
    base = blank_examples(model, masked)[0]
    ids, special = base.values["token"], base.special
    assert special is not None
    place = int(np.flatnonzero(ids == model.tokenizer.mask_id)[0])
    found: list[dict[str, Any]] = []
    for length in lengths:
        model.check_lengths([len(ids) + length - 1], [text])
        beams: list[tuple[list[int], float]] = [([], 0.0)]
        for done in range(length):
            examples = []
            for tokens, _ in beams:
                whole = np.concatenate([ids[:place], tokens, np.zeros(length - done), ids[place + 1 :]]).astype(
                    np.int64
                )
                examples.append(text_example(whole, np.arange(len(whole)), np.zeros(len(whole), bool), 0))
            rest, next_one = np.arange(place + done, place + length), np.array([place + done])
            questions = [Question(example=e, hidden=rest, wanted=next_one) for e in examples]
            grown = []
            with model.context():
                for numbers, prediction, places in answered(model.model, questions, slots=model.slots):
                    values, chances = (x.tolist() for x in prediction.top(width))
                    for (tokens, total), (at,) in zip((beams[n] for n in numbers), places, strict=True):
                        grown += [([*tokens, v], total + p) for v, p in zip(values[at], chances[at], strict=True)]
            beams = sorted(grown, key=lambda b: -b[1])[:width]
        seen: set[str] = set()
        for tokens, total in beams:
            value = word_of(model.tokenizer, tokens[0]) if length == 1 else model.tokenizer.decode(tokens).strip()
            if value not in seen and len(seen) < top:
                seen.add(value)
                filled = write_blanks(model.tokenizer, masked[0].replace(own, own * length), tokens)
                found.append(
                    {
                        "value": value,
                        "filled": filled,
                        "tokens": length,
                        "probability": math.exp(total),
                        "log_probability": total,
                    }
                )
    return sorted(found, key=lambda a: -a["log_probability"])


def compare(model: LoadedText, text: str, shown: str, candidates: Sequence[str]) -> dict[str, Any]:
    """The candidates of any number of tokens each for the one blank of a text (its mask token written), ranked by joint
    probability; what `fill` gives per text.

    Args:
        candidates: those that are the same in tokens count once.
    """
    before, after = text.split(model.tokenizer.mask_token)
    examples: list[Example] = []
    values: dict[tuple[int, ...], str] = {}
    for candidate in candidates:
        if marks := special_tokens_in(model.tokenizer, candidate):
            raise UserError(f"candidate {candidate!r} holds {', '.join(marks)}, which no text is", hint="Leave it out.")
        filled = before + candidate + after
        e = model.tokenizer.encode([filled])[0]
        inside = (e.offsets[:, 0] < len(before) + len(candidate)) & (e.offsets[:, 1] > len(before)) & ~e.special
        if not inside.any():
            raise UserError(f"candidate {candidate!r} has no token", hint="Give a word.")
        if (e.ids[inside] == model.tokenizer.unk_id).any():
            raise UserError(f"candidate {candidate!r} is not in the vocabulary", hint="Leave it out.")
        if len(e) > model.slots:
            raise UserError(f"text with candidate {candidate!r} has {len(e)} tokens, the model takes {model.slots}")
        if (key := tuple(e.ids.tolist())) in values:
            continue
        values[key] = candidate
        examples.append(text_example(e.ids, np.where(inside, 0, -1), ~inside, len(examples)))
    with model.context():
        found = score(model.model, examples, slots=model.slots, mode="unit")
    candidates = list(values.values())
    order = sorted(range(len(candidates)), key=lambda i: -found[i].total)
    total = np.logaddexp.reduce([f.total for f in found])
    ranked = [
        {
            "value": candidates[i],
            "probability": math.exp(found[i].total),
            "share": math.exp(found[i].total - total),
            "log_probability": found[i].total,
        }
        for i in order
    ]
    best = candidates[order[0]]
    return {
        "text": shown,
        "filled": before + best + after,
        "slots": [{"candidates": ranked}],
        "log_probability": found[order[0]].total,
    }


def blank_examples(model: LoadedText, texts: Sequence[str]) -> list[Example]:
    """Texts with blanks. The space in front of a blank belongs to the word that is missing, so where a tokenizer
    makes it a token of its own (byte-level BPE, Unigram) that token is left out, as it was in training."""
    mask, special = model.tokenizer.require_mask(), model.tokenizer.special_ids
    out = []
    for number, (text, e) in enumerate(zip(texts, model.tokenizer.encode(texts), strict=True)):
        blank = e.ids == mask
        space = np.array([not text[a:b].strip() for a, b in e.offsets], bool) & ~e.special & ~blank
        keep = ~(space & np.append(blank[1:], False))
        ids = e.ids[keep]
        out.append(text_example(ids, e.units[keep], np.isin(ids, special) & (ids != mask), number))
    model.check_lengths([len(e) for e in out], texts)
    return out


def _with_blanks(model: LoadedText, texts: Sequence[str], *, one_for: str = "") -> list[str]:
    own = model.tokenizer.mask_token
    out = [text.replace(BLANK, own) for text in texts]
    for number, text in enumerate(out, start=1):
        if own not in text:
            raise UserError(
                f"text {number} has no {own}: {text[:60]!r}", hint=f"Write {own} where a word is to be filled in."
            )
        if one_for and text.count(own) != 1:
            raise UserError(f"{one_for} need exactly one {own}, text {number} has {text.count(own)}: {text[:60]!r}")
    return out


def label(model: LoadedText, texts: str | Sequence[str]) -> list[dict[str, Any]]:
    """What the checkpoint's own task head says, one dict a text: labels (of sequences: one; else one per token) and
    logits. A detector of replaced tokens gives `replaced`, a probability a token.

    Raises:
        UserError: the checkpoint has no task head.
    """
    head = model.folder.head()
    if head is None:
        raise UserError(
            f"{model.folder.family.name}: the checkpoint has no task head",
            hint="Fine-tune one: unmask finetune.",
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    examples = model.examples(texts, max_slots=model.slots)
    out: list[dict[str, Any]] = [{} for _ in texts]
    head.to(model.device)
    for batch, members in packed_batches(examples, model.slots):
        batch = batch.to(model.device)
        with torch.inference_mode(), model.context():
            logits = head.logits(model.model, batch, len(members)).cpu()
        if head.pool == "each":
            index = batch.index.flatten().cpu()
            parts = [logits[index == number] for number in range(len(members))]
        else:
            parts = list(logits.split(1))
        for member, part in zip(members.tolist(), parts, strict=True):
            out[member] = {"text": texts[member], "logits": part.tolist()}
            if head.kind == "detect":
                out[member]["replaced"] = torch.sigmoid(part[:, 0]).tolist()
            elif head.labels:
                out[member]["labels"] = [head.labels[i] for i in part.argmax(-1).tolist()]
    return out


def nearest_words(model: LoadedText, words: Sequence[str], k: int = 8) -> list[dict[str, Any]]:
    """Nearest vocabulary entries by cosine of the word embeddings; words that are not entries are left out."""
    table = model.model.codec.word.weight.detach().float().cpu().numpy()
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    names = [model.tokenizer.token(i).lstrip("Ġ▁") for i in range(model.tokenizer.vocab_size)]
    names += [""] * (len(table) - len(names))
    alone = np.array([n.isalpha() and len(n) > 1 for n in names], bool)
    out = []
    for word in words:
        spellings = (f"Ġ{word}", f"▁{word}", word) if marks_spaces(model.tokenizer) else (word, word.lower())
        number = next((i for s in spellings if (i := model.tokenizer.id(s)) is not None), None)
        if number is None:
            continue
        cosine = np.where(alone & (np.array(names) != names[number]), table @ table[number], -2)
        best = np.argsort(-cosine)[:k]
        out.append({"word": word, "neighbours": [(names[i], float(cosine[i])) for i in best]})
    return out


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens say themselves that a space is in front of them."""
    return any(token.startswith(("Ġ", "▁")) for token in tokenizer.backend.encode("a a").tokens)


_UNSPACED = "[\u3001-\u303f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uffef\U00020000-\U0003ffff]"
"""A character of a script without spaces (Chinese, Japanese), its punctuation included."""
_OPENING, _CLOSING = "([{\u00ab\u201c\u2018", ")]}\u00bb\u201d\u2019,.;:!?%\u2026"


def close_up(text: str) -> str:
    """The text without the single spaces that decoding puts between characters of scripts that have none.

    >>> close_up("\u4ed6 \u662f a student")
    '\u4ed6\u662f a student'
    """
    return re.sub(f"(?<={_UNSPACED}) (?={_UNSPACED})", "", text)


def space_between(before: str, after: str) -> str:
    """A space where two parts of a text would touch and people would write one; '' else."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    touch = before[-1] in _OPENING or after[0] in _CLOSING or re.search(_UNSPACED, before[-1] + after[0])
    return "" if touch else " "


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as one piece of text, without the mark of a piece that goes on with a word."""
    return close_up(tokenizer.decode(list(ids)).strip().removeprefix("##"))


def write_blanks(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> str:
    """A text with tokens written into its blanks (mask tokens), everything else as it was."""
    parts, marked = re.split(re.escape(tokenizer.mask_token), text), marks_spaces(tokenizer)
    out, i = parts[0], 0
    while i < len(ids):
        run = [ids[i]]  # neighbouring blanks may be pieces of one word: they are decoded together
        while i + 1 < len(ids) and not parts[i + 1].strip():
            i += 1
            run.append(ids[i])
        first = tokenizer.token(run[0])
        if first.startswith("##") or (marked and not first.startswith(("Ġ", "▁"))):
            # It goes on with the word before: the one space between them goes, other white space is the text's own.
            out = out[:-1] if out.endswith(" ") and not out[:-1].endswith(tuple(whitespace)) else out
        elif marked and out and not out[-1].isspace():
            out += " "
        out += words_of(tokenizer, run) + parts[i + 1]
        i += 1
    return out


def word_of(tokenizer: Tokenizer, number: int) -> str:
    """A vocabulary entry without the marks that tell pieces of words apart."""
    token = tokenizer.token(number)
    shown = tokenizer.decode([number]).strip()
    return token if token.startswith("##") or not shown else shown


def special_tokens_in(tokenizer: Tokenizer, text: str) -> list[str]:
    """The special tokens that a text holds as it is written, such as [SEP], each once, in order; as transformers does,
    the tokenizer reads them as the marks that they are, not as text."""
    names = [name for number in tokenizer.special_ids.tolist() if (name := tokenizer.token(number))]
    # A longer name first, where one begins with another.
    every = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    found = list(dict.fromkeys(re.findall(every, text))) if every else []
    if not found:
        return []
    ids = set(tokenizer.encode([text], specials=False)[0].ids.tolist())
    return [name for name in found if tokenizer.id(name) in ids]


def special_notes(tokenizer: Tokenizer, texts: Sequence[str], *, but: Sequence[str] = (), then: str = "") -> list[str]:
    """How many texts hold special tokens, and the first of them, in words; nothing where none does.

    Args:
        but: special tokens that are expected.
        then: what follows from it, for the end of the sentence.
    """
    held = []
    for number, text in enumerate(texts, start=1):
        if names := [name for name in special_tokens_in(tokenizer, text) if name not in but]:
            held.append((number, names))
    if not held:
        return []
    number, names = held[0]
    return [
        f"warning: {len(held):,} of {len(texts):,} texts hold special tokens, the first is text {number} "
        f"({', '.join(names)}): the model reads them as its own marks{then}"
    ]


def says_something(tokenizer: Tokenizer, ids: np.ndarray) -> bool:
    """Whether any of these tokens is more than white space, and neither special nor unknown."""
    plain = ids[~np.isin(ids, tokenizer.special_ids)].tolist()
    # The first few tell nearly always; all of them, as a character may be cut into tokens that are none alone.
    return _is_seen(tokenizer.decode(plain[:8]).replace("\ufffd", "")) or _is_seen(tokenizer.decode(plain))


def _is_seen(text: str) -> bool:
    """Whether a text is more than white space and marks without a shape (zero-width spaces, byte order marks)."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") for c in text)


def nothing_to_read(tokenizer: Tokenizer, read: Sequence[np.ndarray]) -> list[int]:
    """Which texts, read as these tokens (from 0), hold white space, special and unknown tokens alone, or nothing."""
    return [number for number, ids in enumerate(read) if not says_something(tokenizer, ids)]


def unknown_notes(tokenizer: Tokenizer, read: Sequence[np.ndarray]) -> list[str]:
    """How many of the texts that were read as these tokens hold words that the tokenizer does not know, and the first
    of them; nothing where none does."""
    if tokenizer.unk_id is None:
        return []
    held = [number for number, ids in enumerate(read, start=1) if tokenizer.unk_id in ids]
    if not held:
        return []
    return [
        f"warning: {len(held):,} of {len(read):,} texts hold words or characters that the model does not know, the "
        f"first is text {held[0]}: it reads {tokenizer.token(tokenizer.unk_id)} there"
    ]


def bare_notes(bare: Sequence[int], total: int, then: str) -> list[str]:
    """How many texts there is nothing to read in, the first five, and what follows, in words; nothing without any."""
    if not bare:
        return []
    named = first_of(f"text {number + 1}" for number in bare)
    return [f"{len(bare):,} of {total:,} texts are blank or hold no token that the model knows ({named}): {then}"]


def text_notes(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    read: Sequence[np.ndarray],
    *,
    but: Sequence[str] = (),
    then: str = "",
    bare: str = "",
) -> list[str]:
    """What is to be said of texts that are read as these tokens: `special_notes`, `unknown_notes` and `bare_notes`.

    Args:
        bare: what follows where there is nothing to read in a text; without it that is not said.
    """
    notes = [*special_notes(tokenizer, texts, but=but, then=then), *unknown_notes(tokenizer, read)]
    return notes + (bare_notes(nothing_to_read(tokenizer, read), len(texts), bare) if bare else [])


def count_longer(tokenizer: Tokenizer, texts: Sequence[str], slots: int) -> int:
    """How many of the texts have more tokens than `slots`, special ones included."""
    room = slots - len(tokenizer.ids([""])[0])
    return sum(len(ids) > slots for ids in tokenizer.ids([t for t in texts if may_be_longer(room, t)]))


def may_be_longer(room: int, *texts: str) -> bool:
    """Whether texts may have more than `room` tokens together: no token is shorter than a byte, so that most texts need
    not be tokenised to know."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts) > room


def cut_notes(cut: int, total: int, slots: int, what: str = "texts") -> list[str]:
    """How many are cut, in words; nothing where none is."""
    line = f"warning: {cut:,} of {total:,} {what} are longer than {slots:,} tokens: their ends are not read"
    return [line] if cut else []
