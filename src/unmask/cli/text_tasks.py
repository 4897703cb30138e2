"""What finetune, predict, evaluate and zero-shot do for text models."""

from __future__ import annotations

import sys
from typing import Any


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def finetune(
    task: str, model: str, train: str, *, out: str, validation: str | None, text: str | None, text2: str | None,
    label: str | None, header: bool | None, metric: str | None, seeds: int, adapt: list[str], resume: bool, lenient: bool, settings: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """unmask finetune classify|tag|answer|similarity M TRAIN --validation DEV --out M2"""
    from unmask.cli.common import Output
    from unmask.modalities.text.tasks import finetune as room
    from unmask.modalities.text.tasks.data import Columns

    output = Output(as_json, int(settings.get("seed") or 0))
    options = {
        "validation": validation, "columns": Columns(text=text, text2=text2, label=label, header=header),
        "metric": metric, "lenient": lenient, "console": not as_json, "say": _say, **settings,
    }  # fmt: skip
    if adapt:
        from unmask.modalities.text.tasks.recipe import adapt_then_finetune

        found = adapt_then_finetune(task, model, train, adapt, count=seeds, out=out, **options)
    elif seeds > 1:
        found = room.seeds(task, model, train, count=seeds, out=out, **options)
    else:
        found = room.finetune(task, model, train, out=out, checkpoints=True, resume=resume, **options)
    if found["stopped"] == "signal":
        lines = [f"stopped by a signal after step {found['steps']}; --resume continues"]
        output.write(found, lines, device=found["device"], precision=found["precision"])
        return
    lines = [f"{name:20}{value:.4f}" for name, value in found["metrics"].items() if isinstance(value, float)]
    if "over_seeds" in found:
        o = found["over_seeds"]
        lines.append(f"{found['metric']} over {o['seeds']} seeds: {o['mean']:.4f} [{o['low']:.4f}, {o['high']:.4f}]")
    lines += found.pop("lines", [])
    lines.append(
        f"{out}: {found['steps']} steps in {found['train_seconds']:.1f} s, {found['precision']}, report.html inside"
    )
    found["report"] = f"{out}/report.html"
    output.write(found, lines, device=found["device"], precision=found["precision"])


def _read_by(folder: Any) -> str:
    """What the encoder of a task reads one by one."""
    return "windows" if folder.about["name"] in ("tag", "answer") else "texts"


def predict(
    model: str, data: str, *, out: str, text: str | None, text2: str | None, header: bool | None, seed: int, precision: str,
    device: str, as_json: bool,
) -> None:  # fmt: skip
    """unmask predict M2 FILE --out F.jsonl"""
    from unmask.cli.common import Output, watcher
    from unmask.files import check_place, write_json_lines
    from unmask.modalities.text.tasks import finetune as room
    from unmask.modalities.text.tasks import model as models
    from unmask.modalities.text.tasks.data import Columns

    check_place(out)
    output = Output(as_json, seed)
    folder = models.load(model, device=device, precision=precision)
    columns = Columns(text=text, text2=text2, header=header)
    rows = room.predict(folder, data, columns=columns, watch=watcher("predicted", _read_by(folder)))
    write_json_lines(rows, out)
    found = {"out": out, "rows": len(rows), "task": folder.about["name"]}
    output.write(found, [f"{out}: {len(rows)} predictions"], device=str(folder.device), precision=folder.precision)


def evaluate(
    model: str, data: list[str], *, text: str | None, text2: str | None, label: str | None, header: bool | None, seed: int,
    precision: str, device: str, as_json: bool, lenient: bool = False,
) -> None:  # fmt: skip
    """unmask evaluate M2 FILE for a fine-tuned model, or a folder of queries and documents."""
    from unmask.cli.common import Output, watcher
    from unmask.errors import UserError
    from unmask.modalities.text.tasks import figures
    from unmask.modalities.text.tasks import finetune as room
    from unmask.modalities.text.tasks.data import Columns

    if len(data) != 1:
        raise UserError(f"{len(data)} files", hint="Give one labelled file.")
    output = Output(as_json, seed)
    columns = Columns(text=text, text2=text2, label=label, header=header)
    found = room.evaluate(
        model,
        data[0],
        columns=columns,
        seed=seed,
        device=device,
        precision=precision,
        lenient=lenient,
        say=_say,
        watch=watcher("evaluated", "texts (or windows of them)"),
    )
    lines = [f"{name:20}{value:.4f}" for name, value in found.items() if isinstance(value, float)]
    lines += figures.lines(found)
    output.write(found, lines, device=found["device"], precision=found["precision"])


def glue(
    data: list[str], *, model: str | None, out: str | None, settings: list[str], seed: int, precision: str, device: str,
    as_json: bool,
) -> None:  # fmt: skip
    """unmask evaluate glue DIR --model M"""
    from unmask.cli.common import Output, overrides
    from unmask.errors import UserError
    from unmask.modalities.text.tasks.glue import evaluate_glue

    if model is None:
        raise UserError("evaluate glue needs a model", hint="unmask evaluate glue DIR --model M [--out PREDICTIONS]")
    if len(data) != 1:
        raise UserError(f"{len(data)} folders", hint="Give the one folder that holds the tasks' folders.")
    output = Output(as_json, seed)
    chosen = overrides(None, settings, seed=seed, precision=precision, device=device)
    found = evaluate_glue(model, data[0], out=out, say=_say, **chosen)
    lines = [f"{name:8}{row['metric']:12}{row['value']:.4f}" for name, row in found["tasks"].items()]
    output.write(found, [*lines, f"mean {found['mean']:.4f}"], device=found["device"], precision=found["precision"])


def zeroshot(
    model: str, data: str, labels: list[str], *, template: list[str], words: list[str], calibrate: str | None,
    out: str | None, seed: int, precision: str, device: str, as_json: bool,
) -> None:  # fmt: skip
    """unmask zeroshot M FILE --label A --label B"""
    from unmask.cli.common import Output, read_lines
    from unmask.errors import UserError
    from unmask.files import check_place, write_json_lines
    from unmask.modalities.text.tasks.zeroshot import zero_shot

    if out is not None:
        check_place(out)
    output = Output(as_json, seed)
    verbalisers: dict[str, list[str]] = {}
    for pair in words:
        name, equals, listed = pair.partition("=")
        if not equals or name not in labels:
            raise UserError(f"--words {pair!r}", hint=f"Expected LABEL=word,word with one of {', '.join(labels)}.")
        verbalisers[name] = [w.strip() for w in listed.split(",") if w.strip()]
    rows, about = zero_shot(
        model, read_lines(data), labels, template=template, verbalisers=verbalisers or None,
        calibrate=calibrate, device=device, precision=precision,
    )  # fmt: skip
    if out is not None:
        write_json_lines(rows, out)
    lines = [f"{row['label']}  {row['probability']:.3f}  {row['text'][:90]}" for row in rows] if out is None else [out]
    output.write({"results": rows, **about}, lines, device=about["device"], precision=about["precision"])
