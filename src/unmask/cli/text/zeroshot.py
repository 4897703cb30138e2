"""unmask zeroshot MODEL FILE --label A --label B"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from unmask.cli import options
from unmask.errors import UserError, quoted


def zeroshot(
    model: options.Model,
    data: str = typer.Argument(..., help="A file with one text per line (tables: column text; -: stdin), or a text."),
    label: list[str] = typer.Option(..., help="A label; give two or more."),
    template: list[str] = typer.Option(
        [], help="Prompt with {text} and [MASK], or hypothesis with {label} for NLI models; several are averaged."
    ),
    words: list[str] = typer.Option([], help="LABEL=word,word: what stands for a label in the prompt."),
    calibrate: str = typer.Option(
        None,
        help="Divide by what the prompt says without a text (context), by the mean over the texts (batch), or none.",
    ),
    out: str = typer.Option(None, help="Where the predictions go, .jsonl."),
    seed: options.Seed = 0,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Classify texts without training: by an NLI head where the model has one, else by masked prompts."""
    from unmask.cli.common import Output, on_stderr
    from unmask.cli.text.lines import read_lines
    from unmask.files import check_results
    from unmask.modalities.text.tasks.zeroshot import zero_shot
    from unmask.writing import write_json_lines

    check_results([out], [data])
    output = Output(json_, seed)
    verbalisers: dict[str, list[str]] = {}
    for pair in words:
        name, equals, listed = pair.partition("=")
        if not equals or name not in label:
            raise UserError(
                f"--words {pair!r}", hint=f"Expected LABEL=word,word with one of {', '.join(map(quoted, label))}."
            )
        verbalisers.setdefault(name, []).extend(w.strip() for w in listed.split(",") if w.strip())
    rows, about = zero_shot(
        model,
        read_lines(data),
        label,
        template=template,
        verbalisers=verbalisers or None,
        calibrate=calibrate,
        device=device,
        precision=precision,
        say=on_stderr,
    )
    if out is not None:
        write_json_lines(rows, out)
    lines = list(map(_line, rows)) if out is None else [out]
    output.write({"results": rows, **about}, lines, device=about["device"], precision=about["precision"])


def _line(row: Mapping[str, Any]) -> str:
    label, chance = ("-", "-") if row["label"] is None else (quoted(row["label"]), f"{row['probability']:.3f}")
    return f"{label}  {chance}  {row['text'][:90]}"
