"""The commands of models of images: how pictures are read, pretraining, fine-tuning and the uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, check_most, run_lines, scores, with_recipe, write_array
from unmask.errors import UserError, suggest
from unmask.evaluation.meanings import figure_lines
from unmask.files import check_results
from unmask.writing import write_json_lines

READING = ("planes", "alpha", "nodata", "slice", "view", "overlap", "rescale")
TABLE = ("pictures", "column", "label_column")
"""Of a table of files and labels: the folder its paths are relative to, its columns."""


def reading(
    pairs: Sequence[str], *, table: bool = False, labelled: bool = False, grouped: bool = False, size: bool = False
) -> dict[str, Any]:
    """How files are read, from --set: the keys of `READING`; of tables of files also those of `TABLE` (the labels where
    they are read); `group` where pictures are split, counted or named with their group; `image_size` where there is no
    model that says it."""
    from unmask.modalities.images.recipes import ImageSettings
    from unmask.training.settings import apply_overrides, parse_set

    given = dict(parse_set(pairs))
    known = ((*READING[:-1], "image_size") if size else READING) + (TABLE[:2] if table else ())
    known += ("label_column",) if labelled else ()
    known += ("group",) if labelled or grouped else ()
    for key in given:
        if key not in known:
            raise UserError(f"--set {key}=", hint=suggest(key, known))
    columns = {key: str(given.pop(key)) for key in TABLE if key in given}
    rescale = given.pop("rescale", "false")
    if str(rescale) not in ("true", "false"):
        raise UserError(f"rescale={rescale}", hint="Expected true or false.")
    if given.get("view") == "crop":
        raise UserError("view=crop", hint="Random crops are for training: say view=tile.")
    # Sizes, and the view where it is not given, are the model's: anything stands for them here.
    stand_in = {"image_size": 2**20} | ({"view": "tile"} if "overlap" in given else {})
    checked = apply_overrides(ImageSettings(), stand_in | given)
    found = columns | {{"image_size": "size"}.get(key, key): getattr(checked, key) for key in given}
    return found | ({"rescale": True} if str(rescale) == "true" else {})


def account(images: Any) -> tuple[dict[str, Any], list[str]]:
    """What was made of the files, and how many pictures could not be read, and which (of files that are decoded as they
    come once all were looked at); and the former in words."""
    from unmask.modalities.images.reading.account import account_lines, describe

    found = describe(images)
    names = [name for name, _ in images.skipped]
    return {"data": found, "skipped": len(names), "skipped_names": names}, account_lines(found)


def describe(
    data: list[str] = options.source(
        "A folder of pictures, files, .npy, .npz or .idx.gz, a table of files and labels."
    ),
    out: str = typer.Option(None, help="Also write what was found as an HTML page with thumbnails here."),
    set_: list[str] = typer.Option(
        [],
        "--set",
        help="How files are read: image_size, planes, alpha, nodata, slice, view, overlap, group; of a table of files: "
        "pictures, column, label_column.",
    ),
) -> Result:
    """Look at pictures before a run: classes, parts, sizes and what is cut, values, copies, groups, unread files."""
    from unmask.modalities.images.uses.describe import describe

    check_results([out], data)
    how = reading(set_, table=True, labelled=True, size=True)
    found = describe(data[0] if len(data) == 1 else data, image_size=how.pop("size", None), **how)
    places = {"out": str(found.write_report(out))} if out else {}
    return Result(found.to_dict() | places, [*found.lines(), *(f"written: {place}" for place in places.values())])


def pretrain(
    flags: options.RunOptions,
    data: list[str] = options.source(
        "A folder of pictures (class folders or flat), files, .npy, .npz, .idx.gz, .parquet or hf:NAME."
    ),
    out: str = typer.Option(..., help="Run folder."),
    recipe: str = typer.Option(None, help="small (default), pixels, mae, simmim, lejepa, simclr, ijepa or segment."),
    strict: bool = typer.Option(False, "--strict", help="A picture that cannot be read is an error, not skipped."),
    examples: options.Examples = False,
    tracker: options.Trackers = [],
) -> Result:
    """Pretrain a masked image model on pictures."""
    from unmask.modalities.images.recipes import DEFAULT, RECIPES, ImageSettings, with_overrides

    given = flags.overrides(strict=strict or None, examples=examples or None)
    settings = with_recipe(recipe or DEFAULT, RECIPES, ImageSettings(), with_overrides, given)
    from unmask.modalities.images.uses.pretrain import pretrain as run

    finished = run(data, out, settings=settings, resume=flags.resume, trackers=tracker)
    r = finished.result
    skipped = finished.data["skipped"]
    notes = [f"skipped {skipped} pictures that cannot be read"] if skipped else []
    if rank := finished.data.get("effective_rank"):
        notes.append(f"embeddings of held-out pictures spread over {rank:.1f} directions")
    rules = "".join(f"; {name} {loss:.4f}" for name, loss in finished.data.get("rules", {}).items())
    lines = run_lines(
        r,
        out,
        rate=f"{finished.images_per_second:,.0f} images/s",
        held="held out: loss {loss:.4f}" + (" per hidden patch" if settings.target == "pixels" else "") + rules,
        notes=notes,
    )
    return Result(finished.to_dict(), lines)


def finetune(
    flags: options.RunOptions,
    task: str = typer.Argument(..., help="classify or segment."),
    model: str = options.model(),
    data: str = options.source("Class folders of pictures, or a table of files and labels."),
    out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
    validation: options.Validation = None,
) -> Result:
    """Fine-tune a model of images on labelled pictures."""
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
    from unmask.modalities.images.classify.scored_report import KEPT, scored_lines
    from unmask.modalities.images.uses.finetune import finetune_classify

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
            if (raw := judged["raw_probe_accuracy"]) is not None:
                lines[-1] += f", a linear probe of raw pixels in {raw:.1%}"
            if judged["accuracy"] <= often:
                lines.append("warning: no better than always naming the most frequent class")
    if found["problem"] != "single" and "validation" in found:
        lines += scored_lines(found["validation"])
    lines += [f"model:  {out}", f"report: {done.folder / 'report.html'}"]
    return Result({"report": f"{out}/report.html"} | found, lines)


def predict(
    use: options.Loading,
    model: options.Tuned,
    data: str = options.source("Pictures: a file, a folder, an array, or a table of files."),
    out: str = options.rows(".jsonl", "Where the predictions go, .jsonl", "-"),
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


def _numbers(text: str, count: int, name: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != count:
        raise UserError(f"{name} {text}", hint=f"Expected {count} whole numbers with commas between, in pixels.")
    return found


def fill(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("Pictures: a file, a folder, an array."),
    out: str = typer.Option(None, help="A .png (original | masked | filled) or .npy."),
    box: str = typer.Option(None, help="Hide left,top,width,height in pixels."),
    ratio: float = typer.Option(None, help="Hide this share of the patches at random."),
    mask: str = options.source_option(
        "Hide where this picture is at least half as bright as its brightest spot (transparent is white)."
    ),
    gaps: bool = typer.Option(False, "--gaps", help="Predict the patches with pixels that were not measured."),
    set_: options.ReadSettings = [],
    steps: options.FillSteps = 1,
    order: options.FillOrder = "confidence",
    temperature: options.FillTemperature = 0.0,
    seed: options.Seed = 0,
) -> Result:
    """Hide a part of pictures, predict it, and write original | masked | filled as a PNG (or the pictures as .npy)."""
    from unmask.modalities.images.reading.sources import read_images
    from unmask.modalities.images.uses.drawing import write_png
    from unmask.modalities.images.uses.model import fill_scenes
    from unmask.modalities.images.uses.reconstruct import figures_of, filled_sheet

    if out is None:
        raise UserError(
            "fill: no --out", hint="Give a .png for side-by-side pictures, or a .npy for the filled pixels."
        )
    check_results([out], [data, mask])
    target = Path(out)
    loaded = use.load(model)
    _refuse_classifier(model, loaded)
    images = loaded.read(data, **reading(set_))
    tiled = images.tiles is not None
    hidden, notes = None, []
    if mask is not None:
        marked = read_images(mask, size=None if tiled else loaded.config.image, channels=1)
        if len(marked) > 1:
            raise UserError(f"--mask {mask}: {len(marked)} pictures", hint="Give one, which is laid on every picture.")
        hidden, notes = marked.pixels[0, :, :, 0], [f"{mask}: {note}" for note in marked.notes]
        # Not every pixel that is not black: JPEG leaves traces, shrinking leaves soft edges.
        hidden = hidden > hidden.max() / 2
    chosen: dict[str, Any] = {
        "box": None if box is None else _numbers(box, 4, "--box"),
        "ratio": ratio,
        "mask": hidden,
        "gaps": gaps,
        "steps": steps,
        "order": "random" if order == "confidence" and steps == 1 else order,
        "temperature": temperature,
        "seed": seed,
    }
    done = fill_scenes(loaded, images, **chosen) if tiled else [loaded.reconstruct(images, **chosen)]
    drawn = None
    if target.suffix == ".npy":
        if len({r.filled.shape[1:] for r in done}) > 1:
            raise UserError(f"{out}: pictures of several sizes", hint="Give one picture, or a .png to look at them.")
        write_array((r.filled for r in done), sum(len(r.filled) for r in done), target)
    else:
        picture, drawn = filled_sheet(done)
        write_png(target, picture)
    figures = figures_of(done, loaded.config.patch)
    described, lines = account(images)
    lines += notes
    pictures = figures["rows"]
    found = {"out": out, "pictures": pictures, **figures, **described}
    some = "" if drawn is None or drawn == pictures else f"{drawn} of "
    rmse, mean = figures["rmse"], figures["rmse_of_mean"]
    lines.append(
        f"{out}: {some}{pictures} pictures, {figures['hidden_share']:.0%} hidden"
        + ("" if rmse is None else f", rmse of hidden pixels {rmse:.4g}")
        + ("" if mean is None else f" (the mean of the visible ones: {mean:.4g})")
    )
    return Result(found, lines, loaded)


def _refuse_classifier(model: str, loaded: Any) -> None:
    if hasattr(loaded, "net"):
        raise UserError(
            f"{model}: fine-tuned, and its encoder no longer fits a decoder", hint="Use the model it was made from."
        )


def score(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("Pictures: a file, a folder, an array."),
    set_: options.ReadSettings = [],
) -> Result:
    """Pseudo-log-likelihood of pictures: the higher, the more natural."""
    from unmask.modalities.images.network.features import PASSING

    loaded = use.load(model)
    _refuse_classifier(model, loaded)
    images = loaded.read(data, store=PASSING, **reading(set_))
    results = loaded.score(images)
    described, lines = account(images)
    of = {"pixels": "of their pixels", "patterns": "of patches at mean 0 and deviation 1, all that it predicts"}
    lines.append(f"log-densities {of[loaded.scored]}, in nats")
    lines += [f"{r['score']:12.2f}  {r['slots']:4d} patches  {r['name']}" for r in results]
    return scores(loaded, results, lines, scored=loaded.scored, **described)


def embed(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("Pictures: a file, a folder, an array."),
    out: str = typer.Option(
        ..., help=".parquet or .csv with path, frame and group of each row; .npy: they lie beside."
    ),
    report: str = typer.Option(None, help="Also write a page of some pictures and those nearest to them here."),
    pooling: str = typer.Option("mean", help="mean, first, max or grid (4 x 4 means side by side)."),
    set_: list[str] = typer.Option(
        [],
        "--set",
        help="How files are read: planes, alpha, nodata, slice, view, overlap, rescale, group; of a table of files: "
        "pictures, column.",
    ),
) -> Result:
    """Embed pictures, one row per picture: of a folder sorted paths, slices of a series by their place. The .parquet,
    the .csv, the file beside the .npy, and `names` of --json, say which picture a row is of."""
    from typing import cast

    from unmask.modalities.images.network.features import PASSING
    from unmask.modalities.images.uses.neighbours import neighbours_of
    from unmask.modalities.images.uses.vectors import ids_file, readable, row_names, write_vectors

    check_results(sorted({out, ids_file(out), *filter(None, [report])}), [data])
    loaded = use.load(model)
    reader = loaded.model if hasattr(loaded, "net") else loaded
    images = reader.read(data, store=PASSING, problem="none", **reading(set_, table=True, grouped=True))
    array = loaded.embed(images, pooling=cast(Any, pooling))
    images = readable(images)
    ids = write_vectors(images, array, out)
    described, lines = account(images)
    found = {"out": out, "rows": len(array), "shape": list(array.shape), "ids": ids, **described}
    found["names"] = row_names(images)
    lines.append(f"{out}: {array.shape[0]} x {array.shape[1]}" + (f"; rows: {ids}" if ids != out else ""))
    if report is not None:
        near = neighbours_of(images, array)
        found |= near.to_dict() | {"report": str(near.write_report(report))}
        lines += [*near.notes(), f"report: {report}"]
    return Result(found, lines, loaded)


def evaluate(
    use: options.Loading,
    model: options.Model,
    data: list[str] = options.source("Pictures in class folders; for a fine-tuned model labelled pictures."),
    most: int = typer.Option(None, help="At most this many training pictures (default all)."),
    set_: options.ReadSettings = [],
    pooling: str = typer.Option(None, help="Of frozen features: mean (default), first, max or grid."),
    report: str = typer.Option(None, help="Fine-tuned models: where to write the HTML report."),
    seed: options.Seed = 0,
) -> Result:
    """k-NN and linear-probe accuracy of frozen features; of a fine-tuned model, its figures."""
    from unmask.modalities.images.classify.scored_report import evaluation_report, scored_lines
    from unmask.modalities.images.network.baseline import MEAN
    from unmask.modalities.images.network.features import PASSING

    check_most(most)
    check_results([report], data)
    loaded = use.load(model)
    tuned = hasattr(loaded, "classes")
    if report is not None and not tuned:
        raise UserError(
            f"--report {report}: {model} is not fine-tuned",
            hint="Its figures are few: they are printed, and in --json. A page is made of a fine-tuned model's.",
        )
    if pooling is not None and tuned:
        raise UserError(
            f"--pooling {pooling}: {model} is fine-tuned, and its head reads what it was trained on",
            hint="Leave it out; evaluate the model that it was made from.",
        )
    chosen = {"problem": "auto", "store": PASSING} | reading(set_, table=True, labelled=True)
    source = data[0] if len(data) == 1 else data
    images = loaded.read(source, **chosen | {"problem": loaded.problem}) if tuned else loaded.read(source, **chosen)
    how: dict[str, Any] = {} if tuned else {"pooling": pooling or "mean"}
    found = loaded.evaluate(images, seed=seed, most=most, **how)
    images.notes.extend(found.pop("notes"))
    described, notes = account(images)
    found["data"] = described["data"]
    shown = ("knn_accuracy", "probe_accuracy", "raw_knn_accuracy", "raw_probe_accuracy")
    rules = {name: "raw pixels " + f"{found['raw_' + name]:.4f}" for name in shown[:2] if "raw_" + name in found}
    if "loss_of_mean" in found:
        rules["loss"] = f"{MEAN} {found['loss_of_mean']:.4f}"
    if not tuned and "most_frequent_accuracy" in found:
        often = f"the most frequent class {found['most_frequent_accuracy']:.4f}"
        rules |= {name: "; ".join(filter(None, (rules.get(name), often))) for name in shown[:2]}
    lines = notes + figure_lines(found, [*shown[:2], "loss"], rules=rules)
    if tuned:
        lines += scored_lines(found)
        if report is not None:
            evaluation_report(found, report, model=model, data=" ".join(data), notes=notes)
            found["report"] = report
            lines.append(f"report: {report}")
    elif images.targets is not None:
        lines += ["neighbours and probe are for one class per picture: fine-tune on these labels and evaluate that"]
    elif not any(name in found for name in shown):
        lines += ["no classes: give one folder a class for nearest-neighbour and probe accuracy"]
    return Result(found, lines, loaded)
