"""An image model as it is served: reconstruct what is hidden, embed, predict with a fine-tuned head, and segment."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unmask.errors import UserError
from unmask.modalities.images.classify.classifier import Classifier
from unmask.modalities.images.formats.picture import Ambiguous, Broken, Choice
from unmask.modalities.images.formats.tiff import MAGIC
from unmask.modalities.images.network.features import pooled
from unmask.modalities.images.reading.account import check_fit
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions
from unmask.modalities.images.reading.decode import survey
from unmask.modalities.images.reading.from_files import decode_files
from unmask.modalities.images.reading.listing import File
from unmask.modalities.images.segment.legend import Legend
from unmask.modalities.images.segment.scenes import WholePicture, whole_pictures
from unmask.modalities.images.segment.segmenter import Segmenter
from unmask.modalities.images.uses.drawing import shown_range, to_rgb
from unmask.modalities.images.uses.model import ImageModel, load
from unmask.modalities.images.uses.reconstruct import chosen_pixels
from unmask.modalities.images.uses.segmented_report import class_colours, drawn_mask, drawn_quantity, quantity_ends
from unmask.serving.limits import Limits
from unmask.serving.shapes import Anything, Field, Flag, ListOf, Number, Open, Record, Text
from unmask.serving.verbs import Served, Verb, Work, adapted, alone, records


def serve(path: str | Path, *, limits: Limits, device: str = "auto", precision: str = "auto") -> Served:
    """An image model as it is served."""
    loaded: Any = load(path, device=device, precision=precision)
    tuned, segments = isinstance(loaded, Classifier), isinstance(loaded, Segmenter)
    model: ImageModel = loaded.model if tuned or segments else loaded
    verbs: dict[str, Verb] = {}
    dialects: dict[str, Verb] = {}
    if tuned:
        verbs["classify"] = _classify(loaded, model, limits)
        dialects["huggingface/image-classification"] = _image_classification(verbs["classify"])
        dialects["huggingface/"] = dialects["huggingface/image-classification"]
    elif segments:
        verbs["segment"] = _segment(loaded, limits)
    else:
        verbs["reconstruct"] = _reconstruct(model, limits)
    verbs["embed"] = _embed(loaded, model, limits)
    config = model.config
    about = {
        "height": config.image[0],
        "width": config.image[1],
        "channels": config.channels,
        "patch": config.patch,
        "grid": list(config.grid),
        "depth": model.folder.depth,
        "slots": config.slots,
        "parameters": model.inspect()["parameters"],
        "precision": model.precision,
        "device": str(model.device),
        "labels": list(loaded.classes) if tuned else loaded.names if segments else [],
    }
    task = "image-classification" if tuned else "image-segmentation" if segments else None
    return Served(kind="images", about=about, verbs=verbs, dialects=dialects, task=task)


def _images(limits: Limits) -> Field:
    return Field(
        ListOf(Text(), most=limits.items, least=1), "Pictures: files of one each in base64 (PNG, JPEG, TIFF, ...)."
    )


WARNINGS = Field(ListOf(Text()), "What was made of the pictures: parts cut off, one frame of several, colours as grey.")


def _together(
    images: ImageSet,
    model: ImageModel,
    run: Callable[[ImageSet, np.ndarray], Sequence[Any]],
    finish: Callable[[list[Any]], Any],
    *,
    how: tuple[Hashable, ...],
    extras: np.ndarray | None = None,
) -> Work:
    """Work on pictures that may be done with those of others.

    Args:
        run: (pictures, what `extras` has for each) -> an answer to each.
        finish: the answers to a request's -> JSON.
        how: pictures with the same, of one depth and without missing pixels, are worked on together.
        extras: (pictures, ...) what else belongs to each.
    """
    extras = np.zeros(len(images)) if extras is None else extras
    if images.missing is not None or images.tiles is not None:
        return alone(lambda: finish(list(run(images, extras))), len(images) * model.config.slots)

    def each(some: Sequence[tuple[np.ndarray, np.ndarray]]) -> Sequence[Any]:
        pixels, own = (np.stack(parts) for parts in zip(*some, strict=True))
        return run(ImageSet(pixels=pixels, fits=True), own)

    return Work(
        items=list(zip(images.pixels[:], extras, strict=True)),
        slots=[model.config.slots] * len(images),
        run=each,
        finish=lambda answers: finish(list(answers)),
        together=(*how, images.depth),
    )


def _uploaded(model: ImageModel, body: Any, limits: Limits) -> ImageSet:
    return read(model, [decoded(text, f"images[{n}]") for n, text in enumerate(body["images"])], limits)


def _embed(loaded: Any, model: ImageModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        images = _uploaded(model, body, limits)
        pooling, normalise = body["pooling"], body["normalise"]
        return _together(
            images,
            model,
            lambda found, _: loaded.embed(found, pooling=pooling, normalise=normalise),
            lambda vectors: {"embeddings": np.stack(vectors), "warnings": images.notes},
            how=("embed", pooling, normalise),
        )

    return Verb(
        about="One vector per picture.",
        request=Record(
            images=_images(limits),
            pooling=Field(Text(known=("mean", "first", "max")), "Of the states.", "mean"),
            normalise=Field(Flag(), "To length 1.", False),
        ),
        answer=Record(
            embeddings=Field(ListOf(ListOf(Number())), "One list of numbers per picture."), warnings=WARNINGS
        ),
        prepare=prepare,
    )


def _classify(loaded: Classifier, model: ImageModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        images = _uploaded(model, body, limits)

        def run(found: ImageSet, _: np.ndarray) -> list[dict[str, Any]]:
            chances = loaded.answers(found)
            chances = chances if found.tiles is None else pooled(chances, found)
            rows = loaded.objective.rows([""] * len(chances), chances)
            for row, chance in zip(rows, chances, strict=True):
                del row["name"]
                if loaded.problem == "single":
                    row["probabilities"] = dict(zip(loaded.classes, chance.tolist(), strict=True))
            return rows

        return _together(
            images, model, run, lambda rows: {"results": rows, "warnings": images.notes}, how=("classify",)
        )

    return Verb(
        about="The class, labels or number of each picture.",
        request=Record(images=_images(limits)),
        prepare=prepare,
    )


def _image_classification(verb: Verb) -> Verb:
    def answer(found: Any, body: Any) -> Any:
        row = found["results"][0]
        if "probabilities" not in row:
            raise UserError("the model predicts a number, not classes", hint="Ask its verb classify.")
        pairs = sorted(row["probabilities"].items(), key=lambda pair: -pair[1])
        top = body["parameters"]["top_k"] or 5
        return [{"label": label, "score": score} for label, score in pairs[:top]]

    return adapted(
        verb,
        about="The classes of a picture, the likeliest first; the body is the picture, or JSON with it in base64.",
        request=Record(
            inputs=Field(Text(), "The picture in base64."),
            parameters=Field(
                Record(top_k=Field(Number(1, whole=True), "Classes to give; default 5.", None)),
                "",
                {"top_k": None},
            ),
        ),
        ask=lambda body: {"images": [body["inputs"]]},
        answer=answer,
        raw=lambda content: {"inputs": base64.b64encode(content).decode()},
    )


def _segment(loaded: Segmenter, limits: Limits) -> Verb:
    legend, model = loaded.legend, loaded.model
    classes: list[dict[str, str]] = []
    if isinstance(legend, Legend):
        colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in class_colours(len(legend.names)).tolist()]
        classes = [
            {"name": name, "value": legend.shown(value), "colour": colour}
            for name, value, colour in zip(legend.names, legend.values, colours, strict=True)
        ]

    def answered(whole: WholePicture, drawn: bool) -> dict[str, Any]:
        found = legend.answer(loaded.answers(loaded.seen(whole)))
        row = {"mask": encoded(legend.written(found)), **legend.summary(found)}
        row |= {"height": found.shape[0], "width": found.shape[1]}
        if not drawn:
            return row
        seen = to_rgb(whole.pixels, shown_range(whole.pixels, whole.missing), whole.missing)
        if isinstance(legend, Legend):
            return row | {"picture": encoded(seen), "drawn": encoded(drawn_mask(found))}
        low, high = quantity_ends([found])
        row |= {"picture": encoded(seen), "drawn": encoded(drawn_quantity(found, low, high))}
        return row | {"drawn_range": [low, high]}

    def prepare(body: Any) -> Work:
        files = [decoded(text, f"images[{n}]") for n, text in enumerate(body["images"])]
        images = read(model, files, limits, view="tile", overlap=0)

        def run() -> dict[str, Any]:
            rows = [answered(whole, body["draw"]) for whole in whole_pictures(images)]
            return {"results": rows, "classes": classes, "warnings": images.notes}

        return alone(run, len(images) * model.config.slots)

    return Verb(
        about="A class, or a quantity, for every pixel: a mask of each picture, of its own size.",
        request=Record(
            images=_images(limits),
            draw=Field(Flag(), "Give the picture and the mask in colours too, to look at.", False),
        ),
        answer=Open(
            results=records(
                mask=Field(
                    Text(),
                    "PNG in base64, of values as the training masks had them; of a quantity TIFF of 32-bit floats.",
                ),
                shares=Field(Open(), "Of the pixels, by class.", None),
                mean=Field(Number(), "Of a quantity, over the picture.", None),
                sum=Field(Number(), "Of a quantity, over the picture.", None),
                height=Field(Number(1, whole=True), "In pixels."),
                width=Field(Number(1, whole=True), "In pixels."),
                picture=Field(Text(), "With `draw`: PNG of 8 bits, its brightness stretched.", None),
                drawn=Field(
                    Text(), "With `draw`: the mask in the colours of `classes`; a quantity from dark to bright.", None
                ),
                drawn_range=Field(ListOf(Number()), "What is drawn darkest and brightest of a quantity.", None),
            ),
            classes=records(
                name=Field(Text(), "Of the class."),
                value=Field(Text(), "In masks."),
                colour=Field(Text(), "In `drawn`."),
            ),
            warnings=WARNINGS,
        ),
        prepare=prepare,
    )


def _reconstruct(model: ImageModel, limits: Limits) -> Verb:
    config = model.config
    height, width = config.image

    def prepare(body: Any) -> Work:
        images = _uploaded(model, body, limits)
        mask = _mask(body["mask"]) if body["mask"] is not None else None
        box = tuple(body["box"]) if body["box"] is not None else None
        seed, steps, temperature = body["seed"], body["steps"], body["temperature"]
        ratio = model.hidden_ratio if body["ratio"] is None and mask is None and box is None else body["ratio"]
        if 1 < len(body["images"]) < len(images):
            raise UserError(
                f"{len(images)} tiles of {len(body['images'])} pictures",
                hint=f"Send them one by one, or of {width} x {height} pixels.",
            )
        hidden = chosen_pixels(config, images, ratio=ratio, box=box, mask=mask, gaps=False, seed=seed)

        def run(found: ImageSet, hidden: np.ndarray) -> list[dict[str, Any]]:
            made = model.reconstruct(found, mask=hidden, steps=steps, temperature=temperature, seed=seed)
            parts = zip(made.original, made.hidden, made.filled, strict=True)
            return [_shown(*one, pixels=body["pixels"]) for one in parts]

        def finish(rows: list[Any]) -> dict[str, Any]:
            return {"results": rows, "height": height, "width": width, "warnings": images.notes}

        if steps > 1 or temperature > 0:
            return alone(lambda: finish(run(images, hidden)), len(images) * config.slots)
        return _together(images, model, run, finish, how=("reconstruct", body["pixels"]), extras=hidden)

    return Verb(
        about="Hide a part of pictures and predict it back: original, hidden and filled, as PNG in base64.",
        request=Record(
            images=_images(limits),
            mask=Field(
                ListOf(ListOf(Number(0, 1))),
                f"Rows of 0 and 1 over the patches ({config.grid[0]} x {config.grid[1]}) or pixels "
                f"({height} x {width}) of the model's size: 1 is hidden.",
                None,
            ),
            box=Field(ListOf(Number(0, whole=True), most=4, least=4), "Left, top, width, height to hide.", None),
            ratio=Field(
                Number(0.01, 0.99),
                f"Share of the patches to hide at random; default {model.hidden_ratio:g} without a mask.",
                None,
            ),
            steps=Field(Number(1, 64, whole=True), "Above 1, patches see each other's answers.", 1),
            temperature=Field(Number(0, 10), "Above 0, patches are drawn.", 0.0),
            seed=Field(Number(0, 2**31, whole=True), "Of what is hidden and drawn.", 0),
            pixels=Field(Flag(), "Give the filled pictures as numbers too, in their own unit.", False),
        ),
        answer=Open(
            results=records(
                original=Field(Text(), "PNG in base64."),
                hidden=Field(Text(), "With what is hidden in grey."),
                filled=Field(Text(), "With what is hidden predicted."),
                share_hidden=Field(Number(0, 1), "Of the pixels."),
                pixels=Field(Anything(), "shape, dtype, and data: little-endian numbers.", None),
            ),
            warnings=WARNINGS,
        ),
        prepare=prepare,
    )


def _shown(original: np.ndarray, hidden: np.ndarray, filled: np.ndarray, *, pixels: bool) -> dict[str, Any]:
    """A picture as it was, with what is hidden in grey, and with that predicted."""
    known = original[np.isfinite(original)] if original.dtype.kind == "f" else original
    full = {"uint8": (0, 255), "uint16": (0, 65535)}.get(str(original.dtype))
    low, high = full or ((float(known.min()), float(known.max())) if known.size else (0.0, 1.0))
    seen = np.where(hidden[..., None], np.asarray(low + (high - low) / 2).astype(original.dtype), original)
    shown = {
        "original": png(original, low, high),
        "hidden": png(seen, low, high),
        "filled": png(filled, low, high),
        "share_hidden": float(hidden.mean()),
    }
    return {**shown, **({"pixels": numbers(filled)} if pixels else {})}


def _mask(rows: Sequence[Sequence[float]]) -> np.ndarray:
    if len({len(row) for row in rows}) != 1:
        raise UserError("mask: rows of several lengths, or none", hint="Give a grid of 0 and 1.")
    return np.asarray(rows, np.float32) > 0.5


STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"P5", b"P6", b"\x93NUMPY", b"\x00\x00\x00\x0cjP  ", *MAGIC)
"""How files begin that are opened: PNG, JPEG, GIF, BMP, PGM and PPM, .npy, JPEG 2000, TIFF; WebP and DICOM are known by
what stands further on."""


def decoded(text: str, at: str) -> bytes:
    """The bytes of a picture in base64, with or without 'data:image/png;base64,' in front."""
    try:
        plain = text.rpartition(",")[2] if text.startswith("data:") else text
        return base64.b64decode("".join(plain.split()), validate=True)  # MIME breaks lines
    except (binascii.Error, ValueError):
        raise UserError(f"{at}: not base64", hint="Send the bytes of the file in base64.") from None


def read(model: ImageModel, files: Sequence[bytes], limits: Limits, **changed: Any) -> ImageSet:
    """Pictures for a model, brought to its size and channels, read as those of its training but for what is
    `changed`."""
    reading = dict(model.folder.reading) | changed
    how = ReadOptions(size=model.config.image, channels=model.config.channels, strict=True, workers=1, **reading)
    pixels = 0
    for number, content in enumerate(files):
        claimed = _claimed(content)
        pixels += claimed if claimed > limits.pixels else _pixels(content, f"images[{number}]", how.choice)
        if pixels > limits.pixels:
            raise UserError(
                f"images[{number}]: {pixels:,} pixels so far, at most {limits.pixels:,} per request",
                hint="Shrink the pictures, or send them one by one.",
            )
    listed = [File(source=content, name=f"images[{n}]") for n, content in enumerate(files)]
    folder = model.folder
    try:
        found = decode_files(listed, how)
        notes = check_fit(found, folder.depth, folder.range, folder.typical)
        return replace(found, fits=True, notes=found.notes + notes)
    except UserError as error:  # its hint may name arguments, which a request does not have
        usual = f"channels={model.config.channels} of {model.folder.depth}"
        raise UserError(error.what, hint=f"Send pictures like those it was trained on: {usual}.") from None


def _claimed(content: bytes) -> int:
    """Pixels of a PNG by its head, else 0: its EXIF data may stand behind its pixels, which are decoded to see it."""
    png = content.startswith(STARTS[0])
    return int.from_bytes(content[16:20]) * int.from_bytes(content[20:24]) if png else 0


def _pixels(content: bytes, at: str, choice: Choice) -> int:
    """How many pixels a file says it has, of all its pictures and channels."""
    known = content.startswith(STARTS) or content[8:12] == b"WEBP" or content[128:132] == b"DICM"
    if not known and content.lstrip()[:1] in (b"-", b"{"):
        raise UserError(
            f"{at}: {'a form' if content.lstrip()[:1] == b'-' else 'JSON'}, not a picture",
            hint="Send the bytes of the file alone, or JSON with content-type: application/json.",
        )
    if not known:
        raise UserError(f"{at}: not a picture in a known format", hint="Send PNG, JPEG, TIFF, WebP, DICOM or .npy.")
    found = survey(content, choice)
    if isinstance(found, Broken):
        raise UserError(f"{at}: {found.reason}", hint="Send the file again.")
    if isinstance(found, Ambiguous):
        raise UserError(f"{at}: {found.what}", hint="The model was trained on pictures that leave nothing open.")
    # Three planes of an array would be taken as colours, and weighed to grey.
    stack = choice.channels == 1 and found[0].axes == "first axis 3 channels"
    if (planes := 3 if stack else len(found)) > 1:
        raise UserError(f"{at}: {planes} planes, and an answer is of one picture", hint="Send them one by one.")
    return sum(header.height * header.width * header.channels for header in found)


def png(pixels: np.ndarray, low: float, high: float) -> str:
    """Pixels (height, width, channels) as a PNG of 8 bits in base64, for people.

    Args:
        low, high: what is shown black and white.
    """
    shown = pixels.astype(np.float32)
    if pixels.dtype != np.uint8:
        shown = (np.nan_to_num(shown, nan=low) - low) / max(high - low, 1e-12) * 255
    shown = np.clip(np.round(shown), 0, 255).astype(np.uint8)
    if shown.shape[-1] not in (1, 3):
        shown = shown[..., :1]
    return encoded(shown[..., 0] if shown.shape[-1] == 1 else shown)


def encoded(pixels: np.ndarray) -> str:
    """(height, width) of 8 or 16 bits or (height, width, 3) of 8 as a PNG in base64, floats as a TIFF."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "TIFF" if pixels.dtype.kind == "f" else "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def numbers(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON: its shape, type, and little-endian bytes in base64."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"shape": list(array.shape), "dtype": str(array.dtype), "data": base64.b64encode(plain.tobytes()).decode()}
