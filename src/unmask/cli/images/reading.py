"""How pictures are read, as a person says it with --set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from unmask.cli.common import Result
from unmask.errors import UserError, suggest

READING = ("planes", "alpha", "nodata", "slice", "view", "overlap", "rescale")
TABLE = ("pictures", "column", "label_column")
"""Of a table of files and labels: the folder its paths are relative to, its columns."""


def reading(pairs: Sequence[str], *, table: bool = False, labelled: bool = False, size: bool = False) -> dict[str, Any]:
    """How files are read, from --set: the keys of `READING`; of tables of files also those of `TABLE` (the labels where
    they are read); `group` where pictures are split or counted; `image_size` where there is no model that says it.
    """
    from unmask.modalities.images.recipes import ImageSettings
    from unmask.training.settings import apply_overrides, parse_set

    given = dict(parse_set(pairs))
    known = (*READING[:-1], "group", "image_size") if size else READING + (TABLE[:2] if table else ())
    known += ("label_column", "group") if labelled else ()
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
    from unmask.modalities.images.reading.account import describe, told

    found = describe(images)
    names = [name for name, _ in images.skipped]
    return {"data": found, "skipped": len(names), "skipped_names": names}, told(found)


def describe(
    data: list[str] = typer.Argument(..., help="A folder of pictures, files, .npy, .npz or .idx.gz."),
    set_: list[str] = typer.Option(
        [], "--set", help="How files are read: image_size, planes, alpha, nodata, slice, view, overlap, group."
    ),
) -> Result:
    """Look at pictures before a run: classes, parts, sizes and what is cut of them, groups, copies, values."""
    from unmask.modalities.images.network.features import PASSING
    from unmask.modalities.images.reading.account import contents, told
    from unmask.modalities.images.reading.account import describe as look
    from unmask.modalities.images.reading.arrays import MixedSizes
    from unmask.modalities.images.reading.sources import read_images

    how = {"store": PASSING, **reading(set_, size=True)}
    source = data[0] if len(data) == 1 else data
    first = []
    try:
        images = read_images(source, **how)
    except MixedSizes as mixed:
        first = [f"{mixed.what}; what follows is of image_size={mixed.side}"]
        images = read_images(source, **how, size=mixed.side)
    found = look(images)
    found["notes"] += contents(images)
    found["classes"], found["sizes"] = images.classes, first
    return Result(found, [*first, *told(found)])
