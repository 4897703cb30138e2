"""`unmask adapt`: continue pretraining on domain text, with an early stop and a guard against forgetting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from unmask.core.batch import PackedBatch
from unmask.core.embed import Pooling, embed
from unmask.core.model import MaskedModel
from unmask.core.pooled import PooledReconstruction
from unmask.core.pretrain import validate
from unmask.elsewhere import ARGUMENTS, REFUSED
from unmask.errors import UserError, option, setting
from unmask.evaluation.card import source_name
from unmask.evaluation.shown import Printed, Shown
from unmask.files import read_object
from unmask.guessed import also_called
from unmask.modalities.text.network.card import corpus_of
from unmask.modalities.text.network.folder import LoadedText, TextFolder, find_folder, load_folder, save_folder
from unmask.modalities.text.network.held_out_search import (
    HeldOutSearch,
    Search,
    SearchVerdict,
    gains,
    ranks,
    ranks_by_words,
)
from unmask.modalities.text.network.pretrain import TextRun, counts, lengths_of, make_job, write_report
from unmask.modalities.text.reading.sources import in_memory, plain_text, resolve
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens.batches import Replayed, measuring_corruption, validation_batches
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.corpus import check_unknown
from unmask.training.checkpoint import checkpoints
from unmask.training.job import Job, ModelOfRun, RunResult
from unmask.training.launcher import restarted
from unmask.training.precision import computing, resolve_device, resolve_precision
from unmask.training.pretraining import Pretrainable, pretrained
from unmask.training.run import EXAMINED, check_run_folder
from unmask.training.same_run import digest
from unmask.training.settings import settings_from
from unmask.training.validation import sample
from unmask.writing import makes_folder, write_json_lines

ADAPT = {"batch_slots": 8192, "learning_rate": 1e-4, "ratio": 0.15, "ratio_end": None, "epochs": 1.0, "patience": 4}
"""Gururangan et al. 2020 ('Don't stop pretraining'): same objective, a tenth of the peak rate of models of their
size."""

OBJECTIVE = (
    *("density", "ratio", "ratio_end", "spread", "hide", "rarity"),
    *("select", "loss_weight", "mask", "random", "keep"),
)
"""What is hidden and how it counts: kept where the start drew the share of each text anew, as masked diffusion does, so
that it goes on to be what `generate` draws from."""

OF_ITS_OWN_RATE = 0.25
"""Of the learning rate that a model of our own was trained with: small models bear more than published ones, and learn
little at a rate for those (docs/explanation/measured-text-tasks.md)."""

MEASURED = 0.5
"""Share of the documents of general text that forgetting is measured on where the others are learnt from (`replay`)."""

OF_A_NEW_MODEL = (
    *("recipe", "objective", "generator", "architecture", "width", "layers", "heads", "inner", "initial_attention"),
    *("initial_embeddings", "vocabulary", "tokenizer_kind", "tokenizer", "lowercase", "strip_accents", "dropout"),
    "causal",
)
"""Settings that the model to adapt has already."""


def adapt_settings(given: Mapping[str, Any], model: str | Path | None = None) -> TextSettings:
    """`ADAPT` on top of the usual settings, and what was given on top of both.

    Args:
        model: that is to be adapted; the rate is then that of `rate_for`, and the objective that of `objective_of`,
            unless they are given.
    """
    for key in OF_A_NEW_MODEL:
        if key in given:
            raise UserError(f"{key}={given[key]}: the model to adapt has its own", hint="Leave it out.")
    usual = with_overrides(TextSettings(), ADAPT)
    if model is not None:
        usual = with_overrides(usual, {"learning_rate": rate_for(model)})
        objective = objective_of(model)
        if given.get("density", objective.get("density")) == objective.get("density"):
            idle = [key for key in ("ratio", "ratio_end") if given.get(key) is not None]
            if objective.get("density") == "uniform" and idle:
                raise UserError(
                    f"{setting(idle[0], given[idle[0]])}: this model draws the share of each text that it hides "
                    "(density=uniform), where it has no say",
                    hint=f"Leave it out, or give {setting('density', 'fixed')} too.",
                )
            usual = with_overrides(usual, objective)
    return with_overrides(usual, given)


def objective_of(model: str | Path) -> dict[str, Any]:
    """The settings of `OBJECTIVE` that a model was trained with where it drew the shares that it hid; else none."""
    text = (read_object(find_folder(str(model)) / "unmask.json") or {}).get("text")
    if not isinstance(text, dict) or text.get("density", "fixed") == "fixed":
        return {}
    return {name: text[name] for name in OBJECTIVE if name in text}


def rate_for(model: str | Path) -> float:
    """The learning rate to adapt a model with: a quarter of that which it was trained with where its folder says so
    (`OF_ITS_OWN_RATE`), what its folder says where it was adapted before, that of `ADAPT` for others."""
    about = read_object(find_folder(str(model)) / "unmask.json") or {}
    text = about.get("text")
    train = text.get("train") if isinstance(text, dict) else None
    rate = train.get("learning_rate") if isinstance(train, dict) else None
    again = "adapted_from" in about  # perhaps by another objective, whose own rate says nothing of this one
    rate = about.get("adapt_rate") if again else rate
    if not isinstance(rate, float) or not rate > 0:
        return float(ADAPT["learning_rate"])  # type: ignore[arg-type]
    return rate if again else OF_ITS_OWN_RATE * rate


def start_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's runs hid, of the settings in its folder, for a model that is made of it: its last run, where that
    one drew the shares that it hid, else the one that it began with."""
    last = settings.get("text") or {}
    first = settings.get("start", last)  # {} of a published model, of which it is not known
    text = last if last.get("density", "fixed") != "fixed" else first
    return {name: text[name] for name in OBJECTIVE if name in text}


def in_words(figures: dict[str, float | None]) -> str:
    """Figures as a line; what was not measured is left out.

    >>> in_words({"loss": 4.4274, "accuracy": 0.3297, "general_loss": None})
    'loss 4.427, accuracy 0.330'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in figures.items() if value is not None)


@dataclass(frozen=True, kw_only=True, repr=False)
class Adapted(ModelOfRun, Printed):
    """Held-out metrics on the domain (and on general text, where given) before and after; None was not measured."""

    run: TextRun
    before: dict[str, float | None]
    after: dict[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return self.run.to_dict() | {"before": self.before, "after": self.after}

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Where the adapted model is."""
        return self.run.folder

    def shown(self) -> Shown:
        """The metrics before and after."""
        rows = [(name, was, self.after[name]) for name, was in self.before.items()]
        title = f"Adapted, {self.run.result.steps} steps in {self.run.result.seconds:.0f} s: {self.folder}"
        columns, saved = ("held-out tokens", "before", "after"), "adapted.model.save(folder)"
        return Shown(title=title, columns=columns, rows=rows, notes=self.notes(), next_step=saved)

    def notes(self) -> list[str]:
        """The losses before and after, and why the run stopped, in sentences."""
        result = self.run.result
        losses = [
            f"on {name} from {was:.2f} to {now:.2f}"
            for name, key in (("held-out texts", "loss"), ("general text", "general_loss"))
            if (was := self.before.get(key)) is not None and (now := self.after[key]) is not None
        ]
        lines = [f"loss in nats per hidden token: {', '.join(losses)}"] if losses else []
        if result.stopped == "early":
            why = (
                "the loss on general text had risen by more than its limit"
                if result.refused
                else f"the held-out loss had not fallen for {self.run.settings.train.patience} looks"
            )
            lines.append(f"stopped at step {result.steps}: {why}; the weights of step {result.kept_step} are kept")
        if result.kept_step == 0:
            lines.append(f"adapting did not lower the held-out loss: {self.run.folder} holds the weights as they were")
        return lines

    def table(self) -> list[tuple[str, str, str]]:
        """Name, before and after of each metric, for people."""

        def shown(value: float | None) -> str:
            return "-" if value is None else f"{value:.4f}"

        return [(name, shown(self.before[name]), shown(self.after[name])) for name in self.before]


class TextAdaptation(Pretrainable[Adapted]):
    """A published or pretrained model on domain text; see `adapt`."""

    def __init__(
        self,
        model: str | Path,
        data: str | Sequence[str],
        settings: TextSettings,
        *,
        general: str | Sequence[str] | None,
        most_forgetting: float = 0.2,
        replay: float = 0.0,
    ) -> None:
        self.data, self.general, self.most_forgetting, self.replay = data, general, most_forgetting, replay
        torch.manual_seed(settings.train.seed)  # of a head that the model lacks, and must be the same in every process
        self.origin, self.loaded = str(model), load_folder(str(model))
        longest = self.loaded.model.encoder.config.longest or settings.slots
        if longest < settings.slots:
            batch = settings.train.batch_slots // longest * longest
            settings = with_overrides(settings, {"slots": longest, "batch_slots": batch})
        self.loaded.tokenizer.require_mask()
        self.settings = settings
        weights = self.loaded.model.state_dict()
        self._digest = digest(list(weights), *weights.values())

    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        if why := self.loaded.why_not_masked():
            say(f"{self.origin}: {why}; what is missing is learnt from scratch")
        self.first = first
        self._caches(out, say, resume=resume)

    def _caches(self, out: Path, say: Callable[[str], None], *, resume: bool) -> None:
        """Tokenise the domain's text, and the general one where it is given."""
        self.started = resume and bool(checkpoints(out))
        self.cache, self.held = self._cache(self.data, out / "cache", self.settings, say), None
        if self.general is not None:
            held_out = MEASURED if self.replay else 0.999
            only_held_out = dataclasses.replace(self.settings, holdout=held_out, hide="token")
            self.held = self._cache(self.general, out / "cache-general", only_held_out, say)

    def _cache(
        self, data: str | Sequence[str], folder: Path, settings: TextSettings, say: Callable[[str], None]
    ) -> TokenCache:
        if (texts := in_memory(data)) is not None:  # a file of the run, so that it goes on with the same
            data = f"{folder}.jsonl"
            if self.first:
                folder.parent.mkdir(parents=True, exist_ok=True)
                write_json_lines(({"text": text} for text in texts), data)
        source, settings = sources_of(data, folder.parent, settings, say)
        words, resumed = self.loaded.tokenizer, self.started
        return TokenCache.build(source, words, folder, settings=settings, resumed=resumed, say=say)

    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        loaded, settings, train = self.loaded, self.settings, self.train
        sets = self._held_out(say)
        extra = {"general": sets["general_"]} if "general_" in sets else {}
        stop = self._forgot if extra else None
        cache: Any = self.cache
        if self.replay and self.held is not None:
            cache = Replayed(self.cache, self.held, self.replay, seed=settings.train.seed)
            say(f"{cache.share:.1%} of what is learnt from is general text ({self.replay:.1%} were asked for)")
        job = make_job(loaded.model, cache, loaded.tokenizer, settings, extra_validation=extra, stop_when=stop)
        job = dataclasses.replace(job, fingerprint={**job.fingerprint, "the model": self._digest})
        self.before = _measure(loaded.model, sets, settings)
        say(f"before: {in_words(self.before)}")
        if job.validation and (train.patience is not None or job.stop_when is not None):
            some = sample(job.validation, EXAMINED * train.batch_slots)
            # The start's weights are kept unless training lowers the held-out loss.
            job = dataclasses.replace(job, at_start=_measure(loaded.model, {"": some}, settings)["loss"])
        return job

    def _held_out(self, say: Callable[[str], None], most: int = 2048) -> dict[str, Sequence[PackedBatch]]:
        """Held-out batches of the domain, under '', and of general text, under 'general_'; of `most` examples each."""
        check_unknown(self.cache.unknown, say, name=source_name(self.data) or "the corpus", given=True)
        if self.held is not None and self.general is not None:
            name = source_name(self.general) or "the general text"
            check_unknown(self.held.unknown, say, name=name, given=True)
            if not len(self.held.validation):
                raise UserError(
                    f"{name}: none of it is held out to measure forgetting on",
                    hint="Give more general text, of several documents.",
                )
            if not len(self.cache.validation):
                one = len(self.cache) == 1
                raise UserError(
                    "the domain's text is one example, of which nothing can be held out to stop early by"
                    if one
                    else "nothing is held out of the domain's text to stop early by",
                    hint=("Give more texts" if one else "Hold some out (holdout)")
                    + f", or leave {option('general')} out.",
                )
        caches = {"": self.cache} | ({} if self.held is None else {"general_": self.held})
        return {
            name: validation_batches(
                cache,
                np.asarray(cache.validation),
                slots=self.settings.slots,
                special_ids=self.loaded.tokenizer.special_ids,
                batch_slots=self.settings.train.batch_slots,
                most=most,
            )
            for name, cache in caches.items()
        }

    def _forgot(self, metrics: dict[str, float]) -> bool:
        return metrics["general_loss"] > (self.before["general_loss"] or 0.0) + self.most_forgetting

    def save(self, out: Path, model: Any) -> None:
        loaded = self.loaded
        kept = {k: v for k, v in asdict(self.settings).items() if k not in OF_A_NEW_MODEL}
        save_folder(
            out,
            model=model,
            tokenizer=loaded.tokenizer,
            family=loaded.family,
            hf_config=loaded.hf_config,
            passengers=loaded.passengers,
            aliases=loaded.aliases,
            dtype=loaded.loaded.common_type(),
            settings={
                "text": kept,
                "adapted_from": self.origin,
                "start": start_of(loaded.settings),
                "trained_slots": max(loaded.trained_slots, self.settings.slots),
                "lengths": lengths_of(self.cache),
                "adapt_rate": self.settings.train.learning_rate,
                "before": self.before,
                "replay": self.replay,
                "source": source_name(self.data),
                "corpus": corpus_of(self.cache, loaded.tokenizer),
            },
        )

    def finished(self, out: Path, result: RunResult) -> Adapted:
        run = TextRun(folder=out, result=result, settings=self.settings, corpus=counts(self.cache))
        after = self.after(result)
        return Adapted(run=run, before=self.before, after=after)

    def after(self, result: RunResult) -> dict[str, float | None]:
        """What `before` holds, of the trained model."""
        found = result.validation
        return {name: found.get(f"validation_{name}", found.get(name)) for name in self.before}

    def report(self, finished: Adapted) -> None:
        write_report(finished.run, notes=finished.notes())


@also_called(REFUSED, **ARGUMENTS)
@makes_folder
def adapt(
    model: str | Path | LoadedText,
    data: Any,
    out: str | Path | None = None,
    *,
    settings: TextSettings | Mapping[str, Any] | None = None,
    general: str | Sequence[str] | None = None,
    most_forgetting: float = 0.2,
    replay: float = 0.0,
    resume: bool = False,
    console: bool = True,
    **overrides: Any,
) -> Adapted:
    """Continue pretraining `model` on `data`.

    Args:
        model: folder or hub name of a text model, or one that was loaded from there, which stays as it is.
        data: files, folders and globs, or texts in memory.
        out: run folder; left out, a temporary one, which lives as long as the result.
        settings, overrides: fields of `TextSettings`, as keywords (`steps=60`), a dict or an object; default:
            `adapt_settings({}, model)`. Those of a new model (`OF_A_NEW_MODEL`) are not read; `slots` is cut to the
            model's longest context.
        general: held-out general text. Its loss is measured beside the domain's, and the run stops when it has
            risen by more than `most_forgetting` nats per hidden slot.
        replay: share of what is learnt from that is general text, 0 to below 1; half of `general` is then learnt from,
            the other half measured.

    Raises:
        UserError: `out` is the model's own folder; anything wrong with model, data or settings; nothing is held out
            though `general` or patience asks for it.
    """
    if not 0 <= replay < 1:
        raise UserError(f"replay={replay}", hint="Expected a share from 0 to below 1, such as 0.2.")
    if replay and general is None:
        raise UserError(f"replay={replay} without general text", hint=f"Give {option('general')} FILE too.")
    assert out is not None  # of `makes_folder`
    model = find_folder(model) if isinstance(model, LoadedText) else model
    if settings is None or isinstance(settings, Mapping):
        settings = adapt_settings({**(settings or {}), **overrides}, model)
    settings = settings_from(settings, settings, overrides, with_overrides)
    out = checked_folder(model, out, settings, resume=resume)
    kind = TextAdaptation(model, data, settings, general=general, most_forgetting=most_forgetting, replay=replay)
    return pretrained(kind, out, resume=resume, console=console)


def checked_folder(model: str | Path, out: str | Path, settings: TextSettings, *, resume: bool) -> Path:
    """The folder of a run that adapts, refused before the model is loaded where it is of something else."""
    out = Path(out)
    if out.exists() and Path(model).exists() and out.samefile(model):
        raise UserError(f"{out} is the model to adapt", hint=f"Choose another {option('out')}; the original is kept.")
    again = restarted(out, cpu=resolve_device(settings.train.device).type == "cpu")
    check_run_folder(out, resume=again or resume)
    return out


def sources_of(
    data: str | Sequence[str], out: Path, settings: TextSettings, say: Callable[[str], None] | None = None
) -> tuple[list[str], TextSettings]:
    """The files of some data, and the settings that they are read with."""
    source = resolve([data] if isinstance(data, str) else list(data), out, say)
    return source, settings if plain_text(source) else dataclasses.replace(settings, document="auto")


def _measure(model: Any, sets: Mapping[str, Sequence[PackedBatch]], settings: TextSettings) -> dict[str, float | None]:
    """Loss and accuracy on each of the sets, their names in front; None where a set is empty."""
    device = resolve_device(settings.train.device)
    precision = resolve_precision(settings.train.precision, device)
    model.to(device)
    found: dict[str, float | None] = {}
    for prefix, batches in sets.items():
        with computing(precision.name, device):
            metrics = validate(model, batches, measuring_corruption(), device=device) if batches else {}
        found |= {f"{prefix}{name}": metrics.get(name) for name in ("loss", "accuracy")}
    return found


MISSED = "missed"
"""1 - nDCG@10 of the search that weights are chosen by: what a run watches."""

SHARES = (0.75, 0.5, 0.25)
"""Of the way from the start to the trained weights, at which the weights are tried too (Wortsman et al. 2022, 'Robust
fine-tuning of zero-shot models'): what lies between is often better than either end."""


def embedded_slots(folder: TextFolder) -> int:
    """Longest text that the model's vectors are of, in tokens; an adapted one reads as far as its start did."""
    return min(folder.slots, folder.sentences.slots or folder.slots)


class VectorGuard:
    """Judges a model that is trained to make vectors, beside the same model as it was.

    Args:
        folder: the model to be trained; its weights now are the start.
        settings: of the training; on the way texts are read as far as it reads them.
    """

    def __init__(self, folder: TextFolder, search: HeldOutSearch, settings: TextSettings) -> None:
        self.folder, self.search, self.slots = folder, search, settings.slots
        self.device = resolve_device(settings.train.device)
        self.precision = resolve_precision(settings.train.precision, self.device).name
        self.start = {name: tensor.detach().cpu().clone() for name, tensor in folder.model.state_dict().items()}
        self.first_ranks: np.ndarray | None = None

    def missed(self, model: Any) -> float:
        """1 - nDCG@10 of the search that weights are chosen by; of the start as its own folder makes vectors."""
        model = model.masked if isinstance(model, PooledReconstruction) else model
        pooling: Pooling = "mean"
        if self.first_ranks is None:
            pooling = cast(Pooling, self.folder.sentences.pooling)
            self.first_ranks = self._ranks(model, self.search.judged, embedded_slots(self.folder), pooling)
        return 1 - float(gains(self._ranks(model, self.search.chosen, self.slots, pooling)).mean())

    def judged(self, model: Any) -> SearchVerdict:
        """Choose a share of the way to the trained weights, put the model there, and judge it; where it is not better,
        the model has the start's weights afterwards."""
        trained = {name: tensor.detach().cpu().clone() for name, tensor in model.masked.state_dict().items()}
        assert self.first_ranks is not None
        share, after = 0.0, self.first_ranks
        if any(not trained[name].equal(tensor) for name, tensor in self.start.items()):
            found = {1.0: self.missed(model)}
            for part in SHARES:
                self._put(model, trained, part)
                found[part] = self.missed(model)
            share = min(found, key=lambda part: (found[part], -part))
            self._put(model, trained, share)
            after = self._ranks(model.masked, self.search.judged, embedded_slots(self.folder), "mean")
        verdict = SearchVerdict(
            share=share,
            before=self.first_ranks,
            after=after,
            by_words=ranks_by_words(self.search.judged, self.search.learnt),
        )
        if not verdict.helped:
            self._put(model, trained, 0.0)
        return verdict

    def _put(self, model: Any, trained: dict[str, Any], share: float) -> None:
        mixed = {
            name: tensor.lerp(trained[name], share) if tensor.is_floating_point() else tensor
            for name, tensor in self.start.items()
        }
        model.masked.load_state_dict(mixed)

    def _ranks(self, model: MaskedModel[Any], search: Search, slots: int, pooling: Pooling) -> np.ndarray:
        loaded = LoadedText(folder=self.folder, device=self.device, precision=self.precision)
        model.to(self.device)
        vectors = []
        with computing(self.precision, self.device):
            for texts in (search.queries, search.documents):
                examples = loaded.examples(texts, max_slots=slots)
                vectors.append(embed(model, examples, slots=slots, pooling=pooling, normalise=True))
        return ranks(vectors[0], vectors[1])
