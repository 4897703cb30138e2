"""`unmask adapt`: continue pretraining on domain text, with an early stop and a guard against forgetting."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.batch import PackedBatch
from unmask.core.pretrain import validate
from unmask.errors import UserError, option
from unmask.modalities.text.batches import measuring_corruption, validation_batches
from unmask.modalities.text.cache import TokenCache
from unmask.modalities.text.folder import load_folder, save_folder
from unmask.modalities.text.pretrain import TextRun, check_unknown, make_job, write_report
from unmask.modalities.text.recipes import TextSettings, as_dict, with_overrides
from unmask.modalities.text.sources import plain_text, resolve
from unmask.training.precision import computing, resolve_device, resolve_precision
from unmask.training.processes import first_process_first
from unmask.training.run import check_run_folder, refuse_compile, run
from unmask.training.tracking import console_logger

ADAPT = {"learning_rate": 1e-4, "ratio": 0.15, "ratio_end": None, "epochs": 1.0, "patience": 4}
"""Gururangan et al. 2020 ('Don't stop pretraining'): same objective, a tenth of the peak rate."""

OF_A_NEW_MODEL = (
    "recipe",
    "objective",
    "generator",
    "architecture",
    "width",
    "layers",
    "heads",
    "inner",
    "vocabulary",
    "tokenizer_kind",
    "tokenizer",
    "lowercase",
    "dropout",
)
"""Settings that the model to adapt has already."""


def adapt_settings(given: Mapping[str, Any]) -> TextSettings:
    """`ADAPT` on top of the usual settings, and what was given on top of both.

    Raises:
        UserError: an unknown setting, or one that only a new model has.
    """
    for key in OF_A_NEW_MODEL:
        if key in given:
            raise UserError(f"{key}={given[key]}: the model to adapt has its own", hint="Leave it out.")
    return with_overrides(with_overrides(TextSettings(), ADAPT), given)


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Held-out metrics on the domain (and on general text, where given) before and after; None was not measured."""

    run: TextRun
    before: dict[str, float | None]
    after: dict[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return self.run.to_dict() | {"before": self.before, "after": self.after}

    def table(self) -> list[tuple[str, str, str]]:
        """Name, before and after of each metric, for people."""

        def shown(value: float | None) -> str:
            return "-" if value is None else f"{value:.4f}"

        return [(name, shown(self.before[name]), shown(self.after[name])) for name in self.before]


def adapt(
    model: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    *,
    settings: TextSettings | None = None,
    general: str | Sequence[str] | None = None,
    most_forgetting: float = 0.2,
    resume: bool = False,
    console: bool = True,
) -> Adapted:
    """Continue pretraining `model` on `data`.

    Args:
        settings: default: `adapt_settings({})`; those of a new model (`OF_A_NEW_MODEL`) are not read. `slots` is cut to
            the model's longest context.
        general: held-out general text. Its loss is measured beside the domain's, and the run stops when it has
            risen by more than `most_forgetting` nats per hidden slot.

    Raises:
        UserError: `out` is the model's own folder; anything wrong with model, data or settings; nothing is held out
            though `general` or patience asks for it.
    """
    out = Path(out)
    if out.exists() and Path(model).exists() and out.samefile(model):
        raise UserError(f"{out} is the model to adapt", hint=f"Choose another {option('out')}; the original is kept.")
    check_run_folder(out, resume=resume)
    settings = settings or adapt_settings({})
    refuse_compile(settings.train)
    torch.manual_seed(settings.train.seed)  # of a head that the model lacks, and must be the same in every process
    loaded = load_folder(str(model))
    longest = loaded.model.encoder.config.longest or settings.slots
    if longest < settings.slots:
        settings = with_overrides(
            settings, {"slots": longest, "batch_slots": settings.train.batch_slots // longest * longest}
        )
    loaded.tokenizer.require_mask()
    say = console_logger(console)
    if why := loaded.why_not_masked():
        say(f"{model}: {why}; what is missing is learnt from scratch")

    def cache_of(source: str | Sequence[str], name: str) -> TokenCache:
        source = resolve([source] if isinstance(source, str) else list(source), out)
        return TokenCache.build(
            source,
            loaded.tokenizer,
            out / name,
            max_slots=settings.slots,
            column=settings.column,
            holdout=settings.holdout if name == "cache" else 0.999,
            seed=settings.train.seed,
            entities=settings.hide == "entity" and name == "cache",
            say=say,
            document=settings.document if plain_text(source) else "auto",
        )

    with first_process_first(settings.train) as first:
        cache = cache_of(data, "cache")
        held = None if general is None else cache_of(general, "cache-general")
    check_unknown(cache, say)
    special = loaded.tokenizer.special_ids
    extra = {}
    if held is not None:
        extra["general"] = validation_batches(
            held,
            np.asarray(held.validation),
            slots=settings.slots,
            special_ids=special,
            batch_slots=settings.train.batch_slots,
        )

    def forgetting(metrics: dict[str, float]) -> bool:
        return metrics["general_loss"] > (before["general_loss"] or 0.0) + most_forgetting

    job = make_job(
        loaded.model, cache, loaded.tokenizer, settings, extra_validation=extra, stop_when=forgetting if extra else None
    )
    job = dataclasses.replace(job, fingerprint={**job.fingerprint, "the model": _digest(loaded.model)})
    before = _measure(loaded.model, {"": job.validation, **{f"{k}_": v for k, v in extra.items()}}, settings)
    say(f"before: {before}")

    def save(trained: Any) -> None:
        kept = {k: v for k, v in as_dict(settings).items() if k not in OF_A_NEW_MODEL}
        save_folder(
            out,
            model=trained,
            tokenizer=loaded.tokenizer,
            family=loaded.family,
            hf_config=loaded.hf_config,
            passengers=loaded.passengers,
            aliases=loaded.aliases,
            dtype=loaded.loaded.common_type(),
            settings={"text": kept, "adapted_from": str(model)},
        )

    result = run(job, out, settings.train, resume=resume, console=console, save=save)
    corpus = {"examples": len(cache), "training": len(cache.train), "held_out": len(cache.validation)}
    finished = TextRun(folder=out, result=result, settings=settings, corpus=corpus)
    if first and (out / "model.safetensors").exists():
        write_report(finished)
    after = {name: result.validation.get(f"validation_{name}", result.validation.get(name)) for name in before}
    return Adapted(run=finished, before=before, after=after)


def _digest(model: torch.nn.Module) -> str:
    """Of a model's names and weights: a run is resumed from the model it was started from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
