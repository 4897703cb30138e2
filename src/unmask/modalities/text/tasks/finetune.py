"""Fine-tune (with several seeds, or adapted first), predict, evaluate: the same verbs for every text task."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unmask.elsewhere import ARGUMENTS, REFUSED
from unmask.errors import UserError, option
from unmask.evaluation.results import JudgedFigures, PredictedRows
from unmask.files import check_results
from unmask.given import no_value
from unmask.guessed import also_called
from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.network.folder import LoadedText
from unmask.modalities.text.reading.sources import texts_in
from unmask.modalities.text.tasks import loop
from unmask.modalities.text.tasks import model as models
from unmask.modalities.text.tasks.analysis import figures
from unmask.modalities.text.tasks.compare import metric_interval
from unmask.modalities.text.tasks.data import Problems, judged_part, warned
from unmask.modalities.text.tasks.guessed import task_for
from unmask.modalities.text.tasks.held_out import group_notes, several_labels
from unmask.modalities.text.tasks.missing import has_no_text, unread_notes
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.registry import TASKS
from unmask.modalities.text.tasks.results import TaskRun, judged_shown
from unmask.modalities.text.tasks.retrieval import evaluate_retrieval, is_collection
from unmask.modalities.text.tasks.row_files import PARTS, Columns
from unmask.modalities.text.tasks.scorers import merit
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import TextTask
from unmask.modalities.text.tasks.training import TaskTraining
from unmask.modalities.text.uses.model import load
from unmask.training.launcher import check_one_process
from unmask.training.processes import join_others
from unmask.training.settings import settings_from
from unmask.writing import (
    in_place_of,
    makes_folder,
    remove,
    temporary_folder,
    temporary_name,
    write_json_lines,
    writes_model,
    written_folder,
)

DRAWS = 200
"""Resamples of an interval."""


@also_called(REFUSED, **ARGUMENTS)
@makes_folder
@writes_model
def finetune(
    model: str | Path | LoadedText | TaskFolder,
    data: Any,
    out: str | Path | None = None,
    *,
    task: str | None = None,
    validation: Any = None,
    settings: TaskSettings | Mapping[str, Any] | None = None,
    columns: Columns | None = None,
    metric: str | None = None,
    checkpoints: bool = False,
    resume: bool = False,
    lenient: bool = False,
    console: bool = True,
    say: Callable[[str], None] = warned,
    **overrides: Any,
) -> TaskRun:
    """Fine-tune a text model for a task and write a folder.

    Args:
        model: folder or hub name of a text model, or one that is loaded, which stays as it is; a fine-tuned one is
            trained on.
        data: a file, or rows: pairs, (X, y), a frame, dicts (see `data.as_items`).
        out: where the folder goes; left out, a temporary folder, which lives as long as the result.
        task: classify, tag, answer or similarity, or one that an installed package adds (`registry`); left out, that
            which the columns are of (`registry.task_for`).
        validation: rows as in `data`; early stopping, the best state, temperature and thresholds go by them. Without
            them some are held out, or the last state is kept and nothing is calibrated.
        columns: which columns to read where names do not tell.
        metric: classify: what early stopping goes by.
        checkpoints: keep them beside `out` while training, one of them at SIGTERM or Ctrl-C, which then ends the run.
        resume: go on from the checkpoint of an interrupted run to `out`, on the same data with the same settings.
        lenient: rows that are wrong (a word that is white space, an answer that is not at its offset, an empty label)
            are counted, said and left out; else all of them are named and nothing is trained.
        say: called with remarks for people (which columns were read, what was guessed); default Python warnings of
            those that are warnings.
        settings, overrides: fields of `TaskSettings`, as keywords (`epochs=2`), a dict or an object.

    Returns:
        task, metric, value, metrics (on the validation data), steps, seconds, tokens_per_second, peak_memory_mb,
        stopped, seed, device, precision, and out, by these names; `.model` is the fine-tuned model. Where `stopped` is
        'signal' there is no folder yet, and no metrics.

    Raises:
        UserError: naming what is wrong in the model, the data or the settings.
    """
    assert out is not None  # of `makes_folder`
    if str(model) in TASKS.names() and not Path(str(model)).exists():
        hint = f"finetune(model, data, out, task={model!r})"
        raise UserError(f"{model!r} is a task: the model comes first", hint=hint)
    data = list(data) if isinstance(data, Iterator) else data  # which is looked at before it is read
    chosen = settings_from(TaskSettings(), settings, overrides)
    resume = join_others(out, chosen.device, resume=resume, minutes=chosen.minutes)
    training = TaskTraining(task or task_for(data), model, chosen, out=Path(out), metric=metric, say=say)
    rows = training.read(data, validation, columns, lenient=lenient)
    return TaskRun(training.train(rows, checkpoints=checkpoints, resume=resume, console=console), out=str(out))


def _read_for(
    task: TextTask,
    data: Any,
    columns: Columns | None,
    say: Callable[[str], None],
    *,
    labelled: bool,
    problems: Problems | None,
) -> list[Any]:
    """Data for a trained task, from the columns that it was trained on; which were read is said."""
    trained = dict(task.about.get("columns") or {})
    if group := (task.about.get("settings") or {}).get("group"):
        trained["group"] = group
    if not labelled:
        trained = {part: name for part, name in trained.items() if part not in ("label", "group")}
    wanted = dataclasses.replace((columns or Columns()).trained_on(trained), pairs=task.pairs)
    items, read_from = task.read(data, wanted, labelled=labelled, problems=problems)
    if read_from and read_from.requested:
        used = read_from if labelled else dataclasses.replace(read_from, label=None, negative=None, group=None)
        say(f"columns: {used.line()}")
        if warning := read_from.differing():
            say(warning)
    items = task.named(items) if labelled else items
    notes = [*task.remarks(task.encoder, items, labelled=labelled), *unread_notes(task.encoder.tokenizer, items)]
    if labelled:
        notes += [*several_labels(items), *group_notes(items)]
        notes += [line for line in task.label_remarks(items) if line.startswith("warning")]
    for line in notes:
        say(line)
    return items


def predict(
    model: str | Path | LoadedText | TaskFolder,
    data: Any,
    out: str | Path | None = None,
    *,
    columns: Columns | None = None,
    device: str = "auto",
    precision: str = "auto",
    say: Callable[[str], None] = warned,
    watch: Callable[[int, int], None] | None = None,
) -> PredictedRows:
    """One prediction per input, in order.

    Args:
        data: texts, rows, a frame or a file; (text, text2) rows of a model that is known to read pairs, else dicts.
        out: a .jsonl to write them to as well.
        columns: which columns to read; default those that the model was trained on, else guessed from their names.
        say: called with which columns were read.
        watch: called after every batch with how many examples (texts, windows of them) the encoder has read, of how
            many.

    Returns:
        classify: label, probability, probabilities (and labels, or value: the one output of a published folder goes
        through the sigmoid, unless config.json says regression or names the identity); tag: entities, each start, end,
        label, text, probability; answer: answer with text, start, end, probability, and nbest; similarity: score of a
        pair, or embedding of a text; all of these null where a row has no text. Of rows that have columns, all of them
        stand under `input`, and an id under `id`.
    """
    if out is not None:
        check_results([str(out)], [data] if isinstance(data, str | Path) else [])
    folder, items = to_predict(model, data, columns=columns, device=device, precision=precision, say=say)
    found = PredictedRows(
        predictions(folder, items, watch=watch), "{} predictions", hidden=("input", "probabilities", "nbest")
    )
    if out is not None:
        write_json_lines(found, out)
    return found


def to_predict(
    model: str | Path | LoadedText | TaskFolder,
    data: Any,
    *,
    columns: Columns | None = None,
    device: str = "auto",
    precision: str = "auto",
    say: Callable[[str], None] = warned,
) -> tuple[TaskFolder, list[Any]]:
    """The first half of `predict`: a task folder, and the items to predict, any part of which `predictions` takes."""
    folder = models.load(model, device=device, precision=precision)
    items = _read_for(folder.task, data, columns, say, labelled=False, problems=Problems(say=say, offered=False))
    if blank := sum(map(has_no_text, items)):
        say(f"{blank:,} of {len(items):,} rows have no text: their predictions are null")
    return folder, items


def predictions(
    folder: TaskFolder, items: Sequence[Any], watch: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """The second half of `predict`, of all items or some."""
    found = predict_items(folder, items, watch=watch)
    return [
        _carried(item) | (dict.fromkeys(row) if has_no_text(item) else row)
        for item, row in zip(items, found, strict=True)
    ]


def _carried(item: Any) -> dict[str, Any]:
    """What a row brought along."""
    row = getattr(item, "row", None)
    if row is None:
        return {}
    named = next((value for name, value in row.items() if str(name).strip().lower() == "id"), None)
    carried = ({} if named is None else {"id": named}) | {"input": dict(row)}
    return json.loads(
        json.dumps(carried, default=lambda v: None if no_value(v) else str(v)), parse_constant=lambda name: None
    )  # JSON has no NaN


def predict_items(
    folder: TaskFolder,
    items: Sequence[Any],
    *,
    labelled: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """What a folder says about items: by its encoder and head, or by the baseline that was saved."""
    task, found = folder.task, list[np.ndarray]()
    prepared = task.prepare(items, labelled=labelled)
    if folder.baseline is None or task.name == "similarity":
        found = loop.outputs(folder.model, task, prepared, watch=watch)
    if folder.baseline is not None:
        found = folder.baseline.outputs(task, folder.model, prepared, found)
    return task.decode(found, prepared)


def evaluate(
    model: str | Path | LoadedText | TaskFolder,
    data: Any,
    labels: Any = None,
    *,
    columns: Columns | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    draws: int = DRAWS,
    lenient: bool = False,
    say: Callable[[str], None] = warned,
    watch: Callable[[int, int], None] | None = None,
    **masked: Any,
) -> JudgedFigures:
    """The task's metrics on labelled data, with a 95 % interval of its main one over items; of a model without a task
    how well it predicts hidden tokens of texts (`TextModel.evaluate`, whose other arguments `masked` are). `labels`:
    those of texts that stand apart from them.

    The interval resamples items with replacement and scores again (percentile bootstrap); where `columns` name a group,
    or the model was trained with one and the data has its column, whole groups. A folder of documents,
    queries and judgements goes to `retrieval.evaluate_retrieval`. `metrics` holds all of them by name; they stand at
    the top too, but for the precision of entities, since `precision` there is the number format. `figures`
    holds what a rule without a model scores on these rows, and of classes and labels the scores of each with intervals
    (see `figures`).

    Raises:
        UserError: a label the model was not trained for, with its row; columns, `lenient` or `draws` of queries and
            documents.
    """
    data = data if labels is None else (data, labels)
    if is_collection(data) and isinstance(model, str | Path):
        wanted = columns or Columns()
        given = {part: getattr(wanted, part) for part in (*PARTS, "header")} | {"lenient": lenient or None}
        given |= {"draws": None if draws == DRAWS else draws}
        if unread := [option(name, value) for name, value in given.items() if value is not None]:
            raise UserError(f"{', '.join(unread)} of queries and documents: nothing reads this", hint="Leave it out.")
        found = evaluate_retrieval(model, data, seed=seed, device=device, precision=precision, say=say)
        return JudgedFigures(found, judged_shown)
    if not isinstance(model, TaskFolder) and models.task_named(model) is None:
        loaded: Any = model if isinstance(model, LoadedText) else load(model, device=device, precision=precision)
        of_tokens: JudgedFigures = loaded.evaluate(texts_in(data), seed=seed, say=say, **masked)
        return of_tokens
    if masked:
        raise UserError(
            f"{', '.join(map(option, masked))} of a fine-tuned model: nothing reads this", hint="Leave it out."
        )
    folder = models.load(model, device=device, precision=precision)
    task = folder.task
    problems = Problems(lenient=lenient, say=say)
    read = _read_for(task, data, columns, say, labelled=True, problems=problems)
    if len(items := judged_part(read, "test")) < len(read):
        say(
            f"a column says what the rows are for: the {len(items):,} {items[0].split} rows of {len(read):,} are judged"
        )
    items = problems.each(((getattr(item, "where", ""), item) for item in items), lambda _, item: task.known(item))
    problems.settle("rows")
    predictions = predict_items(folder, items, labelled=True, watch=watch)
    metrics = task.score(predictions, items)
    low, high = metric_interval(task, predictions, items, draws=draws, seed=seed)
    judged = {
        "task": task.name,
        "metric": task.metric,
        "value": metrics[task.metric],
        "low": low,
        "high": high,
        "rows": len(items),
        "metrics": metrics,
        **metrics,
        **figures(task, predictions, items, seed=seed),
        "device": str(folder.device),
        "precision": folder.precision,
    }
    return JudgedFigures(judged, judged_shown)


def seeds(model: str | Path, train: Any, *, task: str, count: int, out: str | Path, **options: Any) -> dict[str, Any]:
    """Fine-tune with seeds seed..seed+count-1; mean and 95 % t interval of the metric. `out` gets the best one."""
    runs, best = over_seeds(model, train, task=task, count=count, out=out, **options)
    values = [run["value"] for run in runs]
    mean, low, high = mean_interval(values)
    return runs[best] | {"over_seeds": {"mean": mean, "low": low, "high": high, "values": values, "seeds": count}}


@writes_model
def over_seeds(
    model: str | Path, train: Any, *, task: str, count: int, out: str | Path, seed: int = 0, **options: Any
) -> tuple[list[dict[str, Any]], int]:
    """Fine-tune with seeds seed..seed+count-1; (results, which is best). `out` gets the folder of the best one."""
    require_validation(options, "several seeds")
    check_one_process("fine-tuning with several seeds")
    runs: list[dict[str, Any]] = []
    best = 0
    with written_folder(out) as kept:
        for number in range(count):
            trial = temporary_name(kept)
            try:
                with in_place_of(trial, out):
                    runs.append(finetune(model, train, task=task, seed=seed + number, out=trial, **options))
                best = max(range(len(runs)), key=lambda i: merit(runs[i]["metric"], runs[i]["value"]))
                if best == number:
                    remove(kept)
                    os.rename(trial, kept)  # within what is not there yet
            finally:
                remove(trial)
    runs[best]["out"] = str(out)
    return runs, best


def mean_interval(values: ArrayLike) -> tuple[float, float | None, float | None]:
    """(mean, low, high): with the 95 % t interval of independent values, None of one."""
    from scipy.stats import t

    each = np.asarray(values, np.float64)
    mean, n = float(each.mean()), len(each)
    if n < 2:
        return mean, None, None
    half = float(t.ppf(0.975, n - 1) * each.std(ddof=1) / np.sqrt(n))
    return mean, mean - half, mean + half


def require_validation(options: Mapping[str, Any], what: str) -> None:
    """Refuse work whose results could not be compared."""
    if options.get("validation") is None:
        raise UserError(
            f"{what} without validation data", hint=f"Give {option('validation', 'DATA')}: they are compared on it."
        )


@writes_model
def compare_domain_adaptation(
    model: str | Path,
    train: Any,
    texts: str | list[str],
    *,
    task: str,
    out: str | Path,
    count: int = 1,
    adaptation: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune the model as it is, and adapted to `texts` first, with the same seeds; the better one goes to `out`.

    Args:
        count: seeds of either side.
        adaptation: settings of `adapt`.

    Returns:
        The result of the kept model, with `adaptation`: masked-token loss before and after on the domain, the
        task's values per seed for either side, the mean gain (more is better, of an error too) with
        a paired 95 % t interval, `pays`.
    """
    check_one_process("fine-tuning that adapts first")
    require_validation(options, "adapting")
    with temporary_folder() as scratch:
        settings = adapt_settings(adaptation or {}, model)
        adapted = adapt(
            model,
            texts,
            Path(scratch) / "adapted",
            settings=settings,
            console=bool(options.get("console", True)),
        )
        sides: dict[str, list[float]] = {}
        found: dict[str, dict[str, Any]] = {}
        for name, source in (("plain", model), ("adapted", Path(scratch) / "adapted")):
            place = Path(scratch) / f"best-{name}"
            with in_place_of(place, out):
                runs, best = over_seeds(source, train, task=task, count=count, out=place, **options)
            sides[name], found[name] = [run["value"] for run in runs], runs[best]
        metric = found["plain"]["metric"]
        merits = {name: [merit(metric, value) for value in values] for name, values in sides.items()}
        gain, low, high = mean_interval(np.subtract(merits["adapted"], merits["plain"]))
        better = "adapted" if gain > 0 else "plain"
        result = found[better]
        with written_folder(out) as place:
            shutil.copytree(Path(scratch) / f"best-{better}", place, dirs_exist_ok=True)
        result["out"] = str(out)
    table = {
        "before": adapted.before,
        "after": adapted.after,
        **sides,
        "gain": gain,
        "low": low,
        "high": high,
        "pays": low is not None and low > 0,
        "kept": better,
    }
    lines = [f"masked-token {name}: {before} -> {after}" for name, before, after in adapted.table()]
    lines.append(
        f"{result['metric']}: plain {np.mean(sides['plain']):.4f}, adapted {np.mean(sides['adapted']):.4f} "
        f"over {count} seeds; kept: {better}"
    )
    return result | {"adaptation": table, "lines": lines}
