"""What the shared commands do when the model is one of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _numbers(text: str, count: int, name: str) -> tuple[int, ...]:
    from unmask.errors import UserError

    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != count:
        raise UserError(f"{name} {text}", hint=f"Expected {count} whole numbers with commas between, in pixels.")
    return found


READING = ("planes", "alpha", "nodata", "slice", "view", "overlap", "group", "rescale")
TABLE = ("pictures", "column", "label_column")
"""Of a table of files and labels: the folder its paths are relative to, its columns."""


def reading(pairs: Sequence[str], *, table: bool = False) -> dict[str, Any]:
    """How files are read, from --set: planes, alpha, nodata, slice, view, overlap, group, rescale; of tables of files also pictures,
    column, label_column.

    Raises:
        UserError: another key, or a value that does not fit.
    """
    from unmask.errors import UserError, suggest
    from unmask.modalities.images.recipes import ImageSettings
    from unmask.training.settings import apply_overrides, parse_set

    given = dict(parse_set(pairs))
    known = READING + (TABLE if table else ())
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
    found = columns | {key: getattr(checked, key) for key in given}
    return found | ({"rescale": True} if str(rescale) == "true" else {})


def _account(images: Any) -> tuple[dict[str, Any], list[str]]:
    """What was made of the files, as figures and in words."""
    from unmask.modalities.images.account import describe, told

    found = describe(images)
    return found, told(found)


def fill(
    model: str, data: str, *, out: str | None, box: str | None, ratio: float | None, mask: str | None, gaps: bool,
    settings: Sequence[str], steps: int, order: str, temperature: float, seed: int, precision: str, device: str, as_json: bool,
) -> None:  # fmt: skip
    """Hide a part of pictures, predict it, and write original | masked | filled as a PNG (or the pictures as .npy)."""
    import numpy as np

    from unmask.cli.common import Output, write_array
    from unmask.errors import UserError
    from unmask.files import check_place
    from unmask.modalities.images.model import load
    from unmask.modalities.images.pictures import sheet, triptych, write_png
    from unmask.modalities.images.scenes import fill_scenes
    from unmask.modalities.images.sources import read_images

    if out is None:
        raise UserError(
            "fill: no --out", hint="Give a .png for side-by-side pictures, or a .npy for the filled pixels."
        )
    target = check_place(out)
    output = Output(as_json, seed)
    loaded = load(model, device=device, precision=precision)
    if hasattr(loaded, "classes"):
        raise UserError(
            f"{model}: a classifier, whose encoder no longer fits a decoder",
            hint="Fill with the model it was made from.",
        )
    images = loaded.read(data, **reading(settings))
    tiled = images.tiles is not None
    hidden = None
    if mask is not None:
        marked = read_images(mask, size=None if tiled else loaded.config.image, channels=1)
        hidden = marked.pixels[0, :, :, 0]
        # Not every pixel that is not black: JPEG leaves traces, shrinking leaves soft edges.
        hidden = hidden > hidden.max() / 2
    chosen: dict[str, Any] = {
        "box": None if box is None else _numbers(box, 4, "--box"), "ratio": ratio, "mask": hidden, "gaps": gaps,
        "steps": steps, "order": "random" if order == "confidence" and steps == 1 else order, "temperature": temperature,
        "seed": seed,
    }  # fmt: skip
    done = fill_scenes(loaded, images, **chosen) if tiled else [loaded.reconstruct(images, **chosen)]
    if target.suffix == ".npy":
        if len({r.filled.shape[1:] for r in done}) > 1:
            raise UserError(f"{out}: pictures of several sizes", hint="Give one picture, or a .png to look at them.")
        write_array(np.concatenate([r.filled for r in done]), target)
    else:
        drawn = [
            triptych(r.original[i], r.hidden[i], r.filled[i], None if r.unknown is None else r.unknown[i])
            for r in done for i in range(len(r.original))
        ]  # fmt: skip
        write_png(target, sheet(drawn[:64]))
    squares, count, share, pictures = 0.0, 0, [], 0
    for r in done:
        known = r.hidden if r.unknown is None else r.hidden & ~r.unknown
        difference = (r.filled.astype(np.float64) - r.original)[known]
        squares, count, pictures = (
            squares + float((difference**2).sum()),
            count + difference.size,
            pictures + len(r.original),
        )
        share += [float(h.mean()) for h in r.hidden]
    error = float(np.sqrt(squares / count)) if count else 0.0
    account, lines = _account(images)
    found = {
        "out": out, "pictures": pictures, "hidden_share": float(np.mean(share)), "rmse": error,
        "skipped": len(images.skipped), "data": account,
    }  # fmt: skip
    lines.append(f"{out}: {pictures} pictures, {np.mean(share):.0%} hidden, rmse of hidden pixels {error:.4g}")
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def embed(
    model: str,
    data: str,
    *,
    out: str,
    pooling: str,
    settings: Sequence[str],
    precision: str,
    device: str,
    as_json: bool,
) -> None:
    """One vector a picture, in the order of the (sorted) paths."""
    from typing import cast

    from unmask.cli.common import Output, write_array
    from unmask.files import check_place
    from unmask.modalities.images.features import PASSING
    from unmask.modalities.images.model import load

    check_place(out)
    output = Output(as_json)
    loaded = load(model, device=device, precision=precision)
    reader = loaded.model if hasattr(loaded, "classes") else loaded
    images = reader.read(data, store=PASSING, problem="none", **reading(settings, table=True))
    array = loaded.embed(images, pooling=cast(Any, pooling))
    write_array(array, out)
    account, lines = _account(images)
    found = {"out": out, "shape": list(array.shape), "skipped": [name for name, _ in images.skipped], "data": account}
    lines = [*lines, f"{out}: {array.shape[0]} x {array.shape[1]}"]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def evaluate(
    model: str, data: list[str], *, most: int | None, settings: Sequence[str], report: str | None, seed: int, precision: str,
    device: str, as_json: bool,
) -> None:  # fmt: skip
    """k-NN and linear-probe accuracy of frozen features; of a fine-tuned model, its figures."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.files import check_place
    from unmask.modalities.images.features import PASSING
    from unmask.modalities.images.model import load
    from unmask.modalities.images.scored_report import evaluation_report, scored_lines

    output = Output(as_json, seed)
    loaded = load(model, device=device, precision=precision)
    tuned = hasattr(loaded, "classes")
    if report is not None and not tuned:
        raise UserError(
            f"--report {report}: {model} is not fine-tuned",
            hint="Its figures are few: they are printed, and in --json. A page is made of a fine-tuned model's.",
        )
    if report is not None:
        check_place(report)
    chosen = {"problem": "auto", "store": PASSING} | reading(settings, table=True)
    source = data[0] if len(data) == 1 else data
    images = loaded.read(source, **chosen | {"problem": loaded.problem}) if tuned else loaded.read(source, **chosen)
    found = loaded.evaluate(images, seed=seed, most=most)
    found["data"], account = _account(images)
    shown = ("knn_accuracy", "probe_accuracy", "raw_knn_accuracy", "raw_probe_accuracy")
    lines = account + [f"{name:20}{found[name]:.1%}" for name in shown if name in found]
    if "loss" in found:
        lines += [f"{'loss':20}{found['loss']:.4f}"]
    if tuned:
        lines += scored_lines(found)
        if report is not None:
            evaluation_report(found, report, model=model, data=" ".join(data), notes=account)
            found["report"] = report
            lines.append(f"report: {report}")
    elif images.targets is not None:
        lines += ["neighbours and probe are for one class per picture: fine-tune on these labels and evaluate that"]
    elif not any(name in found for name in shown):
        lines += ["no classes: give one folder a class for nearest-neighbour and probe accuracy"]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def finetune(
    task: str, model: str, data: str, *, validation: str | None, out: str, given: dict[str, Any], as_json: bool
) -> None:
    """`finetune classify` on labelled pictures."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.modalities.images.finetune import FinetuneSettings, finetune_classify, with_overrides
    from unmask.modalities.images.scored_report import KEPT, scored_lines

    if task != "classify":
        raise UserError(f"finetune {task}: not a task of images", hint="Known: classify.")
    settings = with_overrides(FinetuneSettings(), given)
    output = Output(as_json, settings.train.seed)
    done = finetune_classify(model, data, out, validation=validation, settings=settings)
    found = done.figures
    lines = [f"{found['steps']} steps, {found['seconds']:.0f} s, {found['images_per_second']:,.0f} images/s"]
    if "kept_by" in found:
        value, told = found[f"validation_{found['kept_by']}"], KEPT[found["kept_by"]]
        shown = f"{value:.1%}" if found["kept_by"] == "accuracy" else f"{value:.4g}"
        lines += [f"validation {told} {shown} ({found['validation_pictures']} pictures)"]
    if found["problem"] != "single" and "validation" in found:
        lines += scored_lines(found["validation"])
    lines += [f"model:  {out}", f"report: {done.folder / 'report.html'}"]
    output.write({"folder": out} | found, lines, device=found["device"], precision=found["precision"])


def predict(
    model: str, data: str, *, out: str, settings: Sequence[str], precision: str, device: str, as_json: bool
) -> None:
    """Label and probability (several labels, or a value) of each picture, one JSON object per line, in order."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.files import check_place, write_json_lines
    from unmask.modalities.images.model import load

    output = Output(as_json)
    loaded = load(model, device=device, precision=precision)
    if not hasattr(loaded, "classes"):
        raise UserError(f"{model}: not a classifier", hint="Fine-tune it first: unmask finetune classify.")
    check_place(out)
    images = loaded.read(data, labelled=False, **reading(settings, table=True))
    rows = loaded.predict(images)
    write_json_lines(rows, out)
    account, lines = _account(images)
    lines = [*lines, f"{out}: {len(rows)} pictures"]
    output.write(
        {"out": out, "pictures": len(rows), "data": account},
        lines,
        device=str(loaded.device),
        precision=loaded.precision,
    )
