"""Adapt to the domain, then fine-tune: one recipe, with the table of before and after."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from unmask.writing import in_place_of, temporary_folder, writes_model, written_folder


@writes_model
def adapt_then_finetune(
    task: str,
    model: str | Path,
    train: Any,
    texts: str | list[str],
    *,
    count: int = 1,
    out: str | Path | None = None,
    general: str | None = None,
    adaptation: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune the model as it is, and adapted to `texts` first, with the same seeds; the better one goes to `out`.

    Args:
        count: seeds of either side.
        general: held-out general text, to measure what adapting makes the model forget.
        adaptation: settings of `adapt`.

    Returns:
        The result of the kept model, with `adaptation`: masked-token loss before and after on the domain (and on
        general text), the task's values per seed for either side, the mean gain (more is better, of an error too) with
        a paired 95 % t interval, `pays`.
    """
    from scipy.stats import t

    from unmask.modalities.text.network.adapt import adapt, adapt_settings
    from unmask.modalities.text.tasks.finetune import over_seeds, require_validation, values_of
    from unmask.modalities.text.tasks.scorers import merit

    require_validation(options, "adapting")
    with temporary_folder() as scratch:
        settings = adapt_settings(adaptation or {}, model)
        adapted = adapt(
            model,
            texts,
            Path(scratch) / "adapted",
            settings=settings,
            general=general,
            console=bool(options.get("console")),
        )
        sides: dict[str, list[float]] = {}
        found: dict[str, dict[str, Any]] = {}
        for name, source in (("plain", model), ("adapted", Path(scratch) / "adapted")):
            place = None if out is None else Path(scratch) / f"best-{name}"
            with contextlib.nullcontext() if place is None or out is None else in_place_of(place, out):
                runs, best = over_seeds(task, source, train, count=count, out=place, **options)
            sides[name], found[name] = values_of(runs).tolist(), runs[best]
        metric = found["plain"]["metric"]
        merits = {name: [merit(metric, value) for value in values] for name, values in sides.items()}
        gain = np.subtract(merits["adapted"], merits["plain"])
        half = float(t.ppf(0.975, count - 1) * gain.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
        better = "adapted" if gain.mean() > 0 else "plain"
        result = found[better]
        if out is not None:
            with written_folder(out) as place:
                shutil.copytree(Path(scratch) / f"best-{better}", place, dirs_exist_ok=True)
            result["out"] = str(out)
    table = {
        "before": adapted.before,
        "after": adapted.after,
        **sides,
        "gain": float(gain.mean()),
        "low": float(gain.mean() - half) if count > 1 else None,
        "high": float(gain.mean() + half) if count > 1 else None,
        "pays": bool(count > 1 and gain.mean() - half > 0),
        "kept": better,
    }
    lines = [f"masked-token {name}: {before} -> {after}" for name, before, after in adapted.table()]
    lines.append(
        f"{result['metric']}: plain {np.mean(sides['plain']):.4f}, adapted {np.mean(sides['adapted']):.4f} "
        f"over {count} seeds; kept: {better}"
    )
    return result | {"adaptation": table, "lines": lines}
