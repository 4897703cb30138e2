"""A trained text model in use: fill, score, embed, evaluate, inspect. `unmask.load(path)` gives one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.batch import Example
from unmask.core.corruption import hide
from unmask.core.embed import Pooling, embed
from unmask.core.fill import Order, fill
from unmask.core.inference import budgeted
from unmask.core.score import score
from unmask.errors import UserError
from unmask.text.batches import measuring_corruption, text_example
from unmask.text.folder import TextFolder, load_folder, save_folder
from unmask.text.tokenizer import Encoded
from unmask.training.precision import resolve_device, resolve_precision

BLANK = "[MASK]"
"""Accepted in texts for every model, whatever its own mask token is."""


@dataclass
class TextModel:
    """A masked language model and its tokenizer.

    Attributes:
        folder: what was loaded, with what stayed random or was ignored.
        device: where it runs.
        precision: 'fp32' or 'bf16'.
    """

    folder: TextFolder
    device: torch.device
    precision: str

    @property
    def model(self) -> Any:
        return self.folder.model

    @property
    def tokenizer(self) -> Any:
        return self.folder.tokenizer

    @property
    def slots(self) -> int:
        """Longest text in tokens, special ones included."""
        return self.model.encoder.config.longest or 512

    def _context(self) -> contextlib.AbstractContextManager:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _examples(self, texts: Sequence[str], *, cut: bool = False) -> list[Example]:
        encoded: list[Encoded] = self.tokenizer.encode(texts, max_slots=self.slots if cut else None)
        for number, (text, e) in enumerate(zip(texts, encoded, strict=True), start=1):
            if len(e) > self.slots:
                raise UserError(
                    f"text {number} has {len(e)} tokens, the model takes {self.slots}: {text[:60]!r}...",
                    hint="Split it into shorter texts.",
                )
        return [text_example(e.ids, e.units, e.special, i) for i, e in enumerate(encoded)]

    def _with_blanks(self, texts: Sequence[str]) -> list[str]:
        own = self.tokenizer.mask_token
        for number, text in enumerate(texts, start=1):
            if own not in text and BLANK not in text:
                raise UserError(f"text {number} has no {own}: {text[:60]!r}", hint=f"Write {own} where a word is to be filled in.")
        return [text.replace(BLANK, own) for text in texts]

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
    ) -> list[dict[str, Any]]:
        """Fill the blanks of texts.

        Args:
            top: candidates shown per blank.
            steps: above 1, blanks are filled one share at a time and see each other's answers.
            candidates: answers to compare instead, for the one blank of each text; any number of tokens each. Their
                joint probability is exact along the model's left-to-right chain, hidden slots behind being unknown.

        Returns:
            One dict a text: text, filled (likeliest values written in), log_probability (joint, of `filled`), slots:
            a list with the candidates (value, probability) of each blank.

        Raises:
            UserError: a text without a blank, or longer than the model takes.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        masked = self._with_blanks(texts)
        if candidates:
            return [self._compare(text, shown, candidates, top) for text, shown in zip(masked, texts, strict=True)]
        examples = self._examples(masked)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        results: list[dict[str, Any]] = [{} for _ in texts]
        for batch, members in budgeted(examples, self.slots, 4096):
            batch = batch.to(self.device)
            flat = (batch.values["token"] == self.tokenizer.mask_id).flatten().nonzero().flatten()
            with torch.inference_mode(), self._context():
                likeliest, chance = self.model(batch, hide(flat)).top(top)
                filled = fill(
                    self.model, batch, flat, steps=steps, order=order, temperature=temperature, generator=generator
                )
            owner = batch.index.flatten()
            rows = owner[flat].tolist()
            for row, member in enumerate(members.tolist()):
                mine = [i for i, r in enumerate(rows) if r == row]
                slots = [
                    {
                        "candidates": [
                            {"value": self._word(v), "probability": math.exp(p)}
                            for v, p in zip(likeliest[i].tolist(), chance[i].tolist(), strict=True)
                        ]
                    }
                    for i in mine
                ]
                ids = filled.values["token"].flatten()[owner == row].tolist()
                results[member] = {
                    "text": texts[member],
                    "filled": self.tokenizer.decode(ids),
                    "slots": slots,
                    "log_probability": float(filled.log_prob[mine].sum()),
                }
        return results

    def _word(self, number: int) -> str:
        """A vocabulary entry as people write it."""
        token = self.tokenizer.token(number)
        shown = self.tokenizer.decode([number]).strip()
        return token if token.startswith("##") or not shown else shown

    def _compare(self, text: str, shown: str, candidates: Sequence[str], top: int) -> dict[str, Any]:
        own = self.tokenizer.mask_token
        if text.count(own) != 1:
            raise UserError(f"candidates need exactly one {own}, found {text.count(own)}: {text[:60]!r}")
        before, after = text.split(own)
        examples, places = [], []
        for candidate in candidates:
            filled = before + candidate + after
            e = self.tokenizer.encode([filled])[0]
            inside = (e.offsets[:, 0] < len(before) + len(candidate)) & (e.offsets[:, 1] > len(before)) & ~e.special
            if not inside.any():
                raise UserError(f"candidate {candidate!r} has no token", hint="Give a word.")
            if len(e) > self.slots:
                raise UserError(f"text with candidate {candidate!r} has {len(e)} tokens, the model takes {self.slots}")
            examples.append(text_example(e.ids, np.where(inside, 0, -1), ~inside, len(examples)))
            places.append(inside)
        with self._context():
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
            for i in order[:top]
        ]
        best = candidates[order[0]]
        return {
            "text": shown, "filled": before + best + after, "slots": [{"candidates": ranked}],
            "log_probability": found[order[0]].total,
        }  # fmt: skip

    def score(self, texts: str | Sequence[str], *, mode: str = "unit") -> list[dict[str, Any]]:
        """Pseudo-log-likelihood of texts: text, score (nats, summed), slots, perplexity."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        with self._context():
            found = score(self.model, self._examples(texts), slots=self.slots, mode=mode)  # type: ignore[arg-type]
        return [
            {"text": t, "score": s.total, "slots": s.slots, "perplexity": math.exp(-s.total / max(s.slots, 1))}
            for t, s in zip(texts, found, strict=True)
        ]

    def embed(self, texts: str | Sequence[str], *, pooling: Pooling = "mean", normalise: bool = False) -> np.ndarray:
        """(texts, width) vectors, order kept; texts longer than the model are cut."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        with self._context():
            return embed(self.model, self._examples(texts, cut=True), slots=self.slots, pooling=pooling, normalise=normalise)

    def evaluate(self, texts: Sequence[str], *, ratio: float = 0.15, seed: int = 0) -> dict[str, Any]:
        """Loss, perplexity, accuracy@1 and @5 on hidden tokens, with 95 % intervals over texts, by position and frequency.

        Long texts are cut into windows. Frequencies are those of the evaluated text itself.
        """
        from unmask.evaluation.metrics import by_frequency, by_position, masked_metrics, plain

        examples, document = [], []
        room = self.slots - 2
        for number, e in enumerate(self.tokenizer.encode(list(texts), specials=False)):
            for start in range(0, len(e), room):
                part = slice(start, start + room)
                before = [] if self.tokenizer.cls_id is None else [self.tokenizer.cls_id]
                after = [] if self.tokenizer.sep_id is None else [self.tokenizer.sep_id]
                ids = np.concatenate([before, e.ids[part], after]).astype(np.int64)
                special = np.concatenate([[True] * len(before), np.zeros(len(e.ids[part]), bool), [True] * len(after)])
                units = np.concatenate([[-1] * len(before), e.units[part], [-1] * len(after)]).astype(np.int64)
                examples.append(text_example(ids, units, special, len(examples)))
                document.append(number)
        counts = np.bincount(np.concatenate([e.values["token"] for e in examples]), minlength=self.tokenizer.vocab_size)
        corruption = measuring_corruption(ratio)
        log_prob, rank, owner, place, target = [], [], [], [], []
        for batch, members in budgeted(examples, self.slots):
            hidden = corruption.draw(batch, seed=seed).to(self.device)
            moved = batch.to(self.device)
            with torch.inference_mode(), self._context():
                prediction = self.model(moved, hidden)
                truth = self.model.codec.targets(moved.values, hidden.flat)
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
        return plain(masked_metrics(p, r, d, seed=seed)) | named

    def inspect(self) -> dict[str, Any]:
        """Parameters, context, FLOPs per token, memory by precision."""
        config, codec = self.model.encoder.config, self.model.codec
        total = sum(p.numel() for p in self.model.parameters())
        table = codec.word.weight.numel()
        head = 2 * codec.config.vocabulary * codec.config.width
        body = config.flops_per_slot(self.slots)
        return {
            "family": self.folder.family.name, "parameters": total, "embedding_parameters": table,
            "layers": config.layers, "width": config.width, "heads": config.heads, "vocabulary": codec.config.vocabulary,
            "longest_context": self.slots, "flops_per_token": body + head, "head_share_of_flops": head / (body + head),
            "memory_mb_fp32": total * 4 / 1e6, "memory_mb_bf16": total * 2 / 1e6, "memory_mb_int8": total / 1e6,
            "tensors_left_random": self.folder.random, "tensors_ignored": self.folder.ignored,
        }  # fmt: skip

    def nearest_words(self, words: Sequence[str], k: int = 8) -> list[dict[str, Any]]:
        """Nearest vocabulary entries by cosine of the word embeddings; words that are not entries are left out."""
        table = self.model.codec.word.weight.detach().float().cpu().numpy()
        table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        alone = np.array(
            [t.isalpha() and len(t) > 1 for t in (self.tokenizer.token(i) for i in range(len(table)))], bool
        )
        out = []
        for word in words:
            number = self.tokenizer.id(word)
            if number is None:
                continue
            cosine = np.where(alone, table @ table[number], -2)
            cosine[number] = -2
            best = np.argsort(-cosine)[:k]
            out.append({"word": word, "neighbours": [(self.tokenizer.token(int(i)), float(cosine[i])) for i in best]})
        return out

    def save(self, folder: str | Path) -> None:
        """Save as a Hugging Face folder, everything that was loaded included."""
        f = self.folder
        save_folder(
            folder, model=f.model, tokenizer=f.tokenizer, family=f.family, hf_config=f.hf_config,
            passengers=f.passengers, settings=f.settings,
        )  # fmt: skip


def load(path: str | Path, *, device: str = "auto", precision: str = "auto") -> TextModel:
    """Load a text model from a folder or hub name.

    Args:
        precision: 'fp32', 'bf16' or 'auto'. 'auto' computes in fp32 for models so small that casting costs more than
            it saves (under 10 M parameters), else measures.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    where = resolve_device(device)
    folder = load_folder(path)
    small = sum(p.numel() for p in folder.model.parameters()) < 10_000_000
    name = "fp32" if precision == "auto" and small else resolve_precision(precision, where).name
    folder.model.to(where).eval()
    return TextModel(folder=folder, device=where, precision=name)
