"""The verbs of `unmask.events` that a model of patients' events is given to, loaded or to be loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from unmask.elsewhere import ARGUMENTS
from unmask.errors import UserError, option
from unmask.evaluation.results import JudgedFigures
from unmask.guessed import also_called
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.uses.finetune import OutcomeRun, finetune_outcome
from unmask.modalities.events.uses.model import EventModel, load
from unmask.modalities.events.uses.next_visit import finetune_next_visit
from unmask.training.settings import settings_from
from unmask.writing import makes_folder


@also_called({}, task_df="labels", task_labels="labels", **ARGUMENTS)
@makes_folder
def finetune(
    model: str | Path | EventModel,
    data: Any,
    out: str | Path | None = None,
    *,
    task: str | None = None,
    labels: Any = None,
    settings: OutcomeSettings | Mapping[str, Any] | None = None,
    checkpoints: bool = False,
    resume: bool = False,
    **overrides: Any,
) -> OutcomeRun:
    """Fine-tune a model of patients' events.

    Args:
        model: a folder, or a loaded model, which is copied.
        data: a MEDS folder, a table with the columns of one, or events read before; `finetune(model, data, labels)` and
            a pair (data, labels) are taken too.
        out: where the fine-tuned folder goes; left out, a temporary one, which lives as long as the result.
        task: 'outcome' (a yes or no, classes, a number, the time to an event: what the labels are) or 'next-visit' (the
            codes of the next visit); left out, an outcome where there are labels.
        labels: of an outcome, a MEDS task folder or a table with its columns.
        settings, overrides: fields of `OutcomeSettings`, as keywords (`epochs=10`), a dict or an object.
        checkpoints, resume: as `finetune_outcome` has them.

    Raises:
        UserError: for anything wrong with model, data, labels or settings; which task is not known.
    """
    assert out is not None  # of `makes_folder`
    if isinstance(data, tuple) and len(data) == 2 and labels is None:
        data, labels = data
    if task is None and labels is None:
        raise UserError(
            f"finetune without {option('labels')}: for what?",
            hint=f"Give {option('labels', 'task')} of an outcome, a MEDS task folder or a table with its columns, or "
            "the task 'next-visit', which needs none.",
        )
    chosen = settings_from(OutcomeSettings(), settings, overrides)
    given: dict[str, Any] = {"settings": chosen, "checkpoints": checkpoints, "resume": resume}
    if task == "next-visit" and labels is None:
        return finetune_next_visit(model, data, out, **given)
    if task in (None, "outcome") and labels is not None:
        return finetune_outcome(model, data, labels, out, **given)
    raise UserError(
        f"task={task!r} {'with' if labels is not None else 'without'} labels",
        hint="Tasks of patient events are 'outcome', which reads labels (a yes or no, classes, a number, times to an "
        "event), and 'next-visit', which reads none.",
    )


def predict(
    model: str | Path | EventModel, data: Any, out: Any = None, *, labels: Any = None, **loading: Any
) -> pl.DataFrame:
    """Probability (or number, with its interval) at each prediction point: see `EventModel.predict`. `loading`: device
    and precision of a folder."""
    return _loaded(model, loading).predict(data, out, labels=labels)


def evaluate(
    model: str | Path | EventModel,
    data: Any,
    labels: Any = None,
    *,
    recalibrate: str | Path | None = None,
    seed: int = 0,
    **loading: Any,
) -> JudgedFigures:
    """Figures of a fine-tuned model at labelled points, beside those of rules: see `EventModel.evaluate`."""
    return _loaded(model, loading).evaluate(data, labels, recalibrate=recalibrate, seed=seed)


def ask(
    model: str | Path | EventModel,
    data: Any,
    questions: str | Path | Iterable[str],
    at: Any = None,
    *,
    until: str | None = None,
    **loading: Any,
) -> pl.DataFrame:
    """How probable is what is to come, such as "LAB//glucose > 10 within 30 days": see `EventModel.ask`."""
    return _loaded(model, loading).ask(data, questions, at, until=until)


def _loaded(model: str | Path | EventModel, options: dict[str, Any]) -> EventModel:
    return load(model, **options) if isinstance(model, str | Path) else model
