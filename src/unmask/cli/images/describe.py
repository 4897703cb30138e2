"""unmask describe PICTURES"""

from __future__ import annotations

import typer

from unmask.cli import options


def describe(
    data: list[str] = typer.Argument(..., help="A folder of pictures, files, .npy, .npz or .idx.gz."),
    set_: list[str] = typer.Option(
        [], "--set", help="How files are read: image_size, planes, alpha, nodata, slice, view, overlap, group."
    ),
    json_: options.Json = False,
) -> None:
    """Look at pictures before a run: classes, parts, sizes and what is cut of them, groups, copies, values."""
    from unmask.cli.common import Output
    from unmask.cli.images.reading import reading
    from unmask.modalities.images.network.features import PASSING
    from unmask.modalities.images.reading.account import contents, told
    from unmask.modalities.images.reading.account import describe as look
    from unmask.modalities.images.reading.arrays import MixedSizes
    from unmask.modalities.images.reading.sources import read_images

    output = Output(json_)
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
    output.write(found, [*first, *told(found)])
