"""unmask embed MODEL FILE.txt --out F.npy"""

from __future__ import annotations

from typing import Any, cast

import typer

from unmask.cli import options
from unmask.cli.common import by_kind

READS = {
    "text": "pooling precision device", "images": "pooling set_ precision device", "events": "labels most_unknown precision device", "table": "absent",
}  # fmt: skip


def register(app: Any) -> None:
    @app.command("embed", cls=by_kind(READS))
    def embed(
        context: typer.Context,
        model: options.Model,
        text: str = typer.Argument(..., help="A file with one text a line, or a text; pictures for an image model."),
        out: str = typer.Option(..., help="Where to write the (texts, width) array, .npy."),
        pooling: str | None = typer.Option(
            None, help="mean, first or max; default what a sentence-transformers folder says, else mean."
        ),
        labels: str = typer.Option(
            None, help="Events: MEDS task folder; one row per prediction time instead of per patient."
        ),
        most_unknown: options.MostUnknown = 0.5,
        absent: options.Absent = "",
        set_: list[str] = typer.Option(
            [], "--set", help="Pictures: how files are read: planes, alpha, nodata, slice, view, overlap, rescale."
        ),
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Embed texts, one row a line, order kept."""
        from unmask.cli.common import Output, in_parts, read_lines, refuse_unread, write_array
        from unmask.files import check_place
        from unmask.kinds import kind_of, load

        kind = kind_of(model)
        refuse_unread(context, READS, kind)
        if kind == "images":
            from unmask.cli import images

            images.embed(
                model,
                text,
                out=out,
                pooling=pooling or "mean",
                settings=set_,
                precision=precision,
                device=device,
                as_json=json_,
            )
            return
        if kind == "events":
            from unmask.cli import events

            events.embed(
                model, text, labels=labels, out=out, most_unknown=most_unknown, precision=precision, device=device,
                as_json=json_,
            )  # fmt: skip
            return
        output = Output(json_)
        if kind == "table":
            from unmask.cli.table import embed_table

            output.write(*embed_table(model, text, out, absent))
            return
        import numpy as np

        check_place(out)
        loaded = load(model, device=device, precision=precision)
        parts = in_parts(read_lines(text), lambda some: loaded.embed(some, pooling=cast(Any, pooling)), "embedded")
        array = np.concatenate(parts)
        write_array(array, out)
        output.write(
            {"out": out, "shape": list(array.shape)}, [f"{out}: {array.shape[0]} x {array.shape[1]}"],
            device=str(loaded.device), precision=loaded.precision,
        )  # fmt: skip
