"""finetune and predict for a model of images."""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.cli.images.reading import account, reading, skipped
from unmask.errors import UserError


def finetune(
    context: typer.Context,
    task: str = typer.Argument(..., help="classify."),
    model: str = typer.Argument(..., help="Model folder or hub name."),
    data: str = typer.Argument(..., help="Class folders of pictures, or a table of files and labels."),
    out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
    validation: options.Validation = None,
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
    """Fine-tune a model of images on labelled pictures."""
    from unmask.cli.common import Output, run_overrides
    from unmask.modalities.images.classify.scored_report import KEPT, scored_lines
    from unmask.modalities.images.uses.finetune import ClassifierSettings, finetune_classify, with_overrides

    if task != "classify":
        raise UserError(f"finetune {task}: not a task of images", hint="Known: classify.")
    settings = with_overrides(ClassifierSettings(), run_overrides(context))
    output = Output(json_, settings.train.seed)
    done = finetune_classify(
        model, data, out, validation=validation, settings=settings, checkpoints=True, resume=resume
    )
    found = done.figures
    if found["stopped"] == "signal":
        output.write({"folder": out} | found, [], device=found["device"], precision=found["precision"])
        return
    lines = [f"{found['steps']} steps, {found['seconds']:.0f} s, {found['images_per_second']:,.0f} images/s"]
    if "kept_by" in found:
        value, label = found[f"validation_{found['kept_by']}"], KEPT[found["kept_by"]]
        shown = f"{value:.1%}" if found["kept_by"] == "accuracy" else f"{value:.4g}"
        lines += [f"validation {label} {shown} ({found['validation_pictures']} pictures)"]
    if found["problem"] != "single" and "validation" in found:
        lines += scored_lines(found["validation"])
    lines += [f"model:  {out}", f"report: {done.folder / 'report.html'}"]
    found = {"folder": out, "report": f"{out}/report.html"} | found
    output.write(found, lines, device=found["device"], precision=found["precision"])


def predict(
    model: options.Tuned,
    data: str = typer.Argument(..., help="Pictures: a file, a folder, an array, or a table of files."),
    out: str = typer.Option(..., help="Where the predictions go, .jsonl."),
    set_: options.TableReadSettings = [],
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Label and probability (several labels, or a value) of each picture, one JSON object per line, in order."""
    from unmask.cli.common import Output
    from unmask.files import check_results
    from unmask.modalities.images.uses.model import load
    from unmask.writing import write_json_lines

    check_results([out], [data])
    output = Output(json_)
    loaded = load(model, device=device, precision=precision)
    if not hasattr(loaded, "classes"):
        raise UserError(f"{model}: not a classifier", hint="Fine-tune it first: unmask finetune classify.")
    images = loaded.read(data, labelled=False, **reading(set_, table=True))
    count = write_json_lines(loaded.predicted(images), out)
    described, lines = account(images)
    lines = [*lines, f"{out}: {count} pictures"]
    output.write(
        {"out": out, "rows": count, "pictures": count, "data": described, **skipped(images)},
        lines,
        device=str(loaded.device),
        precision=loaded.precision,
    )
