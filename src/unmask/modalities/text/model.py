"""A trained text model in use: fill, score, embed, evaluate, inspect. `unmask.load(path)` gives one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.ask import Question, answers
from unmask.core.batch import Example
from unmask.core.embed import Pooling, embed
from unmask.core.fill import Order, fill_examples
from unmask.core.inference import packed_batches
from unmask.core.score import score
from unmask.encoder.config import Disentangled
from unmask.errors import UserError
from unmask.modalities.text.batches import text_example
from unmask.modalities.text.blanks import marks_spaces, word_of, write_blanks
from unmask.modalities.text.folder import TextFolder, load_folder, save_folder
from unmask.modalities.text.lengths import count_longer, cut_said
from unmask.modalities.text.tokenizer import Encoded
from unmask.training.precision import computing, precision_of, resolve_device

if TYPE_CHECKING:
    from unmask.modalities.text.padding_free import PaddingFreeEmbedder

BLANK = "[MASK]"
"""Accepted in texts for every model, whatever its own mask token is."""


@dataclass(repr=False)
class TextModel:
    """A masked language model and its tokenizer.

    Attributes:
        folder: what was loaded, with what stayed random or was ignored.
        device: where it runs.
        precision: 'fp32', 'bf16' or 'int8' (which embeds alone: all else refuses it).
        compiled: torch.compile the encoder: slower to start, faster after, where a C++ compiler is at hand.
    """

    folder: TextFolder
    device: torch.device
    precision: str
    compiled: bool = False

    def __repr__(self) -> str:
        return f"TextModel({self.folder!r}, {self.precision} on {self.device})"

    @property
    def model(self) -> Any:
        """The masked model itself, a module of torch."""
        return self.folder.model

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.folder.tokenizer

    @property
    def slots(self) -> int:
        """Longest text in tokens, special ones included."""
        return self.model.encoder.config.longest or 512

    def require_head(self) -> None:
        """Raises:
        UserError: the checkpoint has no masked-LM head, so that predictions would be random.
        """
        if reason := self.folder.why_not_masked():
            raise UserError(
                f"{self.folder.family.name}: {reason}; predictions would be noise",
                hint="embed works; for the rest use a masked-LM checkpoint, or unmask adapt to train a head.",
            )

    @cached_property
    def _padding_free(self) -> PaddingFreeEmbedder | None:
        """The embedder without padding, None where the encoder is of another kind."""
        if self.precision != "int8":
            return self._new_padding_free([])
        from unmask.modalities.text.docstrings import docstrings

        return self._new_padding_free([text for _, text in docstrings(40_000)])

    def _new_padding_free(self, texts: Sequence[str]) -> PaddingFreeEmbedder | None:
        """For int8 `texts` show how large the activations get."""
        from unmask.modalities.text.padding_free import PaddingFreeEmbedder

        if self.device.type != "cpu":
            return None
        ids = self.tokenizer.ids(list(texts)[:256], max_slots=min(self.slots, 128))
        return PaddingFreeEmbedder.of(self.model, self.precision, ids, compiled=self.compiled)

    def calibrate(self, texts: Sequence[str]) -> None:
        """Quantise anew, with texts like those to come (some hundred; by default docstrings of installed packages)."""
        self.__dict__["_padding_free"] = self._new_padding_free(texts)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Within, the model computes in its precision.

        Raises:
            UserError: that is int8, in which texts are embedded and nothing else.
        """
        if self.precision == "int8":
            raise UserError("precision=int8: built for embedding alone", hint="Use bf16 or fp32 for this.")
        return computing(self.precision, self.device)

    def examples(self, texts: Sequence[str], *, max_slots: int | None = None) -> list[Example]:
        """Texts as one example each, special tokens included.

        Raises:
            UserError: a text is longer than the model takes; with `max_slots` it is cut instead.
        """
        encoded: list[Encoded] = self.tokenizer.encode(texts, max_slots=max_slots)
        self._check([len(e) for e in encoded], texts)
        # As in training: [UNK] and other special tokens are seen, but never hidden.
        special = self.tokenizer.special_ids
        return [text_example(e.ids, e.units, e.special | np.isin(e.ids, special), i) for i, e in enumerate(encoded)]

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that are longer than the model takes, by their ids alone: words are not looked for.

        Raises:
            UserError: naming the first one.
        """
        self._check([len(ids) for ids in self.tokenizer.ids(texts)], texts)

    def _check(self, lengths: Sequence[int], texts: Sequence[str]) -> None:
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True), start=1):
            if length > self.slots:
                raise UserError(
                    f"text {number} has {length} tokens, the model takes {self.slots}: {text[:60]!r}...",
                    hint="Split it into shorter texts.",
                )

    def _blank_examples(self, texts: Sequence[str]) -> list[Example]:
        """Texts with blanks. The space in front of a blank belongs to the word that is missing, so where a tokenizer
        makes it a token of its own (byte-level BPE, Unigram) that token is left out, as it was in training."""
        mask, special = self.tokenizer.require_mask(), self.tokenizer.special_ids
        out = []
        for number, (text, e) in enumerate(zip(texts, self.tokenizer.encode(texts), strict=True)):
            blank = e.ids == mask
            space = np.array([not text[a:b].strip() for a, b in e.offsets], bool) & ~e.special & ~blank
            keep = ~(space & np.append(blank[1:], False))
            ids = e.ids[keep]
            out.append(text_example(ids, e.units[keep], np.isin(ids, special) & (ids != mask), number))
        self._check([len(e) for e in out], texts)
        return out

    def _with_blanks(self, texts: Sequence[str], *, one_for: str = "") -> list[str]:
        own = self.tokenizer.mask_token
        out = [text.replace(BLANK, own) for text in texts]
        for number, text in enumerate(out, start=1):
            if own not in text:
                raise UserError(
                    f"text {number} has no {own}: {text[:60]!r}", hint=f"Write {own} where a word is to be filled in."
                )
            if one_for and text.count(own) != 1:
                raise UserError(f"{one_for} need exactly one {own}, text {number} has {text.count(own)}: {text[:60]!r}")
        return out

    def fill(
        self,
        texts: str | Sequence[str],
        *,
        top: int = 5,
        steps: int = 1,
        order: Order = "confidence",
        temperature: float = 0.0,
        seed: int = 0,
        candidates: Sequence[str] | None = None,
        longest: int = 1,
    ) -> list[dict[str, Any]]:
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
        self.require_head()
        _known("order", order, ("confidence", "random", "left_to_right"))
        texts = [texts] if isinstance(texts, str) else list(texts)
        masked = self._with_blanks(texts, one_for="candidates" if candidates else "answers" if longest > 1 else "")
        if candidates:
            return [self._compare(text, shown, candidates) for text, shown in zip(masked, texts, strict=True)]
        if longest > 1:
            found = {text: self.answers(text, lengths=range(1, longest + 1), top=top) for text in texts}
            return [{"text": text, **_best(found[text])} for text in texts]
        examples = self._blank_examples(masked)
        blanks = [np.flatnonzero(e.values["token"] == self.tokenizer.mask_id) for e in examples]

        def likeliest(prediction: Any, places: Tensor) -> list[list[dict[str, Any]]]:
            values, chances = (x[places].tolist() for x in prediction.top(top))
            return [
                [{"value": word_of(self.tokenizer, v), "probability": math.exp(p)} for v, p in zip(*one, strict=True)]
                for one in zip(values, chances, strict=True)
            ]

        with self.context():
            filled = fill_examples(
                self.model,
                examples,
                blanks,
                slots=self.slots,
                batch_slots=4096,
                keep=likeliest,
                steps=steps,
                order=order,
                temperature=temperature,
                generator=torch.Generator(device=self.device).manual_seed(seed),
            )
        return [
            {
                "text": text,
                "filled": write_blanks(self.tokenizer, shown, one.new.tolist()),
                "slots": [{"candidates": best} for best in one.kept],
                "log_probability": math.fsum(one.log_prob.tolist()),
            }
            for text, shown, one in zip(texts, masked, filled, strict=True)
        ]

    def answers(
        self, text: str, *, lengths: Sequence[int] = (1, 2, 3), top: int = 5, beam: int | None = None
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
        self.require_head()
        width, own = max(top, beam or 2 * top), self.tokenizer.mask_token
        masked = self._with_blanks([text], one_for="answers")
        base = self._blank_examples(masked)[0]
        ids, special = base.values["token"], base.special
        assert special is not None
        place = int(np.flatnonzero(ids == self.tokenizer.mask_id)[0])
        found: list[dict[str, Any]] = []
        for length in lengths:
            self._check([len(ids) + length - 1], [text])
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
                with self.context():
                    for numbers, prediction, places in answers(self.model, questions, slots=self.slots):
                        values, chances = (x.tolist() for x in prediction.top(width))
                        for (tokens, total), (at,) in zip((beams[n] for n in numbers), places, strict=True):
                            grown += [([*tokens, v], total + p) for v, p in zip(values[at], chances[at], strict=True)]
                beams = sorted(grown, key=lambda b: -b[1])[:width]
            seen: set[str] = set()
            for tokens, total in beams:
                value = word_of(self.tokenizer, tokens[0]) if length == 1 else self.tokenizer.decode(tokens).strip()
                if value not in seen and len(seen) < top:
                    seen.add(value)
                    filled = write_blanks(self.tokenizer, masked[0].replace(own, own * length), tokens)
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

    def _compare(self, text: str, shown: str, candidates: Sequence[str]) -> dict[str, Any]:
        before, after = text.split(self.tokenizer.mask_token)
        examples: list[Example] = []
        for candidate in candidates:
            filled = before + candidate + after
            e = self.tokenizer.encode([filled])[0]
            inside = (e.offsets[:, 0] < len(before) + len(candidate)) & (e.offsets[:, 1] > len(before)) & ~e.special
            if not inside.any():
                raise UserError(f"candidate {candidate!r} has no token", hint="Give a word.")
            if (e.ids[inside] == self.tokenizer.unk_id).any():
                raise UserError(f"candidate {candidate!r} is not in the vocabulary", hint="Leave it out.")
            if len(e) > self.slots:
                raise UserError(f"text with candidate {candidate!r} has {len(e)} tokens, the model takes {self.slots}")
            examples.append(text_example(e.ids, np.where(inside, 0, -1), ~inside, len(examples)))
        with self.context():
            found = score(self.model, examples, slots=self.slots, mode="unit")
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

    def score(self, texts: str | Sequence[str], *, mode: str = "unit") -> list[dict[str, Any]]:
        """Pseudo-log-likelihood of texts: text, score (nats, summed), slots, perplexity (None where nothing is scored).

        Unknown words ([UNK]) are not scored, as they are never predicted in training: compare texts of equal `slots`.
        """
        self.require_head()
        _known("mode", mode, ("unit", "slot"))
        texts = [texts] if isinstance(texts, str) else list(texts)
        with self.context():
            found = score(self.model, self.examples(texts), slots=self.slots, mode=mode)  # type: ignore[arg-type]
        return [
            {"text": t, "score": s.total, "slots": s.slots, "perplexity": _perplexity(s.total, s.slots)}
            for t, s in zip(texts, found, strict=True)
        ]

    @property
    def embedded_slots(self) -> int:
        """Longest text that `embed` reads to its end: what the model or a sentence-transformers folder says."""
        return min(self.slots, self.folder.sentences.slots or self.slots)

    def too_long(self, texts: Sequence[str]) -> int:
        """How many of the texts `embed` cuts."""
        return count_longer(self.tokenizer, texts, self.embedded_slots)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalise: bool | None = None,
        say: Callable[[str], None] | None = None,
    ) -> np.ndarray:
        """(texts, width) vectors, order kept.

        Args:
            texts: those longer than the model, or than a sentence-transformers folder says, are cut.
            pooling: mean, first or max; default as a sentence-transformers folder says, else mean.
            normalise: to length 1; default as a sentence-transformers folder says, else not.
            say: called with how many texts are cut, where any is.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        said = self.folder.sentences
        pooling = pooling or said.pooling
        normalise = said.normalise if normalise is None else normalise
        slots = self.embedded_slots
        if pooling not in ("mean", "first", "max"):
            raise UserError(f"pooling={pooling}", hint="Expected mean, first or max.")
        if say is not None:
            for line in cut_said(self.too_long(texts), len(texts), slots):
                say(line)
        if self._padding_free is not None:
            return self._padding_free.embed(
                self.tokenizer.ids(texts, max_slots=slots), pooling=pooling, normalise=normalise
            )
        with self.context():
            return embed(
                self.model,
                self.examples(texts, max_slots=slots),
                slots=slots,
                pooling=pooling,
                normalise=normalise,
                shared_rows=not isinstance(self.model.encoder.config.positions, Disentangled),
                batch_slots=2048,
            )

    def label(self, texts: str | Sequence[str]) -> list[dict[str, Any]]:
        """What the checkpoint's own task head says, one dict a text: labels (of sequences: one; else one per token) and
        logits. A detector of replaced tokens gives `replaced`, a probability a token.

        Raises:
            UserError: the checkpoint has no task head.
        """
        head = self.folder.head()
        if head is None:
            raise UserError(
                f"{self.folder.family.name}: the checkpoint has no task head",
                hint="Fine-tune one: unmask finetune.",
            )
        texts = [texts] if isinstance(texts, str) else list(texts)
        examples = self.examples(texts, max_slots=self.slots)
        out: list[dict[str, Any]] = [{} for _ in texts]
        head.to(self.device)
        for batch, members in packed_batches(examples, self.slots):
            batch = batch.to(self.device)
            with torch.inference_mode(), self.context():
                logits = head.logits(self.model, batch, len(members)).cpu()
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

    def evaluate(
        self, texts: Sequence[str], *, ratio: float = 0.15, seed: int = 0, frequencies: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Loss, perplexity and accuracy on hidden tokens; see `unmask.modalities.text.evaluate`."""
        from unmask.modalities.text.evaluate import evaluate

        return evaluate(self, texts, ratio=ratio, seed=seed, frequencies=frequencies)

    def inspect(self) -> dict[str, Any]:
        """Parameters, context, FLOPs per token, memory by precision."""
        config, codec = self.model.encoder.config, self.model.codec
        total = sum(p.numel() for p in self.model.parameters())
        table = codec.word.weight.numel()
        head = 2 * codec.config.vocabulary * codec.config.width
        body = config.flops_per_slot(self.slots)
        return {
            "kind": "text",
            "family": self.folder.family.name,
            "parameters": total,
            "embedding_parameters": table,
            "layers": config.layers,
            "width": config.width,
            "heads": config.heads,
            "vocabulary": codec.config.vocabulary,
            "slots": self.slots,
            "longest_context": self.slots,
            "flops_per_token": body + head,
            "head_share_of_flops": head / (body + head),
            "memory_mb_fp32": total * 4 / 1e6,
            "memory_mb_bf16": total * 2 / 1e6,
            "memory_mb_int8": total / 1e6,
            "predicts_hidden_tokens": self.folder.why_not_masked() is None,
            "task_head": head_.kind if (head_ := self.folder.head()) else None,
            "tensors_left_random": self.folder.random,
            "tensors_ignored": self.folder.ignored,
        }

    def nearest_words(self, words: Sequence[str], k: int = 8) -> list[dict[str, Any]]:
        """Nearest vocabulary entries by cosine of the word embeddings; words that are not entries are left out."""
        table = self.model.codec.word.weight.detach().float().cpu().numpy()
        table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        names = [self.tokenizer.token(i).lstrip("Ġ▁") for i in range(self.tokenizer.vocab_size)]
        names += [""] * (len(table) - len(names))
        alone = np.array([n.isalpha() and len(n) > 1 for n in names], bool)
        out = []
        for word in words:
            spellings = (f"Ġ{word}", f"▁{word}", word) if marks_spaces(self.tokenizer) else (word, word.lower())
            number = next((i for s in spellings if (i := self.tokenizer.id(s)) is not None), None)
            if number is None:
                continue
            cosine = np.where(alone & (np.array(names) != names[number]), table @ table[number], -2)
            best = np.argsort(-cosine)[:k]
            out.append({"word": word, "neighbours": [(names[i], float(cosine[i])) for i in best]})
        return out

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Save as a Hugging Face folder: what was loaded, under its names and in its number format, or in `dtype`."""
        f = self.folder
        save_folder(
            folder,
            model=f.model,
            tokenizer=f.tokenizer,
            family=f.family,
            hf_config=f.hf_config,
            passengers=f.passengers,
            aliases=f.aliases,
            settings=f.settings,
            like=f.loaded,
            dtype=dtype,
        )


def load(path: str | Path, *, device: str = "auto", precision: str = "auto", compile: bool = False) -> TextModel:
    """Load a text model from a folder or hub name.

    Args:
        precision: 'fp32', 'bf16', 'int8' or 'auto'. 'auto' computes in fp32 for models so small that casting costs more
            than it saves (under 10 M parameters), else measures. 'int8' embeds in 8 bits.
        compile: torch.compile the layers.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    where = resolve_device(device)
    if precision == "int8" and where.type != "cpu":
        raise UserError("precision=int8 is built for CPUs", hint="Use bf16 on this device.")
    folder = load_folder(path)
    name = "int8" if precision == "int8" else precision_of(folder.model, precision, where)
    folder.model.to(where).eval()
    return TextModel(folder=folder, device=where, precision=name, compiled=compile)


def _known(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a choice that there is none of."""
    if value not in known:
        raise UserError(f"{name}={value}", hint=f"Expected {' or '.join(known)}.")


def _best(candidates: list[dict[str, Any]]) -> dict[str, Any]:
    return {k: candidates[0][k] for k in ("filled", "log_probability")} | {"slots": [{"candidates": candidates}]}


def _perplexity(total: float, slots: int) -> float | None:
    return math.exp(min(-total / slots, 700.0)) if slots else None
