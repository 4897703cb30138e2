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

import typer

from unmask.cli import options


def pretrain(
    context: typer.Context,
    data: str = typer.Argument(..., help="What to learn from."),
    out: str = typer.Option(..., help="Run folder."),
    config: options.Config = None,
    set_: options.Set = [],
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.RunSeed = None,
    resume: options.Resume = False,
    precision: options.RunPrecision = None,
    device: options.RunDevice = None,
    json_: options.Json = False,
) -> None:
    """Pretrain a masked model."""
    from pathlib import Path

    from unmask.cli.common import Output, run_lines, run_overrides
    from unmask.plugins import resolve
    from unmask.registry import modality
    from unmask.training.settings import apply_run_overrides

    one = modality(context.info_name or "")
    if one.settings is None or one.pretrain is None:
        raise ValueError(f"{one.name}: the standard pretrain command needs Modality.settings and Modality.pretrain")
    settings = apply_run_overrides(resolve(one.settings)(), run_overrides(context))
    output = Output(json_, settings.train.seed)
    result = resolve(one.pretrain)(data, out, settings=settings, resume=resume, console=True)
    lines = run_lines(
        result,
        out,
        rate=f"{result.slots_per_second:,.0f} slots/s",
        held="held out: loss {loss:.4f} nats per hidden slot, accuracy {accuracy:.1%}",
    )
    found = result.summary(Path(out), settings.train.seed)
    output.write(found, lines, device=result.device, precision=result.precision)


def fill(
    model: options.Model,
    data: str = typer.Argument(..., help="What has something to fill in."),
    out: str = typer.Option(None, help="JSON lines to write."),
    steps: options.FillSteps = 1,
    temperature: options.FillTemperature = 0.0,
    seed: options.Seed = 0,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Fill in what is missing."""
    from unmask.cli.common import Output
    from unmask.files import check_results
    from unmask.registry import load
    from unmask.writing import write_json_lines

    check_results([out], [data])
    output = Output(json_, seed)
    loaded = load(model, device=device, precision=precision)
    results = loaded.fill(data, steps=steps, temperature=temperature, seed=seed)
    if out is not None:
        write_json_lines(results, out)
    lines = [str(result["filled"]) for result in results]
    count = sum(len(result["slots"]) for result in results)
    found = {"out": out, "rows": len(results), "filled_slots": count, "results": results}
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def score(
    model: options.Model,
    data: str = typer.Argument(..., help="What is to be scored."),
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Pseudo-log-likelihood of examples: the higher, the more natural."""
    from unmask.cli.common import Output, write_scores
    from unmask.registry import load

    output = Output(json_)
    loaded = load(model, device=device, precision=precision)
    results = loaded.score(data)
    lines = [f"{r['score']:10.3f}  {r['slots']:4d} slots  {r['name']}" for r in results]
    write_scores(output, loaded, results, lines)


def embed(
    model: options.Model,
    data: str = typer.Argument(..., help="What is to be embedded."),
    out: str = typer.Option(..., help="Where to write the (examples, width) array, .npy."),
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Embed examples: one row per example, order kept."""
    from unmask.cli.common import Output, write_array
    from unmask.files import check_results
    from unmask.registry import load

    check_results([out], [data])
    output = Output(json_)
    loaded = load(model, device=device, precision=precision)
    array = loaded.embed(data)
    write_array([array], len(array), out)
    found = {"out": out, "rows": len(array), "shape": list(array.shape)}
    lines = [f"{out}: {array.shape[0]} x {array.shape[1]}"]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def evaluate(
    model: options.Model,
    data: str = typer.Argument(..., help="Held-out data."),
    seed: options.Seed = 0,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """How well the model predicts what is hidden of held-out data."""
    from unmask.cli.common import Output
    from unmask.evaluation.meanings import figure_lines
    from unmask.registry import load

    output = Output(json_, seed)
    loaded = load(model, device=device, precision=precision)
    found = loaded.evaluate(data, seed=seed)
    shown = [name for name, value in found.items() if isinstance(value, int | float)]
    lines = figure_lines(found, shown) + [f"{k}: {v}" for k, v in found.items() if k not in (*shown, "intervals")]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)
