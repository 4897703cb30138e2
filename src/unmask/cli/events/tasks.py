"""pretrain and prepare, finetune and predict for a model of patient events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, on_stderr, overrides, run_lines, with_recipe
from unmask.cli.events.uses import EventLoading, data_lines, odd_points, result_lines
from unmask.errors import UserError, suggest
from unmask.files import check_results


def pretrain(
    flags: options.RunOptions,
    data: str = options.source(
        "MEDS folder: data/*.parquet with subject_id, time, code, numeric_value; or what prepare made."
    ),
    out: str = typer.Option(..., help="Run folder."),
    recipe: str = typer.Option(
        None, help="ours (default), ask (answers questions), behrt, medbert, cehrbert or corebehrt."
    ),
    tracker: options.Trackers = [],
) -> Result:
    """Pretrain a masked model on patients' events."""
    from unmask.engines.folder import prepared_settings
    from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides

    known = with_overrides(EventSettings(), prepared_settings(data, "events"))
    settings = with_recipe(recipe, RECIPES, known, with_overrides, flags.overrides())
    from unmask.modalities.events.uses.pretrain import pretrain as run

    finished = run(data, out, settings=settings, resume=flags.resume, trackers=tracker)
    r = finished.result
    rules = "".join(f"; {name} {share:.1%}" for name, share in finished.data.get("rules", {}).items())
    lines = run_lines(
        r,
        out,
        rate=f"{r.slots_per_second:,.0f} events/s",
        held="held-out patients: loss {loss:.3f} nats a hidden event, code accuracy {accuracy:.1%}" + rules,
    )
    return Result(finished.to_dict(), lines)


def prepare(
    data: str = options.source("MEDS folder (data/*.parquet), or the URL of one (s3:// gs://)."),
    out: str = typer.Option(
        ..., help="Folder of the prepared events: what `unmask pretrain events` takes as its data."
    ),
    workers: options.Workers = None,
    engine: options.Engine = "local",
    config: options.Config = None,
    set_: options.Set = [],
    seed: options.RunSeed = None,
) -> Result:
    """Read patients' events of any number for pretraining, on all cores or on a Ray cluster. Run again, it goes on."""
    from unmask.modalities.events.network.prepare import prepare as run
    from unmask.modalities.events.recipes import EventSettings, with_overrides

    settings = with_overrides(EventSettings(), overrides(config, set_, seed=seed))
    made = run(data, out, settings=settings, workers=workers, engine=engine, say=on_stderr)
    c = made.counts
    lines = [
        f"{c['events']:,} events of {c['patients']:,} patients in {c['shards']:,} shards, {c['bytes'] / 1e6:,.1f} MB",
        f"{c['training']:,} training and {c['held_out']:,} held-out patients, "
        f"{c['vocabulary']:,} of {c['codes']:,} codes",
        f"prepared: {out} (unmask pretrain events {out} --out RUN)",
    ]
    return Result({"seed": settings.train.seed} | made.to_dict() | {"engine": engine}, lines)


