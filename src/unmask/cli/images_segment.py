"""The commands of segmentation: a class, or a quantity, for every pixel, learnt from pictures with masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result
from unmask.cli.images import reading
from unmask.errors import UserError, suggest
from unmask.files import check_results, read_object

TASKS = ("classify", "segment")
MASKS = (
    "A folder of masks named as the pictures (the ending may differ): class numbers, two values, a palette or colours; "
    "a quantity with fractions, such as a height; or of a folder per class."
)
IGNORE = "The value of pixels without a class: a number or a colour (#ffffff), or none; default 255 beside 0, 1, 2, ..."


def finetuned(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `finetune`: its task."""
    if words and words[0] not in TASKS:
        raise UserError(f"finetune {words[0]}: not a task of images", hint=suggest(words[0], TASKS))
    return words[0] if len(words) > 1 else None


def used(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `predict` and `evaluate`: what the model is for."""
    if not words:
        return None
    about = read_object(Path(words[0]).expanduser() / "unmask.json") or {}
    return "a segmenter" if "segmenter" in about else "images"


def finetune(
    flags: options.RunOptions,
    task: str = typer.Argument(..., help="classify or segment."),
    model: str = options.model(),
    data: list[str] = options.source("Pictures: a folder, or files. Those without a mask are left out."),
    masks: str = typer.Option(..., help=MASKS, callback=options.there(MASKS)),
    out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
    validation: options.Validation = None,
    validation_masks: str = options.source_option("Their masks, where they are not in --masks."),
    ignore: str = typer.Option(None, help=IGNORE),
    examples: options.Examples = False,
) -> Result:
    """Fine-tune a model of images on pictures with masks, to give every pixel a class, or a quantity."""
    from unmask.modalities.images.segment.figures import no_better, segment_lines
    from unmask.modalities.images.segment.settings import SegmenterSettings, with_overrides
    from unmask.modalities.images.uses.segment import finetune_segment

    settings = with_overrides(SegmenterSettings(), flags.overrides(ignore=ignore, examples=examples or None))
    done = finetune_segment(
        model,
        data[0] if len(data) == 1 else data,
        out,
        masks=masks,
        validation=validation,
        validation_masks=validation_masks,
        settings=settings,
        checkpoints=True,
        resume=flags.resume,
    )
    found: dict[str, Any] = {"seed": settings.train.seed, "folder": out} | done.figures
    if found["stopped"] == "signal":
        return Result(found)
    lines = [f"{found['steps']} steps, {found['seconds']:.0f} s, {found['crops_per_second']:,.1f} crops/s"]
    if "validation" in found:
        judged = found["validation"]
        lines += [f"held out: {judged['pictures']} pictures", *segment_lines(judged), *no_better(judged)]
    lines += [f"model:  {out}", f"report: {done.folder / 'report.html'}"]
    return Result({"report": f"{out}/report.html"} | found, lines)


def predict(
    use: options.Loading,
    model: options.Tuned,
    data: list[str] = options.source("Pictures: a folder, or files."),
    out: str = typer.Option(..., help="The folder that the masks go to, each in the format of its picture."),
    probabilities: bool = typer.Option(
        False, "--probabilities", help="Write NAME.probabilities.npy too, (classes, height, width)."
    ),
    set_: options.ReadSettings = [],
) -> Result:
    """A mask for each picture, of its size and format, with what says where its pixels lie."""
    from unmask.modalities.images.segment.written import LEGEND, write_masks

    check_results([out], data)
    loaded = use.load(model)
    source = data[0] if len(data) == 1 else data
    notes: list[str] = []
    how: dict[str, Any] = {"probabilities": probabilities, "reading": reading(set_), "say": notes.append}
    rows = list(write_masks(loaded, source, out, **how))
    lines = list(notes)
    for row in rows:
        shares = [f"{c} {share:.1%}" for c, share in row.get("shares", {}).items()]
        lines.append(f"{row['name']}: " + (", ".join(shares) or f"mean {row['mean']:.4g}, sum {row['sum']:.4g}"))
    found = {"out": out, "rows": len(rows), "pictures": sum(row["pictures"] for row in rows), "results": rows}
    found["notes"] = notes
    meaning = f"{LEGEND} says which value is which of {', '.join(loaded.names)}"
    if loaded.legend.problem == "regression":
        meaning = "a quantity per pixel, as floats"
    return Result(found, [*lines, f"{out}: {len(rows)} masks; {meaning}"], loaded)


def evaluate(
    use: options.Loading,
    model: options.Model,
    data: list[str] = options.source("Pictures: a folder, or files. Those without a mask are left out."),
    masks: str = typer.Option(..., help=MASKS, callback=options.there(MASKS)),
    ignore: str = typer.Option(None, help=IGNORE),
    set_: options.ReadSettings = [],
    report: str = typer.Option(None, help="Where to write the HTML report: pictures, the worst first."),
    seed: options.Seed = 0,
) -> Result:
    """Dice, IoU and borders of each class, or errors of a quantity, beside rules without a network."""
    from unmask.modalities.images.segment.figures import segment_lines
    from unmask.modalities.images.uses.segmented_report import evaluation_report

    check_results([report], data)
    loaded = use.load(model)
    source = data[0] if len(data) == 1 else data
    scenes, notes, skipped = loaded.scenes(source, masks, ignore=ignore, reading=reading(set_))
    found, drawn = loaded.judge(scenes, seed=seed)
    found |= {"skipped": skipped, "notes": notes}
    lines = [*notes, *segment_lines(found)]
    if report is not None:
        evaluation_report(found, report, scenes, drawn, loaded.legend, model=model, data=" ".join(data), notes=notes)
        found["report"] = report
        lines.append(f"report: {report}")
    return Result(found, lines, loaded)
