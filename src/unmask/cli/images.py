"""What the shared commands do when the model is one of images."""

from __future__ import annotations

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


def _skipped(images: Any) -> list[str]:
    return [f"skipped {name}: {reason}" for name, reason in images.skipped[:5]] + (
        [f"... {len(images.skipped)} in all"] if len(images.skipped) > 5 else []
    )


def fill(
    model: str, data: str, *, out: str | None, box: str | None, ratio: float | None, mask: str | None, steps: int,
    order: str, temperature: float, seed: int, precision: str, device: str, as_json: bool,
) -> None:  # fmt: skip
    """Hide a part of pictures, predict it, and write original | masked | filled as a PNG (or the pictures as .npy)."""
    import numpy as np

    from unmask.cli.common import Output, write_array
    from unmask.errors import UserError
    from unmask.files import check_place
    from unmask.images.model import load
    from unmask.images.pictures import sheet, triptych, write_png
    from unmask.images.sources import read_images

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
    images = loaded.read(data)
    hidden = None
    if mask is not None:
        hidden = read_images(mask, size=loaded.config.image, channels=1).pixels[0, :, :, 0]
        # Not every pixel that is not black: JPEG leaves traces, shrinking leaves soft edges.
        hidden = hidden > hidden.max() / 2
    r = loaded.reconstruct(
        images, box=None if box is None else _numbers(box, 4, "--box"), ratio=ratio, mask=hidden, steps=steps,
        order="random" if order == "confidence" and steps == 1 else order, temperature=temperature, seed=seed,
    )  # fmt: skip
    if target.suffix == ".npy":
        write_array(r.filled, target)
    else:
        shown = range(min(len(r.original), 64))
        write_png(target, sheet([triptych(r.original[i], r.hidden[i], r.filled[i]) for i in shown]))
    difference = (r.filled.astype(np.float64) - r.original)[r.hidden]
    error = float(np.sqrt((difference**2).mean())) if difference.size else 0.0
    found = {
        "out": out,
        "pictures": len(r.original),
        "hidden_share": float(r.hidden.mean()),
        "rmse": error,
        "skipped": len(images.skipped),
    }
    lines = [
        *_skipped(images),
        f"{out}: {len(r.original)} pictures, {r.hidden.mean():.0%} hidden, rmse of hidden pixels {error:.4g}",
    ]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def embed(model: str, data: str, *, out: str, pooling: str, precision: str, device: str, as_json: bool) -> None:
    """One vector a picture, in the order of the (sorted) paths."""
    from typing import cast

    from unmask.cli.common import Output, write_array
    from unmask.files import check_place
    from unmask.images.model import load

    check_place(out)
    output = Output(as_json)
    loaded = load(model, device=device, precision=precision)
    reader = loaded.model if hasattr(loaded, "classes") else loaded
    images = reader.read(data)
    array = loaded.embed(images, pooling=cast(Any, pooling))
    write_array(array, out)
    found = {"out": out, "shape": list(array.shape), "skipped": [name for name, _ in images.skipped]}
    lines = [*_skipped(images), f"{out}: {array.shape[0]} x {array.shape[1]}"]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def evaluate(
    model: str, data: list[str], *, most: int | None, seed: int, precision: str, device: str, as_json: bool
) -> None:
    """k-NN and linear-probe accuracy of frozen features; of a fine-tuned model, its accuracy."""
    from unmask.cli.common import Output
    from unmask.images.model import load

    output = Output(as_json, seed)
    loaded = load(model, device=device, precision=precision)
    source = data[0] if len(data) == 1 else data
    found = loaded.evaluate(source, seed=seed, most=most)
    shown = ("accuracy", "knn_accuracy", "probe_accuracy", "raw_knn_accuracy", "raw_probe_accuracy")
    lines = [f"{name:20}{found[name]:.1%}" for name in shown if name in found]
    if "loss" in found:
        lines += [f"{'loss':20}{found['loss']:.4f}"]
    if not any(name in found for name in shown):
        lines += ["no classes: give one folder a class for nearest-neighbour and probe accuracy"]
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def finetune(
    task: str, model: str, data: str, *, validation: str | None, out: str, given: dict[str, Any], as_json: bool
) -> None:
    """`finetune classify` on labelled pictures."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.images.finetune import FinetuneSettings, finetune_classify, with_overrides

    if task != "classify":
        raise UserError(f"finetune {task}: not a task of images", hint="Known: classify.")
    settings = with_overrides(FinetuneSettings(), given)
    output = Output(as_json, settings.train.seed)
    done = finetune_classify(model, data, out, validation=validation, settings=settings)
    found = done.figures
    lines = [f"{found['steps']} steps, {found['seconds']:.0f} s, {found['images_per_second']:,.0f} images/s"]
    if "validation_accuracy" in found:
        lines += [f"validation accuracy {found['validation_accuracy']:.1%} ({found['validation_pictures']} pictures)"]
    lines += [f"model:  {out}", f"report: {done.folder / 'report.html'}"]
    output.write({"folder": out} | found, lines, device=found["device"], precision=found["precision"])


def predict(model: str, data: str, *, out: str, precision: str, device: str, as_json: bool) -> None:
    """Label and probability of each picture, one JSON object a line, in order."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.files import check_place, write_json_lines
    from unmask.images.model import load

    output = Output(as_json)
    loaded = load(model, device=device, precision=precision)
    if not hasattr(loaded, "classes"):
        raise UserError(f"{model}: not a classifier", hint="Fine-tune it first: unmask finetune classify.")
    check_place(out)
    images = loaded.model.read(data)
    rows = loaded.predict(images)
    write_json_lines(rows, out)
    lines = [*_skipped(images), f"{out}: {len(rows)} pictures"]
    output.write({"out": out, "pictures": len(rows)}, lines, device=str(loaded.device), precision=loaded.precision)
