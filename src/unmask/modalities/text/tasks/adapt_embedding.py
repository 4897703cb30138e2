"""`unmask adapt --for embedding`: vectors for your own texts, learnt from the texts alone.

Training of this kind helps a model that makes poor vectors, and can harm one that was trained on labelled pairs. Which
it is, a search among held-out texts tells (`held_out_search`): it chooses the weights, it stops a run that gets
nowhere, and where the chosen weights do not beat the start by more than the interval, the start's are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, Uniform
from unmask.core.pooled import AllButCrop, PooledReconstruction
from unmask.encoder.config import MLP, EncoderConfig, SinCos
from unmask.errors import UserError, setting
from unmask.evaluation.card import source_name
from unmask.kernels.on_host import on_host
from unmask.modalities.text.network.adapt import (
    MISSED,
    OBJECTIVE,
    OF_A_NEW_MODEL,
    Adapted,
    TextAdaptation,
    VectorGuard,
    checked_folder,
    embedded_slots,
    in_words,
    rate_for,
    sources_of,
    start_of,
)
from unmask.modalities.text.network.card import corpus_of
from unmask.modalities.text.network.held_out_search import FEWEST, HeldOutSearch, SearchVerdict, held_out_search
from unmask.modalities.text.network.pretrain import make_job
from unmask.modalities.text.reading.sources import iter_documents
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens.tokenising import is_held_out
from unmask.training.job import Job, RunResult
from unmask.training.precision import computing, resolve_device, resolve_precision
from unmask.training.pretraining import pretrained
from unmask.training.settings import require


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(TextSettings):
    """What `adapt --for embedding` is trained with, beside what it has in common with pretraining.

    Attributes:
        view: what is seen of a text in training: 'crop', one run of it (as a query is to a passage), or 'token', a
            share 1 - `ratio` of its tokens, drawn one by one.
        seen: shortest and longest share of a text that a crop shows.
        reconstruct: weight of predicting the hidden tokens from the vector, per token; 0 for none.
        contrast: weight of finding the whole text by its crop among the texts of a step, per text; 0 for none.
        against: what a crop must find among the texts of a step: its 'whole' text, or the 'rest' of it, without the
            crop.
        temperature: that cosines are divided by in the contrast.
        guard: judge by a search among held-out texts, and keep the start's weights unless training beat them; without
            it whatever comes of the training is kept.
    """

    view: Literal["crop", "token"] = "crop"
    seen: tuple[float, float] = (0.1, 0.5)
    reconstruct: float = 1.0
    contrast: float = 1.0
    against: Literal["whole", "rest"] = "whole"
    temperature: float = 0.05
    guard: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, lambda v: v >= 0, "a number, 0 or more", "reconstruct", "contrast")
        require(self, lambda v: v > 0, "a number above 0", "temperature")
        AllButCrop(seen=self.seen)
        if not (self.reconstruct or self.contrast):
            raise UserError("reconstruct=0 and contrast=0: nothing is left to learn", hint="Give one of them a weight.")


EMBEDDING = {
    "batch_slots": 8192,
    "ratio": 0.5,
    "ratio_end": None,
    "learning_rate": 3e-4,
    "epochs": 1.0,
    "patience": 10,
    "holdout": 0.1,
}
"""Half of the tokens hidden where `view` is 'token' (RetroMAE hides 50 to 70 % from its decoder). A tenth of the texts
is held out, at most `held_out_search.JUDGED_ON` of which are looked at: with a hundredth a corpus of ten thousand texts
leaves too few to tell whether it helped."""

EXAMINED = 64
"""Held-out examples at most that the loss on the way is of."""


def embedding_settings(given: Mapping[str, Any]) -> EmbeddingSettings:
    """The usual settings, and what was given on top of them; refused is what is unknown, what only a new model has, and
    what nothing reads here."""
    for key in OF_A_NEW_MODEL:
        if key in given:
            raise UserError(f"{key}={given[key]}: the model to adapt has its own", hint="Leave it out.")
    usual = with_overrides(EmbeddingSettings(), EMBEDDING)
    settings = with_overrides(usual, given)
    assert isinstance(settings, EmbeddingSettings)
    idle = {key: "a vector is learnt from what is seen of a text" for key in (*OBJECTIVE, "static") if key != "ratio"}
    idle |= {"ratio": "view=crop goes by seen"} if settings.view == "crop" else {"seen": "view=token goes by ratio"}
    idle |= {} if settings.contrast else dict.fromkeys(("against", "temperature"), "contrast=0")
    for key, why in idle.items():
        if key in given and getattr(settings, key) != getattr(usual, key):
            raise UserError(f"{setting(key, given[key])}: {why}, and nothing reads it", hint="Leave it out.")
    return settings


@dataclass(frozen=True, kw_only=True)
class AdaptedEmbedding(Adapted):
    """What came of it; `verdict`: whether it helped, None without a guard, and of a run that a signal stopped."""

    verdict: SearchVerdict | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return super().to_dict() | {"guard": None if self.verdict is None else self.verdict.to_dict()}

    def notes(self) -> list[str]:
        """The verdict, in sentences."""
        return [] if self.verdict is None else self.verdict.lines(self.run.folder)


class EmbeddingAdaptation(TextAdaptation):
    """A text model that learns to make vectors of domain text; see `adapt_embedding`."""

    settings: EmbeddingSettings
    verdict: SearchVerdict | None = None

    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        self.loaded.sentences.refuse_unless_plain("adapting for embedding")
        if self.settings.guard:
            self.search = self._search(out)
        if self.loaded.why_not_masked() and self.settings.reconstruct:
            say(f"{self.origin}: no masked-LM head; the decoder's is learnt from scratch and not kept")
        self._caches(out, say, resume=resume)

    def _search(self, out: Path) -> HeldOutSearch:
        """The search among held-out texts."""
        source, settings = sources_of(self.data, out, self.settings)
        held, learnt = list[str](), list[str]()
        for document in iter_documents(source, column=settings.column, document=settings.document):
            out_of = is_held_out(document.text, settings.holdout, settings.train.seed)
            (held if out_of else learnt).append(document.text)
        made = held_out_search(held, learnt)
        count = len(made.chosen) + len(made.judged)
        if count < FEWEST:
            raise UserError(
                f"{count} of {len(held) + len(learnt)} texts are held out, all different and long enough to be parted; "
                f"{FEWEST} are the fewest that tell whether adapting helps",
                hint=f"Give more texts, or a larger share of them ({setting('holdout', 0.3)}), or train unguarded: "
                f"{setting('guard', False)}.",
            )
        return made

    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        settings, loaded = self.settings, self.loaded
        torch.manual_seed(settings.train.seed)
        width, heads = loaded.model.encoder.config.width, loaded.model.encoder.config.heads
        self.pooled = PooledReconstruction(
            loaded.model,
            EncoderConfig(width=width, layers=1, heads=heads, positions=SinCos(), feedforward=MLP(inner=2 * width)),
            reconstruct=settings.reconstruct,
            contrast=settings.contrast,
            temperature=settings.temperature,
            against=settings.against,
        )
        corruption = Corruption(
            select=AllButCrop(seen=settings.seen) if settings.view == "crop" else Uniform(ratio=settings.ratio),
            replace=ALL_MASK,
        )
        sets = self._held_out(say, EXAMINED)
        self.held_out_batches = {name: batches for name, batches in sets.items() if batches}
        job = make_job(self.pooled, self.cache, loaded.tokenizer, settings)
        job = dataclasses.replace(
            job,
            corruption=corruption,
            validation_corruption=dataclasses.replace(corruption, static=True),
            whole_batch="the contrast" if settings.contrast else "",
            validation=sets[""],
            measure=None if self.settings.guard else self._found,
            fingerprint={**job.fingerprint, "the model": self._digest},
        )
        self.before: dict[str, float | None] = dict.fromkeys(f"{name}found" for name in sets)
        self.before |= self._found(self.pooled)
        number = sum(int(on_host(batch.index).max()) + 1 for batch in self.held_out_batches.get("", []))
        of = (
            f" (share of {number:,} held-out texts that a part of theirs finds; by chance {1 / number:.3f})"
            if number
            else ""
        )
        say(f"before: {in_words(self.before)}{of}")
        return self._guarded(job, say) if self.settings.guard else job

    def _guarded(self, job: Job, say: Callable[[str], None]) -> Job:
        """The job, watched by the search among held-out texts."""
        self.guard = VectorGuard(self.loaded, self.search, self.settings)
        at_start = self.guard.missed(self.pooled)
        say(
            f"nDCG@10 of finding held-out texts by their openings: {1 - at_start:.3f} of {len(self.search.chosen)} "
            f"texts; weights are kept where they do better"
        )
        return dataclasses.replace(
            job, measure=lambda model: {MISSED: self.guard.missed(model)}, watched=MISSED, at_start=at_start
        )

    def _found(self, model: torch.nn.Module) -> dict[str, float]:
        """Share of held-out texts that a crop of theirs finds, first of all held-out ones; per set."""
        device = resolve_device(self.train.device)
        precision = resolve_precision(self.train.precision, device)
        pooled: PooledReconstruction[Any] = model  # type: ignore[assignment]
        pooled.to(device)
        measured = {}
        with computing(precision.name, device):
            for name, batches in self.held_out_batches.items():
                measured[f"{name}found"] = found(pooled, batches, AllButCrop(), device)
        return measured

    def save(self, out: Path, model: Any) -> None:
        from unmask.modalities.text.tasks import model as tasks
        from unmask.modalities.text.tasks.network import TaskModel, leave_masked_head_out

        loaded, settings = self.loaded, self.settings
        if settings.guard:
            self.verdict = self.guard.judged(model)
        kept = self.verdict is None or self.verdict.helped
        if kept:
            leave_masked_head_out(loaded)  # it has learnt to read the decoder's states
        about = {
            "name": "similarity",
            "slots": embedded_slots(loaded),
            "pooling": "mean" if kept else loaded.sentences.pooling,
            "loss": "unlabelled",
        }
        if self.verdict is not None:
            loaded.settings |= {"guard": self.verdict.to_dict()}
        loaded.settings |= {
            "text": {k: v for k, v in asdict(settings).items() if k not in OF_A_NEW_MODEL},
            "adapted_from": self.origin,
            "start": start_of(loaded.settings),
            "adapt_rate": rate_for(self.origin),
            "before": self.before,
            "source": source_name(self.data),
            "corpus": corpus_of(self.cache, loaded.tokenizer),
        }
        tasks.save(
            out,
            loaded,
            TaskModel(model.masked, None),
            kind=None,
            about=about,
            config={"architectures": [loaded.family.architecture.removesuffix("ForMaskedLM") + "Model"]},
        )

    def finished(self, out: Path, result: RunResult) -> AdaptedEmbedding:
        plain = super().finished(out, result)
        return AdaptedEmbedding(run=plain.run, before=plain.before, after=plain.after, verdict=self.verdict)

    def after(self, result: RunResult) -> dict[str, float | None]:
        return dict.fromkeys(self.before) | self._found(self.pooled)


def adapt_embedding(
    model: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    *,
    settings: EmbeddingSettings | None = None,
    general: str | Sequence[str] | None = None,
    resume: bool = False,
    console: bool = True,
) -> Any:
    """Teach a model to make vectors of texts like yours, without labels.

    What is seen of a text must find the whole text among others, and tell its hidden tokens through one vector; see
    `unmask.core.pooled`. The result is a folder as of `finetune similarity`: `embed`, `predict`, `evaluate` take it.

    A search among held-out texts, in which the opening of each must find how it goes on, chooses the weights; where
    they do not beat the start there by more than the interval, the folder holds the start's own weights, and says so.

    Args:
        settings: default `embedding_settings({})`.
        general: other text, to see beside it what is forgotten; nothing is stopped by it.

    Returns:
        `AdaptedEmbedding`: its `verdict` says whether it helped. `before` and `after` hold `found`: the share of some
        held-out texts that rank first, by cosine, for a crop of themselves. Chance is one by their number.

    Raises:
        UserError: as `adapt`; too few held-out texts to judge by.
    """
    settings = settings or embedding_settings({})
    out = checked_folder(model, out, settings, resume=resume)
    kind = EmbeddingAdaptation(model, data, settings, general=general)
    return pretrained(kind, out, resume=resume, console=console)


def found(model: PooledReconstruction[Any], batches: Sequence[PackedBatch], select: Any, device: torch.device) -> float:
    """Share of all batches' examples that rank first, by cosine, for a part of themselves."""
    corruption = Corruption(select=select, replace=ALL_MASK, static=True)
    was_training = model.training
    model.eval()
    parts, wholes, count = [], [], 0
    with torch.inference_mode():
        for batch in batches:
            hidden, size = corruption.draw(batch, seed=0), int(on_host(batch.index).max()) + 1
            batch = batch.to(device)
            parts.append(model.part(batch, hidden.to(device), size))
            wholes.append(model.whole(batch, size))
            count += size
    model.train(was_training)
    near = F.normalize(torch.cat(parts).float(), dim=-1) @ F.normalize(torch.cat(wholes).float(), dim=-1).t()
    own = near.diagonal()[:, None]
    return float(np.mean(((near >= own).sum(1) == 1).cpu().numpy()))
