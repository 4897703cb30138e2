"""finetune and predict for a model of images."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result
from unmask.cli.images.reading import account, reading
from unmask.errors import UserError
from unmask.files import check_results
from unmask.writing import write_json_lines


def finetune(
    flags: options.RunOptions,
    task: str = typer.Argument(..., help="classify."),
    model: str = typer.Argument(..., help="Model folder or hub name."),
    data: str = typer.Argument(..., help="Class folders of pictures, or a table of files and labels."),
    out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
    validation: options.Validation = None,
) -> Result:
    """Fine-tune a model of images on labelled pictures."""
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
    from unmask.modalities.images.classify.scored_report import KEPT, scored_lines
    from unmask.modalities.images.uses.finetune import finetune_classify

    if task != "classify":
        raise UserError(f"finetune {task}: not a task of images", hint="Known: classify.")
    settings = with_overrides(ClassifierSettings(), flags.overrides())
    done = finetune_classify(
        model, data, out, validation=validation, settings=settings, checkpoints=True, resume=flags.resume
    )
    found: dict[str, Any] = {"seed": settings.train.seed, "folder": out} | done.figures
    if found["stopped"] == "signal":
        return Result(found)
    lines = [f"{found['steps']} steps, {found['seconds']:.0f} s, {found['images_per_second']:,.0f} images/s"]
    if "kept_by" in found:
        value, label = found[f"validation_{found['kept_by']}"], KEPT[found["kept_by"]]
        shown = f"{value:.1%}" if found["kept_by"] == "accuracy" else f"{value:.4g}"
        lines += [f"validation {label} {shown} ({found['validation_pictures']} pictures)"]
        judged = found["validation"]
        if found["kept_by"] == "accuracy":
            often, name = judged["most_frequent_accuracy"], judged["most_frequent"]
            lines[-1] += f"; always {name!r} is right in {often:.1%}"
            if judged["accuracy"] <= often:
                lines.append("warning: no better than always naming the most frequent class")
    if found["problem"] != "single" and "validation" in found:
        lines += scored_lines(found["validation"])
    lines += [f"model:  {out}", f"report: {done.folder / 'report.html'}"]
    return Result({"report": f"{out}/report.html"} | found, lines)


def predict(
    use: options.Loading,
    model: options.Tuned,
    data: str = typer.Argument(..., help="Pictures: a file, a folder, an array, or a table of files."),
    out: str = typer.Option(..., help="Where the predictions go, .jsonl."),
    set_: options.TableReadSettings = [],
) -> Result:
    """Label and probability (several labels, or a value) of each picture, one JSON object per line, in order."""

    check_results([out], [data])
    loaded = use.load(model)
    if not hasattr(loaded, "classes"):
        raise UserError(f"{model}: not a classifier", hint="Fine-tune it first: unmask finetune classify.")
    images = loaded.read(data, labelled=False, **reading(set_, table=True))
    count = write_json_lines(loaded.predicted(images), out)
    described, lines = account(images)
    found = {"out": out, "rows": count, "pictures": count, **described}
    return Result(found, [*lines, f"{out}: {count} pictures"], loaded)
