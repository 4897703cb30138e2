"""An image model as it is served: reconstruct what is hidden, embed, and predict with a fine-tuned head."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.images.classify.classifier import Classifier
from unmask.modalities.images.network.features import pooled
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.uses.model import ImageModel, load
from unmask.modalities.images.uses.reconstruct import chosen_pixels
from unmask.serving.images.uploads import decoded, numbers, png, read
from unmask.serving.limits import Limits
from unmask.serving.shapes import Anything, Field, Flag, ListOf, Number, Open, Record, Text
from unmask.serving.verbs import Served, Verb, Work, adapted


def serve(path: str | Path, *, limits: Limits, device: str = "auto", precision: str = "auto") -> Served:
    """An image model as it is served."""
    loaded: Any = load(path, device=device, precision=precision)
    tuned = isinstance(loaded, Classifier)
    model: ImageModel = loaded.model if tuned else loaded
    verbs = {"embed": _embed(loaded, model, limits)}
    dialects: dict[str, Verb] = {}
    if tuned:
        verbs["classify"] = _classify(loaded, model, limits)
        dialects["huggingface/image-classification"] = _image_classification(verbs["classify"])
        dialects["huggingface/"] = dialects["huggingface/image-classification"]
    else:
        verbs["reconstruct"] = _reconstruct(model, limits)
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
        "labels": list(loaded.classes) if tuned else [],
    }
    task = "image-classification" if tuned else None
    return Served(kind="images", about=about, verbs=verbs, dialects=dialects, task=task)


def _images(limits: Limits) -> Field:
    return Field(ListOf(Text(), most=limits.items, least=1), "Pictures: files in base64 (PNG, JPEG, TIFF, ...).")


def _alone(images: ImageSet, model: ImageModel, run: Callable[[ImageSet], Any]) -> Work:
    """Work of one piece: what is drawn of a picture depends on its place among all."""
    return Work(
        items=[images],
        slots=[len(images) * model.config.slots],
        run=lambda some: [run(one) for one in some],
        finish=lambda answers: answers[0],
    )


def _together(
    images: ImageSet,
    model: ImageModel,
    run: Callable[[ImageSet, np.ndarray], Sequence[Any]],
    finish: Callable[[list[Any]], Any],
    *,
    how: tuple[Hashable, ...],
    beside: np.ndarray | None = None,
) -> Work:
    """Work on pictures that may be done with those of others.

    Args:
        run: (pictures, what stands beside each) -> an answer to each.
        finish: the answers to a request's -> JSON.
        how: pictures with the same, of one depth and without missing pixels, are worked on together.
        beside: (pictures, ...) what else belongs to each.
    """
    beside = np.zeros(len(images)) if beside is None else beside
    if images.missing is not None or images.tiles is not None:
        return _alone(images, model, lambda found: finish(list(run(found, beside))))

    def each(some: Sequence[tuple[np.ndarray, np.ndarray]]) -> Sequence[Any]:
        pixels, own = (np.stack(parts) for parts in zip(*some, strict=True))
        return run(ImageSet(pixels=pixels, fits=True), own)

    return Work(
        items=list(zip(images.pixels[:], beside, strict=True)),
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
            lambda vectors: {"embeddings": np.stack(vectors)},
            how=("embed", pooling, normalise),
        )

    return Verb(
        about="One vector per picture.",
        request=Record(
            images=_images(limits),
            pooling=Field(Text(known=("mean", "first", "max")), "Of the states.", "mean"),
            normalise=Field(Flag(), "To length 1.", False),
        ),
        answer=Record(embeddings=Field(ListOf(ListOf(Number())), "One list of numbers per picture.")),
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

        return _together(images, model, run, lambda rows: {"results": rows}, how=("classify",))

    return Verb(
        about="The class, labels or number of each picture.",
        request=Record(images=_images(limits)),
        prepare=prepare,
    )


def _image_classification(verb: Verb) -> Verb:
    import base64

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
                Record(top_k=Field(Number(1, whole=True), "Classes to give; default 5.", None)), "", {"top_k": None}
            ),
        ),
        ask=lambda body: {"images": [body["inputs"]]},
        answer=answer,
        raw=lambda content: {"inputs": base64.b64encode(content).decode()},
    )


def _reconstruct(model: ImageModel, limits: Limits) -> Verb:
    height, width = model.config.image

    def prepare(body: Any) -> Work:
        images = _uploaded(model, body, limits)
        mask = _mask(body["mask"]) if body["mask"] is not None else None
        box = tuple(body["box"]) if body["box"] is not None else None
        seed, steps, temperature = body["seed"], body["steps"], body["temperature"]
        ratio = model.hidden_ratio if body["ratio"] is None and mask is None and box is None else body["ratio"]
        hidden = chosen_pixels(model.config, images, ratio=ratio, box=box, mask=mask, gaps=False, seed=seed)

        def run(found: ImageSet, hidden: np.ndarray) -> list[dict[str, Any]]:
            made = model.reconstruct(found, mask=hidden, steps=steps, temperature=temperature, seed=seed)
            return [
                _shown(*one, pixels=body["pixels"]) for one in zip(made.original, made.hidden, made.filled, strict=True)
            ]

        def finish(rows: list[Any]) -> dict[str, Any]:
            return {"results": rows, "height": height, "width": width}

        if steps > 1 or temperature > 0:
            return _alone(images, model, lambda found: finish(run(found, hidden)))
        return _together(images, model, run, finish, how=("reconstruct", body["pixels"]), beside=hidden)

    return Verb(
        about="Hide a part of pictures and predict it back: original, hidden and filled, as PNG in base64.",
        request=Record(
            images=_images(limits),
            mask=Field(
                ListOf(ListOf(Number(0, 1))),
                f"Rows of 0 and 1 over the patches ({model.config.grid[0]} x {model.config.grid[1]}) or pixels "
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
            Record(
                results=Field(
                    ListOf(
                        Open(
                            Record(
                                original=Field(Text(), "PNG in base64."),
                                hidden=Field(Text(), "With what is hidden in grey."),
                                filled=Field(Text(), "With what is hidden predicted."),
                                share_hidden=Field(Number(0, 1), "Of the pixels."),
                                pixels=Field(Anything(), "shape, dtype, and data: little-endian numbers.", None),
                            )
                        )
                    )
                )
            )
        ),
        prepare=prepare,
    )


def _shown(original: np.ndarray, hidden: np.ndarray, filled: np.ndarray, *, pixels: bool) -> dict[str, Any]:
    """A picture as it was, with what is hidden in grey, and with that predicted."""
    known = original[np.isfinite(original)] if original.dtype.kind == "f" else original
    full = {"uint8": (0, 255), "uint16": (0, 65535)}.get(str(original.dtype))
    low, high = full or ((float(known.min()), float(known.max())) if known.size else (0.0, 1.0))
    seen = np.where(hidden[..., None], np.asarray(low + (high - low) / 2).astype(original.dtype), original)
    told = {
        "original": png(original, low, high),
        "hidden": png(seen, low, high),
        "filled": png(filled, low, high),
        "share_hidden": float(hidden.mean()),
    }
    return {**told, **({"pixels": numbers(filled)} if pixels else {})}


def _mask(rows: Sequence[Sequence[float]]) -> np.ndarray:
    if len({len(row) for row in rows}) != 1:
        raise UserError("mask: rows of several lengths, or none", hint="Give a grid of 0 and 1.")
    return np.asarray(rows, np.float32) > 0.5