def finetuned(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `finetune`: its task."""
    from unmask.modalities.events.registration import MODALITY

    known = MODALITY.cases("finetune")
    if words and words[0] not in known:
        raise UserError(f"finetune {words[0]}: not a task of patient events", hint=suggest(words[0], known))
    return words[0] if len(words) > 1 else None


def finetune(
    task: str = typer.Argument(..., help="outcome or next-visit."),
    model: str = options.model(),
    data: str = options.source("MEDS folder."),
    out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
    labels: str = options.source_option("MEDS task folder with the labels, or an ACES task file (.yaml)."),
    config: options.Config = None,
    set_: options.Set = [],
    epochs: int = typer.Option(None, help="Passes over the training points at most, of each network."),
    seed: options.RunSeed = None,
    resume: options.Resume = False,
    examples: options.Examples = False,
    precision: options.RunPrecision = None,
    device: options.RunDevice = None,
) -> Result:
    """`finetune outcome` on a MEDS task folder, `finetune next-visit` on the events alone."""
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.training.settings import apply_overrides

    given = overrides(
        config, set_, epochs=epochs, seed=seed, examples=examples or None, precision=precision, device=device
    )
    settings = apply_overrides(OutcomeSettings(), given)
    if task != "next-visit" and labels is None:
        raise UserError("finetune outcome without --labels", hint="Give the MEDS task folder with the labels.")
    from unmask.modalities.events.uses.verbs import finetune as run

    done = run(model, data, out, task=task, labels=labels, settings=settings, checkpoints=True, resume=resume)
    found = {"seed": settings.seed, "folder": out} | done.figures
    if found["stopped"] == "signal":
        return Result(found)
    lines = _visit_lines(found) if task == "next-visit" else _outcome_lines(found)
    lines += [f"model:  {out}", f"report: {out}/report.html"]
    return Result({"report": f"{out}/report.html"} | found, lines)


def _outcome_lines(found: dict[str, Any]) -> list[str]:
    from unmask.modalities.events.uses.outcome_report import worth_rows

    lines = [f"{found['training']} labels to train on, {found['held_out']} held out by {found['held_out_by']}"]
    lines += [*data_lines(found, found["outside"]), *odd_points(found)]
    lines += found["notes"]
    if "number" in found:
        lines.append(found["number"]["taken_as"])
    lines += result_lines(found["results"])
    if "worth" in found:
        headers, rows = worth_rows(found["worth"])
        lines += [f"worth ({', '.join(headers[1:-1])}):", *("  " + "  ".join(map(str, row)) for row in rows)]
    return lines


def _visit_lines(found: dict[str, Any]) -> list[str]:
    from unmask.modalities.events.uses.next_visit import PARTS
    from unmask.modalities.events.uses.outcome_report import figure_cell

    lines = [f"{found['training']} patients to train on, {found['held_out']} held out, {found['codes']} codes"]
    lines.append(f"a visit is {found['visit']}; asked about a moment before it begins")
    for name, result in found["results"].items():
        shown = [f"{part} {figure_cell('auroc', result[part])}" for part in PARTS if "auroc" in result[part]]
        lines.append(f"{name:16} AUROC: {'  '.join(shown)}" if shown else _unjudged(name, result["all"]))
    return [*lines, "higher is better: AUROC; 0.5 is chance"]


def _unjudged(name: str, result: dict[str, Any]) -> str:
    """Why there is no AUROC: of one code alone every visit that is asked about has it."""
    came, pairs = result["positives"], result["pairs"]
    why = ", for visits that have one of the codes are asked about: give more codes" if came == pairs else ""
    return f"{name:16} no AUROC: {came:,} of {pairs:,} pairs of a held-out patient and a code came true{why}"


def predict(
    use: EventLoading,
    model: options.Tuned,
    data: str = options.source("MEDS folder."),
    out: str = typer.Option(..., help="Where the predictions go, .parquet."),
    labels: str = options.source_option("MEDS task folder of prediction times, or an ACES task file."),
    meds_evaluation: bool = typer.Option(
        False, "--meds-evaluation", help="Of a yes or no: the columns that the package meds-evaluation reads, alone."
    ),
    seed: options.Seed = 0,
) -> Result:
    """Probabilities at every prediction point, as MEDS-shaped parquet."""
    from collections import Counter

    from unmask.modalities.events.records.cuts import after_death, without_events
    from unmask.modalities.events.records.labels import as_predictions
    from unmask.modalities.events.records.meds import BY_SPLITS, read_meds
    from unmask.modalities.events.uses.model import write_predictions

    if labels is None:
        raise UserError("predict without --labels", hint="Give the MEDS task folder with the prediction times.")
    check_results([out], [data, labels])
    loaded = use.load(model)
    events = read_meds(data)
    frame, points = loaded.predicted(events, labels)
    write_predictions(as_predictions(frame) if meds_evaluation else frame, out)
    found: dict[str, Any] = {"out": out, "rows": len(points), "points": len(points), "outside": points.outside}
    found |= {**loaded.unknown, "without_events": int(without_events(events, points).sum())}
    found["after_death"] = int(after_death(events, points).sum())
    lines = [f"{out}: {len(points)} predictions", *data_lines(loaded.unknown, points.outside)]
    lines += odd_points(found)
    if events.splits is not None:
        found["splits"] = dict(Counter(str(s) or "none" for s in events.splits[points.subject]))
        lines.append(f"by {BY_SPLITS}: " + ", ".join(f"{count:,} {name}" for name, count in found["splits"].items()))
    counts = {str(name or "unknown"): n for name, n in frame["split"].value_counts(sort=True).iter_rows()}
    found["split"], warned = counts, list[str]()
    if counts.get("train"):
        warned.append(
            f"{counts['train']} of {len(points)} are of patients who trained the head (split: train): their "
            "probabilities are too good; judge the model on the others"
        )
    if loaded.met.warning() is not None:
        warned.append(f"split is empty: {loaded.met.warning()}")
    found["warnings"], lines = warned, [*lines, *(f"warning: {text}" for text in warned)]
    return Result(found, lines, loaded)
