"""unmask fill MODEL "text with [MASK]" """

from __future__ import annotations

from typing import Any, cast

import typer

from unmask.cli import options
from unmask.cli.common import by_kind

READS = {
    "text": "top steps order temperature candidate longest precision device",
    "images": "steps order temperature box ratio mask gaps set_ precision device", "events": "top level most_unknown precision device",
    "table": "draws",
}  # fmt: skip


def register(app: Any) -> None:
    @app.command("fill", cls=by_kind(READS))
    def fill(
        context: typer.Context,
        model: options.Model,
        text: str = typer.Argument(
            ..., help="Text with [MASK], or a file with one text a line; pictures for an image model."
        ),
        top: int = typer.Option(5, help="Candidates per blank."),
        steps: int = typer.Option(1, help="Fill in this many steps, most confident blanks first."),
        order: str = typer.Option("confidence", help="confidence, random or left_to_right."),
        temperature: float = typer.Option(0.0, help="0 takes the likeliest, above 0 samples."),
        candidate: list[str] = typer.Option([], help="Score these answers (one blank, any number of tokens)."),
        longest: int = typer.Option(1, min=1, help="Answers of up to this many tokens for the one blank of a text."),
        out: str = typer.Option(
            None,
            help="Texts: JSON lines to write. Pictures: a .png (original | masked | filled) or .npy. Tables: the filled "
            "table.",
        ),
        box: str = typer.Option(None, help="Pictures: hide left,top,width,height in pixels."),
        ratio: float = typer.Option(None, help="Pictures: hide this share of the patches at random."),
        mask: str = typer.Option(
            None,
            help="Pictures: hide where this picture is at least half as bright as its brightest spot (transparent is white).",
        ),
        gaps: bool = typer.Option(
            False, "--gaps", help="Pictures: predict the patches with pixels that were not measured."
        ),
        set_: list[str] = typer.Option(
            [], "--set", help="Pictures: how files are read: planes, alpha, nodata, slice, view, overlap, rescale."
        ),
        draws: int = typer.Option(0, help="Tables: completed tables to draw."),
        level: float = typer.Option(0.9, help="Events: share of the interval around a filled value."),
        most_unknown: options.MostUnknown = 0.5,
        seed: options.Seed = 0,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Fill the blanks of a text, or a hidden part of pictures."""
        from unmask.cli.common import Output, read_lines, refuse_unread
        from unmask.errors import UserError
        from unmask.files import check_place, write_json_lines
        from unmask.kinds import kind_of, load

        refuse_unread(context, READS, kind_of(model))
        if kind_of(model) == "images":
            from unmask.cli import images

            images.fill(
                model, text, out=out, box=box, ratio=ratio, mask=mask, gaps=gaps, settings=set_, steps=steps, order=order, temperature=temperature,
                seed=seed, precision=precision, device=device, as_json=json_,
            )  # fmt: skip
            return
        if kind_of(model) == "events":
            from unmask.cli import events

            events.fill(
                model,
                text,
                out=out,
                top=top,
                level=level,
                most_unknown=most_unknown,
                seed=seed,
                precision=precision,
                device=device,
                as_json=json_,
            )
            return
        output = Output(json_, seed)
        if kind_of(model) == "table":
            from unmask.cli.table import impute_table

            if out is None:
                raise UserError("fill of a table without --out", hint="Say where to write it.")
            output.write(*impute_table(model, text, out, draws, None, 0.9, [], "error", seed))
            return
        if out is not None:
            check_place(out)
        loaded = load(model, device=device, precision=precision)
        results = loaded.fill(
            read_lines(text), top=top, steps=steps, order=cast(Any, order), temperature=temperature, seed=seed,
            candidates=candidate or None, longest=longest,
        )  # fmt: skip
        if out is not None:
            write_json_lines(results, out)
        lines = []
        for result in results:
            lines.append(result["filled"])
            for number, slot in enumerate(result["slots"], start=1):
                shown = "   ".join(f"{c['value']} {c['probability']:.1%}" for c in slot["candidates"])
                lines.append(f"  blank {number}: {shown}")
        output.write({"results": results}, lines, device=str(loaded.device), precision=loaded.precision)
