"""`unmask pretrain text`: raw text -> tokenizer -> cache -> masked model -> a folder that transformers loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.plan import Plan
from unmask.encoder.config import MLP, EncoderConfig, SinCos
from unmask.errors import UserError, setting
from unmask.files import written
from unmask.modalities.text.batches import batch_maker, corruption_of, measuring_corruption, validation_batches
from unmask.modalities.text.cache import TokenCache, content_key, is_held_out
from unmask.modalities.text.documents import ReadReport
from unmask.modalities.text.folder import new_text_model, save_folder
from unmask.modalities.text.recipes import TextSettings, as_dict
from unmask.modalities.text.sampling import sampled
from unmask.modalities.text.sources import iter_documents, resolve
from unmask.modalities.text.tokenizer import Tokenizer
from unmask.training.job import Job, RunResult
from unmask.training.processes import first_process_first
from unmask.training.run import check_run_folder, refuse_compile, run
from unmask.training.settings import lasting
from unmask.training.tracking import console_logger
from unmask.version import __version__

TOKENIZER_CHARACTERS = 60_000_000
"""A tokenizer is trained on at most this much text, taken evenly from all of it; more changes its vocabulary by next to
nothing."""


@dataclass(frozen=True, kw_only=True)
class TextRun:
    """A finished text run: where it is, how it ended, what the corpus was."""

    folder: Path
    result: RunResult
    settings: TextSettings
    corpus: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return self.result.summary(self.folder, self.settings.train.seed, corpus=self.corpus)


MOST_UNKNOWN = 0.1
"""Above this share of unknown tokens a corpus is refused: they are special, so never hidden and never learnt."""


def check_unknown(cache: TokenCache, say: Callable[[str], None]) -> None:
    """Tell how much of the corpus the tokenizer does not know.

    Raises:
        UserError: more than `MOST_UNKNOWN`.
    """
    share = float(cache.meta.get("unknown", 0.0))
    if share > MOST_UNKNOWN:
        raise UserError(
            f"{share:.1%} of the corpus is unknown to the tokenizer ([UNK]); at most {MOST_UNKNOWN:.0%} is accepted",
            hint=f"Use a tokenizer of the corpus's languages: leave {setting('tokenizer')} out, make "
            f"{setting('vocabulary')} larger, or say {setting('tokenizer_kind', 'bpe')}, which knows every character.",
        )
    if share > 0.001:
        say(f"{share:.2%} of the tokens are unknown to the tokenizer")


def build_tokenizer(
    data: Sequence[str], out: Path, settings: TextSettings, say: Callable[[str], None], *, reuse: bool = False
) -> Tokenizer:
    """The tokenizer of a run: brought along, or trained now on the training documents and saved in `out`.

    Args:
        reuse: take the one in `out`, if there is one: of the run that is resumed, or of the first process. One that was
            trained there on the same files with the same settings is taken without.
    """
    if settings.tokenizer is not None:
        return Tokenizer.load(settings.tokenizer)
    mark, key = out / ".tokenizer.key", _tokenizer_key(data, settings)
    made = mark.read_text().strip() if mark.exists() else ""
    named = any(str(d).startswith("hf:") for d in data)  # nothing says that it is what it was
    if (out / "tokenizer.json").exists() and (reuse or (made == key and not named)):
        return Tokenizer.load(out)
    say(f"training a {settings.tokenizer_kind} tokenizer of {settings.vocabulary} entries")
    documents = iter_documents(data, column=settings.column, report=ReadReport(), document=settings.document)
    texts = (d.text for d in documents if not is_held_out(d.text, settings.holdout, settings.train.seed))
    tokenizer = Tokenizer.train(
        sampled(texts, TOKENIZER_CHARACTERS),
        kind=settings.tokenizer_kind,
        vocab_size=settings.vocabulary,
        lowercase=settings.lowercase and settings.tokenizer_kind == "wordpiece",
    )
    tokenizer.save(out)
    with written(mark) as temporary:
        temporary.write_text(key)
    return tokenizer


def _tokenizer_key(data: Sequence[str], settings: TextSettings) -> str:
    """Hash of what a trained tokenizer comes from: the same command, started again after a kill, need not train it
    again."""
    names = ("tokenizer_kind", "vocabulary", "lowercase", "column", "document", "holdout")
    chosen = {name: getattr(settings, name) for name in names}
    made_of = [__version__, TOKENIZER_CHARACTERS, settings.train.seed, chosen, content_key(data)]
    return hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16).hexdigest()


def build_model(settings: TextSettings, tokenizer: Tokenizer) -> tuple[Any, Any]:
    """A new model with random weights, made from the seed alone."""
    torch.manual_seed(settings.train.seed)
    if settings.objective == "detection":
        from unmask.modalities.text.detection import new_detection

        return new_detection(settings, tokenizer)
    decoder = None
    if settings.architecture == "visible_only":
        # Narrower and shallower than the encoder, as in MAE (He et al. 2022, table 1).
        width = max(64, settings.width // 2)
        heads = next(n for n in range(width // 32, 0, -1) if width % n == 0)
        decoder = EncoderConfig(
            width=width,
            layers=max(1, settings.layers // 4),
            heads=heads,
            positions=SinCos(),
            feedforward=MLP(inner=4 * width),
        )
    return new_text_model(
        settings.recipe,
        vocabulary=tokenizer.vocab_size,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        inner=settings.inner,
        slots=settings.slots,
        tokenizer=tokenizer,
        dropout=settings.dropout,
        decoder=decoder,
    )


def pretrain(
    data: str | Sequence[str],
    out: str | Path,
    *,
    settings: TextSettings | None = None,
    resume: bool = False,
    console: bool = True,
    trackers: Sequence[str] = (),
) -> TextRun:
    """Pretrain a masked language model on raw text.

    Args:
        data: files, folders, globs or `hf:NAME`; see `unmask.modalities.text.sources`.
        out: run folder: config.json, model.safetensors, tokenizer.json, unmask.json, metrics.jsonl, report.html.
        resume: continue the run in `out`; on a CPU with one process, bit for bit as if never interrupted
            (runs bounded by minutes excepted: their schedule follows the clock).

    Raises:
        UserError: for anything wrong with the input, the settings or the folder.
    """
    settings = settings or TextSettings()
    refuse_compile(settings.train)
    data = [data] if isinstance(data, str) else list(data)
    out = check_run_folder(out, resume=resume)
    data = resolve(data, out)
    say = console_logger(console)
    with first_process_first(settings.train) as first:
        started = resume and (out / "checkpoints").exists()
        tokenizer = build_tokenizer(data, out, settings, say, reuse=started or not first)
        tokenizer.require_mask()
        cache = TokenCache.build(
            data,
            tokenizer,
            out / "cache",
            max_slots=settings.slots,
            column=settings.column,
            holdout=settings.holdout,
            seed=settings.train.seed,
            entities=settings.hide == "entity",
            document=settings.document,
            say=say,
        )
    check_unknown(cache, say)
    model, family = build_model(settings, tokenizer)
    job = make_job(model, cache, tokenizer, settings)
    say(f"{len(cache.train)} training and {len(cache.validation)} held-out examples, {_millions(model)} parameters")

    def save(trained: Any) -> None:
        about = {"text": as_dict(settings)}
        if settings.objective == "detection":
            from unmask.modalities.text.detection import save_detection

            return save_detection(out, trained, tokenizer, family, about)
        return save_folder(out, model=trained, tokenizer=tokenizer, family=family, settings=about)

    result = run(job, out, settings.train, resume=resume, console=console, trackers=trackers, save=save)
    corpus = {"examples": len(cache), "training": len(cache.train), "held_out": len(cache.validation)}
    finished = TextRun(folder=out, result=result, settings=settings, corpus=corpus)
    if first and (out / "model.safetensors").exists():
        write_report(finished)
    return finished


def make_job(
    model: torch.nn.Module, cache: TokenCache, tokenizer: Tokenizer, settings: TextSettings, **more: Any
) -> Job:
    """Tie a model, a corpus and a corruption together for the run."""
    if not len(cache.train):
        raise UserError("no training examples: the corpus is too small to hold any out", hint="Give more text.")
    special = tokenizer.special_ids
    plan = Plan(
        lengths=cache.lengths,
        examples=np.asarray(cache.train),
        slots=settings.slots,
        rows=settings.train.batch_slots // settings.slots,
        seed=settings.train.seed,
    )
    return Job(
        model=model,
        plan=plan,
        make_batch=batch_maker(cache, settings.slots, special),
        corruption=corruption_of(settings),
        validation=validation_batches(
            cache,
            np.asarray(cache.validation),
            slots=settings.slots,
            special_ids=special,
            batch_slots=settings.train.batch_slots,
        ),
        validation_corruption=measuring_corruption(),
        fingerprint=_fingerprint(settings, tokenizer, cache),
        **more,
    )


def write_report(finished: TextRun) -> Path:
    """report.html of a run: the figures, the curves, and what the model makes of held-out text."""
    from unmask.evaluation.report import Report, training_curves

    r = finished.result
    report = Report("Masked pretraining on text", str(finished.folder))
    facts: dict[str, Any] = {
        "Held-out accuracy": r.held_out("accuracy", "{:.1%}"),
        "Held-out loss": r.held_out("loss", "{:.3f} nats"),
        "Steps": r.steps,
        "Time": f"{r.seconds:.0f} s",
        "Real tokens/s": f"{r.slots_per_second:,.0f}",
        "Padding waste": f"{r.padding_waste:.1%}",
        "Precision": r.precision,
    }
    report.facts(facts)
    report.section("Training", training_curves(finished.folder / "metrics.jsonl"))
    report.section("Settings", json.dumps(as_dict(finished.settings), indent=1))
    return report.write(finished.folder / "report.html")


def _fingerprint(settings: TextSettings, tokenizer: Tokenizer, cache: TokenCache) -> dict[str, Any]:
    """What must not change between a run and its resumption: everything but where it ends and how it is watched."""
    return {
        "settings": lasting(as_dict(settings)),
        "the tokenizer": tokenizer.fingerprint(),
        "the corpus": cache.digest(),
    }


def _millions(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M"
