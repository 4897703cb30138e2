"""`unmask adapt`: continue pretraining on domain text, with an early stop and a guard against forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.text.batches import measuring_corruption, validation_batches
from unmask.text.cache import TokenCache
from unmask.text.folder import load_folder, save_folder
from unmask.text.pretrain import TextRun, _sayer, make_job, write_report
from unmask.text.recipes import TextSettings, as_dict
from unmask.training.precision import computing, resolve_device, resolve_precision
from unmask.training.run import run

ADAPT = {"learning_rate": 1e-4, "ratio": 0.15, "ratio_end": None, "epochs": 1.0, "patience": 4}
"""Gururangan et al. 2020 ('Don't stop pretraining'): same objective, a tenth of the peak rate."""


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Held-out metrics on the domain (and on general text, where given) before and after."""

    run: TextRun
    before: dict[str, float]
    after: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return self.run.to_dict() | {"before": self.before, "after": self.after}

    def table(self) -> list[tuple[str, float, float]]:
        return [(name, self.before[name], self.after[name]) for name in self.before]


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
        settings: default: `ADAPT` on top of the usual ones. `slots` is cut to the model's longest context.
        general: held-out general text. Its loss is measured beside the domain's, and the run stops when it has
            risen by more than `most_forgetting` nats per hidden slot.

    Raises:
        UserError: `out` is the model's own folder; anything wrong with model, data or settings.
    """
    from unmask.text.recipes import with_overrides

    out = Path(out)
    if out.exists() and Path(model).exists() and out.samefile(model):
        raise UserError(f"{out} is the model to adapt", hint="Choose another --out; the original is kept.")
    settings = settings or with_overrides(TextSettings(), ADAPT)
    loaded = load_folder(str(model))
    longest = loaded.model.encoder.config.longest or settings.slots
    if longest < settings.slots:
        settings = with_overrides(
            settings, {"slots": longest, "batch_slots": settings.train.batch_slots // longest * longest}
        )
    loaded.tokenizer.require_mask()
    say = _sayer(console)

    def cache_of(source: str | Sequence[str], name: str) -> TokenCache:
        source = [source] if isinstance(source, str) else list(source)
        return TokenCache.build(
            source, loaded.tokenizer, out / name, max_slots=settings.slots, column=settings.column,
            holdout=settings.holdout if name == "cache" else 0.999, seed=settings.train.seed,
        )  # fmt: skip

    cache = cache_of(data, "cache")
    special = loaded.tokenizer.special_ids
    extra = {}
    if general is not None:
        held = cache_of(general, "cache-general")
        extra["general"] = validation_batches(
            held, np.asarray(held.validation), slots=settings.slots, special_ids=special
        )
    before = _measure(loaded.model, cache, extra, settings, special)
    say(f"before: {before}")

    def forgetting(metrics: dict[str, float]) -> bool:
        return "general_loss" in metrics and metrics["general_loss"] > before["general_loss"] + most_forgetting

    job = make_job(loaded.model, cache, loaded.tokenizer, settings, extra_validation=extra, stop_when=forgetting)

    def save(trained: Any) -> None:
        save_folder(
            out, model=trained, tokenizer=loaded.tokenizer, family=loaded.family, hf_config=loaded.hf_config,
            passengers=loaded.passengers, aliases=loaded.aliases, dtype=loaded.loaded.common_type(), settings={"text": as_dict(settings), "adapted_from": str(model)},
        )  # fmt: skip

    result = run(job, out, settings.train, resume=resume, console=console, save=save)
    corpus = {"examples": len(cache), "training": len(cache.train), "held_out": len(cache.validation)}
    finished = TextRun(folder=out, result=result, settings=settings, corpus=corpus)
    if (out / "model.safetensors").exists():
        write_report(finished)
    after = {
        name: result.validation.get(f"validation_{name}", result.validation.get(name, float("nan"))) for name in before
    }
    return Adapted(run=finished, before=before, after=after)


def _measure(
    model: Any, cache: TokenCache, extra: dict[str, Any], settings: TextSettings, special: Any
) -> dict[str, float]:
    from unmask.core.pretrain import validate

    device = resolve_device(settings.train.device)
    precision = resolve_precision(settings.train.precision, device)
    model.to(device)
    domain = validation_batches(cache, np.asarray(cache.validation), slots=settings.slots, special_ids=special)
    found: dict[str, float] = {}
    for prefix, batches in {"": domain, **{f"{k}_": v for k, v in extra.items()}}.items():
        with computing(precision.name, device):
            metrics = validate(model, batches, measuring_corruption(), device=device)
        found |= {f"{prefix}{name}": metrics[name] for name in ("loss", "accuracy")}
    return found
