"""fill, score, embed and evaluate for a model of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, check_most, scores, write_array
from unmask.cli.images.reading import account, reading
from unmask.errors import UserError
from unmask.evaluation.meanings import figure_lines
from unmask.files import check_results

DRAWN = 64
"""Pictures side by side in a .png of `fill`."""


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
    data: str = typer.Argument(..., help="Pictures: a file, a folder, an array."),
    out: str = typer.Option(None, help="A .png (original | masked | filled) or .npy."),
    box: str = typer.Option(None, help="Hide left,top,width,height in pixels."),
    ratio: float = typer.Option(None, help="Hide this share of the patches at random."),
    mask: str = typer.Option(
        None, help="Hide where this picture is at least half as bright as its brightest spot (transparent is white)."
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
    from unmask.modalities.images.uses.pictures import sheet, triptych, write_png
    from unmask.modalities.images.uses.reconstruct import figures_of
    from unmask.modalities.images.uses.scenes import fill_scenes

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
    hidden = None
    if mask is not None:
        marked = read_images(mask, size=None if tiled else loaded.config.image, channels=1)
        hidden = marked.pixels[0, :, :, 0]
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
    if target.suffix == ".npy":
        if len({r.filled.shape[1:] for r in done}) > 1:
            raise UserError(f"{out}: pictures of several sizes", hint="Give one picture, or a .png to look at them.")
        write_array((r.filled for r in done), sum(len(r.filled) for r in done), target)
    else:
        drawn = [
            triptych(r.original[i], r.hidden[i], r.filled[i], None if r.unknown is None else r.unknown[i])
            for r in done
            for i in range(len(r.original))
        ]
        write_png(target, sheet(drawn[:DRAWN]))
    figures = figures_of(done, loaded.config.patch)
    described, lines = account(images)
    pictures = figures["rows"]
    found = {"out": out, "pictures": pictures, **figures, **described}
    some = f"the first {DRAWN} of " if target.suffix != ".npy" and pictures > DRAWN else ""
    mean = figures["rmse_of_mean"]
    lines.append(
        f"{out}: {some}{pictures} pictures, {figures['hidden_share']:.0%} hidden, rmse of hidden pixels "
        f"{figures['rmse']:.4g}" + ("" if mean is None else f" (the mean of the visible ones: {mean:.4g})")
    )
    return Result(found, lines, loaded)


def _refuse_classifier(model: str, loaded: Any) -> None:
    if hasattr(loaded, "classes"):
        raise UserError(
            f"{model}: a classifier, whose encoder no longer fits a decoder", hint="Use the model it was made from."
        )


def score(
    use: options.Loading,
    model: options.Model,
    data: str = typer.Argument(..., help="Pictures: a file, a folder, an array."),
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
    data: str = typer.Argument(..., help="Pictures: a file, a folder, an array."),
    out: str = typer.Option(..., help="Where: .parquet with the name of each picture, or .npy, (pictures, width)."),
    pooling: str = typer.Option("mean", help="mean, first, max or grid (4 x 4 means side by side)."),
    set_: options.ReadSettings = [],
) -> Result:
    """Embed pictures, one row per picture: sorted paths, slices of a series by their place. The .parquet, and `names`
    of --json, say which picture a row is of."""
    from typing import cast

    from unmask.modalities.images.network.features import PASSING, row_names, write_named

    check_results([out], [data])
    loaded = use.load(model)
    reader = loaded.model if hasattr(loaded, "classes") else loaded
    images = reader.read(data, store=PASSING, problem="none", **reading(set_, table=True))
    array = loaded.embed(images, pooling=cast(Any, pooling))
    names = row_names(images)
    if out.endswith(".parquet"):
        write_named(names, array, out)
    else:
        write_array([array], len(array), out)
    described, lines = account(images)
    found = {"out": out, "rows": len(array), "shape": list(array.shape), **described}
    found["names"] = names
    lines = [*lines, f"{out}: {array.shape[0]} x {array.shape[1]}"]
    return Result(found, lines, loaded)


def evaluate(
    use: options.Loading,
    model: options.Model,
    data: list[str] = typer.Argument(..., help="Pictures in class folders; for a fine-tuned model labelled pictures."),
    most: int = typer.Option(None, help="At most this many training pictures (default all)."),
    set_: options.ReadSettings = [],
    pooling: str = typer.Option(None, help="Of frozen features: mean (default), first, max or grid."),
    report: str = typer.Option(None, help="Fine-tuned models: where to write the HTML report."),
    seed: options.Seed = 0,
) -> Result:
    """k-NN and linear-probe accuracy of frozen features; of a fine-tuned model, its figures."""
    from unmask.modalities.images.classify.scored_report import evaluation_report, scored_lines
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
    if not tuned and "most_frequent_accuracy" in found:
        often = f"the most frequent class {found['most_frequent_accuracy']:.4f}"
        rules = {name: "; ".join(filter(None, (rules.get(name), often))) for name in shown[:2]}
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
