"""The shared commands for a modality that needs no options of its own: `Modality(commands=STANDARD)`.

`pretrain` fills the settings dataclass of the modality and calls its function (`Modality.settings`,
`Modality.pretrain`). The others call methods of its model with the words of the command (a path, say) and the options
below:

- `fill(data, steps=, temperature=, seed=)`: one dictionary per example, with "filled" and "slots", a list with an entry
  per slot that was filled;
- `score(data)`: one dictionary per example, with "name", "score" and "slots";
- `embed(data)`: an array with one row per example;
- `evaluate(data, seed=)`: figures by name, and "rows", how many examples they are of.

A model also says its `device` and `precision`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from unmask.cli import options
from unmask.cli.common import Result, embedded, run_lines, scores
from unmask.evaluation.meanings import figure_lines
from unmask.files import check_results
from unmask.plugins import resolve
from unmask.registry import modality
from unmask.writing import write_json_lines


def pretrain(
    context: typer.Context,
    given: options.RunOptions,
    data: str = options.source("What to learn from.", text=True),
    out: str = typer.Option(..., help="Run folder."),
) -> Result:
    """Pretrain a masked model."""
    from unmask.training.settings import apply_run_overrides

    one = modality(context.info_name or "")
    if one.settings is None or one.pretrain is None:
        raise ValueError(f"{one.name}: the standard pretrain command needs Modality.settings and Modality.pretrain")
    settings = apply_run_overrides(resolve(one.settings)(), given.overrides())
    result = resolve(one.pretrain)(data, out, settings=settings, resume=given.resume, console=True)
    lines = run_lines(
        result,
        out,
        rate=f"{result.slots_per_second:,.0f} slots/s",
        held="held out: loss {loss:.4f} nats per hidden slot, accuracy {accuracy:.1%}",
    )
    return Result(result.summary(Path(out), settings.train.seed), lines)


def fill(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("What has something to fill in.", text=True),
    out: str = options.rows(".jsonl", "JSON lines to write", None),
    steps: options.FillSteps = 1,
    temperature: options.FillTemperature = 0.0,
    seed: options.Seed = 0,
) -> Result:
    """Fill in what is missing."""
    check_results([out], [data])
    loaded = use.load(model)
    results = loaded.fill(data, steps=steps, temperature=temperature, seed=seed)
    if out is not None:
        write_json_lines(results, out)
    count = sum(len(result["slots"]) for result in results)
    found = {"out": out, "rows": len(results), "filled_slots": count, "results": results}
    return Result(found, [str(result["filled"]) for result in results], loaded)


def score(
    use: options.Loading, model: options.Model, data: str = options.source("What is to be scored.", text=True)
) -> Result:
    """Pseudo-log-likelihood of examples: the higher, the more natural."""
    loaded = use.load(model)
    results = loaded.score(data)
    return scores(loaded, results, [f"{r['score']:10.3f}  {r['slots']:4d} slots  {r['name']}" for r in results])


def embed(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("What is to be embedded.", text=True),
    out: str = typer.Option(..., help="Where to write the (examples, width) array, .npy."),
) -> Result:
    """Embed examples: one row per example, order kept."""
    check_results([out], [data])
    loaded = use.load(model)
    array = loaded.embed(data)
    return embedded(loaded, [array], len(array), out)


def evaluate(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("Held-out data.", text=True),
    seed: options.Seed = 0,
) -> Result:
    """How well the model predicts what is hidden of held-out data."""
    loaded = use.load(model)
    found = loaded.evaluate(data, seed=seed)
    shown = [name for name, value in found.items() if isinstance(value, int | float)]
    lines = figure_lines(found, shown) + [f"{k}: {v}" for k, v in found.items() if k not in (*shown, "intervals")]
    return Result(found, lines, loaded)
